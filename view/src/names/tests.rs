use serde_json::json;

use super::*;

fn key(namespace: &str, id: &str) -> ContainerKey {
    ContainerKey::new(namespace, id).unwrap()
}

fn plain(namespace: &str, id: &str) -> Named {
    (key(namespace, id), Names::default())
}

fn called(namespace: &str, id: &str, name: &str) -> Named {
    let names = serde_json::from_value(json!({"name": name})).unwrap();
    (key(namespace, id), names)
}

fn in_pod(id: &str, namespace: &str, pod: &str, container: &str) -> Named {
    let pod = json!({"namespace": namespace, "name": pod, "container": container});
    let names = serde_json::from_value(json!({"pod": pod})).unwrap();
    (key("k8s.io", id), names)
}

fn error(all: &[Named], name: &str) -> String {
    pick(all, name, "is here").unwrap_err().to_string()
}

fn digest(beginning: &str) -> String {
    format!("{beginning:0<64}")
}

#[test]
fn a_container_is_named_by_its_id_or_the_id_s_beginning() {
    let long = digest("e95e304dafa2aa");
    let all = [
        plain("default", "dup"),
        plain("moby", "dup"),
        plain("moby", &long),
        plain("moby", "e95f1"),
        plain("moby", "e95"),
    ];
    for (name, id) in [
        ("e95e304dafa2", long.as_str()),
        ("e95e", &long),
        ("moby/e95e", &long),
        (&long, &long),
        ("e95f", "e95f1"),
        // Whole names come first.
        ("e95", "e95"),
        ("moby/dup", "dup"),
    ] {
        assert_eq!(
            pick(&all, name, "is here").unwrap(),
            key("moby", id),
            "{name}"
        );
    }
    for (name, part) in [
        (
            "dup",
            "several containers; use the id of one of default/dup, moby/dup",
        ),
        ("e", "moby/e95e304dafa2, moby/e95f1, moby/e95"),
        ("e9", "moby/e95e304dafa2, moby/e95f1, moby/e95"),
        ("e5", "no container \"e5\""),
        (
            "web",
            "no container \"web\" is here; containers that do: default/dup",
        ),
        ("", "no container \"\""),
        ("mob", "no container"),
        ("moby/", "no container"),
        ("other/e95e", "no container"),
    ] {
        let error = error(&all, name);
        assert!(error.contains(part), "{name}: {error}");
    }
    let error = error(&[plain("moby", "e95f1")], "e95");
    assert!(
        error.contains("too short: give at least 4 characters") && error.contains("moby/e95f1"),
        "{error}"
    );
}

#[test]
fn a_container_is_named_as_people_call_it() {
    let long = digest("e95e304dafa2aa");
    let all = [
        called("moby", &long, "web"),
        plain("default", "webserver"),
        in_pod("c1", "team-a", "p1", "app"),
        in_pod("c2", "team-b", "p1", "app"),
        in_pod("c3", "team-b", "p2", "app"),
        called("podman", "aaaa", "db"),
        called("default", "bbbb", "db"),
    ];
    for (name, id) in [
        ("web", long.as_str()),
        ("webs", "webserver"),
        ("team-a/p1/app", "c1"),
        ("p2/app", "c3"),
        ("podman/aaaa", "aaaa"),
        ("podman/db", "aaaa"),
        ("default/db", "bbbb"),
        ("moby/web", &long),
    ] {
        assert_eq!(pick(&all, name, "is here").unwrap().id(), id, "{name}");
    }
    for (name, part) in [
        ("p1/app", "k8s.io/c1 (p1/app), k8s.io/c2 (p1/app)"),
        ("db", "podman/aaaa (db), default/bbbb (db)"),
        ("wbe", "containers that do: moby/e95e304dafa2 (web), "),
    ] {
        let error = error(&all, name);
        assert!(error.contains(part), "{name}: {error}");
    }
    // Those of one name, which may have come one after the other.
    assert_eq!(every(&all, "db", "is here").unwrap().len(), 2);
    every(&all, "x", "is here").unwrap_err();
}

#[test]
fn no_name_stands_for_another_container_s_digest() {
    let long = digest("e95e304dafa2aa");
    let hostile = digest("b");
    for name in [long.as_str(), "e95e304dafa2", "e95e304dafa2a"] {
        let all = [called("moby", &hostile, name), plain("moby", &long)];
        for name in [name, &format!("moby/{name}")] {
            match pick(&all, name, "is here") {
                Ok(found) => assert_eq!(found.id(), long),
                Err(error) => assert!(error.to_string().contains("moby/e95e304dafa2"), "{error}"),
            }
        }
    }
    // A name with a slash is none, so that none looks like a namespace and an id.
    assert!(called("moby", "x", "moby/e95e").1.is_empty());
}

#[test]
fn many_containers_are_not_all_listed() {
    let many: Vec<Named> = (0..12).map(|n| plain("moby", &format!("c{n}"))).collect();
    assert!(error(&many, "web").ends_with(" and 2 more"));
    let error = error(&many, "c-11");
    assert!(
        error.contains("containers that do: moby/c1, moby/c10, moby/c11, "),
        "{error}"
    );
}

#[test]
fn ids_that_begin_alike_are_shown_in_full() {
    let (one, other) = (digest("e95e304dafa2aa"), digest("e95e304dafa2bb"));
    assert_eq!(short_among(&one, [one.as_str()]), "e95e304dafa2");
    assert_eq!(short_among(&one, [one.as_str(), &other]), one);
    let named = "x".repeat(64);
    assert_eq!(short_id(&named), named);
}
