//! Doors that succeed, fail and are killed, with a played broker and a played runc.
//!
//! The test program plays other programs: started with [`PLAY_BROKER`] it is a broker that holds its lock until its door is
//! gone, with [`PLAY_DOOR`] a door that is killed at a step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use cards::placement::MIB;
use cards::{Card, GpuUuid, SimulatedInventory};
use serde_json::{Value, json};

use super::*;

const PLAY_BROKER: &str = "CGPU_TEST_PLAY_BROKER";
const PLAY_DOOR: &str = "CGPU_TEST_PLAY_DOOR";

const STEPS: [Step; 8] = [
    Step::Locked,
    Step::Reclaimed,
    Step::FolderMade,
    Step::DoorLocked,
    Step::GrantWritten,
    Step::Booked,
    Step::SpecReplaced,
    Step::BrokerReady,
];

/// A host of two cards of 24 GiB in a folder of its own.
struct TestHost {
    dir: tempfile::TempDir,
    config: Config,
}

impl TestHost {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config_in(dir.path());
        fs::create_dir(&config.state_dir).unwrap();
        fs::set_permissions(&config.state_dir, fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir_all(config.state_dir.join("sim/dev")).unwrap();
        for name in [
            "nvidiactl",
            "nvidia0",
            "nvidia1",
            "nvidia-uvm",
            "nvidia-uvm-tools",
        ] {
            fs::write(config.state_dir.join("sim/dev").join(name), "").unwrap();
        }
        let cards = (0..2)
            .map(|index| Card {
                uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
                name: "Simulated Ada".to_owned(),
                memory_bytes: 24 << 30,
                minor: index,
                index,
                pci: format!("00000000:0{index}:00.0"),
                modes: cards::Modes::default(),
            })
            .collect();
        SimulatedInventory {
            version: 1,
            driver_version: "570.195.03".to_owned(),
            cards,
        }
        .write(&DiskStore, &config.state_dir)
        .unwrap();
        program(
            &dir.path().join("runc"),
            "echo ran >> \"$(dirname \"$0\")/runc.calls\"; echo '{\"linux\":{\"seccomp\":{\"actions\":[\"SCMP_ACT_NOTIFY\"]}}}'",
        );
        let me = std::env::current_exe().unwrap();
        // The test harness talks on standard output; the broker's pipe becomes descriptor 3.
        program(
            &dir.path().join("broker"),
            &format!(
                "exec 3>&1 >/dev/null; {PLAY_BROKER}=\"$2\" exec '{}' --exact lifecycle::tests::play_broker",
                me.display()
            ),
        );
        Self { dir, config }
    }

    fn bundle(&self, id: &str, annotations: Value) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        let spec = json!({"ociVersion": "1.0.2", "vendor": {"kept": [1, 2]}, "annotations": annotations, "process": {"args": ["x"], "env": ["A=b"]}, "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}});
        fs::write(
            bundle.join("config.json"),
            serde_json::to_vec_pretty(&spec).unwrap(),
        )
        .unwrap();
        bundle
    }

    fn create(&self, id: &str, memory: &str) -> Result<Option<Vgpu>, Error> {
        let bundle = self.bundle(id, json!({"cgpu.io/memory": memory}));
        create(&self.config, &key(id), &bundle, DoorKind::Shim)
    }

    fn booked_mib(&self) -> u64 {
        let lock = StateLock::take(&self.config.state_dir).unwrap();
        let store = DiskStore;
        let books = Books::open(&lock, &self.config.state_dir, &store)
            .all()
            .unwrap();
        books
            .iter()
            .map(cards::book::Book::booked_bytes)
            .sum::<u64>()
            / MIB
    }

    /// Nothing of any container is left.
    fn assert_clean(&self, context: &dyn std::fmt::Debug) {
        assert_eq!(self.booked_mib(), 0, "{context:?}");
        assert_eq!(
            state::containers(&self.config.state_dir).unwrap(),
            [],
            "{context:?}"
        );
        assert_eq!(
            brokers(self.dir.path()),
            Vec::<String>::new(),
            "{context:?}"
        );
        let vgpus = state::vgpus_dir(&self.config.state_dir);
        assert!(
            !vgpus.exists() || fs::read_dir(vgpus).unwrap().next().is_none(),
            "{context:?}"
        );
        assert_eq!(
            own_group::all(&self.config),
            Vec::<PathBuf>::new(),
            "{context:?}"
        );
    }
}

fn config_in(dir: &Path) -> Config {
    Config {
        state_dir: dir.join("state"),
        runc: Some(dir.join("runc")),
        broker: crate::config::BrokerConfig {
            path: Some(dir.join("broker")),
            ..Default::default()
        },
        ..Config::default()
    }
}

fn program(path: &Path, body: &str) {
    // By another process: a file that this one writes is busy in whatever another test forks meanwhile.
    let written = Command::new("sh")
        .args([
            "-c",
            "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\"",
            "sh",
            body,
        ])
        .arg(path)
        .status();
    assert!(written.unwrap().success());
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn key(id: &str) -> ContainerKey {
    ContainerKey::new("default", id).unwrap()
}

fn spec_bytes(bundle: &Path) -> Vec<u8> {
    fs::read(bundle.join("config.json")).unwrap()
}

/// Played brokers of a host that still live: their environment names their folder.
fn brokers(host: &Path) -> Vec<String> {
    let wanted = format!("{PLAY_BROKER}={}", host.display());
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().into_string().ok()?;
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            String::from_utf8_lossy(&environment)
                .contains(&wanted)
                .then_some(pid)
        })
        .collect()
}

#[test]
fn play_broker() {
    let Some(dir) = std::env::var_os(PLAY_BROKER).map(PathBuf::from) else {
        return;
    };
    let _lock = FileLock::take(&dir.join("broker.lock")).unwrap();
    fs::write("/proc/self/fd/3", "ready\n").unwrap();
    // The door's death is the only event that this broker waits for.
    let door = FileLock::take(&dir.join("door.lock"));
    drop(door);
}

#[test]
fn play_door() {
    let Some(play) = std::env::var_os(PLAY_DOOR) else {
        return;
    };
    let play = play.into_string().unwrap();
    let [host, bundle, step] = play.split(':').collect::<Vec<_>>().try_into().unwrap();
    let step = STEPS[step.parse::<usize>().unwrap()];
    drop(create_watched(
        &config_in(Path::new(host)),
        &key("killed"),
        Path::new(bundle),
        DoorKind::Shim,
        &KilledAt(step),
    ));
}

struct KilledAt(Step);

impl Watch for KilledAt {
    fn reached(&self, step: Step) -> Result<(), Error> {
        if step == self.0 {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        Ok(())
    }
}

struct FailsAt(Step);

impl Watch for FailsAt {
    fn reached(&self, step: Step) -> Result<(), Error> {
        if step == self.0 {
            Err(Error::NoMemoryTerm)
        } else {
            Ok(())
        }
    }
}

#[test]
fn a_vgpu_is_granted_booked_edited_and_served_and_gone_after_release() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "8Gi", "cgpu.io/cards": "2"}));
    let before = spec_bytes(&bundle);
    let vgpu = create(&host.config, &key("c1"), &bundle, DoorKind::Shim)
        .unwrap()
        .unwrap();
    assert_eq!(
        vgpu.grant()
            .cards
            .iter()
            .map(|card| card.quota_bytes)
            .collect::<Vec<_>>(),
        [4 << 30, 4 << 30]
    );
    assert_eq!(host.booked_mib(), 8 << 10);
    assert_eq!(brokers(host.dir.path()).len(), 1);
    let spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    assert_eq!(spec["annotations"]["cgpu.io/applied"], "default/c1");
    assert_eq!(spec["vendor"], json!({"kept": [1, 2]}));
    assert_eq!(
        spec["linux"]["seccomp"]["listenerPath"],
        vgpu.notify_socket().display().to_string()
    );
    let states = list(&host.config).unwrap();
    assert_eq!(
        (states.len(), states[0].broker, &states[0].grant),
        (1, BrokerState::Alive, vgpu.grant())
    );

    let mut process = json!({"args": ["sh"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]});
    edit_exec(&host.config, &key("c1"), &mut process).unwrap();
    assert_eq!(process["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));

    release(&host.config, &key("c1")).unwrap();
    host.assert_clean(&"released");
    assert_eq!(spec_bytes(&bundle), before);
    release(&host.config, &key("c1")).unwrap();
    drop(vgpu);
}

/// In a frontend's name, of a container that asks for 1 GiB.
fn created(host: &TestHost, id: &str, door: DoorKind) -> Result<Option<Vgpu>, Error> {
    let bundle = host.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
    create(&host.config, &key(id), &bundle, door)
}

#[test]
fn own_processes_are_in_a_group_of_their_own_whatever_the_frontend() {
    let host = TestHost::new();
    for door in [
        DoorKind::Shim,
        DoorKind::Runtime,
        DoorKind::Hook,
        DoorKind::Run,
    ] {
        let vgpu = created(&host, "c1", door).unwrap().unwrap();
        let groups = own_group::all(&host.config);
        if groups.is_empty() {
            println!("SKIP: no control groups can be made here");
            release(&host.config, &key("c1")).unwrap();
            return;
        }
        let inside = |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap();
        let brokers = brokers(host.dir.path());
        for group in &groups {
            let text = inside(group);
            let pids: Vec<&str> = text.lines().collect();
            assert!(
                brokers.iter().all(|pid| pids.contains(&pid.as_str())),
                "{door:?}: {text}"
            );
        }
        let states = list(&host.config).unwrap();
        assert!(states[0].own.unwrap().memory_bytes.is_some());
        release(&host.config, &key("c1")).unwrap();
        host.assert_clean(&door);
        drop(vgpu);
    }
}

#[test]
fn without_control_groups_engines_are_refused_and_cgpu_run_goes_on() {
    let mut host = TestHost::new();
    host.config.broker.cgroup_root = host.dir.path().join("no-tree");
    for door in [DoorKind::Shim, DoorKind::Runtime, DoorKind::Hook] {
        let error = created(&host, "c1", door).unwrap_err();
        let text = crate::chain(&error);
        assert!(
            matches!(error, Error::OwnGroup { .. }) && text.contains("no-tree/memory"),
            "{text}"
        );
        host.assert_clean(&door);
    }
    let vgpu = created(&host, "c1", DoorKind::Run).unwrap().unwrap();
    assert_eq!(list(&host.config).unwrap()[0].own, None);
    follow(&host.config, &key("c1")).unwrap();
    release(&host.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn a_container_of_real_cards_has_the_driver_s_files_in_its_spec_and_the_image_s_linker_knows_them()
{
    use crate::userland::tests::{
        FakeHost, Layout, VERSION, linker_cache_paths, linker_cache_with,
    };
    use crate::uvm_module::tests::{LOADS, kernel_with};
    let Some(driver) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let mut played = TestHost::new();
    played.config.driver = driver.config.driver.clone();
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
        }),
        uvm: Some(kernel_with(played.dir.path(), LOADS)),
    };
    let bundle = played.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
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
    let create = || create_on_host(&played.config, &host, &key("c1"), &bundle, DoorKind::Shim);
    let vgpu = create().unwrap();
    let spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    let mounts = spec["mounts"].as_array().unwrap();
    let cuda = mounts
        .iter()
        .find(|mount| mount["destination"] == "/usr/lib64/libcuda.so.1")
        .unwrap();
    assert_eq!(cuda["options"], json!(["bind", "ro", "nosuid", "nodev"]));
    assert_eq!(spec["linux"]["maskedPaths"].as_array().unwrap().len(), 1);
    assert_eq!(spec["hooks"], Value::Null);
    assert!(linker_cache_paths(&rootfs).contains(&"/usr/lib64/libcuda.so.1".to_owned()));
    release(&played.config, &key("c1")).unwrap();
    drop(vgpu);
    assert_eq!(spec_bytes(&bundle), before);

    // A driver without libraries: nothing of the start is left.
    fs::remove_dir_all(driver.root()).unwrap();
    let Err(error) = create() else {
        panic!("there are no libraries")
    };
    assert!(matches!(error, Error::Userland(_)), "{error}");
    played.assert_clean(&"no libraries");
    assert_eq!(spec_bytes(&bundle), before);
}

#[test]
fn a_container_of_real_cards_gets_nvidia_uvm_though_nobody_has_loaded_the_module() {
    use crate::uvm_module::tests::{LOADS, kernel_with};
    let mut played = TestHost::new();
    played.config.driver.libraries = crate::config::LibrarySource::None;
    let mut host = Host::find(&played.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    let bundle = played.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let before = spec_bytes(&bundle);
    let create =
        |host: &Host| create_on_host(&played.config, host, &key("c1"), &bundle, DoorKind::Shim);

    host.uvm = Some(kernel_with(played.dir.path(), "echo no such module >&2"));
    let Err(error) = create(&host) else {
        panic!("CUDA needs the module")
    };
    assert!(matches!(error, Error::UvmNotLoaded { .. }), "{error}");
    let text = crate::chain(&error);
    assert!(text.contains("no such module"), "{text}");
    played.assert_clean(&"no module");
    assert_eq!(spec_bytes(&bundle), before);

    host.uvm = Some(kernel_with(played.dir.path(), LOADS));
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
    release(&played.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn nodes_are_the_operator_s_and_a_program_that_may_not_open_them_is_refused() {
    use crate::uvm_module::tests::{LOADS, kernel_with};
    let mut played = TestHost::new();
    played.config.driver.libraries = crate::config::LibrarySource::None;
    let mut host = Host::find(&played.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    host.uvm = Some(kernel_with(played.dir.path(), LOADS));
    host.device_files = nvabi::proc_files::DeviceFiles::of_params(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
    );
    let bundle = played.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let with_groups = |groups: &[u32]| {
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        spec["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": groups});
        fs::write(&path, spec.to_string()).unwrap();
    };
    let create = || create_on_host(&played.config, &host, &key("c1"), &bundle, DoorKind::Shim);

    with_groups(&[]);
    let before = spec_bytes(&bundle);
    let Err(error) = create() else {
        panic!("its program cannot open the nodes")
    };
    assert!(matches!(error, Error::NodeUnusable { .. }), "{error}");
    played.assert_clean(&"unusable nodes");
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
    release(&played.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn the_variables_capabilities_are_in_the_grant_and_what_the_host_refuses_is_told() {
    use cards::Capability::{Graphics, Video};

    use crate::userland::tests::{FakeHost, Layout, VERSION};
    use crate::uvm_module::tests::{LOADS, kernel_with};
    let Some(driver) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let mut played = TestHost::new();
    played.config.driver = driver.config.driver.clone();
    let mut host = Host::find(&played.config).unwrap();
    host.driver = cards::DriverSpec::Kernel;
    host.inventory.driver_version = VERSION.to_owned();
    host.uvm = Some(kernel_with(played.dir.path(), LOADS));
    let both = &[Graphics, Video][..];
    for (id, allowed, value, granted, told) in [
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
        played.config.isolation.capabilities = allowed.iter().copied().collect();
        let bundle = played.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        spec["process"]["env"] = json!([format!("NVIDIA_DRIVER_CAPABILITIES={value}")]);
        fs::write(&path, spec.to_string()).unwrap();
        let vgpu =
            create_on_host(&played.config, &host, &key(id), &bundle, DoorKind::Shim).unwrap();
        // The broker is started from the grant as it is written.
        let states = list(&played.config).unwrap();
        let capabilities = &states[0].grant.isolation.capabilities;
        let found: Vec<_> = capabilities.iter().copied().collect();
        assert_eq!(found, granted, "{value}");
        let folder = cards::events::of_container(&played.config.state_dir, &key(id));
        let events = cards::events::read(&folder).unwrap_or_default();
        let found = events
            .iter()
            .find(|event| event.kind == crate::events::NOT_SERVED);
        assert_eq!(found.is_some(), told.is_some(), "{value}: {events:?}");
        if let (Some(found), Some(told)) = (found, told) {
            assert!(found.text.contains(told), "{}", found.text);
            assert!(found.text.contains("[isolation] capabilities"));
        }
        release(&played.config, &key(id)).unwrap();
        drop(vgpu);
    }
}

#[test]
fn who_has_infiniband_beside_a_quota_is_told_that_it_does_not_reach_card_memory() {
    let played = TestHost::new();
    for (id, path, told) in [
        ("c1", "/dev/infiniband/uverbs0", true),
        ("c2", "/dev/fuse", false),
    ] {
        let bundle = played.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
        let config = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        let device = json!({"path": path, "type": "c", "major": 10, "minor": 229});
        spec["linux"]["devices"] = json!([device.clone(), device]);
        fs::write(&config, spec.to_string()).unwrap();
        let host = Host::find(&played.config).unwrap();
        let vgpu =
            create_on_host(&played.config, &host, &key(id), &bundle, DoorKind::Shim).unwrap();
        let folder = cards::events::of_container(&played.config.state_dir, &key(id));
        let events = cards::events::read(&folder).unwrap_or_default();
        let found: Vec<&str> = events
            .iter()
            .filter(|event| event.kind == crate::events::NO_GPUDIRECT_RDMA)
            .map(|event| event.text.as_str())
            .collect();
        assert_eq!(found.len(), usize::from(told), "{events:?}");
        assert!(found.iter().all(|text| text.contains(path)));
        release(&played.config, &key(id)).unwrap();
        drop(vgpu);
    }
}

/// A host whose driver says that it has this version.
fn with_driver(version: &str) -> TestHost {
    let played = TestHost::new();
    let inventory = Host::find(&played.config).unwrap().inventory;
    SimulatedInventory {
        version: 1,
        driver_version: version.to_owned(),
        cards: inventory.cards,
    }
    .write(&DiskStore, &played.config.state_dir)
    .unwrap();
    played
}

/// The facts of 595 as a file of this version's.
fn facts_of_595(version: &str) -> String {
    let facts = releases::Facts::of_release(nvabi::Release::R595);
    releases::file_of(version, &facts, std::collections::BTreeSet::new()).unwrap()
}

#[test]
fn a_file_of_the_operators_makes_a_driver_known_and_the_grant_keeps_what_it_said() {
    let mut played = with_driver("610.43.02");
    played.config.driver.releases = played.dir.path().join("drivers.d");
    let file = played.config.driver.releases.join("610.43.02.json");
    fs::create_dir(&played.config.driver.releases).unwrap();
    fs::write(&file, facts_of_595("610.43.02")).unwrap();
    let vgpu = played.create("c1", "4Gi").unwrap().unwrap();
    let wanted = nvabi::Release::R595;
    assert_eq!(vgpu.filter().unwrap().release, wanted);
    let kept = vgpu.grant().layouts.clone().unwrap();
    assert_eq!(kept.release().unwrap(), wanted);
    // The container runs on without the file.
    fs::remove_file(&file).unwrap();
    let grant = Grant::read(vgpu.dir.path()).unwrap();
    assert_eq!(crate::host::filter_of(&grant).unwrap().release, wanted);
    played.create("c2", "4Gi").unwrap_err();
}

#[test]
fn a_file_that_others_can_write_or_that_is_of_something_else_makes_nothing_known() {
    let mut played = with_driver("610.43.02");
    played.config.driver.releases = played.dir.path().join("drivers.d");
    let file = played.config.driver.releases.join("610.43.02.json");
    fs::create_dir(&played.config.driver.releases).unwrap();
    let large = " ".repeat(2 << 20);
    for (text, mode, told) in [
        (facts_of_595("610.43.02"), 0o666, "mode 666"),
        (facts_of_595("610.43.03"), 0o644, "of version 610.43.03"),
        (String::new(), 0o644, "not the facts of a driver version"),
        (large, 0o644, "1048576"),
    ] {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let Err(error) = played.create("c1", "4Gi") else {
            panic!("{told}")
        };
        let text = crate::chain(&error);
        for part in [told, "610.43.02.json", "driver 610.43.02 is not supported"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        played.assert_clean(&told);
    }
}

#[test]
fn an_unknown_driver_version_is_refused_with_the_known_ones_and_how_one_is_added() {
    let played = with_driver("610.43.02");
    let Err(error) = played.create("c1", "4Gi") else {
        panic!("its layouts are not known")
    };
    let text = crate::chain(&error);
    for part in [
        "driver 610.43.02 is not supported",
        "535 from 535.86.05",
        "595 from 595.44.02",
        "docs/internals/adding-a-driver-version.md",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    played.assert_clean(&"unknown driver");
}

#[test]
fn cards_that_nobody_can_share_are_named_and_nothing_is_left() {
    let played = TestHost::new();
    let inventory = Host::find(&played.config).unwrap().inventory;
    let mut cards = inventory.cards;
    cards[0].modes.mig = true;
    let write = |cards: &[Card]| {
        SimulatedInventory {
            version: 1,
            driver_version: inventory.driver_version.clone(),
            cards: cards.to_vec(),
        }
        .write(&DiskStore, &played.config.state_dir)
        .unwrap();
    };
    write(&cards);
    let vgpu = played.create("c1", "4Gi").unwrap().unwrap();
    assert_eq!(vgpu.grant().cards[0].uuid.as_str(), "GPU-1");
    release(&played.config, &key("c1")).unwrap();
    cards[1].modes.compute = cards::Programs::ExclusiveProcess;
    write(&cards);
    let Err(error) = played.create("c2", "4Gi") else {
        panic!("nobody can share these")
    };
    let text = crate::chain(&error);
    for part in ["GPU-0", "MIG mode", "GPU-1", "Exclusive_Process"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    played.assert_clean(&"no card to share");
}

#[test]
fn a_container_that_asks_for_nothing_is_not_touched_and_leaves_no_state() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    fs::create_dir(&bundle).unwrap();
    let text = "{ \"ociVersion\":\"1.0.2\",\n\"annotations\" : {\"a\":\"b\"} }";
    fs::write(bundle.join("config.json"), text).unwrap();
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&bundle.join("config.json"));
    let config = config_in(dir.path());
    assert!(
        create(&config, &key("c"), &bundle, DoorKind::Shim)
            .unwrap()
            .is_none()
    );
    assert_eq!(
        (
            spec_bytes(&bundle).as_slice(),
            inode(&bundle.join("config.json"))
        ),
        (text.as_bytes(), before)
    );
    let mut process = json!({"env": ["NVIDIA_VISIBLE_DEVICES=all"]});
    edit_exec(&config, &key("c"), &mut process).unwrap();
    assert_eq!(process, json!({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}));
    release(&config, &key("c")).unwrap();
    assert_eq!(reclaim(&config).unwrap(), []);
    assert!(!config.state_dir.exists());
}

#[test]
fn a_failure_at_any_step_leaves_everything_as_it_was() {
    for step in STEPS {
        let host = TestHost::new();
        let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
        let before = spec_bytes(&bundle);
        let result = create_watched(
            &host.config,
            &key("c1"),
            &bundle,
            DoorKind::Shim,
            &FailsAt(step),
        );
        assert!(matches!(result, Err(Error::NoMemoryTerm)), "{step:?}");
        host.assert_clean(&step);
        assert_eq!(spec_bytes(&bundle), before, "{step:?}");
        assert_eq!(fs::read_dir(&bundle).unwrap().count(), 1, "{step:?}");
    }
}

#[test]
fn a_door_killed_at_any_step_is_reclaimed_by_the_next_start() {
    for (at, step) in STEPS.iter().enumerate() {
        let host = TestHost::new();
        let bundle = host.bundle("killed", json!({"cgpu.io/memory": "20Gi"}));
        let before = spec_bytes(&bundle);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lifecycle::tests::play_door"])
            .env(
                PLAY_DOOR,
                format!("{}:{}:{at}", host.dir.path().display(), bundle.display()),
            )
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{step:?}"
        );
        await_no_broker(&host);
        // The same bundle again: the killed door's edit must not be taken for ours.
        let vgpu = create(&host.config, &key("killed"), &bundle, DoorKind::Shim).unwrap();
        assert!(vgpu.is_some(), "{step:?}");
        assert_eq!(host.booked_mib(), 20 << 10, "{step:?}");
        release(&host.config, &key("killed")).unwrap();
        host.assert_clean(step);
        assert_eq!(spec_bytes(&bundle), before, "{step:?}");
    }
}

/// A broker whose door was killed ends by itself; its lock says when.
fn await_no_broker(host: &TestHost) {
    let lock = ContainerDir::of(&host.config.state_dir, &key("killed")).broker_lock();
    if lock.exists() {
        drop(FileLock::take(&lock).unwrap());
    }
}

#[test]
fn reclaim_names_what_it_removed_and_leaves_the_living_alone() {
    let host = TestHost::new();
    let dead = host.create("dead", "4Gi").unwrap().unwrap();
    let alive = host.create("alive", "4Gi").unwrap().unwrap();
    assert_eq!(reclaim(&host.config).unwrap(), []);
    drop(dead);
    let dir = ContainerDir::of(&host.config.state_dir, &key("dead"));
    drop(FileLock::take(&dir.broker_lock()).unwrap());
    // What another test is starting at this moment shares the lock until it executes its program.
    while dir.is_live().unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(reclaim(&host.config).unwrap(), [key("dead")]);
    assert_eq!(host.booked_mib(), 4 << 10);
    release(&host.config, &key("alive")).unwrap();
    drop(alive);
    host.assert_clean(&"released");
}

#[test]
fn a_broker_that_is_not_ready_is_a_failed_start_with_its_own_words() {
    for (body, words) in [
        (
            "echo 'cannot reach cgpu-sim' >&2; exit 1",
            &["ended before", "cannot reach cgpu-sim"][..],
        ),
        (
            "exec sleep 1000",
            &["not ready after 300 ms", "its log is empty"],
        ),
        ("echo hello; exec sleep 1000", &["instead of ready"]),
        ("printf rea; exec sleep 1000", &["not ready after 300 ms"]),
    ] {
        let mut host = TestHost::new();
        host.config.broker.start_timeout_ms = 300;
        program(&host.dir.path().join("broker"), body);
        let error = crate::chain(&host.create("c1", "4Gi").unwrap_err());
        for word in words {
            assert!(error.contains(word), "{body}: {error}");
        }
        host.assert_clean(&body);
    }
    let mut host = TestHost::new();
    host.config.broker.path = Some("/nonexistent/cgpu-broker".into());
    let error = crate::chain(&host.create("c1", "4Gi").unwrap_err());
    assert!(error.contains("/nonexistent/cgpu-broker"), "{error}");
    host.assert_clean(&"no program");
}

#[test]
fn a_broker_that_ignores_sigterm_is_killed() {
    let mut host = TestHost::new();
    host.config.broker.stop_timeout_ms = 50;
    program(
        &host.dir.path().join("broker"),
        "trap '' TERM; echo ready; exec >&-; while :; do sleep 1000; done",
    );
    let vgpu = host.create("c1", "4Gi").unwrap().unwrap();
    release(&host.config, &key("c1")).unwrap();
    drop(vgpu);
    host.assert_clean(&"killed");
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_left() {
    let host = TestHost::new();
    let _first = host.create("c1", "20Gi").unwrap().unwrap();
    let _second = host.create("c2", "12Gi").unwrap().unwrap();
    let error = crate::chain(&host.create("c3", "16Gi").unwrap_err());
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
    let error = crate::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("default/c1 holds a vGPU already"), "{error}");
    assert_eq!(host.booked_mib(), 32 << 10);
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
    let error =
        crate::chain(&create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err());
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
fn twenty_doors_at_once_never_overbook() {
    let host = TestHost::new();
    // 20 containers of 3 GiB on 48 GiB: 16 fit.
    let results: Vec<_> = std::thread::scope(|scope| {
        let doors: Vec<_> = (0..20)
            .map(|at| {
                scope.spawn({
                    let host = &host;
                    move || host.create(&format!("c{at}"), "3Gi")
                })
            })
            .collect();
        doors.into_iter().map(|door| door.join().unwrap()).collect()
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
    assert_eq!(host.booked_mib(), 48 << 10);
    for at in 0..20 {
        release(&host.config, &key(&format!("c{at}"))).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn a_second_door_on_the_same_bundle_finds_the_work_done() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let _shim = create(&host.config, &key("c1"), &bundle, DoorKind::Shim)
        .unwrap()
        .unwrap();
    let edited = spec_bytes(&bundle);
    // The wrapper below a shim may use another namespace for the same container.
    let other = ContainerKey::new("runc", "c1").unwrap();
    assert!(
        create(&host.config, &other, &bundle, DoorKind::Runtime)
            .unwrap()
            .is_none()
    );
    assert_eq!(spec_bytes(&bundle), edited);
    release_if(&host.config, &key("c1"), DoorKind::Runtime).unwrap();
    assert_eq!(
        host.booked_mib(),
        4 << 10,
        "the shim's grant is not the wrapper's to release"
    );
    release_if(&host.config, &key("c1"), DoorKind::Shim).unwrap();
    host.assert_clean(&"released");
}

#[test]
fn a_mark_written_by_hand_is_refused() {
    let host = TestHost::new();
    for mark in ["default/other", "nonsense"] {
        let bundle = host.bundle(
            "c1",
            json!({"cgpu.io/memory": "4Gi", "cgpu.io/applied": mark}),
        );
        let error =
            crate::chain(&create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err());
        assert!(error.contains(mark), "{error}");
    }
    // Naming a living neighbour does not help either.
    let _neighbour = host.create("neighbour", "4Gi").unwrap().unwrap();
    let bundle = host.bundle("c1", json!({"cgpu.io/applied": "default/neighbour"}));
    assert!(matches!(
        create(&host.config, &key("c1"), &bundle, DoorKind::Shim),
        Err(Error::ForgedMark { .. })
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
        let error = create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err();
        assert!(!crate::chain(&error).is_empty());
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
        create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), spec.to_string());
        host.assert_clean(&spec);
    }
    fs::File::create(&path).unwrap().set_len(17 << 20).unwrap();
    let error =
        crate::chain(&create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err());
    assert!(error.contains("larger than 16777216 bytes"), "{error}");
}

#[test]
fn a_book_that_cannot_be_read_or_is_newer_refuses_and_is_never_written_over() {
    for (text, words) in [
        ("{\"version\": 1, \"uu", "cannot be read"),
        ("{\"version\": 7}", "version 7, newer than this cgpu"),
    ] {
        let host = TestHost::new();
        let book = host.config.state_dir.join("cards/GPU-1/book.json");
        fs::create_dir_all(book.parent().unwrap()).unwrap();
        fs::write(&book, text).unwrap();
        let error = crate::chain(&host.create("c1", "4Gi").unwrap_err());
        assert!(error.contains(words), "{error}");
        assert_eq!(fs::read_to_string(&book).unwrap(), text);
        assert_eq!(state::containers(&host.config.state_dir).unwrap(), []);
    }
}

/// Makes this thread's kernel one without user notification: a filter answers the question for it as an old one would.
fn forget_user_notification() -> std::io::Result<std::os::fd::OwnedFd> {
    use sys::seccomp::{Instruction, Wait, install_with_listener};
    const SYS_SECCOMP: u32 = 317;
    const GET_NOTIF_SIZES: u32 = 3;
    const ERRNO_EOPNOTSUPP: u32 = 0x0005_005f;
    const ALLOW: u32 = 0x7fff_0000;
    let load = |k| Instruction {
        code: 0x20,
        jt: 0,
        jf: 0,
        k,
    };
    let unless = |k, jf| Instruction {
        code: 0x15,
        jt: 0,
        jf,
        k,
    };
    let ret = |k| Instruction {
        code: 0x06,
        jt: 0,
        jf: 0,
        k,
    };
    let program = [
        load(0),
        unless(SYS_SECCOMP, 3),
        load(16),
        unless(GET_NOTIF_SIZES, 1),
        ret(ERRNO_EOPNOTSUPP),
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
            assert!(crate::chain(&error).contains("seccomp"), "{error}");
        });
    });
    host.assert_clean(&"a kernel without user notification");
    assert_eq!(spec_bytes(&host.dir.path().join("bundles/a")), before);
}

#[test]
fn a_runtime_without_notify_is_refused_and_one_with_it_is_asked_once() {
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
    let error = crate::chain(&host.create("c4", "1Gi").unwrap_err());
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
    let error = crate::chain(&host.create("c4", "1Gi").unwrap_err());
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
fn a_plain_process_gets_a_vgpu_without_a_bundle() {
    let host = TestHost::new();
    let request = Request::from_terms(&host.config, [("cgpu.io/memory", "4Gi")]).unwrap();
    let vgpu = create_plain(&host.config, &key("p1"), &request).unwrap();
    assert_eq!(
        (vgpu.grant().bundle.as_ref(), vgpu.grant().door.kind),
        (None, DoorKind::Run)
    );
    let targets: Vec<_> = vgpu
        .mounts()
        .iter()
        .map(|mount| mount.target.display().to_string())
        .collect();
    assert_eq!(
        targets,
        [
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/cgpu-slice.json"
        ]
    );
    release(&host.config, &key("p1")).unwrap();
    host.assert_clean(&"released");
}

#[test]
fn shares_are_promised_once_and_free_again_when_their_container_goes() {
    let host = TestHost::new();
    let create_with = |config: &Config, id: &str, terms: Value| {
        let mut annotations = json!({"cgpu.io/memory": "1Gi"});
        for (name, value) in terms.as_object().unwrap() {
            annotations[format!("cgpu.io/{name}")] = value.clone();
        }
        create(
            config,
            &key(id),
            &host.bundle(id, annotations),
            DoorKind::Shim,
        )
    };
    let share = |percent: u32| json!({"compute": percent.to_string()});
    let rules = |config: &Config, index: u32| {
        let uuid = GpuUuid::new(format!("GPU-{index}")).unwrap();
        cards::rules::of(&config.state_dir, &uuid).unwrap()
    };
    let config = host.config.clone();
    let held: Vec<_> = [("c1", 60), ("c2", 60), ("c3", 40)]
        .map(|(id, percent)| create_with(&config, id, share(percent)).unwrap().unwrap())
        .into_iter()
        .collect();
    let minors: Vec<u32> = held
        .iter()
        .map(|vgpu| vgpu.grant().cards[0].minor)
        .collect();
    assert_eq!(minors, [0, 1, 0]);
    assert_eq!(rules(&config, 0), Some(config.compute.rules(2)));
    let error = crate::chain(&create_with(&config, "c4", share(41)).unwrap_err());
    for part in [
        "1 GiB on one card, 41 % of its time does not fit",
        "card 0 (GPU-0) 22 GiB of 24 GiB, but its compute time does not fit",
        "card 1 (GPU-1) 23 GiB of 24 GiB, but its compute time does not fit: policy fixed needs 41 %",
        "40 % left",
    ] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    // Wrong terms, mixes and priorities are refused before anything is made.
    for (terms, part) in [
        (
            json!({"policy": "fixed", "compute": "10", "weight": "3"}),
            "weight 3 has no effect",
        ),
        (
            json!({"policy": "fair-share", "compute": "10"}),
            "percentage 10 has no effect",
        ),
        (
            json!({"policy": "native"}),
            "a native container cannot share",
        ),
        (json!({"priority": "high"}), "high priority cannot share"),
        (json!({}), "a container with policy preemptive"),
    ] {
        let error = crate::chain(&create_with(&config, "c4", terms).unwrap_err());
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert!(!ContainerDir::of(&config.state_dir, &key("c4")).exists());
    // What shares the rest stands beside the others.
    let shares = create_with(&config, "c4", json!({"weight": "2"}));
    assert_eq!(shares.unwrap().unwrap().grant().cards[0].minor, 1);
    for id in ["c1", "c3"] {
        release(&config, &key(id)).unwrap();
    }
    // The card is empty: what the configuration says now holds there.
    let mut config = config;
    config.compute.policy = grant::ComputePolicy::Soft;
    create_with(&config, "c5", json!({"compute": "90", "cards": "0,"})).unwrap();
    assert_eq!(rules(&config, 0), Some(config.compute.rules(2)));
    assert_ne!(rules(&config, 1), rules(&config, 0));
    for id in ["c2", "c4", "c5"] {
        release(&config, &key(id)).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn a_name_too_long_for_a_socket_is_refused_before_anything_is_written() {
    let host = TestHost::new();
    let error = crate::chain(&host.create(&"x".repeat(128), "1Gi").unwrap_err());
    assert!(error.contains("107 bytes"), "{error}");
    host.assert_clean(&"refused");
}

#[test]
fn a_state_folder_that_others_can_write_is_refused() {
    let host = TestHost::new();
    fs::set_permissions(&host.config.state_dir, fs::Permissions::from_mode(0o777)).unwrap();
    let error = crate::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("777"), "{error}");
}

#[test]
fn without_any_driver_the_refusal_says_what_was_looked_for() {
    let host = TestHost::new();
    fs::remove_file(SimulatedInventory::path(&host.config.state_dir)).unwrap();
    let error = crate::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(
        error.contains("/proc/driver/nvidia/version") && error.contains("sim/cards.json"),
        "{error}"
    );
    let mut host = TestHost::new();
    host.config.driver.kind = crate::config::DriverKind::Kernel;
    if Path::new("/proc/driver/nvidia/version").exists() {
        println!("SKIP: this machine has a card");
        return;
    }
    let error = crate::chain(&host.create("c1", "1Gi").unwrap_err());
    assert!(error.contains("/proc/driver/nvidia/version"), "{error}");
    host.assert_clean(&"no driver");
}

/// Puts capabilities into the bounding set of a bundle's process.
fn with_capabilities(bundle: &Path, capabilities: Value) {
    let path = bundle.join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    spec["process"]["capabilities"] = json!({ "bounding": capabilities });
    fs::write(&path, spec.to_string()).unwrap();
}

#[test]
fn what_leads_out_of_the_slice_is_refused_before_anything_is_granted() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    with_capabilities(&bundle, json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]));
    let before = fs::read(bundle.join("config.json")).unwrap();
    let error = create(&host.config, &key("c1"), &bundle, DoorKind::Shim).unwrap_err();
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    assert_eq!(fs::read(bundle.join("config.json")).unwrap(), before);
    host.assert_clean(&"refused");
}

#[test]
fn what_is_let_through_is_written_into_grant_and_spec() {
    let mut host = TestHost::new();
    host.config.isolation.allow = crate::config::Allow::of(&[cards::Weakness::CapSysAdmin]);
    let bundle = host.bundle(
        "c1",
        json!({"cgpu.io/memory": "4Gi", "cgpu.io/managed": "deny", "cgpu.io/share-group": "g"}),
    );
    with_capabilities(&bundle, json!(["CAP_SYS_ADMIN"]));
    let vgpu = create(&host.config, &key("c1"), &bundle, DoorKind::Shim)
        .unwrap()
        .unwrap();
    let isolation = &list(&host.config).unwrap()[0].grant.isolation;
    assert_eq!(isolation, &vgpu.grant().isolation);
    assert_eq!(isolation.summary(), "off (cap-sys-admin)");
    assert_eq!(isolation.managed, cards::ManagedMemory::Deny);
    assert_eq!(
        isolation.share_group,
        Some(format!("{}/g", key("c1").namespace()))
    );
    let spec: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        spec["annotations"]["cgpu.io/isolation"],
        "off (cap-sys-admin)"
    );
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
    host.assert_clean(&"released");
}

#[test]
fn an_exec_is_judged_as_its_container_is() {
    let mut host = TestHost::new();
    let vgpu = host.create("c1", "4Gi").unwrap().unwrap();
    let privileged = json!({"args": ["sh"], "capabilities": {"effective": ["CAP_SYS_ADMIN"]}});
    let mut process = privileged.clone();
    let error = edit_exec(&host.config, &key("c1"), &mut process).unwrap_err();
    assert!(
        error.to_string().contains("process.capabilities.effective"),
        "{error}"
    );
    assert_eq!(process, privileged);
    let weakened = |host: &TestHost| list(&host.config).unwrap()[0].grant.isolation.summary();
    assert_eq!(weakened(&host), "on");
    // Another container's exec is none of ours.
    edit_exec(&host.config, &key("c2"), &mut process).unwrap();
    assert_eq!(process, privileged);
    host.config.isolation.allow = crate::config::Allow::of(&[cards::Weakness::CapSysAdmin]);
    for _again in 0..2 {
        edit_exec(&host.config, &key("c1"), &mut process).unwrap();
        assert_eq!(weakened(&host), "off (cap-sys-admin)");
    }
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
}

impl TestHost {
    /// A container of the one pod, as containerd's CRI says it.
    fn create_in_pod(
        &self,
        id: &str,
        container: &str,
        of_pod: &[(&str, &str)],
    ) -> Result<Option<Vgpu>, Error> {
        let mut annotations = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": "5a4d",
            "io.kubernetes.cri.container-name": container,
        });
        for (term, value) in of_pod {
            annotations[*term] = json!(value);
        }
        let bundle = self.bundle(id, annotations);
        create(&self.config, &key(id), &bundle, DoorKind::Shim)
    }
}

#[test]
fn a_pod_s_own_amount_is_granted_once_at_a_time() {
    let host = TestHost::new();
    let of_pod = [("cgpu.io/memory", "4Gi")];
    // An init container, which ends before the next one starts.
    let init = host.create_in_pod("1", "setup", &of_pod).unwrap().unwrap();
    drop(init);
    release(&host.config, &key("1")).unwrap();
    let app = host.create_in_pod("2", "app", &of_pod).unwrap().unwrap();
    assert_eq!(host.booked_mib(), 4 << 10);

    let said = crate::chain(&host.create_in_pod("3", "sidecar", &of_pod).unwrap_err());
    for part in [
        "cgpu.io/memory.app",
        "cgpu.io/memory.sidecar",
        "container app has it",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(host.booked_mib(), 4 << 10, "not doubled");
    // Another pod's, and one of no pod, are others.
    let other = host.create("4", "4Gi").unwrap().unwrap();
    assert_eq!(host.booked_mib(), 8 << 10);
    drop(other);
    release(&host.config, &key("4")).unwrap();

    // Started again: a new container of the same name.
    drop(app);
    release(&host.config, &key("2")).unwrap();
    let again = host.create_in_pod("5", "app", &of_pod).unwrap().unwrap();
    assert_eq!(host.booked_mib(), 4 << 10);
    drop(again);
    release(&host.config, &key("5")).unwrap();
    host.assert_clean(&"pod");
}

#[test]
fn who_only_says_that_it_is_in_a_pod_does_not_keep_the_pod_s_amount() {
    let host = TestHost::new();
    let of_pod = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-id": "5a4d",
        "io.kubernetes.cri.container-name": "thief",
        "cgpu.io/memory": "4Gi",
    });
    let bundle = host.bundle("t", of_pod);
    let elsewhere = ContainerKey::new("moby", "t").unwrap();
    let thief = create(&host.config, &elsewhere, &bundle, DoorKind::Runtime).unwrap();
    let app = host.create_in_pod("1", "app", &[("cgpu.io/memory", "4Gi")]);
    assert!(app.unwrap().is_some(), "a pod is of one namespace");
    drop(thief);
    for key in [elsewhere, key("1")] {
        release(&host.config, &key).unwrap();
    }
    host.assert_clean(&"pod");
}

#[test]
fn a_name_too_long_to_be_read_again_does_not_take_a_pod_s_amount_twice() {
    let host = TestHost::new();
    let of_pod = [("cgpu.io/memory", "4Gi")];
    let long = "a".repeat(5000);
    let said = crate::chain(&host.create_in_pod("1", &long, &of_pod).unwrap_err());
    assert!(said.contains("at most 4096"), "{said}");
    host.assert_clean(&"pod");
}

#[test]
fn named_amounts_of_a_pod_stand_beside_each_other_and_the_unnamed_container_has_none() {
    let host = TestHost::new();
    let of_pod = [
        ("cgpu.io/memory.app", "4Gi"),
        ("cgpu.io/memory.loader", "2Gi"),
    ];
    let app = host.create_in_pod("1", "app", &of_pod).unwrap().unwrap();
    let loader = host.create_in_pod("2", "loader", &of_pod).unwrap().unwrap();
    assert_eq!(host.booked_mib(), 6 << 10);
    assert!(
        host.create_in_pod("3", "sidecar", &of_pod)
            .unwrap()
            .is_none()
    );
    drop((app, loader));
    for id in ["1", "2"] {
        release(&host.config, &key(id)).unwrap();
    }
    host.assert_clean(&"pod");
}

/// An engine that deletes its ended containers late: the broker of one has just lost its last listener, and has not ended yet.
#[test]
fn what_has_ended_in_a_pod_is_given_back_before_the_next_container_starts() {
    use std::io::{BufRead, BufReader, Write};
    let host = TestHost::new();
    let of_pod = [("cgpu.io/memory", "20Gi"), ("cgpu.io/cards", "0,")];
    let init = host.create_in_pod("1", "setup", &of_pod).unwrap().unwrap();
    let dir = ContainerDir::of(&host.config.state_dir, &key("1"));
    let control = std::os::unix::net::UnixListener::bind(dir.control_socket()).unwrap();
    drop(init);
    // Another in place of the played one, which ends with its door.
    let lock = FileLock::take(&dir.broker_lock()).unwrap();
    let asked = std::thread::spawn(move || {
        let (mut connection, _) = control.accept().unwrap();
        // A connection that is closed with something unread ends in an error for who has written it.
        BufReader::new(&connection)
            .read_line(&mut String::new())
            .unwrap();
        writeln!(connection, "{}", json!({"listeners": 0})).unwrap();
        drop(lock);
    });
    let app = host.create_in_pod("2", "app", &of_pod).unwrap().unwrap();
    asked.join().unwrap();
    assert_eq!(host.booked_mib(), 20 << 10);
    assert!(!dir.exists());
    drop(app);
    release(&host.config, &key("2")).unwrap();
    host.assert_clean(&"pod");
}
