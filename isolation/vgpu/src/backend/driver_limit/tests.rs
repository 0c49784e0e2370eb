//! The driver's limit around a container that is played by a process in a real cgroup of version 2, against a library that
//! plays NVML. The test program plays `cgpu-limits`. Skips aloud without root, cgroup v2 or a C compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use cards::lock::StateLock;
use cards::reservations::Reservations;
use cards::{Card, ContainerKey, GpuUuid, Inventory};
use nvabi::Release;
use serde_json::json;

use super::*;
use crate::backend::{self, Needed, Runtime};
use crate::lifecycle;
use crate::lifecycle::tests::{create_on_host, release, teardown, verify_filter};
use crate::resize::Unsettled;

const PLAY_LIMITS: &str = "CGPU_TEST_PLAY_LIMITS";
const GIB: u64 = 1 << 30;

#[test]
fn play_limits() {
    if std::env::var_os(PLAY_LIMITS).is_none() {
        return;
    }
    let question: Question = serde_json::from_reader(std::io::stdin()).unwrap();
    let answer = serde_json::to_vec(&::limits::answer(&question)).unwrap();
    fs::write("/proc/self/fd/3", answer).unwrap();
}

/// A host with one card behind a driver whose layouts are not known, and a cgroup tree of its own.
struct TestHost {
    dir: tempfile::TempDir,
    config: Config,
    host: Host,
    groups: PathBuf,
}

impl TestHost {
    fn new() -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let Some(root) = roots.into_iter().find(|root| is_v2(root)) else {
            return skip("no cgroup v2");
        };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "cgpu-test-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let groups = root.join(name);
        if let Err(error) = fs::create_dir(&groups) {
            return skip(&format!("no cgroup can be made: {error}"));
        }
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libnvidia-ml.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limits/tests/fake_nvml.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DVERSION=\"615.71.09\"", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", dir.path().display()))
            .arg(source)
            .status();
        match compiled {
            Err(error) => {
                fs::remove_dir(&groups).unwrap();
                return skip(&format!("no C compiler ({error})"));
            }
            Ok(status) => assert!(status.success(), "the played library does not compile"),
        }
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("cards"), "GPU-0\n").unwrap();
        let program = dir.path().join("cgpu-limits");
        // Written by another process: a file that any process has open for writing cannot be started, and the tests beside this
        // one start processes, which have this one's files until they become another program.
        let script = format!(
            "#!/bin/sh\nexec 3>&1 >/dev/null; {PLAY_LIMITS}=1 exec '{}' --exact backend::driver_limit::tests::play_limits\n",
            std::env::current_exe().unwrap().display()
        );
        let written = Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh"])
            .arg(script)
            .arg(&program)
            .status();
        assert!(written.unwrap().success());
        let mut config = Config {
            state_dir: dir.path().join("state"),
            ..Config::default()
        };
        config.backend.limits_program = Some(program);
        config.backend.nvml_library = Some(library);
        config.backend.cgroup_root = root.to_owned();
        // A played driver has no files.
        config.driver.libraries = host_config::config::LibrarySource::None;
        let version = "615.71.09";
        let host = Host {
            driver: DriverSpec::Kernel,
            inventory: Inventory {
                driver_version: version.to_owned(),
                cards: vec![Card {
                    uuid: GpuUuid::new("GPU-0").unwrap(),
                    name: "NVIDIA Played".to_owned(),
                    memory_bytes: 24 * GIB,
                    minor: 0,
                    index: 0,
                    pci: "00000000:01:00.0".to_owned(),
                    modes: cards::Modes::default(),
                }],
            },
            device_files: nvabi::proc_files::DeviceFiles::default(),
            filter: Err(Release::of(version.parse().unwrap()).unwrap_err().into()),
            layouts: None,
            uvm: Some(driver_libraries::fake::kernel_with(
                dir.path(),
                driver_libraries::fake::LOADS,
            )),
        };
        Some(Self {
            dir,
            config,
            host,
            groups,
        })
    }

    /// What is reclaimed once nobody has the lock of a frontend: a program that another test is starting has it until it is executed.
    fn reclaimed(&self) -> Vec<ContainerKey> {
        let until = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            let reclaimed = lifecycle::reclaim(&self.config).unwrap();
            if !reclaimed.is_empty() || std::time::Instant::now() > until {
                return reclaimed;
            }
            std::thread::yield_now();
        }
    }

    fn create(&self, id: &str) -> Result<lifecycle::Created, Error> {
        self.create_with(&self.config, id, json!({"cgpu.io/memory": "4Gi"}))
    }

    fn create_with(
        &self,
        config: &Config,
        id: &str,
        annotations: serde_json::Value,
    ) -> Result<lifecycle::Created, Error> {
        let bundle = self.dir.path().join("bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        let spec = json!({"ociVersion": "1.0.2", "annotations": annotations,
            "process": {"args": ["x"], "env": ["A=b"], "user": {"uid": 0, "gid": 0}}, "root": {"path": "rootfs"},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]}});
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        create_on_host(config, &self.host, &key(id), &bundle)
    }

    /// A process in a group of its own, as runc's create leaves one.
    fn init(&self, id: &str) -> Init {
        let group = self.groups.join(id);
        fs::create_dir(&group).unwrap();
        let process = sleeper();
        fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
        Init { process, group }
    }

    fn dir(&self, id: &str) -> ContainerDir {
        ContainerDir::of(&self.config.state_dir, &key(id))
    }

    /// What the played driver holds for a group: soft and hard of the last call.
    fn limit(&self, group: &Path) -> Option<(u64, u64)> {
        let text = fs::read_to_string(self.dir.path().join("limits")).ok()?;
        text.lines().rev().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (Path::new(words[3]) == group)
                .then(|| (words[1].parse().unwrap(), words[2].parse().unwrap()))
        })
    }

    fn fault(&self, word: &str) {
        fs::write(self.dir.path().join("fault"), word).unwrap();
    }

    fn assert_clean(&self) {
        assert_eq!(
            crate::state::containers(&self.config.state_dir).unwrap(),
            []
        );
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.groups).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                drop(fs::remove_dir(entry.path()));
            }
        }
        drop(fs::remove_dir(&self.groups));
    }
}

struct Init {
    process: Child,
    group: PathBuf,
}

impl Init {
    fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        // An ended process leaves its group a moment after it can be waited for.
        while leaf_of(&self.group).is_populated().unwrap() {
            std::thread::yield_now();
        }
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        while leaf_of(&self.group).is_populated().unwrap() {
            std::thread::yield_now();
        }
        drop(fs::remove_dir(&self.group));
    }
}

fn sleeper() -> Child {
    Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn leaf_of(path: &Path) -> Leaf {
    use std::os::unix::fs::MetadataExt;
    Leaf {
        path: path.to_owned(),
        inode: fs::metadata(path).map_or(0, |metadata| metadata.ino()),
    }
}

fn key(id: &str) -> ContainerKey {
    ContainerKey::new("default", id).unwrap()
}

#[test]
fn a_container_is_held_between_create_and_start_and_its_reservation_goes_before_its_group() {
    let Some(host) = TestHost::new() else { return };
    let vgpu = host.create("c1").unwrap();
    assert_eq!(vgpu.grant.backend, Kind::DriverLimit);
    let reason = &vgpu.grant.backend_reason;
    assert!(
        reason.starts_with("auto, and broker is not offered (driver 615.71.09"),
        "{reason}"
    );
    assert_eq!(vgpu.filter, None);
    let spec = fs::read_to_string(vgpu.grant.bundle.as_ref().unwrap().join("config.json")).unwrap();
    assert!(
        !spec.contains("listenerPath") && spec.contains("/dev/nvidia0"),
        "{spec}"
    );
    assert!(!host.dir("c1").file("broker.pid").exists());

    let mut init = host.init("c1");
    verify_filter(&host.config, &key("c1"), init.pid()).unwrap();
    assert_eq!(host.limit(&init.group), Some((4 * GIB, 4 * GIB)));
    drop(vgpu);
    // The wrapper has ended; the container runs on.
    assert_eq!(lifecycle::reclaim(&host.config).unwrap(), []);
    let states = lifecycle::list(&host.config).unwrap();
    assert_eq!(
        (states[0].broker, states[0].life),
        (lifecycle::BrokerState::None, lifecycle::Life::Live)
    );

    init.end();
    teardown(&host.config, &key("c1")).unwrap();
    assert_eq!(host.limit(&init.group), Some((0, 4 * GIB)));
    fs::remove_dir(&init.group).unwrap();
    teardown(&host.config, &key("c1")).unwrap();
    release(&host.config, &key("c1")).unwrap();
    host.assert_clean();
}

#[test]
fn what_a_killed_frontend_leaves_is_reclaimed_with_its_reservation() {
    let Some(host) = TestHost::new() else { return };
    drop(host.create("c1").unwrap());
    let mut init = host.init("c1");
    verify_filter(&host.config, &key("c1"), init.pid()).unwrap();
    // Init ends, another process of the container does not.
    let mut other = sleeper();
    fs::write(init.group.join("cgroup.procs"), other.id().to_string()).unwrap();
    init.process.kill().unwrap();
    init.process.wait().unwrap();
    assert_eq!(lifecycle::reclaim(&host.config).unwrap(), []);
    other.kill().unwrap();
    other.wait().unwrap();
    init.end();
    assert_eq!(host.reclaimed(), [key("c1")]);
    assert_eq!(host.limit(&init.group), Some((0, 4 * GIB)));
    host.assert_clean();
}

#[test]
fn a_frontend_killed_before_it_armed_leaves_nothing_to_zero() {
    let Some(host) = TestHost::new() else { return };
    drop(host.create("c1").unwrap());
    assert_eq!(host.reclaimed(), [key("c1")]);
    assert!(!host.dir.path().join("limits").exists());
    host.assert_clean();
}

#[test]
fn a_container_that_cannot_be_held_is_not_armed_and_goes_without_a_trace() {
    let Some(host) = TestHost::new() else { return };
    for (word, expected) in [
        ("set", "does not set the limit"),
        ("readback", "holds soft 4294967296 and hard 4294971392"),
        ("get", "does not say the limit"),
        ("crash", "no answer"),
        ("init", "cannot be used"),
    ] {
        let vgpu = host.create("c1").unwrap();
        let init = host.init("c1");
        host.fault(word);
        let error = verify_filter(&host.config, &key("c1"), init.pid()).unwrap_err();
        let text = chain(&error);
        assert!(
            matches!(error, Error::Limits { .. }) && text.contains(expected),
            "{word}: {text}"
        );
        fs::remove_file(host.dir.path().join("fault")).unwrap();
        drop(init);
        drop(vgpu);
        release(&host.config, &key("c1")).unwrap();
        host.assert_clean();
    }
}

#[test]
fn a_group_that_is_not_the_container_s_own_is_refused() {
    let Some(host) = TestHost::new() else { return };
    let vgpu = host.create("c1").unwrap();
    // In the frontend's own group.
    let mut process = sleeper();
    let pid = process.id().cast_signed();
    let error = verify_filter(&host.config, &key("c1"), pid).unwrap_err();
    assert!(matches!(error, Error::NoOwnCgroup { .. }), "{error}");
    process.kill().unwrap();
    process.wait().unwrap();
    let error = verify_filter(&host.config, &key("c1"), pid).unwrap_err();
    assert!(
        matches!(
            error,
            Error::InitGone { .. } | Error::Io(_) | Error::NoOwnCgroup { .. }
        ),
        "{error}"
    );
    assert!(!host.dir.path().join("limits").exists());
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
}

#[test]
fn a_new_quota_is_set_and_read_back() {
    let Some(host) = TestHost::new() else { return };
    let vgpu = host.create("c1").unwrap();
    let mut grant = vgpu.grant.clone();
    let backend = backend::of(&host.config, Kind::DriverLimit);
    assert!(matches!(
        backend.resize(&host.dir("c1"), &grant),
        Err(Error::NotHeld { .. })
    ));
    let init = host.init("c1");
    verify_filter(&host.config, &key("c1"), init.pid()).unwrap();
    for bytes in [6 * GIB, GIB] {
        grant.cards[0].quota_bytes = bytes;
        let held = backend.resize(&host.dir("c1"), &grant).unwrap();
        assert_eq!(held[0].uuid, "GPU-0");
        assert_eq!(host.limit(&init.group), Some((bytes, bytes)));
    }
    host.fault("readback");
    assert!(matches!(
        backend.resize(&host.dir("c1"), &grant),
        Err(Error::Limits { .. })
    ));
    fs::remove_file(host.dir.path().join("fault")).unwrap();
    drop(vgpu);
    drop(init);
    release(&host.config, &key("c1")).unwrap();
}

#[test]
fn what_is_held_above_a_shrunken_quota_stays_reserved_until_the_driver_counts_less() {
    let Some(host) = TestHost::new() else { return };
    let vgpu = host.create("c1").unwrap();
    let init = host.init("c1");
    verify_filter(&host.config, &key("c1"), init.pid()).unwrap();
    let reserved_gib = |shrinks: bool| {
        let seen = Unsettled::ask(&host.config);
        let lock = StateLock::take(&host.config.state_dir).unwrap();
        let reservations = Reservations::open(&lock, &host.config.state_dir, &DiskStore);
        let inventory = &host.host.inventory;
        if shrinks {
            let held = Some(3 * GIB);
            let card = &inventory.cards[0];
            reservations.resize(&key("c1"), card, GIB, held).unwrap();
        }
        seen.settle(&host.config, &reservations, inventory).unwrap();
        reservations.all().unwrap()[0].reserved_bytes() / GIB
    };
    let hold = |bytes: u64| fs::write(host.dir.path().join("used"), bytes.to_string()).unwrap();
    let mut grant = vgpu.grant.clone();
    grant.cards[0].quota_bytes = GIB;
    hold(3 * GIB);
    let backend = backend::of(&host.config, Kind::DriverLimit);
    let held = backend.resize(&host.dir("c1"), &grant).unwrap();
    assert_eq!(held[0].used_bytes, 3 * GIB);
    grant.write(&DiskStore, host.dir("c1").path()).unwrap();
    assert_eq!(reserved_gib(true), 3);
    assert_eq!(reserved_gib(false), 3);
    hold(2 * GIB);
    assert_eq!(reserved_gib(false), 2);
    hold(0);
    assert_eq!(reserved_gib(false), 1);
    drop(vgpu);
    drop(init);
    release(&host.config, &key("c1")).unwrap();
}

#[test]
fn version_1_of_cgroups_and_an_older_driver_are_reported_before_anything_is_granted() {
    let Some(mut host) = TestHost::new() else {
        return;
    };
    host.fault("init");
    let error = chain(&host.create("c1").unwrap_err());
    assert!(
        error.contains("driver-limit is not offered (") && error.contains("cannot be used"),
        "{error}"
    );
    fs::remove_file(host.dir.path().join("fault")).unwrap();
    host.config.backend.cgroup_root = host.dir.path().to_owned();
    let error = chain(&host.create("c1").unwrap_err());
    assert!(error.contains("needs cgroup v2 at"), "{error}");
    let error = backend::choose(&host.config, &host.host, Needed::Quota, Runtime::Own).unwrap_err();
    assert!(matches!(error, Error::NoBackend { .. }), "{error}");
    host.assert_clean();
}

#[test]
fn a_share_that_only_a_broker_could_hold_is_refused_where_it_must_be_held() {
    let Some(host) = TestHost::new() else {
        return;
    };
    let share = json!({"cgpu.io/memory": "4Gi", "cgpu.io/compute": "30"});
    let mut strict = host.config.clone();
    strict.compute.mode = cards::ComputeMode::Strict;
    let error = host
        .create_with(&strict, "c1", share.clone())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("default/c1") && error.contains("driver-limit"),
        "{error}"
    );
    host.assert_clean();
    // Without terms there is nothing to hold, and best effort is what can be had.
    let plain = json!({"cgpu.io/memory": "4Gi"});
    let vgpu = host.create_with(&strict, "c1", plain).unwrap();
    assert_eq!(vgpu.mounts, []);
    release(&strict, &key("c1")).unwrap();
    let vgpu = host.create_with(&host.config, "c1", share).unwrap();
    assert_eq!(vgpu.grant.compute.percent, Some(30));
    release(&strict, &key("c1")).unwrap();
    host.assert_clean();
}

#[test]
fn a_record_of_another_version_is_not_guessed_at() {
    let dir = tempfile::tempdir().unwrap();
    let key = key("c1");
    let container = ContainerDir::of(dir.path(), &key);
    fs::create_dir_all(container.path()).unwrap();
    assert_eq!(read(&container).unwrap(), None);
    let record = Record {
        version: VERSION,
        leaf: Leaf {
            path: "/sys/fs/cgroup/x".into(),
            inode: 7,
        },
        reservation: Reservation::Held,
        cards: vec![RecordedCard {
            uuid: "GPU-0".to_owned(),
            bytes: GIB,
        }],
    };
    write(&container, &record).unwrap();
    assert_eq!(read(&container).unwrap(), Some(record.clone()));
    write(
        &container,
        &Record {
            version: 2,
            ..record
        },
    )
    .unwrap();
    assert!(matches!(
        read(&container),
        Err(Error::LimitsRecordVersion { found: 2, .. })
    ));
    fs::write(container.file(FILE), "{").unwrap();
    assert!(matches!(read(&container), Err(Error::LimitsRecord { .. })));
}
