//! Each edit, all of them twice, and seccomp profiles of every kind against a model of what libseccomp makes of them.

use arch::Arch;
use cards::DriverSpec;
use cards::grant::{self, Frontend};
use cards::{CardGrant, ComputeTerms, FrontendKind, GpuUuid, IoUring, Weakness};
use nvabi::Release;
use proptest::prelude::*;
use serde_json::json;
use verdict::filter::{Coverage, FilterSpec};

use super::*;

const LISTENER: &str = "/run/cgpu/vgpus/default/c1/notify.sock";

fn a_grant(driver: DriverSpec) -> Grant {
    Grant {
        version: grant::VERSION,
        key: ContainerKey::new("default", "c1").unwrap(),
        driver,
        driver_version: "570.195.03".to_owned(),
        layouts: None,
        cards: vec![CardGrant {
            uuid: GpuUuid::new("GPU-1").unwrap(),
            minor: 1,
            quota_bytes: 1 << 30,
        }],
        compute: ComputeTerms::default(),
        claims: Vec::new(),
        backend: cards::Backend::Broker,
        backend_reason: String::new(),
        isolation: cards::Isolation::default(),
        frontend: Frontend {
            kind: FrontendKind::Shim,
            pid: 1,
        },
        bundle: None,
        created_at_unix_ms: 0,
    }
}

fn simulated() -> Grant {
    a_grant(DriverSpec::Sim {
        socket: "/run/cgpu/sim/sim.sock".into(),
    })
}

fn rules(coverage: Coverage) -> SeccompRules {
    SeccompRules::of(&FilterSpec {
        release: Release::R570,
        coverage,
        arch: Arch::NATIVE,
    })
}

fn edited_for(grant: &Grant, spec: &Value) -> Result<Value, Error> {
    edited_with(grant, spec, OtherCards::Refuse)
}

fn edited_with(grant: &Grant, spec: &Value, other_cards: OtherCards) -> Result<Value, Error> {
    let mounts = [Mount {
        source: "/run/cgpu/sim/dev/nvidia1".into(),
        target: "/dev/nvidia1".into(),
        options: ["bind", "rw", "nosuid", "noexec"]
            .map(str::to_owned)
            .to_vec(),
    }];
    let seccomp = rules(Coverage::Simulated);
    let plan = Plan {
        grant,
        mounts: &mounts,
        additions: &Additions::default(),
        nodes: &crate::nodes::of(grant, Some(511), nvabi::proc_files::DeviceFiles::default()),
        uvm_major: Some(511),
        listener: Path::new(LISTENER),
        seccomp: &seccomp,
        other_cards,
    };
    let mut spec = spec.clone();
    apply(&mut spec, &plan)?;
    let once = spec.clone();
    apply(&mut spec, &plan)?;
    assert_eq!(spec, once, "a second time changes nothing");
    Ok(spec)
}

pub(super) fn edited(spec: &Value) -> Result<Value, Error> {
    edited_for(&simulated(), spec)
}

fn with_seccomp(seccomp: Value) -> Result<Value, Error> {
    edited(&json!({"linux": {"seccomp": seccomp}})).map(|spec| spec["linux"]["seccomp"].clone())
}

#[test]
fn unknown_fields_survive_and_keep_their_order() {
    let text = r#"{"zeta":1,"process":{"future":{"b":1,"a":2},"env":["A=b"]},"linux":{"futureField":[{}],"namespaces":[{"type":"future"}]},"alpha":null}"#;
    let spec = edited(&serde_json::from_str(text).unwrap()).unwrap();
    let keys: Vec<&String> = spec.as_object().unwrap().keys().collect();
    assert_eq!(keys[..4], ["zeta", "process", "linux", "alpha"]);
    assert_eq!(spec["process"]["future"].to_string(), r#"{"b":1,"a":2}"#);
    assert_eq!(spec["linux"]["futureField"], json!([{}]));
    assert_eq!(spec["linux"]["namespaces"], json!([{"type": "future"}]));
}

/// runc applies labels and profiles, and the engine chooses them: our mounts ask for none.
#[test]
fn labels_and_profiles_stay_the_engines() {
    let label = "system_u:system_r:container_t:s0:c1,c2";
    let files = "system_u:object_r:container_file_t:s0:c1,c2";
    let process = json!({"apparmorProfile": "docker-default", "selinuxLabel": label});
    let spec = json!({"process": process, "linux": {"mountLabel": files}});
    let spec = edited(&spec).unwrap();
    assert_eq!(spec["process"]["apparmorProfile"], "docker-default");
    assert_eq!(spec["process"]["selinuxLabel"], label);
    assert_eq!(spec["linux"]["mountLabel"], files);
    let options: Vec<&Value> = spec["mounts"].as_array().unwrap().iter().collect();
    assert_eq!(options.len(), 1);
    assert_eq!(
        options[0]["options"],
        json!(["bind", "rw", "nosuid", "noexec"])
    );
    let mut exec = process;
    apply_to_exec(&mut exec).unwrap();
    assert_eq!(exec["apparmorProfile"], "docker-default");
    assert_eq!(exec["selinuxLabel"], label);
}

#[test]
fn the_environment_hides_the_cards_from_other_hooks_once() {
    let spec = edited(&json!({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "A=b", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES_X=1"]}})).unwrap();
    assert_eq!(
        spec["process"]["env"],
        json!([
            "A=b",
            "NVIDIA_VISIBLE_DEVICES_X=1",
            "NVIDIA_VISIBLE_DEVICES=void"
        ])
    );
    let mut process = json!({"args": ["sh"]});
    apply_to_exec(&mut process).unwrap();
    apply_to_exec(&mut process).unwrap();
    assert_eq!(
        process,
        json!({"args": ["sh"], "env": ["NVIDIA_VISIBLE_DEVICES=void"]})
    );
}

/// The driver's own nodes, as `--gpus`, CDI and people name them; card 1 is granted.
#[test]
fn nvidia_s_runtime_hook_is_taken_out_and_no_other() {
    let hook = |path: &str| json!({"path": path, "args": ["hook", "prestart"]});
    let spec = json!({"process": {}, "hooks": {
        "prestart": [hook("/usr/bin/nvidia-container-runtime-hook"), hook("/opt/network")],
        "createRuntime": [hook("/usr/bin/nvidia-container-toolkit")],
        "createContainer": [hook("/usr/bin/nvidia-cdi-hook")],
        "poststop": [hook("/usr/bin/nvidia-container-toolkit")],
    }});
    let edited = edited_for(&simulated(), &spec).unwrap();
    let expected = json!({
        "prestart": [hook("/opt/network")],
        "createRuntime": [],
        "createContainer": [hook("/usr/bin/nvidia-cdi-hook")],
        "poststop": [hook("/usr/bin/nvidia-container-toolkit")],
    });
    assert_eq!(edited["hooks"], expected);
    let none = edited_for(&simulated(), &json!({"process": {}})).unwrap();
    assert!(none.get("hooks").is_none());
}

#[test]
fn time_zones_of_the_host_are_bound_read_only() {
    let mount = |source: &str, options: Value| json!({"destination": "/x", "type": "bind", "source": source, "options": options});
    let spec = json!({"process": {}, "mounts": [
        mount("/etc/localtime", json!(["rbind"])),
        mount("/etc/../etc/timezone", json!(["bind", "ro", "rw"])),
        mount("/usr/share/zoneinfo", json!(["rbind", "rrw", "ro"])),
        mount("/usr/share/zoneinfos", json!(["rbind"])),
        {"destination": "/y", "type": "bind", "source": "/etc/localtime"},
    ]});
    let edited = edited_for(&simulated(), &spec).unwrap();
    let options: Vec<&Value> = edited["mounts"].as_array().unwrap()[..5]
        .iter()
        .map(|mount| &mount["options"])
        .collect();
    let expected = [
        json!(["rbind", "ro"]),
        json!(["bind", "rw", "ro"]),
        json!(["rbind", "ro"]),
        json!(["rbind"]),
        json!(["ro"]),
    ];
    assert_eq!(options, expected.iter().collect::<Vec<_>>());
}

fn with_card_nodes() -> Value {
    json!({
        "mounts": [
            {"destination": "/proc", "type": "proc"},
            {"destination": "/dev/nvidia1", "type": "bind", "source": "/dev/nvidia1"},
            {"destination": "//dev/./nvidia-uvm", "type": "bind", "source": "/dev/nvidia-uvm"},
            {"destination": "/x/../dev/nvidiactl", "type": "bind", "source": "/dev/nvidiactl"},
            {"destination": "/elsewhere", "type": "bind", "source": "/dev/nvidia1"},
        ],
        "linux": {
            "devices": [
                {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
                {"path": "/dev/card", "type": "c", "major": 195, "minor": 1},
                {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
                {"path": "/dev/nvidia-modeset", "type": "c", "major": 195, "minor": 254},
            ],
            "resources": {"devices": [
                {"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"},
                {"allow": true, "type": "c", "major": 195, "minor": 255, "access": "rw"},
                {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "m"},
                {"allow": true, "type": "c", "major": 195, "minor": 254, "access": "rw"},
                {"allow": true, "type": "b", "major": 195, "access": "r"},
            ]},
        },
    })
}

fn assert_own_nodes_only(spec: &Value) {
    assert_eq!(
        spec["mounts"],
        json!([
            {"destination": "/proc", "type": "proc"},
            {"destination": "/dev/nvidia1", "type": "bind", "source": "/run/cgpu/sim/dev/nvidia1", "options": ["bind", "rw", "nosuid", "noexec"]},
        ])
    );
    // What else is there was judged before the edits, and let through.
    assert_eq!(
        spec["linux"]["devices"],
        json!([
            {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
            {"path": "/dev/nvidia-modeset", "type": "c", "major": 195, "minor": 254},
        ])
    );
    assert_eq!(
        spec["linux"]["resources"]["devices"],
        json!([
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 195, "minor": 254, "access": "rw"},
            {"allow": true, "type": "b", "major": 195, "access": "r"},
        ])
    );
}

#[test]
fn a_granted_card_s_nodes_are_ours() {
    assert_own_nodes_only(&edited(&with_card_nodes()).unwrap());
}

#[test]
fn a_card_by_another_name_is_that_card() {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let dir = tempfile::tempdir().unwrap();
    let (link, node) = (dir.path().join("link"), dir.path().join("node"));
    std::os::unix::fs::symlink("/dev/nvidia7", &link).unwrap();
    let made = mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(195, 7));
    if made.is_err() {
        println!("SKIP: no node can be made: {made:?}");
        std::os::unix::fs::symlink("/dev/nvidia7", &node).unwrap();
    }
    for source in [link, node] {
        let mut spec = with_card_nodes();
        spec["mounts"].as_array_mut().unwrap().push(
            json!({"destination": "/there", "type": "bind", "source": source, "options": ["bind"]}),
        );
        let error = edited(&spec).unwrap_err().to_string();
        assert!(error.contains("/there"), "{error}");
    }
}

#[test]
fn a_card_that_is_not_granted_is_refused_or_left_out() {
    for (pointer, entry, shown) in [
        (
            "/mounts",
            json!({"destination": "/dev/nvidia0", "type": "bind", "source": "/dev/nvidia0"}),
            "mounts has \"/dev/nvidia0\"",
        ),
        (
            "/mounts",
            json!({"destination": "/dev/nvidiactl/../nvidia7", "type": "bind", "source": "/x"}),
            "/dev/nvidiactl/../nvidia7",
        ),
        (
            "/mounts",
            json!({"destination": "/there", "type": "bind", "source": "/dev/nvidia2"}),
            "/there",
        ),
        (
            "/linux/devices",
            json!({"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}),
            "linux.devices has \"/dev/nvidia0\"",
        ),
        (
            "/linux/devices",
            json!({"path": "/dev/innocent", "type": "u", "major": 195, "minor": 3}),
            "/dev/innocent",
        ),
        (
            "/linux/resources/devices",
            json!({"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}),
            "linux.resources.devices has \"c 195:0\"",
        ),
        (
            "/linux/resources/devices",
            json!({"allow": true, "type": "c", "major": 195, "access": "r"}),
            "c 195:*",
        ),
    ] {
        let mut spec = with_card_nodes();
        spec.pointer_mut(pointer)
            .and_then(Value::as_array_mut)
            .unwrap()
            .push(entry);
        let error = edited(&spec).unwrap_err().to_string();
        for part in [
            shown,
            "granted (/dev/nvidia1)",
            "cgpu.io/cards",
            "other-cards",
        ] {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
        assert_own_nodes_only(&edited_with(&simulated(), &spec, OtherCards::LeaveOut).unwrap());
        // Who may have every device of the host has named none of the cards.
        let mut privileged = simulated();
        privileged.isolation.weakened = vec![Weakness::HostDevices];
        assert_own_nodes_only(&edited_for(&privileged, &spec).unwrap());
    }
}

#[test]
fn a_container_that_is_not_held_reports_so() {
    let mut grant = simulated();
    grant.isolation.weakened = vec![Weakness::CapSysAdmin, Weakness::Dri];
    let spec = edited_for(&grant, &json!({})).unwrap();
    assert_eq!(
        spec["annotations"]["cgpu.io/isolation"],
        "off (cap-sys-admin, dri)"
    );
    let held = edited(&json!({})).unwrap();
    assert_eq!(held["annotations"].get("cgpu.io/isolation"), None);
}

#[test]
fn what_shows_that_infiniband_reaches_card_memory_is_hidden() {
    let given = json!({"linux": {"maskedPaths": ["/proc/kcore", "/sys/module/nvidia_peermem"]}});
    let masked =
        |driver| edited_for(&a_grant(driver), &given).unwrap()["linux"]["maskedPaths"].clone();
    assert_eq!(
        masked(DriverSpec::Kernel),
        json!([
            "/proc/kcore",
            "/sys/module/nvidia_peermem",
            "/sys/module/nv_peer_mem",
            "/sys/kernel/mm/memory_peers"
        ])
    );
}

#[test]
fn what_drivers_take_from_root_by_procfs_is_not_the_container_s_to_write() {
    let given = json!({
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/jail/./proc/", "type": "proc", "source": "proc"},
            {"destination": "second", "type": "proc"},
            {"destination": "/data", "type": "bind", "source": "/data"},
            {"type": "proc"},
        ],
        "linux": {"readonlyPaths": ["/proc/sys"]},
    });
    let spec = edited_for(&a_grant(DriverSpec::Kernel), &given).unwrap();
    assert_eq!(
        spec["linux"]["readonlyPaths"],
        json!([
            "/proc/sys",
            "/proc/driver",
            "/jail/proc/driver",
            "/second/driver"
        ])
    );
    // Whatever brings a procfs there.
    let spec = edited_for(&a_grant(DriverSpec::Kernel), &json!({})).unwrap();
    assert_eq!(spec["linux"]["readonlyPaths"], json!(["/proc/driver"]));
    // Simulated cards have nothing there.
    let spec = edited(&given).unwrap();
    assert_eq!(spec["linux"]["readonlyPaths"], json!(["/proc/sys"]));
}

#[test]
fn real_nodes_are_made_and_allowed_for_the_granted_cards_only() {
    let spec = edited_for(
        &a_grant(DriverSpec::Kernel),
        &json!({"linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}}}),
    )
    .unwrap();
    let paths: Vec<&str> = spec["linux"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "/dev/nvidiactl",
            "/dev/nvidia1",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools"
        ]
    );
    let allowed: Vec<(u64, u64)> = spec["linux"]["resources"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["allow"] == true)
        .map(|rule| {
            (
                rule["major"].as_u64().unwrap(),
                rule["minor"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(allowed, [(195, 255), (195, 1), (511, 0), (511, 1)]);
}

#[test]
fn the_applied_annotation_names_the_container() {
    let spec = edited(&json!({"annotations": {"a": "b"}})).unwrap();
    assert_eq!(
        spec["annotations"],
        json!({"a": "b", "cgpu.io/applied": "default/c1"})
    );
    assert_eq!(
        applied_for(&spec).unwrap(),
        Some(ContainerKey::new("default", "c1").unwrap())
    );
    assert_eq!(applied_for(&json!({})).unwrap(), None);
    let forged = json!({"annotations": {"cgpu.io/applied": "x"}});
    let error = applied_for(&forged).unwrap_err().to_string();
    assert!(error.contains("cgpu.io/applied"), "{error}");
}

/// What libseccomp makes of a profile, by its observed rules: an unconditional rule swallows all others of its call;
/// rules that equal the default are skipped by runc; of conditional rules the one that compares more bits is tried first,
/// else the one added first.
fn verdict_of(profile: &Value, call: &str, args: [u64; 6]) -> String {
    let default_errno = profile["defaultErrnoRet"].as_u64().unwrap_or(1);
    let outcome = |action: &Value, errno: &Value, absent: u64| match action.as_str().unwrap() {
        "SCMP_ACT_ERRNO" => format!("errno {}", errno.as_u64().unwrap_or(absent)),
        other => other.trim_start_matches("SCMP_ACT_").to_lowercase(),
    };
    let default = outcome(
        &profile["defaultAction"],
        &profile["defaultErrnoRet"],
        default_errno,
    );
    let mut conditional: Vec<(u32, String, bool)> = Vec::new();
    for rule in profile["syscalls"].as_array().into_iter().flatten() {
        if !rule["names"]
            .as_array()
            .unwrap()
            .iter()
            .any(|name| name == call)
        {
            continue;
        }
        let action = outcome(&rule["action"], &rule["errnoRet"], 1);
        if action == default {
            continue;
        }
        let conditions = rule["args"].as_array().cloned().unwrap_or_default();
        if conditions.is_empty() {
            return action;
        }
        let mut bits = u32::MAX;
        let matches = conditions.iter().all(|condition| {
            let arg = args[usize::try_from(condition["index"].as_u64().unwrap()).unwrap()];
            let value = condition["value"].as_u64().unwrap();
            match condition["op"].as_str().unwrap() {
                "SCMP_CMP_MASKED_EQ" => {
                    bits = bits.min(value.count_ones());
                    arg & value == condition["valueTwo"].as_u64().unwrap()
                }
                "SCMP_CMP_EQ" => arg == value,
                "SCMP_CMP_NE" => arg != value,
                "SCMP_CMP_GE" => arg >= value,
                "SCMP_CMP_LT" => arg < value,
                other => panic!("{other}"),
            }
        });
        conditional.push((bits, action, matches));
    }
    conditional.sort_by_key(|(bits, _, _)| std::cmp::Reverse(*bits));
    conditional
        .into_iter()
        .find(|(_, _, matches)| *matches)
        .map_or(default, |(_, action, _)| action)
}

fn ioctl_verdict(profile: &Value, command: u64) -> String {
    verdict_of(profile, "ioctl", [3, command, 0x1000, 0, 0, 0])
}

/// Calls of the driver, also with dirty upper halves, other directions and foreign type bytes.
const NOTIFIED: [u64; 11] = [
    0xc020_462a,
    0xc030_462b,
    0xffff_ffff_c020_462a,
    0x1234_c030_462b,
    0x0020_462a,
    0xc020_542a,
    0xc030_002b,
    33,
    34,
    27,
    0x3000_0001,
];
const CLOSED: [u64; 3] = [0xc010_46d3, 0xc010_aad3, 0x1_c010_46d3];
const FOREIGN: [u64; 4] = [0x5401, 0x541b, 0x802c_542a, 0x3000_0777];

fn assert_covered(profile: &Value, foreign: &str) {
    for command in NOTIFIED {
        assert_eq!(ioctl_verdict(profile, command), "notify", "{command:#x}");
    }
    for command in CLOSED {
        let verdict = ioctl_verdict(profile, command);
        assert!(verdict.starts_with("errno"), "{command:#x}: {verdict}");
    }
    for command in FOREIGN {
        assert_eq!(ioctl_verdict(profile, command), foreign, "{command:#x}");
    }
    assert_eq!(profile["listenerPath"], LISTENER);
    assert_eq!(profile["listenerMetadata"], "default/c1");
}

fn seccomp_verdict(profile: &Value, operation: u64, flags: u64) -> String {
    verdict_of(profile, "seccomp", [operation, flags, 0, 0, 0, 0])
}

fn mmap_verdict(profile: &Value, flags: u64, offset: u64) -> String {
    verdict_of(profile, "mmap", [0, 4096, 3, flags, 3, offset])
}

#[test]
fn without_a_profile_one_is_made_that_allows_the_rest() {
    for spec in [
        json!({}),
        json!({"linux": null}),
        json!({"linux": {"seccomp": null}}),
        json!({"linux": {"seccomp": {}}}),
    ] {
        let profile = edited(&spec).unwrap()["linux"]["seccomp"].clone();
        assert_covered(&profile, "allow");
        assert_eq!(profile["architectures"].as_array().unwrap().len(), 1);
        assert_eq!(seccomp_verdict(&profile, 1, 8), "errno 16");
        assert_eq!(seccomp_verdict(&profile, 1, 0), "allow");
        assert_eq!(mmap_verdict(&profile, 1, 1 << 32), "notify");
    }
}

#[test]
fn an_unconditional_allowance_is_split() {
    // The shape of docker's and containerd's default profiles.
    let profile = with_seccomp(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": ["read", "ioctl", "mmap", "seccomp"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "again"},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]},
        ],
    }))
    .unwrap();
    assert_covered(&profile, "allow");
    assert_eq!(
        profile["syscalls"][0],
        json!({"names": ["read"], "action": "SCMP_ACT_ALLOW"})
    );
    assert_eq!(profile["syscalls"][1]["names"], json!(["personality"]));
    // A second listener never, nested plain filters as before; dirty upper halves make no difference.
    assert_eq!(seccomp_verdict(&profile, 1, 8), "errno 16");
    assert_eq!(
        seccomp_verdict(&profile, 0xffff_ffff_0000_0001, 0xff00_0000_0000_0009),
        "errno 16"
    );
    assert_eq!(seccomp_verdict(&profile, 1, 1), "allow");
    assert_eq!(verdict_of(&profile, "remap_file_pages", [0; 6]), "errno 38");
    for (flags, offset, verdict) in [
        (2, 1 << 32, "allow"),
        (1, 0, "allow"),
        (3, 0, "allow"),
        (0xffff_ffff_0000_0001, 0, "allow"),
        (1, 0x1000, "notify"),
        (1, 0xf000, "notify"),
        (0x11, 0, "notify"),
        (0x10_0001, 0, "notify"),
        (0x10_0011, 0, "notify"),
        (0x10_0003, 0x1000, "notify"),
        (0x31, 0, "allow"),
        (0x10_0021, 0, "allow"),
        (0x21, 1 << 20, "allow"),
        (1, 0x10000, "notify"),
        (3, 1 << 32, "notify"),
        (0x11, 0x7000_0000_0000, "notify"),
    ] {
        assert_eq!(
            mmap_verdict(&profile, flags, offset),
            verdict,
            "{flags:#x} {offset:#x}"
        );
    }
}

#[test]
fn a_profile_that_allows_by_default_gets_our_rules_only() {
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["reboot"], "action": "SCMP_ACT_ERRNO"}]})).unwrap();
    assert_covered(&profile, "allow");
    let named = with_seccomp(json!({"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"}]})).unwrap();
    assert_covered(&named, "allow");
}

#[test]
fn what_the_profile_denies_stays_denied() {
    for denied in [
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]}),
        json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}),
    ] {
        let profile = with_seccomp(denied.clone()).unwrap();
        for command in NOTIFIED.iter().chain(&FOREIGN) {
            assert_eq!(
                ioctl_verdict(&profile, *command),
                ioctl_verdict(&denied, *command)
            );
        }
    }
    // A denial by condition comes before ours.
    let profile = with_seccomp(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13, "args": [{"index": 1, "value": 0x5412, "op": "SCMP_CMP_EQ"}]},
            {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"},
        ],
    }))
    .unwrap();
    assert_covered(&profile, "allow");
    assert_eq!(ioctl_verdict(&profile, 0x5412), "errno 13");
}

#[test]
fn allowances_by_condition_are_kept_turned_into_notifications_or_refused() {
    let list = |args: Value| json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": args}]});
    let equal = |value: u64| json!([{"index": 1, "value": value, "op": "SCMP_CMP_EQ"}]);
    let kept = with_seccomp(list(equal(0x5401))).unwrap();
    assert_eq!(ioctl_verdict(&kept, 0x5401), "allow");
    assert_eq!(ioctl_verdict(&kept, 0x5402), "errno 1");
    // One of the driver's calls, allowed past the broker: the broker gets it.
    for command in [0xc020_462a_u64, 33, 0xdead_beef_c020_462a] {
        let turned = with_seccomp(list(equal(command))).unwrap();
        assert_eq!(ioctl_verdict(&turned, command), "notify");
        assert_eq!(ioctl_verdict(&turned, 0x5401), "errno 1");
    }
    // Everything of type 'T' is not the driver's, except that the driver ignores the type.
    for args in [
        json!([{"index": 1, "value": 0xff00, "valueTwo": 0x5400, "op": "SCMP_CMP_MASKED_EQ"}]),
        json!([{"index": 1, "value": 0x5412, "op": "SCMP_CMP_NE"}]),
        json!([{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]),
        json!([{"index": 1, "value": 0x5401, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 0x5412, "op": "SCMP_CMP_NE"}]),
    ] {
        let error = with_seccomp(list(args.clone())).unwrap_err().to_string();
        assert!(
            error.contains("ioctl") && error.contains("SCMP_CMP_EQ"),
            "{args}: {error}"
        );
    }
    // Two single values on one argument are alternatives.
    let either = json!([{"index": 1, "value": 0x5401, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 0x5402, "op": "SCMP_CMP_EQ"}]);
    let profile = with_seccomp(list(either.clone())).unwrap();
    assert!(
        profile["syscalls"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| rule["args"] == either)
    );
    // With everything allowed anyway, a partial condition is redundant.
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_LOG", "args": [{"index": 1, "value": 0x5412, "op": "SCMP_CMP_NE"}]}]})).unwrap();
    assert_covered(&profile, "allow");
}

#[test]
fn an_errno_that_equals_the_default_s_is_not_lost() {
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 25, "syscalls": [{"names": ["ioctl", "seccomp"], "action": "SCMP_ACT_ALLOW"}]})).unwrap();
    assert_covered(&profile, "allow");
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 16, "syscalls": [{"names": ["seccomp"], "action": "SCMP_ACT_ALLOW"}]})).unwrap();
    assert_eq!(seccomp_verdict(&profile, 1, 8), "errno 22");
}

/// Each let the driver's calls go by: found by `lab/fuzz`, with libseccomp's own program as the judge.
#[test]
fn a_denial_that_does_not_take_effect_hides_no_allowance() {
    // Two names of one action: runc skips the first rule as the default's, so that the second holds.
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_KILL", "syscalls": [
        {"names": ["ioctl"], "action": "SCMP_ACT_KILL_THREAD"},
        {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"},
    ]}));
    assert_eq!(ioctl_verdict(&profile.unwrap(), 0xc020_462a), "notify");
    // Two numbers of one action: the first rule is not the default's and is not skipped.
    let profile = with_seccomp(json!({"defaultAction": "SCMP_ACT_TRACE", "syscalls": [
        {"names": ["ioctl"], "action": "SCMP_ACT_TRACE", "errnoRet": 25},
        {"names": ["ioctl"], "action": "SCMP_ACT_KILL_PROCESS"},
    ]}));
    assert_eq!(ioctl_verdict(&profile.unwrap(), 0xc020_462a), "notify");
    // A comparison of no bits is none: the first rule is the one that holds.
    let refused = with_seccomp(json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 0, "valueTwo": 7, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": ["ioctl"], "action": "SCMP_ACT_KILL_PROCESS"},
    ]}));
    let error = host_config::chain(&refused.unwrap_err());
    assert!(error.contains("compares no bit"), "{error}");
}

#[test]
fn foreign_tables_are_closed_whatever_the_profile_lists() {
    for architectures in [
        json!(null),
        json!([]),
        json!(["SCMP_ARCH_X86_64"]),
        json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
        json!(["SCMP_ARCH_X86", "SCMP_ARCH_ARM", "SCMP_ARCH_AARCH64"]),
    ] {
        let profile = with_seccomp(
            json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": architectures}),
        )
        .unwrap();
        let native = Arch::NATIVE.oci_name();
        assert_eq!(profile["architectures"], json!([native]));
    }
}

#[test]
fn io_uring_is_denied_where_the_grant_reports_so_and_no_denial_is_loosened() {
    let mut grant = simulated();
    grant.isolation.io_uring = IoUring::Deny;
    let list =
        json!({"names": ["read", "io_uring_setup", "io_uring_enter"], "action": "SCMP_ACT_ALLOW"});
    let killed = json!({"names": ["io_uring_register"], "action": "SCMP_ACT_KILL_PROCESS"});
    for default in ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_ERRNO"] {
        let spec = json!({"linux": {"seccomp": {"defaultAction": default, "syscalls": [list.clone(), killed.clone()]}}});
        let denied = edited_for(&grant, &spec).unwrap()["linux"]["seccomp"].clone();
        for (call, verdict) in [
            ("io_uring_setup", "errno 38"),
            ("io_uring_enter", "errno 38"),
            ("io_uring_register", "kill_process"),
            ("read", "allow"),
        ] {
            assert_eq!(
                verdict_of(&denied, call, [0; 6]),
                verdict,
                "{default} {call}"
            );
        }
        let allowed = edited(&spec).unwrap()["linux"]["seccomp"].clone();
        assert_eq!(verdict_of(&allowed, "io_uring_setup", [0; 6]), "allow");
    }
    let bare = edited_for(&grant, &json!({})).unwrap();
    assert_eq!(
        verdict_of(&bare["linux"]["seccomp"], "io_uring_register", [0; 6]),
        "errno 38"
    );
}

#[test]
fn profiles_that_cannot_be_combined_are_refused() {
    for (profile, words) in [
        (
            json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/other.sock"}),
            "/run/other.sock",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_NOTIFY", "args": [{"index": 1, "value": 1, "op": "SCMP_CMP_EQ"}]}]}),
            "sends ioctl to another listener",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}, {"names": ["mount", "umount2"], "action": "SCMP_ACT_NOTIFY"}]}),
            "sends mount, umount2 to another listener",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_NOTIFY", "syscalls": []}),
            "defaultAction is SCMP_ACT_NOTIFY",
        ),
        (json!({"syscalls": []}), "defaultAction"),
        (
            json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 1, "op": "SCMP_CMP_FUTURE"}]}]}),
            "known operator",
        ),
        (
            json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"]}]}),
            "no action",
        ),
    ] {
        let error = with_seccomp(profile.clone()).unwrap_err().to_string();
        assert!(error.contains(words), "{profile}: {error}");
    }
}

fn any_condition() -> impl Strategy<Value = Value> {
    let value = prop_oneof![
        prop::sample::select(NOTIFIED.to_vec()),
        prop::sample::select(FOREIGN.to_vec()),
        any::<u64>()
    ];
    let masked = (prop_oneof![Just(0xff_u64), Just(0xff00), Just(0x3fff_00ff), Just(0xffff_ffff), any::<u64>()], value.clone())
        .prop_map(|(mask, value)| json!({"index": 1, "value": mask, "valueTwo": value & mask, "op": "SCMP_CMP_MASKED_EQ"}));
    let plain = (
        prop::sample::select(vec![
            "SCMP_CMP_EQ",
            "SCMP_CMP_NE",
            "SCMP_CMP_GE",
            "SCMP_CMP_LT",
        ]),
        value,
    )
        .prop_map(|(op, value)| json!({"index": 1, "value": value, "op": op}));
    prop_oneof![masked, plain]
}

fn any_profile() -> impl Strategy<Value = Value> {
    let action = || {
        prop::sample::select(vec![
            "SCMP_ACT_ALLOW",
            "SCMP_ACT_ALLOW",
            "SCMP_ACT_LOG",
            "SCMP_ACT_ERRNO",
            "SCMP_ACT_KILL",
        ])
    };
    let rule = (
        prop::sample::subsequence(vec!["read", "ioctl", "mmap", "seccomp"], 1..4),
        action(),
        prop::option::of(any_condition()),
    )
        .prop_map(|(names, action, condition)| match condition {
            Some(condition) => json!({"names": names, "action": action, "args": [condition]}),
            None => json!({"names": names, "action": action}),
        });
    (action(), prop::collection::vec(rule, 0..4))
        .prop_map(|(default, rules)| json!({"defaultAction": default, "syscalls": rules}))
}

proptest! {
    /// Whatever the profile: no call of the driver passes by the broker, no foreign call is allowed that was not, and none
    /// that was allowed unconditionally is denied.
    #[test]
    fn no_profile_lets_a_driver_s_call_through(profile in any_profile(), random in any::<u64>()) {
        let permissive = |verdict: &str| ["allow", "log"].contains(&verdict);
        if let Ok(edited) = with_seccomp(profile.clone()) {
            for command in NOTIFIED.iter().chain(&CLOSED) {
                prop_assert!(!permissive(&ioctl_verdict(&edited, *command)), "{:#x} in {}", command, edited);
            }
            let ours = rules(Coverage::Simulated);
            let is_ours = |command: u64| ours.ioctl.iter().any(|rule| command & u64::from(rule.when.mask) == u64::from(rule.when.value));
            for command in FOREIGN.iter().copied().chain([random]).filter(|command| !is_ours(*command)) {
                let (before, after) = (ioctl_verdict(&profile, command), ioctl_verdict(&edited, command));
                prop_assert!(permissive(&before) || !permissive(&after), "{:#x}: {} then {}", command, before, after);
            }
        }
    }
}

/// Leaves of a document, by their paths.
fn leaves(value: &Value, path: &str, into: &mut std::collections::BTreeMap<String, Value>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                leaves(value, &format!("{path}/{key}"), into);
            }
        }
        Value::Array(items) => {
            let is_set = path.starts_with("/process/capabilities/");
            for (at, value) in items.iter().enumerate() {
                let place = match is_set {
                    true => value.to_string(),
                    false => at.to_string(),
                };
                leaves(value, &format!("{path}/{place}"), into);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}

/// What the standard's own types do not read, or read as something else.
fn beyond_the_standard(document: &Value) -> Vec<String> {
    let typed: oci_spec::runtime::Spec = serde_json::from_value(document.clone()).unwrap();
    let (mut before, mut after) = Default::default();
    leaves(document, "", &mut before);
    leaves(&serde_json::to_value(typed).unwrap(), "", &mut after);
    // What has its default may be left out.
    let is_default = |value: &Value| [json!(null), json!(false), json!("")].contains(value);
    let same =
        |(path, value): &(&String, &Value)| after.get(*path) == Some(*value) || is_default(value);
    let others = before.iter().filter(|leaf| !same(leaf));
    others
        .map(|(path, value)| format!("{path}: {value}"))
        .collect()
}

/// A key that is spelled otherwise would be no error: the runtime would leave it out, and the filter or a node with it.
#[test]
fn what_is_edited_into_the_specs_of_engines_is_the_standards() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/specs");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let spec: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let engines_own = beyond_the_standard(&spec);
        let edited = edited(&spec).unwrap();
        let ours: Vec<String> = beyond_the_standard(&edited)
            .into_iter()
            .filter(|leaf| !engines_own.contains(leaf))
            .collect();
        assert_eq!(ours, [""; 0], "{}", path.display());
        let typed: oci_spec::runtime::Spec = serde_json::from_value(edited).unwrap();
        let linux = typed.linux().as_ref().unwrap();
        let seccomp = linux.seccomp().as_ref().unwrap();
        assert_eq!(
            seccomp.listener_path().as_deref(),
            Some(Path::new(LISTENER)),
            "{}",
            path.display()
        );
        let calls = seccomp.syscalls().as_deref().unwrap();
        let notified = calls
            .iter()
            .filter(|call| call.action() == oci_spec::runtime::LinuxSeccompAction::ScmpActNotify);
        assert!(notified.count() > 0, "{}", path.display());
        read += 1;
    }
    assert!(read >= 6, "{read}");
    // The check itself: a key that no runtime reads is found.
    let other = json!({"ociVersion": "1.0.2", "linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "listenerpath": "/x"}}});
    assert_eq!(
        beyond_the_standard(&other),
        ["/linux/seccomp/listenerpath: \"/x\""]
    );
}
