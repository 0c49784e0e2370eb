//! JSON that cgpu and the runtime behind it would read differently is refused, wherever it is read. Go's decoder (runc)
//! folds the case of keys, also of `ſ` and the Kelvin sign, and takes the last of equal keys; crun takes the first.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::path::Path;

use cards::ContainerKey;
use host_config::Config;
use serde_json::{Value, json};
use vgpu::Container;

fn spec() -> Value {
    json!({
        "ociVersion": "1.0.2",
        "annotations": {"cgpu.io/memory": "4Gi"},
        "process": {
            "args": ["sh"], "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "capabilities": {"bounding": ["CAP_CHOWN"]},
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "hooks": {"prestart": [{"path": "/bin/true", "args": ["true"]}]},
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "sysctl": {"net.core.somaxconn": "1"},
            "resources": {"devices": [{"allow": false, "access": "rwm"}], "unified": {"memory.high": "1"}},
            "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["x"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]},
        },
    })
}

fn read(text: &[u8]) -> Result<Value, String> {
    let bundle = tempfile::tempdir().unwrap();
    fs::write(bundle.path().join("config.json"), text).unwrap();
    vgpu::read_spec(bundle.path()).map_err(|error| host_config::chain(&error))
}

/// The text of a spec with one more member in front of or behind the object at `at`.
fn with(at: &str, member: &str, first: bool) -> String {
    let mut value = spec();
    let object = value.pointer_mut(at).unwrap().as_object_mut().unwrap();
    let key = "MEMBER";
    if first {
        object.shift_insert(0, key.to_owned(), Value::Null);
    } else {
        object.insert(key.to_owned(), Value::Null);
    }
    value.to_string().replace(r#""MEMBER":null"#, member)
}

#[test]
fn a_key_that_go_folds_onto_a_known_one_is_refused_at_every_level() {
    for (at, key, known) in [
        ("", "Process", "process"),
        ("", "proce\u{17f}s", "process"),
        ("", "proces\\u017f", "process"),
        ("", "mount\u{17f}", "mounts"),
        ("", "hook\u{17f}", "hooks"),
        ("", "HOOKS", "hooks"),
        ("", "annotation\u{17f}", "annotations"),
        ("", "LINUX", "linux"),
        ("", "Root", "root"),
        ("/process", "Capabilities", "capabilities"),
        ("/process", "Env", "env"),
        ("/process/user", "additionalGID\u{17f}", "additionalGids"),
        ("/process/capabilities", "Bounding", "bounding"),
        ("/root", "Path", "path"),
        ("/mounts/0", "\u{17f}ource", "source"),
        ("/mounts/0", "Options", "options"),
        (
            "/hooks",
            "createRuntime".to_uppercase().as_str(),
            "createRuntime",
        ),
        ("/hooks/prestart/0", "Path", "path"),
        ("/linux", "device\u{17f}", "devices"),
        ("/linux", "mas\u{212a}edPaths", "maskedPaths"),
        ("/linux", "SecComp", "seccomp"),
        ("/linux/namespaces/0", "Type", "type"),
        ("/linux/resources", "Devices", "devices"),
        ("/linux/resources/devices/0", "Allow", "allow"),
        ("/linux/seccomp", "ListenerPath", "listenerPath"),
        ("/linux/seccomp/syscalls/0", "Names", "names"),
        ("/linux/seccomp/syscalls/0/args/0", "valueTWO", "valueTwo"),
    ] {
        for first in [true, false] {
            let text = with(at, &format!(r#""{key}":null"#), first);
            let error = read(text.as_bytes()).expect_err(&text);
            let reported = error.contains("config.json") && error.contains(known);
            assert!(reported, "{key} at {at:?}: {error}");
        }
    }
}

#[test]
fn free_text_keeps_its_case() {
    for (at, member) in [
        ("/annotations", r#""Process":"x","MOUNTS":"y","linux":"z""#),
        ("/linux/sysctl", r#""Kernel.Type":"1","PATH":"2""#),
        ("/linux/resources/unified", r#""Memory":"1""#),
        ("", r#""futureField":{"x":1}"#),
    ] {
        read(with(at, member, false).as_bytes()).unwrap();
    }
}

#[test]
fn a_key_that_is_there_twice_is_refused_everywhere() {
    for (at, member, named) in [
        ("", r#""process":{}"#, "process"),
        ("", r#""proce\u0073s":{}"#, "process"),
        ("/process", r#""args":[]"#, "args"),
        ("/mounts/0", r#""source":"/etc""#, "source"),
        (
            "/annotations",
            r#""cgpu.io/memory":"80Gi""#,
            "cgpu.io/memory",
        ),
        ("/linux/sysctl", r#""net.core.somaxconn":"2""#, "somaxconn"),
        (
            "/linux/resources/unified",
            r#""memory.high":"2""#,
            "memory.high",
        ),
        ("", r#""unknown":{"a":1,"a":2}"#, "a"),
        // Of a field that a newer runtime may know.
        ("", r#""unknown":1,"UnKnown":2"#, "unknown"),
    ] {
        for first in [true, false] {
            let text = with(at, member, first);
            let error = read(text.as_bytes()).expect_err(&text);
            let named = error.to_ascii_lowercase().contains(named);
            assert!(named, "{member} at {at:?}: {error}");
        }
    }
}

#[test]
fn text_that_decoders_read_differently_is_refused() {
    let plain = spec().to_string();
    read(plain.as_bytes()).unwrap();
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let hostile: Vec<Vec<u8>> = vec![
        // runc reads the first document alone, and stops there.
        format!("{plain}{{}}").into_bytes(),
        format!("{plain} x").into_bytes(),
        format!("{plain}\0").into_bytes(),
        format!("\u{feff}{plain}").into_bytes(),
        // Go makes U+FFFD of both.
        [plain.replace("\"sh\"", "\"s").as_bytes(), b"\xff\""].concat(),
        plain.replace("\"sh\"", "\"s\\ud800h\"").into_bytes(),
        plain.replace("\"ociVersion\"", "\"x\\udc00\"").into_bytes(),
        // C ends a string here.
        plain.replace("/proc", "/etc\\u0000/proc").into_bytes(),
        plain
            .replace("\"args\"", "\"args\\u0000x\":1,\"args\"")
            .into_bytes(),
        with("", &format!(r#""unknown":{deep}"#), false).into_bytes(),
        plain
            .replace("\"process\"", "/* */\"process\"")
            .into_bytes(),
        with("", r#""unknown":NaN"#, false).into_bytes(),
        with("", r#""unknown":01"#, false).into_bytes(),
        Vec::new(),
    ];
    for text in hostile {
        read(&text).expect_err(&String::from_utf8_lossy(&text));
    }
}

#[test]
fn an_exec_s_process_is_read_alike() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        state_dir: dir.path().to_owned(),
        ..Config::default()
    };
    let container = Container::new(config, ContainerKey::new("default", "c1").unwrap());
    let file = dir.path().join("process.json");
    // Without a vGPU it is the runtime's to read.
    assert_eq!(container.exec_of_file(&file).unwrap(), None);
    fs::create_dir_all(container.folder()).unwrap();
    let edit = |text: &str| {
        fs::write(&file, text).unwrap();
        container
            .exec_of_file(Path::new(&file))
            .map_err(|error| host_config::chain(&error))
    };
    // The file is looked at first: a grant is what this folder is without.
    let error = edit(r#"{"args":["sh"],"capabilities":{"bounding":[]}}"#).unwrap_err();
    assert!(error.contains("grant.json"), "{error}");
    for hostile in [
        r#"{"args":["sh"],"Capabilities":{"bounding":["CAP_SYS_ADMIN"]}}"#,
        r#"{"args":["sh"],"capabilitie\u017f":{"bounding":["CAP_SYS_ADMIN"]}}"#,
        r#"{"args":["sh"],"capabilities":{},"capabilities":{"bounding":["CAP_SYS_ADMIN"]}}"#,
        r#"{"args":["sh"]}{"args":["x"]}"#,
    ] {
        let error = edit(hostile).expect_err(hostile);
        assert!(error.contains("process.json"), "{error}");
    }
}

#[test]
fn what_engines_write_is_read() {
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec/tests/specs")).unwrap()
    {
        let text = fs::read(entry.unwrap().path()).unwrap();
        let plain: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read(&text).unwrap(), plain);
    }
}
