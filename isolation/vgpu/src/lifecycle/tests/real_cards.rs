//! Drivers and cards as hosts have them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cards::{Card, Grant};
use driver_libraries::uvm_module;
use serde_json::{Value, json};
use spec::nodes;
use verdict::filter::FilterSpec;

use super::super::list;
use super::*;
use crate::state::ContainerDir;

#[test]
fn a_container_of_real_cards_has_the_driver_s_files_in_its_spec_and_the_image_s_linker_knows_them()
{
    use driver_libraries::fake::{
        FakeHost, Layout, VERSION, linker_cache_paths, linker_cache_with,
    };
    use driver_libraries::fake::{LOADS, kernel_with};
    let Some(driver) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let mut fake = TestHost::new();
    fake.config.driver = driver.config.driver.clone();
    let host = Host {
        driver: cards::DriverSpec::Kernel,
        inventory: cards::Inventory {
            driver_version: VERSION.to_owned(),
            cards: driver.cards.clone(),
        },
        device_files: nvabi::proc_files::DeviceFiles::default(),
        layouts: None,
        filter: Ok(FilterSpec {
            release: nvabi::Release::R570,
            coverage: verdict::filter::Coverage::Production,
            arch: arch::Arch::NATIVE,
        }),
        uvm: Some(kernel_with(fake.dir.path(), LOADS)),
    };
    let bundle = fake.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let rootfs = bundle.join("rootfs");
    fs::create_dir_all(rootfs.join("usr/lib64")).unwrap();
    fs::create_dir_all(rootfs.join("etc")).unwrap();
    fs::write(rootfs.join("usr/lib64/libc.so.6"), "").unwrap();
    fs::write(
        rootfs.join("etc/ld.so.cache"),
        linker_cache_with(&["libc.so.6"]),
    )
    .unwrap();
    let before = spec_bytes(&bundle);
    let create = || create_on_host(&fake.config, &host, &key("c1"), &bundle);
    let vgpu = create().unwrap();
    let spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    let mounts = spec["mounts"].as_array().unwrap();
    let cuda = mounts
        .iter()
        .find(|mount| mount["destination"] == "/usr/lib64/libcuda.so.1")
        .unwrap();
    assert_eq!(cuda["options"], json!(["bind", "ro", "nosuid", "nodev"]));
    // The other card, and what a host with nvidia-peermem has in sysfs.
    let masked = spec["linux"]["maskedPaths"].as_array().unwrap();
    let (of_sysfs, of_procfs): (Vec<_>, Vec<_>) = masked
        .iter()
        .partition(|path| path.as_str().is_some_and(|path| path.starts_with("/sys/")));
    assert_eq!((of_sysfs.len(), of_procfs.len()), (3, 1), "{masked:?}");
    assert_eq!(spec["hooks"], Value::Null);
    assert!(linker_cache_paths(&rootfs).contains(&"/usr/lib64/libcuda.so.1".to_owned()));
    release(&fake.config, &key("c1")).unwrap();
    drop(vgpu);
    assert_eq!(spec_bytes(&bundle), before);

    // A driver without libraries: nothing of the start is left.
    fs::remove_dir_all(driver.root()).unwrap();
    let Err(error) = create() else {
        panic!("there are no libraries")
    };
    assert!(matches!(error, Error::DriverLibraries(_)), "{error}");
    fake.assert_clean(&"no libraries");
    assert_eq!(spec_bytes(&bundle), before);
}

#[test]
fn a_container_of_real_cards_gets_nvidia_uvm_though_nobody_has_loaded_the_module() {
    use driver_libraries::fake::{LOADS, kernel_with};
    let mut fake = TestHost::new();
    fake.config.driver.libraries = host_config::config::LibrarySource::None;
    let mut host = Host::find(&fake.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    let bundle = fake.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let before = spec_bytes(&bundle);
    let create = |host: &Host| create_on_host(&fake.config, host, &key("c1"), &bundle);

    host.uvm = Some(kernel_with(fake.dir.path(), "echo no such module >&2"));
    let Err(error) = create(&host) else {
        panic!("CUDA needs the module")
    };
    assert!(
        matches!(error, Error::UvmModule(uvm_module::Error::NotLoaded { .. })),
        "{error}"
    );
    let text = host_config::chain(&error);
    assert!(text.contains("no such module"), "{text}");
    fake.assert_clean(&"no module");
    assert_eq!(spec_bytes(&bundle), before);

    host.uvm = Some(kernel_with(fake.dir.path(), LOADS));
    let vgpu = create(&host).unwrap();
    let spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    let devices = spec["linux"]["devices"].as_array().unwrap();
    let nodes: Vec<String> = devices
        .iter()
        .map(|node| {
            let number = |key: &str| node[key].as_u64().unwrap();
            let path = node["path"].as_str().unwrap();
            format!("{path} {}:{}", number("major"), number("minor"))
        })
        .collect();
    assert_eq!(
        nodes,
        [
            "/dev/nvidiactl 195:255",
            "/dev/nvidia0 195:0",
            "/dev/nvidia-uvm 511:0",
            "/dev/nvidia-uvm-tools 511:1"
        ]
    );
    release(&fake.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn nodes_are_the_operator_s_and_a_program_that_may_not_open_them_is_refused() {
    use driver_libraries::fake::{LOADS, kernel_with};
    let mut fake = TestHost::new();
    fake.config.driver.libraries = host_config::config::LibrarySource::None;
    let mut host = Host::find(&fake.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    host.uvm = Some(kernel_with(fake.dir.path(), LOADS));
    host.device_files = nvabi::proc_files::DeviceFiles::of_params(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
    );
    let bundle = fake.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let with_groups = |groups: &[u32]| {
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        spec["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": groups});
        fs::write(&path, spec.to_string()).unwrap();
    };
    let create = || create_on_host(&fake.config, &host, &key("c1"), &bundle);

    with_groups(&[]);
    let before = spec_bytes(&bundle);
    let Err(error) = create() else {
        panic!("its program cannot open the nodes")
    };
    assert!(
        matches!(error, Error::Nodes(nodes::Error::Unusable { .. })),
        "{error}"
    );
    fake.assert_clean(&"unusable nodes");
    assert_eq!(spec_bytes(&bundle), before);

    with_groups(&[44]);
    let vgpu = create().unwrap();
    let spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    let devices = spec["linux"]["devices"].as_array().unwrap();
    let seen: Vec<String> = devices
        .iter()
        .map(|node| {
            let number = |key: &str| node[key].as_u64().unwrap();
            let path = node["path"].as_str().unwrap();
            let mode = number("fileMode");
            format!("{path} {mode:o} {}:{}", number("uid"), number("gid"))
        })
        .collect();
    // nvidia-uvm has no such parameters.
    assert_eq!(
        seen,
        [
            "/dev/nvidiactl 660 0:44",
            "/dev/nvidia0 660 0:44",
            "/dev/nvidia-uvm 666 0:0",
            "/dev/nvidia-uvm-tools 666 0:0"
        ]
    );
    release(&fake.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn the_variables_capabilities_are_in_the_grant_and_what_the_host_refuses_is_reported() {
    use cards::Capability::{Graphics, Video};

    use driver_libraries::fake::{FakeHost, Layout, VERSION};
    use driver_libraries::fake::{LOADS, kernel_with};
    let Some(driver) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let mut fake = TestHost::new();
    fake.config.driver = driver.config.driver.clone();
    let mut host = Host::find(&fake.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    host.inventory.driver_version = VERSION.to_owned();
    host.uvm = Some(kernel_with(fake.dir.path(), LOADS));
    let both = &[Graphics, Video][..];
    for (id, allowed, value, granted, reported) in [
        ("c1", both, "video", &[Video][..], None),
        ("c2", both, "compute,utility,graphics", &[Graphics], None),
        ("c3", both, "all", both, None),
        ("c4", both, "compute,utility", &[], None),
        ("c5", both, "video,display", &[Video], Some("has display:")),
        ("c6", &[], "compute,utility,video", &[], Some("has video:")),
        ("c7", &[], "all", &[], None),
        (
            "c8",
            &[Video],
            "graphics,video",
            &[Video],
            Some("has graphics:"),
        ),
    ] {
        fake.config.isolation.capabilities = allowed.iter().copied().collect();
        let bundle = fake.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        spec["process"]["env"] = json!([format!("NVIDIA_DRIVER_CAPABILITIES={value}")]);
        fs::write(&path, spec.to_string()).unwrap();
        let vgpu = create_on_host(&fake.config, &host, &key(id), &bundle).unwrap();
        // The broker is started from the grant as it is written.
        let states = list(&fake.config).unwrap();
        let capabilities = &states[0].grant.isolation.capabilities;
        let found: Vec<_> = capabilities.iter().copied().collect();
        assert_eq!(found, granted, "{value}");
        let folder = cards::events::of_container(&fake.config.state_dir, &key(id));
        let events = cards::events::read(&folder).unwrap_or_default();
        let found = events
            .iter()
            .find(|event| event.kind == crate::events::NOT_SERVED);
        assert_eq!(found.is_some(), reported.is_some(), "{value}: {events:?}");
        if let (Some(found), Some(reported)) = (found, reported) {
            assert!(found.text.contains(reported), "{}", found.text);
            assert!(found.text.contains("[isolation] capabilities"));
        }
        release(&fake.config, &key(id)).unwrap();
        drop(vgpu);
    }
}

#[test]
fn infiniband_beside_a_quota_is_reported_not_to_reach_card_memory() {
    let fake = TestHost::new();
    for (id, path, reported) in [
        ("c1", "/dev/infiniband/uverbs0", true),
        ("c2", "/dev/fuse", false),
    ] {
        let bundle = fake.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
        let config = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        let device = json!({"path": path, "type": "c", "major": 10, "minor": 229});
        spec["linux"]["devices"] = json!([device.clone(), device]);
        fs::write(&config, spec.to_string()).unwrap();
        let host = Host::find(&fake.config).unwrap();
        let vgpu = create_on_host(&fake.config, &host, &key(id), &bundle).unwrap();
        let folder = cards::events::of_container(&fake.config.state_dir, &key(id));
        let events = cards::events::read(&folder).unwrap_or_default();
        let found: Vec<&str> = events
            .iter()
            .filter(|event| event.kind == crate::events::NO_GPUDIRECT_RDMA)
            .map(|event| event.text.as_str())
            .collect();
        assert_eq!(found.len(), usize::from(reported), "{events:?}");
        assert!(found.iter().all(|text| text.contains(path)));
        release(&fake.config, &key(id)).unwrap();
        drop(vgpu);
    }
}

/// A host whose driver says that it has this version.
fn with_driver(version: &str) -> TestHost {
    let fake = TestHost::new();
    let inventory = Host::find(&fake.config).unwrap().inventory;
    SimulatedInventory {
        version: 1,
        driver_version: version.to_owned(),
        cards: inventory.cards,
    }
    .write(&DiskStore, &fake.config.state_dir)
    .unwrap();
    fake
}

/// The facts of 595 as a file of this version's.
fn facts_of_595(version: &str) -> String {
    let facts = releases::Facts::of_release(nvabi::Release::R595);
    releases::file_of(version, &facts, std::collections::BTreeSet::new()).unwrap()
}

#[test]
fn a_file_of_the_operators_makes_a_driver_known_and_the_grant_keeps_what_it_reported() {
    let mut fake = with_driver("610.43.02");
    fake.config.driver.releases = fake.dir.path().join("drivers.d");
    let file = fake.config.driver.releases.join("610.43.02.json");
    fs::create_dir(&fake.config.driver.releases).unwrap();
    fs::write(&file, facts_of_595("610.43.02")).unwrap();
    let vgpu = fake.create("c1", "4Gi").unwrap().unwrap();
    let needed = nvabi::Release::R595;
    assert_eq!(vgpu.filter.unwrap().release, needed);
    let kept = vgpu.grant.layouts.clone().unwrap();
    assert_eq!(kept.release().unwrap(), needed);
    // The container runs on without the file.
    fs::remove_file(&file).unwrap();
    let grant = Grant::read(ContainerDir::of(&fake.config.state_dir, &key("c1")).path()).unwrap();
    assert_eq!(crate::host::filter_of(&grant).unwrap().release, needed);
    fake.create("c2", "4Gi").unwrap_err();
}

#[test]
fn a_file_that_others_can_write_or_that_is_of_something_else_makes_nothing_known() {
    let mut fake = with_driver("610.43.02");
    fake.config.driver.releases = fake.dir.path().join("drivers.d");
    let file = fake.config.driver.releases.join("610.43.02.json");
    fs::create_dir(&fake.config.driver.releases).unwrap();
    let large = " ".repeat(2 << 20);
    for (text, mode, reported) in [
        (facts_of_595("610.43.02"), 0o666, "mode 666"),
        (facts_of_595("610.43.03"), 0o644, "of version 610.43.03"),
        (String::new(), 0o644, "not the facts of a driver version"),
        (large, 0o644, "1048576"),
    ] {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let Err(error) = fake.create("c1", "4Gi") else {
            panic!("{reported}")
        };
        let text = host_config::chain(&error);
        for part in [
            reported,
            "610.43.02.json",
            "driver 610.43.02 is not supported",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        fake.assert_clean(&reported);
    }
}

#[test]
fn an_unknown_driver_version_is_refused_with_the_known_ones_and_how_one_is_added() {
    let fake = with_driver("610.43.02");
    let Err(error) = fake.create("c1", "4Gi") else {
        panic!("its layouts are not known")
    };
    let text = host_config::chain(&error);
    for part in [
        "driver 610.43.02 is not supported",
        "535 from 535.86.05",
        "595 from 595.44.02",
        "docs/guide/support.md",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fake.assert_clean(&"unknown driver");
}

#[test]
fn cards_that_nobody_can_share_are_named_and_nothing_is_left() {
    let fake = TestHost::new();
    let inventory = Host::find(&fake.config).unwrap().inventory;
    let mut cards = inventory.cards;
    cards[0].modes.mig = true;
    let write = |cards: &[Card]| {
        SimulatedInventory {
            version: 1,
            driver_version: inventory.driver_version.clone(),
            cards: cards.to_vec(),
        }
        .write(&DiskStore, &fake.config.state_dir)
        .unwrap();
    };
    write(&cards);
    let vgpu = fake.create("c1", "4Gi").unwrap().unwrap();
    assert_eq!(vgpu.grant.cards[0].uuid.as_str(), "GPU-1");
    release(&fake.config, &key("c1")).unwrap();
    cards[1].modes.compute = cards::Programs::ExclusiveProcess;
    write(&cards);
    let Err(error) = fake.create("c2", "4Gi") else {
        panic!("nobody can share these")
    };
    let text = host_config::chain(&error);
    for part in ["GPU-0", "MIG mode", "GPU-1", "Exclusive_Process"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fake.assert_clean(&"no card to share");
}
