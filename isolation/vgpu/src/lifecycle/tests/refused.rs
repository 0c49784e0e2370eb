//! What is refused, and leaves everything as it was.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cards::{ContainerKey, FrontendKind, SimulatedInventory};
use serde_json::{Value, json};

use super::*;

#[test]
fn what_does_not_fit_is_refused_with_what_is_left() {
    let host = TestHost::new();
    let _first = host.create("c1", "20Gi").unwrap().unwrap();
    let _second = host.create("c2", "12Gi").unwrap().unwrap();
    let error = host_config::chain(&host.create("c3", "16Gi").unwrap_err());
    for part in [
        "16 GiB",
        "card 0",
        "GPU-0",
        "4 GiB of 24 GiB",
        "card 1",
        "12 GiB of 24 GiB",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = host_config::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("default/c1 holds a vGPU already"), "{error}");
    assert_eq!(host.reserved_mib(), 32 << 10);
    for id in ["c1", "c2"] {
        release(&host.config, &key(id)).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn two_dialects_that_ask_for_different_memory_are_named() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let mut spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    spec["process"]["env"] = json!([
        "ALIYUN_COM_GPU_MEM_CONTAINER=8",
        "ALIYUN_COM_GPU_MEM_DEV=24"
    ]);
    fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
    let error = host_config::chain(
        &create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err(),
    );
    for part in [
        "cgpu.io/memory",
        "4 GiB",
        "ALIYUN_COM_GPU_MEM_CONTAINER = 8",
        "8 GiB of card 0",
    ] {
        assert!(error.contains(part), "{error}");
    }
    host.assert_clean(&"refused");
}

#[test]
fn twenty_frontends_at_once_never_overcommit() {
    let host = TestHost::new();
    // 20 containers of 3 GiB on 48 GiB: 16 fit.
    let results: Vec<_> = std::thread::scope(|scope| {
        let frontends: Vec<_> = (0..20)
            .map(|at| {
                scope.spawn({
                    let host = &host;
                    move || host.create(&format!("c{at}"), "3Gi")
                })
            })
            .collect();
        frontends
            .into_iter()
            .map(|frontend| frontend.join().unwrap())
            .collect()
    });
    let refused = results
        .iter()
        .filter(|result| matches!(result, Err(Error::Cards(cards::Error::Placement(_)))))
        .count();
    assert_eq!(
        (
            results.iter().filter(|result| result.is_ok()).count(),
            refused
        ),
        (16, 4)
    );
    assert_eq!(host.reserved_mib(), 48 << 10);
    for at in 0..20 {
        release(&host.config, &key(&format!("c{at}"))).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn a_second_frontend_on_the_same_bundle_finds_the_work_done() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let _shim = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim)
        .unwrap()
        .unwrap();
    let edited = spec_bytes(&bundle);
    // The wrapper below a shim may use another namespace for the same container.
    let other = ContainerKey::new("runc", "c1").unwrap();
    assert!(
        create(&host.config, &other, &bundle, FrontendKind::Runtime)
            .unwrap()
            .is_none()
    );
    assert_eq!(spec_bytes(&bundle), edited);
    assert!(
        container(&host.config, &key("c1"))
            .reopen_as(FrontendKind::Runtime)
            .is_none()
    );
    assert_eq!(
        host.reserved_mib(),
        4 << 10,
        "the shim's grant is not the wrapper's to release"
    );
    let shims = container(&host.config, &key("c1")).reopen_as(FrontendKind::Shim);
    shims.unwrap().ended().release().unwrap();
    host.assert_clean(&"released");
}

#[test]
fn an_applied_annotation_written_by_hand_is_refused() {
    let host = TestHost::new();
    for applied in ["default/other", "nonsense"] {
        let bundle = host.bundle(
            "c1",
            json!({"cgpu.io/memory": "4Gi", "cgpu.io/applied": applied}),
        );
        let error = host_config::chain(
            &create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err(),
        );
        assert!(error.contains(applied), "{error}");
    }
    // Naming a living neighbour does not help either.
    let _neighbour = host.create("neighbour", "4Gi").unwrap().unwrap();
    let bundle = host.bundle("c1", json!({"cgpu.io/applied": "default/neighbour"}));
    assert!(matches!(
        create(&host.config, &key("c1"), &bundle, FrontendKind::Shim),
        Err(Error::ForgedAnnotation { .. })
    ));
    release(&host.config, &key("neighbour")).unwrap();
    host.assert_clean(&"released");
}

#[test]
fn broken_specs_are_refused_and_stay_as_they_are() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({}));
    let path = bundle.join("config.json");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        "",
        "{\"annotations\": {\"cgpu.io/mem",
        "[]",
        "null",
        "\u{0}",
        deep.as_str(),
        "{\"annotations\": {\"cgpu.io/memory\": [4]}}",
    ] {
        fs::write(&path, text).unwrap();
        let error = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err();
        assert!(!host_config::chain(&error).is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // Parses, asks, and cannot be edited.
    for (field, value) in [
        ("mounts", json!({})),
        ("linux", json!([])),
        ("linux", json!({"seccomp": []})),
        ("linux", json!({"devices": 3})),
    ] {
        let mut spec = json!({"annotations": {"cgpu.io/memory": "4Gi"}});
        spec[field] = value;
        fs::write(&path, spec.to_string()).unwrap();
        create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), spec.to_string());
        host.assert_clean(&spec);
    }
    fs::File::create(&path).unwrap().set_len(17 << 20).unwrap();
    let error = host_config::chain(
        &create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err(),
    );
    assert!(error.contains("larger than 16777216 bytes"), "{error}");
}

#[test]
fn reservations_that_cannot_be_read_or_are_newer_refuse_and_are_never_written_over() {
    for (text, words) in [
        ("{\"version\": 1, \"uu", "cannot be read"),
        ("{\"version\": 7}", "version 7, newer than this cgpu"),
    ] {
        let host = TestHost::new();
        let of_card = host.config.state_dir.join("cards/GPU-1/reservations.json");
        fs::create_dir_all(of_card.parent().unwrap()).unwrap();
        fs::write(&of_card, text).unwrap();
        let error = host_config::chain(&host.create("c1", "4Gi").unwrap_err());
        assert!(error.contains(words), "{error}");
        assert_eq!(fs::read_to_string(&of_card).unwrap(), text);
        assert_eq!(state::containers(&host.config.state_dir).unwrap(), []);
    }
}

/// Makes this thread's kernel one without user notification: a filter answers the question for it as an old one would.
fn forget_user_notification() -> std::io::Result<std::os::fd::OwnedFd> {
    use bpf::{ALLOW, if_equal, load, ret};
    use sys::seccomp::{Wait, install_with_listener};
    const SYS_SECCOMP: u32 = 317;
    const GET_NOTIF_SIZES: u32 = 3;
    const EOPNOTSUPP: u16 = 95;
    let program = [
        load(0),
        if_equal(SYS_SECCOMP, 0, 3),
        load(16),
        if_equal(GET_NOTIF_SIZES, 0, 1),
        ret(bpf::errno(EOPNOTSUPP)),
        ret(ALLOW),
    ];
    install_with_listener(&program, Wait::Interruptible)
}

#[test]
fn a_kernel_without_user_notification_is_refused_and_nothing_is_touched() {
    let host = TestHost::new();
    let before = spec_bytes(&host.bundle("a", json!({"cgpu.io/memory": "4Gi"})));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _listener = match forget_user_notification() {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    println!("SKIP: a_kernel_without_user_notification: not root");
                    return;
                }
                other => other.unwrap(),
            };
            let error = host.create("a", "4Gi").unwrap_err();
            assert!(
                matches!(error, Error::KernelWithoutNotify { .. }),
                "{error}"
            );
            assert!(host_config::chain(&error).contains("seccomp"), "{error}");
        });
    });
    host.assert_clean(&"a kernel without user notification");
    assert_eq!(spec_bytes(&host.dir.path().join("bundles/a")), before);
}

#[test]
fn a_runtime_without_notify_is_refused_and_one_with_it_is_requested_once() {
    let host = TestHost::new();
    for id in ["c1", "c2", "c3"] {
        drop(host.create(id, "1Gi").unwrap().unwrap());
    }
    let calls = || {
        fs::read_to_string(host.dir.path().join("runc.calls"))
            .unwrap()
            .lines()
            .count()
    };
    assert_eq!(calls(), 1);
    // Another file in its place is asked anew.
    let runc = host.dir.path().join("runc");
    fs::remove_file(&runc).unwrap();
    program(
        &runc,
        "echo '{\"linux\":{\"seccomp\":{\"enabled\":true,\"actions\":[\"SCMP_ACT_ALLOW\"]}}}'",
    );
    let error = host_config::chain(&host.create("c4", "1Gi").unwrap_err());
    assert!(
        error.contains("SCMP_ACT_NOTIFY") && error.contains("runc 1.1"),
        "{error}"
    );
    // `features` is unknown to runc 1.0.
    program(&runc, "exit 1");
    assert!(matches!(
        host.create("c4", "1Gi"),
        Err(Error::RuncWithoutNotify { .. })
    ));
    fs::set_permissions(&runc, fs::Permissions::from_mode(0o777)).unwrap();
    let error = host_config::chain(&host.create("c4", "1Gi").unwrap_err());
    assert!(
        error.contains("777") && error.contains("no other user can write"),
        "{error}"
    );
    for id in ["c1", "c2", "c3"] {
        release(&host.config, &key(id)).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn a_state_folder_too_deep_for_a_socket_is_refused_before_anything_is_written() {
    let mut host = TestHost::new();
    let deep = host.config.state_dir.join("d".repeat(60));
    fs::create_dir(&deep).unwrap();
    fs::set_permissions(&deep, fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["sim", "cards.json"] {
        std::os::unix::fs::symlink(host.config.state_dir.join(name), deep.join(name)).unwrap();
    }
    host.config.state_dir.clone_from(&deep);
    let error = host_config::chain(&host.create("c1", "1Gi").unwrap_err());
    for part in [&format!("state_dir = {}: ", deep.display()), "at most 107"] {
        assert!(error.contains(part), "{error}");
    }
    host.assert_clean(&"refused");
}

/// As dockerd's `userns-remap` makes them.
#[test]
fn names_too_long_for_a_socket_have_short_sockets_and_leave_none() {
    let host = TestHost::new();
    let sockets = || fs::read_dir(host.config.state_dir.join("sockets")).map_or(0, Iterator::count);
    let long = "x".repeat(128);
    drop(host.create(&long, "1Gi").unwrap());
    assert!(sockets() > 0);
    release(&host.config, &key(&long)).unwrap();
    host.assert_clean(&"released");
    assert_eq!(sockets(), 0);
}

#[test]
fn a_state_folder_that_others_can_write_is_refused() {
    let host = TestHost::new();
    fs::set_permissions(&host.config.state_dir, fs::Permissions::from_mode(0o777)).unwrap();
    let error = host_config::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("777"), "{error}");
}

#[test]
fn without_any_driver_the_refusal_reports_what_was_looked_for() {
    let host = TestHost::new();
    fs::remove_file(SimulatedInventory::path(&host.config.state_dir)).unwrap();
    let error = host_config::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(
        error.contains("/proc/driver/nvidia/version") && error.contains("sim/cards.json"),
        "{error}"
    );
    let mut host = TestHost::new();
    host.config.driver.kind = host_config::config::DriverKind::Kernel;
    if Path::new("/proc/driver/nvidia/version").exists() {
        println!("SKIP: this machine has a card");
        return;
    }
    let error = host_config::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("/proc/driver/nvidia/version"), "{error}");
    host.assert_clean(&"no driver");
}

#[test]
fn what_leads_out_of_the_slice_is_refused_before_anything_is_granted() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    with_capabilities(&bundle, json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]));
    let before = fs::read(bundle.join("config.json")).unwrap();
    let error = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap_err();
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    assert_eq!(fs::read(bundle.join("config.json")).unwrap(), before);
    host.assert_clean(&"refused");
}
