//! Which plain containers have the driver's calls closed, and what becomes of their profiles.

use arch::Arch;
use serde_json::{Value, json};
use verdict::filter::{self, Action};

use super::{OtherWays, Toolkit};

const ID: &str = "c1";
const ALLOC: u64 = (48 << 16) | 0x2b;

/// A container with all namespaces of its own, as an engine makes it that runs no pods.
fn alone() -> Value {
    let own = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "process": {"env": ["A=b"]},
        "linux": {
            "namespaces": own,
            "resources": {"devices": [
                {"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "access": "m"},
                {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
            ]},
        },
    })
}

fn in_pod() -> Value {
    let mut spec = alone();
    spec["annotations"] = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-id": "s1",
        "io.kubernetes.cri.container-name": "side",
    });
    spec
}

/// A host with nvidia-uvm, and a toolkit as it is shipped.
fn ways() -> OtherWays {
    OtherWays {
        majors: vec![195, 511],
        toolkit: Toolkit {
            reads_variable: true,
            reads_mounts: false,
        },
    }
}

fn closed_to_driver(spec: &Value, id: Option<&str>) -> Result<Option<Value>, super::Error> {
    super::closed_to_driver(spec, id, ways)
}

fn closed(spec: &Value) -> Option<Value> {
    closed_to_driver(spec, Some(ID)).unwrap()
}

/// Where the toolkit takes no unprivileged container's word; `reads_mounts`: but the device plugin's.
fn closed_by_hardened(spec: &Value, reads_mounts: bool) -> Option<Value> {
    let toolkit = Toolkit {
        reads_variable: false,
        reads_mounts,
    };
    let ways = || OtherWays { toolkit, ..ways() };
    super::closed_to_driver(spec, Some(ID), ways).unwrap()
}

/// The rules on ioctl that fail.
fn denied(spec: &Value) -> Vec<Value> {
    let rules = spec["linux"]["seccomp"]["syscalls"].as_array().unwrap();
    let is_ours =
        |rule: &&Value| rule["names"] == json!(["ioctl"]) && rule["action"] == "SCMP_ACT_ERRNO";
    rules.iter().filter(is_ours).cloned().collect()
}

fn is_denied(spec: &Value, command: u64) -> bool {
    denied(spec).iter().any(|rule| {
        let args = &rule["args"][0];
        assert_eq!(args["op"], "SCMP_CMP_MASKED_EQ", "{rule}");
        command & args["value"].as_u64().unwrap() == args["valueTwo"].as_u64().unwrap()
    })
}

fn with_namespace(kind: &str, entry: Option<Value>) -> Value {
    let mut spec = alone();
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|entry| entry["type"] != kind);
    namespaces.extend(entry);
    spec
}

#[test]
fn a_container_that_others_reach_has_the_driver_s_calls_closed() {
    let mut crio = alone();
    crio["annotations"] = json!({"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.SandboxID": "s1"});
    let mut reached = vec![in_pod(), crio];
    for kind in ["network", "pid", "ipc"] {
        reached.push(with_namespace(kind, None));
        let path = format!("/proc/7/ns/{kind}");
        reached.push(with_namespace(
            kind,
            Some(json!({"type": kind, "path": path})),
        ));
    }
    for spec in reached {
        let closed = closed(&spec).unwrap_or_else(|| panic!("{spec}"));
        let profile = &closed["linux"]["seccomp"];
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ALLOW");
        assert_eq!(profile["architectures"], json!(Arch::NATIVE.oci_tables()));
        assert!(profile.get("listenerPath").is_none(), "{profile}");
        for rule in denied(&closed) {
            assert_eq!(rule["errnoRet"], 25, "{rule}");
        }
        // In each spelling that the driver takes.
        for command in [0xc000_462b, 0x542b, 0x4000_002b].map(|word: u64| word | (48 << 16)) {
            assert!(is_denied(&closed, command), "{command:#x}");
        }
        // NVOS21, a control, a duplicate, the heap call, NVOS46 of before and after 580, the tunnel, UVM_INITIALIZE, an external mapping.
        for command in [
            0xc020_462b,
            0xc020_462a,
            0xc01c_4634,
            0xc0b8_464a,
            0xc038_4657,
            0xc040_4657,
            0xc010_46d3,
            0x3000_0001,
            33,
        ] {
            assert!(is_denied(&closed, command), "{command:#x}");
        }
        // TCGETS, TIOCGWINSZ, FIONREAD, TUNSETIFF, TUNSETSNDBUF, PPPIOCSXASYNCMAP, KVM_RUN, FICLONE.
        for command in [
            0x5401,
            0x5413,
            0x541b,
            0x4004_54ca,
            0x4004_54d4,
            0x4020_744f,
            0xae80,
            0x4004_9409,
        ] {
            assert!(!is_denied(&closed, command), "{command:#x}");
        }
        // All else is the engine's.
        let mut rest = closed;
        rest["linux"].as_object_mut().unwrap().remove("seccomp");
        assert_eq!(rest, spec);
    }
}

#[test]
fn every_release_s_calls_that_a_broker_answers_are_closed_but_those_that_others_use_too() {
    let closed = closed(&in_pod()).unwrap();
    for release in nvabi::Release::ALL {
        let spec = filter::FilterSpec {
            release,
            coverage: filter::Coverage::Production,
            arch: Arch::NATIVE,
        };
        for rule in filter::ioctl_rules(&spec) {
            let open = [
                "NV_ESC_ATTACH_GPUS_TO_FD",
                "NV_ESC_REGISTER_FD",
                "NV_ESC_RM_UNMAP_MEMORY",
            ];
            let command = u64::from(rule.when.value);
            assert_eq!(
                is_denied(&closed, command),
                !open.contains(&rule.name),
                "{release:?} {rule:?}"
            );
        }
    }
    let rules = filter::closing_rules();
    assert!(rules.iter().all(|rule| rule.action == Action::Errno(25)));
    // Each is of a row that a release has: what a container without a vGPU gets in addition is known.
    assert_eq!(rules.len(), 61);
}

#[test]
fn a_container_that_nobody_reaches_is_left_as_it_is() {
    assert_eq!(closed(&alone()), None);
    let mut confined = alone();
    confined["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl", "read"], "action": "SCMP_ACT_ALLOW"}]});
    assert_eq!(closed(&confined), None);
    // Of no engine.
    assert_eq!(
        closed(&json!({"annotations": in_pod()["annotations"]})),
        None
    );
}

#[test]
fn a_sandbox_is_left_as_it_is_where_it_names_itself() {
    let sandbox = |id: &str| {
        let mut spec = with_namespace("network", Some(json!({"type": "network"})));
        spec["annotations"] = json!({"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": id});
        spec
    };
    assert_eq!(closed(&sandbox(ID)), None);
    assert!(closed(&sandbox("another")).is_some());
    assert!(closed_to_driver(&sandbox(ID), None).unwrap().is_some());
}

#[test]
fn a_container_with_the_driver_itself_is_left_as_it_is() {
    let device =
        |path: &str, major: u64| json!([{"path": path, "type": "c", "major": major, "minor": 0}]);
    let rule = |rule: Value| {
        let mut spec = in_pod();
        spec["linux"]["resources"]["devices"]
            .as_array_mut()
            .unwrap()
            .push(rule);
        spec
    };
    let node = |devices: Value| {
        let mut spec = in_pod();
        spec["linux"]["devices"] = devices;
        spec
    };
    let hook = |name: &str, visible: &str| {
        let mut spec = in_pod();
        spec["process"]["env"] = json!([format!("NVIDIA_VISIBLE_DEVICES={visible}")]);
        spec["hooks"] = json!({"prestart": [{"path": format!("/usr/bin/{name}")}]});
        spec
    };
    for spec in [
        node(device("/dev/nvidia0", 195)),
        node(device("/dev/nvidia-uvm", 511)),
        node(device("/dev/card", 195)),
        node(device("/dev/managed", 511)),
        rule(json!({"allow": true, "type": "c", "major": 195, "minor": 255, "access": "rw"})),
        rule(json!({"allow": true, "type": "c", "major": 195, "access": "rwm"})),
        rule(json!({"allow": true, "access": "rwm"})),
        rule(json!({"allow": true, "type": "a", "major": -1, "minor": -1, "access": "rwm"})),
        rule(json!({"allow": true, "type": "a", "access": "m"})),
        hook("nvidia-container-runtime-hook", "all"),
        hook("nvidia-ctk", "void"),
    ] {
        assert_eq!(closed(&spec), None, "{spec}");
    }
    let mut taken_back = rule(json!({"allow": true, "access": "rwm"}));
    let rules = taken_back["linux"]["resources"]["devices"]
        .as_array_mut()
        .unwrap();
    rules.push(json!({"allow": false, "type": "a", "access": "rwm"}));
    // A mount by the name of a node is a pod's author's word, and so is a variable.
    let mut named = in_pod();
    named["mounts"] = json!([{"destination": "/dev/nvidia0", "source": "/var/lib/kubelet/empty", "options": ["bind"]}]);
    named["process"]["env"] = json!(["NVIDIA_VISIBLE_DEVICES=all"]);
    for spec in [
        taken_back,
        named,
        node(device("/dev/fuse", 10)),
        // CRI-O lets a pod's author choose the name of a device that the host allows to all.
        node(device("/dev/nvidia-x", 10)),
        node(device("/dev/nvidia0", 10)),
        node(device("/dev/nvidia-uvm", 510)),
        node(json!([{"path": "/dev/nvidia0", "type": "b", "major": 195, "minor": 0}])),
        node(json!([{"path": "/dev/nvidia0", "type": "p"}])),
        rule(json!({"allow": true, "type": "b", "access": "rwm"})),
        rule(json!({"allow": true, "type": "c", "major": 195, "access": "m"})),
        hook("nvidia-container-runtime-hook", "void"),
        hook("another", "all"),
    ] {
        assert!(closed(&spec).is_some(), "{spec}");
    }
}

fn with_profile(profile: Value) -> Value {
    let mut spec = in_pod();
    spec["linux"]["seccomp"] = profile;
    spec
}

#[test]
fn a_profile_s_allowance_is_split_and_its_denials_and_tables_stay() {
    let engine_s = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [
            {"names": ["read", "ioctl", "mmap"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 0x5412, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]},
        ],
    });
    let closed_once = closed(&with_profile(engine_s.clone())).unwrap();
    let profile = &closed_once["linux"]["seccomp"];
    assert_eq!(profile["architectures"], engine_s["architectures"]);
    let rules = profile["syscalls"].as_array().unwrap();
    assert_eq!(
        rules[0],
        json!({"names": ["read", "mmap"], "action": "SCMP_ACT_ALLOW"})
    );
    let of_ioctl = |rule: &&Value| rule["names"].as_array().unwrap().contains(&json!("ioctl"));
    for rule in rules.iter().filter(of_ioctl) {
        assert_eq!(rule["args"].as_array().unwrap().len(), 1, "{rule}");
    }
    assert!(is_denied(&closed_once, ALLOC));
    assert_eq!(
        closed(&closed_once),
        None,
        "a second frontend changes nothing"
    );
    // Our errno is the default's: runc would skip the rules.
    let mut same = engine_s.clone();
    same["defaultErrnoRet"] = json!(25);
    let closed_same = closed(&with_profile(same)).unwrap();
    assert!(
        denied(&closed_same)
            .iter()
            .any(|rule| rule["errnoRet"] == 22)
    );
    // What is denied as a whole needs no rule.
    for profile in [
        json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}),
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_KILL"}]}),
    ] {
        assert_eq!(closed(&with_profile(profile)), None);
    }
    // A listener of somebody else's keeps what it has, but for the driver's calls.
    let listener = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/agent.sock", "syscalls": [{"names": ["mount", "ioctl"], "action": "SCMP_ACT_NOTIFY"}]});
    let watched = closed(&with_profile(listener)).unwrap();
    assert_eq!(
        watched["linux"]["seccomp"]["listenerPath"],
        "/run/agent.sock"
    );
    assert!(is_denied(&watched, ALLOC));
}

#[test]
fn a_profile_that_cannot_be_kept_exactly_is_an_error() {
    let condition = json!([{"index": 1, "value": 0x5412, "op": "SCMP_CMP_NE"}]);
    for profile in [
        json!({"syscalls": []}),
        json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": condition}]}),
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_NOTIFY", "args": condition}]}),
    ] {
        closed_to_driver(&with_profile(profile.clone()), Some(ID)).unwrap_err();
        // Nobody looks at it where it does not matter.
        let mut spec = alone();
        spec["linux"]["seccomp"] = profile;
        assert_eq!(closed(&spec), None);
    }
}

/// People who use a runtime by hand start one bundle again and again.
#[test]
fn a_bundle_that_gets_the_driver_later_is_opened_again() {
    let whole = json!({"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"});
    let engine_s = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}, whole]});
    for (profile, rules) in [
        (engine_s.clone(), engine_s["syscalls"].clone()),
        (Value::Null, json!([])),
    ] {
        let mut spec = closed(&with_profile(profile)).unwrap();
        spec["linux"]["devices"] =
            json!([{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]);
        let opened = closed(&spec).unwrap();
        let mut found = opened["linux"]["seccomp"]["syscalls"].clone();
        for rule in found.as_array_mut().unwrap() {
            if rule["args"] == json!([]) {
                rule.as_object_mut().unwrap().remove("args");
            }
        }
        assert_eq!(found, rules);
        assert_eq!(closed(&opened), None);
    }
}

#[test]
fn no_rule_of_a_plain_container_s_stays_in_a_bundle_that_asks_for_a_quota_later() {
    let engine_s = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read", "ioctl"], "action": "SCMP_ACT_ALLOW"}]});
    for profile in [engine_s, json!({"defaultAction": "SCMP_ACT_ALLOW"})] {
        let plain = closed(&with_profile(profile.clone())).unwrap();
        let held = |spec: &Value| {
            let mut rules =
                super::super::tests::edited(spec).unwrap()["linux"]["seccomp"]["syscalls"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(Value::to_string)
                    .collect::<Vec<_>>();
            rules.sort();
            rules
        };
        assert_eq!(held(&plain), held(&with_profile(profile)));
    }
}

/// CRI-O's `always: true` puts the hook into every spec.
#[test]
fn a_hook_that_reads_a_variable_gives_the_driver_where_that_names_a_card() {
    let with = |environment: &[&str], name: &str| {
        let mut spec = in_pod();
        spec["process"]["env"] = json!(environment);
        spec["hooks"] = json!({"prestart": [{"path": format!("/usr/bin/{name}")}]});
        spec
    };
    let toolkit = "nvidia-container-runtime-hook";
    let modern = ["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"];
    for environment in [&[][..], &["A=b"], &modern, &["NVIDIA_VISIBLE_DEVICES="]] {
        assert!(
            closed(&with(environment, toolkit)).is_some(),
            "{environment:?}"
        );
    }
    for environment in [&["NVIDIA_VISIBLE_DEVICES=all"][..], &["CUDA_VERSION=8.0"]] {
        assert_eq!(closed(&with(environment, toolkit)), None, "{environment:?}");
    }
    assert_eq!(closed(&with(&[], "nvidia-cdi-hook")), None, "it reads none");
}

#[test]
fn a_variable_that_the_host_s_toolkit_ignores_opens_nothing() {
    let toolkit = "nvidia-container-runtime-hook";
    let with = |environment: &[&str], name: &str| {
        let mut spec = in_pod();
        spec["process"]["env"] = json!(environment);
        spec["hooks"] = json!({"prestart": [{"path": format!("/usr/bin/{name}")}]});
        spec
    };
    let named = with(&["NVIDIA_VISIBLE_DEVICES=all"], toolkit);
    for spec in [&named, &with(&["CUDA_VERSION=8.0"], toolkit)] {
        assert_eq!(closed(spec), None, "{spec}");
        assert!(closed_by_hardened(spec, false).is_some(), "{spec}");
        assert!(closed_by_hardened(spec, true).is_some(), "{spec}");
    }
    // The toolkit takes the word of who has this one, and the hook of CDI's asks nobody.
    let mut privileged = named.clone();
    privileged["process"]["capabilities"] =
        json!({"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"], "effective": []});
    let mut ordinary = named.clone();
    ordinary["process"]["capabilities"] =
        json!({"bounding": ["CAP_CHOWN"], "ambient": ["CAP_SYS_ADMIN"]});
    assert_eq!(closed_by_hardened(&privileged, false), None);
    assert!(closed_by_hardened(&ordinary, false).is_some());
    assert_eq!(closed_by_hardened(&with(&[], "nvidia-ctk"), false), None);
    // The device plugin's word, where the toolkit takes that.
    let mounted = |source: &str, destination: &str| {
        let mut spec = named.clone();
        spec["mounts"] = json!([{"source": source, "destination": destination}]);
        spec
    };
    let plugin_s = mounted("/dev/null", "/var/run/nvidia-container-devices/GPU-1");
    assert_eq!(closed_by_hardened(&plugin_s, true), None);
    assert!(closed_by_hardened(&plugin_s, false).is_some());
    for (source, destination) in [
        (
            "/var/lib/kubelet/empty",
            "/var/run/nvidia-container-devices/all",
        ),
        ("/dev/null", "/var/run/nvidia-container-devices"),
        ("/dev/null", "/var/run/nvidia-container-devices-x/all"),
    ] {
        let spec = mounted(source, destination);
        assert!(closed_by_hardened(&spec, true).is_some(), "{spec}");
    }
}
