//! What is ended without the state lock, while others take it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cards::FrontendKind;
use cards::lock::{Attempt, FileLock};
use sys::pidfd::PidFd;

use super::super::reclaim;
use super::*;
use crate::backend;
use crate::state::ContainerDir;

/// A broker that ends late after SIGTERM.
#[test]
fn nobody_waits_for_the_lock_while_another_container_s_broker_ends() {
    let mut host = TestHost::new();
    host.config.broker.stop_timeout_ms = 60_000;
    let sigterm = host.dir.path().join("sigterm");
    let body = format!(
        "trap 'echo $$ > {0}.tmp; mv {0}.tmp {0}' TERM; echo ready; exec >&-; while :; do sleep 0.1; done",
        sigterm.display()
    );
    program(&host.dir.path().join("broker"), &body);
    // It holds no lock, so that its container is stale as soon as its frontend is gone.
    let vgpu = host.create("slow", "4Gi").unwrap().unwrap();
    drop(vgpu);
    let dir = ContainerDir::of(&host.config.state_dir, &key("slow"));
    // What another test is starting at this moment shares the lock until it executes its program.
    while backend::is_live(&dir).unwrap() {
        std::thread::yield_now();
    }
    let config = host.config.clone();
    let reclaiming = std::thread::spawn(move || reclaim(&config));
    while !sigterm.exists() {
        std::thread::yield_now();
    }
    let lock = FileLock::attempt(&host.config.state_dir.join("lock"));
    let is_free = matches!(lock, Ok(Attempt::Taken(_)));
    drop(lock);
    let pid = fs::read_to_string(&sigterm)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    PidFd::open(pid).unwrap().signal(libc::SIGKILL).unwrap();
    assert_eq!(reclaiming.join().unwrap().unwrap(), [key("slow")]);
    assert!(is_free);
    assert_eq!(host.reserved_mib(), 0);
}

/// A vGPU whose frontend lets it go, and which another start takes back; then the next container of its name.
fn made_again(host: &TestHost) -> Created {
    nobody_holds(host);
    assert_eq!(reclaim(&host.config).unwrap(), [key("c1")]);
    let next = host.create("c1", "2Gi").unwrap().unwrap();
    assert_eq!(host.reserved_mib(), 2 << 10);
    next
}

fn assert_is_untouched(host: &TestHost, next: &Created) {
    let found = container(&host.config, &key("c1")).granted().unwrap();
    assert_eq!(found.as_ref(), Some(&next.grant));
    assert_eq!(host.reserved_mib(), 2 << 10);
    assert_eq!(brokers(host.dir.path()).len(), 1);
}

#[test]
fn who_releases_late_does_not_touch_the_next_container_of_its_name() {
    let host = TestHost::new();
    let first = host.create("c1", "4Gi").unwrap().unwrap();
    let by_name = container(&host.config, &key("c1")).reopen().unwrap();
    drop(first);
    let next = made_again(&host);
    by_name.ended().release().unwrap();
    assert_is_untouched(&host, &next);
    next.prepared.ended().release().unwrap();
    host.assert_clean(&"the next");
}

#[test]
fn what_is_made_between_the_end_of_a_broker_and_the_lock_is_not_undone() {
    let host = TestHost::new();
    let first = created(&host, "c1", FrontendKind::Shim).unwrap().unwrap();
    let ending = container(&host.config, &key("c1"));
    let which = ending.dir().which().unwrap();
    drop(first);
    ending
        .end_backends(which, own_group::OF_ITS_FRONTEND)
        .unwrap();
    let next = made_again(&host);
    ending.undo_ended(which).unwrap();
    assert_is_untouched(&host, &next);
    // Nor is its broker ended.
    ending
        .end_backends(which, own_group::OF_ITS_FRONTEND)
        .unwrap();
    assert_is_untouched(&host, &next);
    next.prepared.ended().release().unwrap();
    host.assert_clean(&"the next");
}

/// Supervisor and broker are killed together, as systemd-oomd does, and the frontend has left before, as `cgpu-runtime` does: the container's
/// program has its files of the driver, and what it has of the card.
#[test]
fn a_grant_stands_as_long_as_the_container_s_program_lives() {
    let host = TestHost::new();
    let vgpu = created(&host, "c1", FrontendKind::Runtime)
        .unwrap()
        .unwrap();
    let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pid = program.id().cast_signed();
    container(&host.config, &key("c1"))
        .record_first_process(pid)
        .unwrap();
    drop(vgpu);
    let dir = ContainerDir::of(&host.config.state_dir, &key("c1"));
    // What another test is starting at this moment shares the locks until it executes its program.
    while dir.has_broker().unwrap() || FileLock::is_held(&dir.frontend_lock()).unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(reclaim(&host.config).unwrap(), []);
    assert_eq!(host.reserved_mib(), 1 << 10);
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(reclaim(&host.config).unwrap(), [key("c1")]);
    host.assert_clean(&"it has ended");
}

/// A process that no signal ends, as one in the driver: frozen by version 1's freezer, until this is dropped.
struct Unkillable {
    process: Child,
    freezer: PathBuf,
}

impl Unkillable {
    fn enter(groups: &[PathBuf]) -> Option<Self> {
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = process.id().to_string();
        let freezer = PathBuf::from(format!("/sys/fs/cgroup/freezer/cgpu-test-{pid}"));
        let mut unkillable = Self { process, freezer };
        let frozen = fs::create_dir(&unkillable.freezer)
            .and_then(|()| fs::write(unkillable.freezer.join("tasks"), &pid))
            .and_then(|()| fs::write(unkillable.freezer.join("freezer.state"), "FROZEN"));
        if frozen.is_err() {
            println!("SKIP: no freezer of version 1");
            unkillable.process.kill().unwrap();
            return None;
        }
        while unkillable.state() != "FROZEN" {
            std::thread::yield_now();
        }
        for group in groups {
            fs::write(group.join("tasks"), &pid).unwrap();
        }
        Some(unkillable)
    }

    fn state(&self) -> String {
        let state = fs::read_to_string(self.freezer.join("freezer.state")).unwrap();
        state.trim().to_owned()
    }

    fn name_as_executor(&self, dir: &Path) {
        let pid = self.process.id().cast_signed();
        let start_ticks = sys::proc::start_ticks(pid).unwrap();
        let identity = serde_json::json!({"pid": pid, "start_ticks": start_ticks});
        fs::write(dir.join("executor.pid"), identity.to_string()).unwrap();
    }
}

impl Drop for Unkillable {
    fn drop(&mut self) {
        drop(fs::write(self.freezer.join("freezer.state"), "THAWED"));
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir(&self.freezer));
    }
}

/// What another test is starting at this moment shares the lock until it executes its program.
fn nobody_holds(host: &TestHost) {
    let dir = ContainerDir::of(&host.config.state_dir, &key("c1"));
    while backend::is_live(&dir).unwrap() {
        std::thread::yield_now();
    }
}

/// The delete of its container succeeds, and nobody else is given what it may have. A start of its own name says why there is none.
fn assert_is_kept(host: &TestHost, executor: Unkillable) {
    let released = container(&host.config, &key("c1")).reopen().unwrap();
    released.ended().release().unwrap();
    assert_eq!(host.reserved_mib(), 20 << 10);
    let error = reclaim(&host.config).unwrap_err();
    assert!(matches!(error, Error::StillEnding { .. }), "{error}");
    // The other card has room for one.
    let other = host.create("c2", "20Gi").unwrap().unwrap();
    let refused = host.create("c3", "20Gi").unwrap_err();
    assert_eq!(refused.reason(), "full", "{refused}");
    assert_eq!(host.reserved_mib(), 40 << 10);
    drop(executor);
    assert_eq!(reclaim(&host.config).unwrap(), [key("c1")]);
    assert_eq!(host.reserved_mib(), 20 << 10);
    other.prepared.ended().release().unwrap();
    host.assert_clean(&"it has ended");
}

#[test]
fn what_a_vgpu_s_processes_may_have_of_a_card_is_nobody_else_s_before_they_have_ended() {
    let host = TestHost::new();
    let vgpu = host.create("c1", "20Gi").unwrap().unwrap();
    let groups = own_group::all(&host.config);
    if groups.is_empty() {
        println!("SKIP: no control groups can be made here");
        return vgpu.prepared.ended().release().unwrap();
    }
    drop(vgpu);
    nobody_holds(&host);
    match Unkillable::enter(&groups) {
        Some(executor) => assert_is_kept(&host, executor),
        None => release(&host.config, &key("c1")).unwrap(),
    }
}

/// A host without control groups, with a vGPU that was released while its executor does not end; `None`: a process cannot be frozen here.
fn left_by_its_executor() -> Option<(TestHost, Unkillable)> {
    let mut host = TestHost::new();
    host.config.broker.cgroup_root = host.dir.path().join("no-tree");
    drop(created(&host, "c1", FrontendKind::Run).unwrap().unwrap());
    nobody_holds(&host);
    let executor = Unkillable::enter(&[]);
    if let Some(executor) = &executor {
        let dir = ContainerDir::of(&host.config.state_dir, &key("c1"));
        executor.name_as_executor(dir.path());
    }
    release(&host.config, &key("c1")).unwrap();
    Some((host, executor?))
}

#[test]
fn an_executor_without_a_control_group_is_waited_for_as_well() {
    let Some((host, executor)) = left_by_its_executor() else {
        return;
    };
    assert_eq!(host.reserved_mib(), 1 << 10);
    let error = reclaim(&host.config).unwrap_err();
    assert!(matches!(error, Error::StillEnding { .. }), "{error}");
    drop(executor);
    assert_eq!(reclaim(&host.config).unwrap(), [key("c1")]);
    host.assert_clean(&"it has ended");
}

#[test]
fn a_start_of_the_same_name_waits_for_what_the_former_one_has_left() {
    let Some((host, executor)) = left_by_its_executor() else {
        return;
    };
    let next = std::thread::scope(|scope| {
        let starts = scope.spawn(|| created(&host, "c1", FrontendKind::Run));
        drop(executor);
        starts.join().unwrap().unwrap().unwrap()
    });
    assert_eq!(host.reserved_mib(), 1 << 10);
    next.prepared.ended().release().unwrap();
    host.assert_clean(&"the next");
}
