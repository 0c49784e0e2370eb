use std::fs;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const ID: &str = "e95e304dafa2";

fn key() -> ContainerKey {
    ContainerKey::new("moby", ID).unwrap()
}

fn text(names: &Names) -> Option<String> {
    names.text()
}

/// A spec with these mounts' sources.
fn spec(sources: &[&Path]) -> Value {
    let mounts: Vec<Value> = sources
        .iter()
        .map(|source| json!({"destination": "/etc/hostname", "source": source}))
        .collect();
    json!({"mounts": mounts})
}

#[test]
fn docker_s_name_is_beside_the_files_that_it_binds() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("containers").join(ID);
    fs::create_dir_all(&own).unwrap();
    let record = own.join("config.v2.json");
    let spec = spec(&[Path::new("/etc/resolv.conf"), &own.join("hostname")]);
    assert!(find(&key(), &spec, None).is_empty(), "no record");
    let written = |id: &str, name: &str| {
        fs::write(
            &record,
            json!({"ID": id, "Name": name, "Config": {"Name": 1}}).to_string(),
        )
        .unwrap();
        text(&find(&key(), &spec, None))
    };
    assert_eq!(written(ID, "/web").as_deref(), Some("web"));
    assert_eq!(written("another", "/web"), None);
    assert_eq!(written(ID, "/a\u{1b}[2Jb"), None);
    assert_eq!(written(ID, &"x".repeat(300)), None);
    // What an annotation says of another engine is worth less.
    written(ID, "/web");
    let mut forged = spec.clone();
    forged["annotations"] = json!({"nerdctl/name": "other"});
    assert_eq!(text(&find(&key(), &forged, None)).as_deref(), Some("web"));

    // A record that others could have written is none.
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(find(&key(), &spec, None).is_empty());
    fs::rename(&record, own.join("moved")).unwrap();
    fs::set_permissions(own.join("moved"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(own.join("moved"), &record).unwrap();
    assert!(find(&key(), &spec, None).is_empty(), "a link");
    fs::remove_file(&record).unwrap();
    nix::unistd::mkfifo(&record, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(find(&key(), &spec, None).is_empty(), "a pipe");
    fs::remove_file(&record).unwrap();
    let long = json!({"ID": ID, "Name": "/web", "Args": "x".repeat(5 << 20)});
    fs::write(&record, long.to_string()).unwrap();
    assert!(find(&key(), &spec, None).is_empty(), "too long");
}

#[test]
fn podman_s_name_is_in_its_storage_s_list() {
    let storage = tempfile::tempdir().unwrap();
    let all = storage.path().join("overlay-containers");
    let bundle = all.join(ID).join("userdata");
    fs::create_dir_all(&bundle).unwrap();
    let list = |file: &str, name: &str| {
        let list =
            json!([{"id": "another", "names": null}, {"id": ID, "names": [name], "layer": "x"}]);
        fs::write(all.join(file), list.to_string()).unwrap();
    };
    let found = || text(&find(&key(), &json!({}), Some(&bundle)));
    assert_eq!(found(), None);
    list("volatile-containers.json", "once");
    assert_eq!(found().as_deref(), Some("once"));
    list("containers.json", "web");
    assert_eq!(found().as_deref(), Some("web"));
    // A hook has no bundle yet.
    let bound = spec(&[&bundle.join("resolv.conf")]);
    assert_eq!(text(&find(&key(), &bound, None)).as_deref(), Some("web"));
    fs::write(all.join("containers.json"), "[{\"id\": 1}]").unwrap();
    assert_eq!(found().as_deref(), Some("once"));
}

#[test]
fn no_other_folder_is_looked_into() {
    for (path, folder) in [
        (
            "/d/containers/e95e304dafa2/hosts",
            Some(Folder::Docker("/d/containers/e95e304dafa2".into())),
        ),
        (
            "/d/containers/e95e304dafa2/mounts/shm",
            Some(Folder::Docker("/d/containers/e95e304dafa2".into())),
        ),
        (
            "/s/overlay-containers/e95e304dafa2/userdata",
            Some(Folder::Podman("/s/overlay-containers".into())),
        ),
        ("/d/containers/another/hosts", None),
        ("/d/containers/x/../e95e304dafa2/hosts", None),
        ("d/containers/e95e304dafa2/hosts", None),
        ("/d/pods/e95e304dafa2/hosts", None),
        ("/e95e304dafa2", None),
        ("", None),
    ] {
        assert_eq!(Folder::of(Path::new(path), ID), folder, "{path}");
    }
}

#[test]
fn a_pod_s_names_are_its_annotations() {
    let spec = json!({"annotations": {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-namespace": "team-a",
        "io.kubernetes.cri.sandbox-name": "p1",
        "io.kubernetes.cri.container-name": "app",
    }});
    assert_eq!(text(&find(&key(), &spec, None)).as_deref(), Some("p1/app"));
}

#[test]
fn a_record_is_read_again_and_a_broken_one_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let dir = ContainerDir::at(folder.path());
    assert!(read(&dir).is_empty());
    let names = Names {
        name: Name::new("web"),
        pod: None,
    };
    write(&dir, &names);
    assert_eq!(read(&dir), names);
    for broken in ["", "{\"name\": 1}", "[]", &"x".repeat(5000)] {
        fs::write(dir.file(FILE), broken).unwrap();
        assert!(read(&dir).is_empty(), "{broken:.20}");
    }
    // One that cannot be written is nobody's trouble.
    write(&ContainerDir::at(&folder.path().join("absent")), &names);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!(ID)),
        Just(json!("/containers/e95e304dafa2/hosts")),
    ];
    let keys = prop_oneof![
        Just("ID".to_owned()),
        Just("Name".to_owned()),
        Just("id".to_owned()),
        Just("names".to_owned()),
        Just("mounts".to_owned()),
        Just("source".to_owned()),
        Just("annotations".to_owned()),
        Just("nerdctl/name".to_owned()),
        Just("io.kubernetes.cri.sandbox-name".to_owned()),
        Just("io.kubernetes.cri-o.SandboxName".to_owned()),
        "[a-z]{0,3}",
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((keys.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_spec_and_no_record_is_too_strange(value in any_json(), bytes in any::<Vec<u8>>()) {
        let _any = find(&key(), &value, None);
        let record = value.to_string();
        for record in [record.as_bytes(), &bytes] {
            let _any = (docker_name(record, ID), podman_name(record, ID));
        }
    }
}
