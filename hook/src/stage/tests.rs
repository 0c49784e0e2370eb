use super::*;

const ID: &str = "d194c488155e11a710462b409db425778947bcd3d939c1eb085ab42f4eca7b48";
const OTHER: &str = "2513d30d771f5c8b0b601c82826eb3cf3e0fa2c22d07bb8379171f724f1b9e60";

fn grouped(path: &str) -> Value {
    json!({"linux": {"cgroupsPath": path}})
}

fn mounted(mounts: &[(&str, String)]) -> Value {
    let mounts: Vec<Value> = mounts
        .iter()
        .map(|(destination, source)| json!({"destination": destination, "source": source}))
        .collect();
    json!({"mounts": mounts})
}

#[test]
fn podman_s_container_is_known_by_its_group() {
    for path in [
        format!("/libpod_parent/libpod-{ID}"),
        format!("machine.slice:libpod:{ID}"),
        format!("/machine.slice/libpod-{ID}.scope"),
        format!("/user.slice/app.service/libpod-{ID}"),
    ] {
        assert_eq!(podman::container_id(&grouped(&path)).unwrap(), ID, "{path}");
    }
    for path in [
        "",
        "/a/b",
        &ID[1..],
        &ID.to_uppercase(),
        "machine.slice:libpod:",
    ] {
        podman::container_id(&grouped(path)).unwrap_err();
    }
}

#[test]
fn without_a_group_it_is_known_by_podman_s_own_files() {
    let own = |id: &str, name: &str| {
        format!("/run/containers/storage/vfs-containers/{id}/userdata/{name}")
    };
    let spec = mounted(&[
        ("/etc/hosts", own(ID, "hosts")),
        ("/run/.containerenv", own(ID, ".containerenv")),
        // A volume may be anybody's.
        ("/data", own(OTHER, "hosts")),
    ]);
    assert_eq!(podman::container_id(&spec).unwrap(), ID);
    let two = mounted(&[
        ("/etc/hosts", own(ID, "hosts")),
        ("/etc/hostname", own(OTHER, "hostname")),
    ]);
    podman::container_id(&two).unwrap_err();
    podman::container_id(&mounted(&[("/etc/hosts", "/etc/hosts".to_owned())])).unwrap_err();
    podman::container_id(&json!({"mounts": "none", "linux": 7})).unwrap_err();
}

#[test]
fn the_later_stages_are_written_beside_the_hooks_that_are_there() {
    let mut spec = json!({"hooks": {"poststop": [{"path": "/a"}], "createRuntime": null}});
    call_again(&mut spec).unwrap();
    assert_eq!(spec["hooks"]["poststop"][0]["path"], "/a");
    for (stage, at) in [("createRuntime", 0), ("poststart", 0), ("poststop", 1)] {
        let hook = &spec["hooks"][stage][at];
        assert_eq!(hook["args"], json!(["cgpu-hook", stage]));
        assert_eq!(hook["env"][0], "CGPU_HOOK=1");
        assert!(Path::new(hook["path"].as_str().unwrap()).is_absolute());
    }
    let mut without = json!({});
    call_again(&mut without).unwrap();
    assert_eq!(without["hooks"]["poststop"].as_array().unwrap().len(), 1);
    for wrong in [
        json!([]),
        json!({"hooks": []}),
        json!({"hooks": {"poststop": {}}}),
    ] {
        call_again(&mut wrong.clone()).unwrap_err();
    }
}

#[test]
fn only_stages_that_exist_are_taken() {
    for (argument, stage) in [
        ("precreate", Stage::Precreate),
        ("createRuntime", Stage::CreateRuntime),
        ("prestart", Stage::CreateRuntime),
        ("poststart", Stage::Poststart),
        ("poststop", Stage::Poststop),
    ] {
        assert_eq!(Stage::of(Some(OsStr::new(argument))).unwrap(), stage);
    }
    for argument in [None, Some(""), Some("createContainer"), Some("Precreate")] {
        let error = Stage::of(argument.map(OsStr::new)).unwrap_err().to_string();
        assert!(
            error.contains("createRuntime (prestart), poststart and poststop"),
            "{error}"
        );
    }
}

#[test]
fn a_state_or_spec_that_the_runtime_reads_differently_is_refused() {
    state(br#"{"ociVersion":"1.0.2","id":"c1","pid":7,"bundle":"/b","annotations":{"PID":"8"}}"#)
        .unwrap();
    for hostile in [
        r#"{"id":"c1","pid":7,"pid":8,"bundle":"/b"}"#,
        r#"{"id":"c1","pid":7,"PID":8,"bundle":"/b"}"#,
        r#"{"id":"c1","pid":7,"bundle":"/b"}{}"#,
    ] {
        state(hostile.as_bytes()).expect_err(hostile);
    }
    let mut output = Vec::new();
    for hostile in [
        "{\"annotation\u{17f}\":{\"cgpu.io/memory\":\"4Gi\"}}",
        r#"{"annotations":{},"annotations":{"cgpu.io/memory":"4Gi"}}"#,
    ] {
        precreate(Ok(Config::default()), hostile.as_bytes(), &mut output).expect_err(hostile);
        assert!(output.is_empty(), "nothing is handed back");
    }
}
