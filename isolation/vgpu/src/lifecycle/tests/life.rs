//! Vgpus that come, go, and are killed half-way.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cards::FrontendKind;
use cards::lock::FileLock;
use serde_json::{Value, json};
use spec::Request;

use super::super::{BrokerState, list, reclaim, reclaim_locked};
use super::*;
use crate::backend;
use crate::sockets::tests::DIR_OF_THIS_TEST;
use crate::state::ContainerDir;

#[test]
fn a_vgpu_is_granted_reserved_edited_and_served_and_gone_after_release() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "8Gi", "cgpu.io/cards": "2"}));
    let before = spec_bytes(&bundle);
    let vgpu = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim)
        .unwrap()
        .unwrap();
    assert_eq!(
        vgpu.grant
            .cards
            .iter()
            .map(|card| card.quota_bytes)
            .collect::<Vec<_>>(),
        [4 << 30, 4 << 30]
    );
    assert_eq!(host.reserved_mib(), 8 << 10);
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
        (1, BrokerState::Alive, &vgpu.grant)
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

#[test]
fn own_processes_are_in_a_group_of_their_own_whatever_the_frontend() {
    let host = TestHost::new();
    for frontend in [
        FrontendKind::Shim,
        FrontendKind::Runtime,
        FrontendKind::Hook,
        FrontendKind::Run,
    ] {
        let vgpu = created(&host, "c1", frontend).unwrap().unwrap();
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
                "{frontend:?}: {text}"
            );
        }
        let states = list(&host.config).unwrap();
        assert!(states[0].own.unwrap().memory_bytes.is_some());
        release(&host.config, &key("c1")).unwrap();
        host.assert_clean(&frontend);
        drop(vgpu);
    }
}

#[test]
fn without_control_groups_engines_are_refused_and_cgpu_run_goes_on() {
    let mut host = TestHost::new();
    host.config.broker.cgroup_root = host.dir.path().join("no-tree");
    for frontend in [
        FrontendKind::Shim,
        FrontendKind::Runtime,
        FrontendKind::Hook,
    ] {
        let error = created(&host, "c1", frontend).unwrap_err();
        let text = host_config::chain(&error);
        assert!(
            matches!(error, Error::OwnGroup { .. })
                && text.contains("no-tree/memory")
                && text.contains("cgroup_root"),
            "{text}"
        );
        host.assert_clean(&frontend);
    }
    let error = crate::configured::own_groups(&host.config).unwrap_err();
    assert!(matches!(error, Error::OwnGroup { .. }));
    let vgpu = created(&host, "c1", FrontendKind::Run).unwrap().unwrap();
    assert_eq!(list(&host.config).unwrap()[0].own, None);
    container(&host.config, &key("c1")).follow().unwrap();
    release(&host.config, &key("c1")).unwrap();
    drop(vgpu);
}

#[test]
fn a_configuration_that_no_start_survives_is_seen_before_one() {
    use crate::configured;
    let mut host = TestHost::new();
    configured::container_tools(&host.config).unwrap();
    configured::own_groups(&host.config).unwrap();
    assert!(matches!(
        configured::default_request(&host.config),
        Ok(None)
    ));
    let with = |host: &TestHost, default: &str| {
        let text = format!("[request]\ndefault = {default}\n");
        let read = Config::from_text("cgpu.toml".as_ref(), &text).unwrap();
        let mut config = host.config.clone();
        config.request = read.request;
        configured::default_request(&config).unwrap().unwrap()
    };
    assert_eq!(with(&host, "\"1Gi\""), Ok(()));
    assert!(with(&host, "\"900Gi\"").is_err());
    assert!(with(&host, "{ memory = \"1Gi\", cards = 8 }").is_err());

    let file = host.dir.path().join("no-tool");
    host.config.container_tools = host_config::config::ContainerTools::File(file);
    let error = configured::container_tools(&host.config).unwrap_err();
    let text = host_config::chain(&error);
    assert!(text.contains("container_tools") && text.contains("no-tool"));
    let error = created(&host, "c1", FrontendKind::Shim).unwrap_err();
    assert!(host_config::chain(&error).contains("container_tools"));

    host.config.compute.max_tenants = 26;
    let real = configured::rules(&host.config, cards::CardKind::Real).unwrap_err();
    assert!(real.to_string().contains("max_tenants = 26"));
    configured::rules(&host.config, cards::CardKind::Simulated).unwrap();
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
        create(&config, &key("c"), &bundle, FrontendKind::Shim)
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
fn a_container_that_asks_for_nothing_in_another_s_network_is_closed_to_the_driver_and_never_stopped()
 {
    let host = TestHost::new();
    let started = |seccomp: Value| {
        let bundle = host.bundle("c1", json!({}));
        let mut spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
        spec["linux"]["namespaces"] = json!([{"type": "network", "path": "/proc/7/ns/net"}, {"type": "pid"}, {"type": "ipc"}]);
        spec["linux"]["seccomp"] = seccomp;
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let created = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim);
        assert!(created.unwrap().is_none());
        let after: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
        assert_eq!(after["vendor"], spec["vendor"]);
        (spec, after)
    };
    let rules = |spec: &Value| {
        spec["linux"]["seccomp"]["syscalls"]
            .as_array()
            .map_or(0, Vec::len)
    };
    let allowing = json!({"defaultAction": "SCMP_ACT_ALLOW"});
    for seccomp in [Value::Null, allowing.clone()] {
        let (_, after) = started(seccomp);
        assert!(rules(&after) > 20, "{after}");
    }
    // What cannot be kept exactly starts as it is.
    let odd = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 1, "op": "SCMP_CMP_NE"}]}]});
    let (before, after) = started(odd);
    assert_eq!(before, after);
    // A runtime without seccomp would refuse a profile. It says so once, also where no other container has made the state folder.
    fs::remove_dir_all(&host.config.state_dir).unwrap();
    let questions = host.dir.path().join("questions");
    let runc = format!("echo \"$@\" >> {}; echo '{{}}'", questions.display());
    program(&host.dir.path().join("runc"), &runc);
    for _start in 0..2 {
        let (before, after) = started(Value::Null);
        assert_eq!(before, after);
    }
    assert_eq!(fs::read_to_string(&questions).unwrap(), "features\n");
    assert!(rules(&started(allowing).1) > 20);
    host.assert_clean(&"plain");
}

#[test]
fn a_failure_at_any_step_leaves_everything_as_it_was() {
    for step in STEPS {
        let host = TestHost::new();
        let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
        let before = spec_bytes(&bundle);
        let result = create_watched(&host.config, &key("c1"), &bundle, &FailsAt(step));
        assert!(matches!(result, Err(Error::NothingRequested)), "{step:?}");
        host.assert_clean(&step);
        assert_eq!(spec_bytes(&bundle), before, "{step:?}");
        assert_eq!(fs::read_dir(&bundle).unwrap().count(), 1, "{step:?}");
    }
}

#[test]
fn a_frontend_killed_at_any_step_is_reclaimed_by_the_next_start() {
    for (at, step) in STEPS.iter().enumerate() {
        let host = TestHost::new();
        let bundle = host.bundle("killed", json!({"cgpu.io/memory": "20Gi"}));
        let before = spec_bytes(&bundle);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lifecycle::tests::play_frontend"])
            .env(
                PLAY_FRONTEND,
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
        // The same bundle again: the killed frontend's edit must not be taken for ours.
        let vgpu = create(&host.config, &key("killed"), &bundle, FrontendKind::Shim).unwrap();
        assert!(vgpu.is_some(), "{step:?}");
        assert_eq!(host.reserved_mib(), 20 << 10, "{step:?}");
        release(&host.config, &key("killed")).unwrap();
        host.assert_clean(step);
        assert_eq!(spec_bytes(&bundle), before, "{step:?}");
    }
}

/// A broker whose frontend was killed ends by itself; its lock says when.
pub(super) fn await_no_broker(host: &TestHost) {
    let dir = ContainerDir::of(&host.config.state_dir, &key("killed"));
    let lock = dir.broker_lock();
    if lock.exists() {
        drop(FileLock::take(&lock).unwrap());
        // What another test is starting at this moment shares the lock until it executes its program.
        while backend::is_live(&dir).unwrap() {
            std::thread::yield_now();
        }
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
    while backend::is_live(&dir).unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(reclaim(&host.config).unwrap(), [key("dead")]);
    assert_eq!(host.reserved_mib(), 4 << 10);
    release(&host.config, &key("alive")).unwrap();
    drop(alive);
    host.assert_clean(&"released");
}

#[test]
fn a_vgpu_that_cannot_be_looked_at_or_undone_stops_no_other_s_start() {
    let host = TestHost::new();
    // No lock can be opened there, so nobody knows whether it is held.
    let broken = ContainerDir::of(&host.config.state_dir, &key("broken"));
    fs::create_dir_all(broken.frontend_lock()).unwrap();
    let vgpu = host.create("c1", "4Gi").unwrap().unwrap();
    assert_eq!(host.reserved_mib(), 4 << 10);
    reclaim(&host.config).unwrap_err();
    assert!(broken.exists(), "it is left alone");
    host.create("broken", "4Gi").unwrap_err();
    fs::remove_dir_all(broken.path()).unwrap();
    assert_eq!(reclaim(&host.config).unwrap(), []);
    release(&host.config, &key("c1")).unwrap();
    drop(vgpu);
    host.assert_clean(&"released");
}

/// Leaves the name of no socket at every step, as a killed frontend does, and records at which one the former was still there.
struct Leftovers<'a> {
    leftover: &'a Path,
    stayed: RefCell<Vec<(Step, bool)>>,
}

impl Watch for Leftovers<'_> {
    fn reached(&self, step: Step) -> Result<(), Error> {
        let stayed = self.leftover.exists();
        self.stayed.borrow_mut().push((step, stayed));
        fs::write(self.leftover, "").unwrap();
        Ok(())
    }
}

#[test]
fn no_connection_is_made_to_a_shim_under_the_lock_that_every_start_needs() {
    let host = TestHost::new();
    let sockets = host.dir.path().join("s");
    fs::create_dir(&sockets).unwrap();
    DIR_OF_THIS_TEST.set(Some(sockets.clone()));
    let leftover = sockets.join("cgpu-killed");
    // A process that another test is just starting holds a copy of the folder's lock: then a sweep leaves all to the next one.
    let until = Instant::now() + Duration::from_secs(10);
    let mut swept = false;
    while !swept && Instant::now() < until {
        fs::write(&leftover, "").unwrap();
        let leftovers = Leftovers {
            leftover: &leftover,
            stayed: RefCell::default(),
        };
        let bundle = host.bundle("c1", json!({"cgpu.io/memory": "1Gi"}));
        let created = create_watched(&host.config, &key("c1"), &bundle, &leftovers).unwrap();
        let stayed = leftovers.stayed.borrow();
        assert_eq!(stayed[0].0, Step::Locked);
        assert!(stayed[1..].iter().all(|(_, stayed)| *stayed), "{stayed:?}");
        swept = !stayed[0].1;
        release(&host.config, &key("c1")).unwrap();
        drop(created);
    }
    assert!(swept, "before the lock");
    let lock = StateLock::take(&host.config.state_dir).unwrap();
    let (lock, _reclaimed) = reclaim_locked(&Arc::new(host.config.clone()), lock).unwrap();
    assert!(leftover.exists(), "whoever calls it");
    drop(lock);
    while leftover.exists() && Instant::now() < until {
        reclaim(&host.config).unwrap();
    }
    assert!(!leftover.exists());
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
        let error = host_config::chain(&host.create("c1", "4Gi").unwrap_err());
        for word in words {
            assert!(error.contains(word), "{body}: {error}");
        }
        host.assert_clean(&body);
    }
    let mut host = TestHost::new();
    host.config.broker.path = Some("/nonexistent/cgpu-broker".into());
    let error = host_config::chain(&host.create("c1", "4Gi").unwrap_err());
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
fn a_plain_process_gets_a_vgpu_without_a_bundle() {
    let host = TestHost::new();
    let request = Request::from_terms(&host.config, [("cgpu.io/memory", "4Gi")]).unwrap();
    let vgpu = super::super::create(&Create::new(
        &container(&host.config, &key("p1")),
        Source::Plain(&request),
        FrontendKind::Run,
    ))
    .unwrap()
    .unwrap();
    assert_eq!(
        (vgpu.grant.bundle.as_ref(), vgpu.grant.frontend.kind),
        (None, FrontendKind::Run)
    );
    let targets: Vec<_> = vgpu
        .mounts
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

/// The host's file as it is when the container is made; the container's later commands find another one.
#[test]
fn a_container_is_held_by_the_configuration_that_it_was_made_by() {
    let mut host = TestHost::new();
    let file = host.dir.path().join("cgpu.toml");
    let good = format!(
        "state_dir = {:?}\nrunc = {:?}\n[broker]\npath = {:?}\n",
        host.config.state_dir,
        host.dir.path().join("runc"),
        host.dir.path().join("broker"),
    );
    let elsewhere = format!("state_dir = {:?}\n", host.dir.path().join("elsewhere"));
    for harm in ["[broker", &elsewhere] {
        fs::write(&file, &good).unwrap();
        host.config = Config::from_trusted(&file).unwrap();
        let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
        let before = spec_bytes(&bundle);
        let created = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap();

        fs::write(&file, harm).unwrap();
        let container = Container::new(Config::kept_in(&bundle).unwrap(), key("c1"));
        assert!(container.granted().unwrap().is_some(), "{harm}");
        let running = container.reopen().unwrap();
        let mut process = json!({"args": ["sh"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]});
        running.edit_exec(&mut process).unwrap();
        assert_eq!(process["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));
        running.teardown().unwrap();
        running.ended().release().unwrap();
        drop(created);
        host.assert_clean(&harm);
        assert_eq!(spec_bytes(&bundle), before);
        assert_eq!(Config::kept_in(&bundle), None, "{harm}: it is still kept");
    }
}

#[test]
fn what_fails_before_the_verification_is_released_as_well() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let before = spec_bytes(&bundle);
    let created = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap();
    // No process has this number.
    let rejected = created
        .unwrap()
        .prepared
        .verify_filter(i32::MAX)
        .unwrap_err();
    assert!(
        matches!(rejected.error, Error::FilterUnread { .. }),
        "{}",
        rejected.error
    );
    let mut ended = rejected.ended;
    ended.teardown().unwrap();
    for _again in 0..2 {
        ended.release().unwrap();
    }
    host.assert_clean(&"rejected");
    assert_eq!(spec_bytes(&bundle), before);
}

#[test]
fn a_frontend_that_has_raised_its_limit_of_open_files_starts_nothing_with_it() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 1000, hard).unwrap();
    sys::open_files::raise().unwrap();
    let host = TestHost::new();
    let programs = ["runc", "broker"].map(|name| host.dir.path().join(name));
    for path in &programs {
        let former = fs::read_to_string(path).unwrap();
        program(path, &format!("ulimit -Sn > \"$0.limit\"\n{former}"));
    }
    drop(host.create("c1", "1Gi").unwrap().unwrap());
    for path in &programs {
        let limit = fs::read_to_string(format!("{}.limit", path.display())).unwrap();
        assert_eq!(limit, "1000\n", "{}", path.display());
    }
    release(&host.config, &key("c1")).unwrap();
    host.assert_clean(&"released");
}
