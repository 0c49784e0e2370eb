use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use journal::Journal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use sys::pidfd::PidFd;

use super::*;
use crate::grant;

/// A supervisor that has no broker yet, of a container in compat mode. It takes the calling thread's capabilities.
fn supervisor(dir: &Path) -> Supervisor {
    let text = serde_json::json!({
        "version": 1,
        "key": {"namespace": "tests", "id": "one"},
        "driver": {"kind": "kernel"},
        "driver_version": "570.195.03",
        "cards": [],
        "compute": {"policy": null, "percent": null, "weight": null, "priority": "normal"},
        "isolation": {"mode": "compat"},
        "frontend": {"kind": "run", "pid": std::process::id()},
        "bundle": null,
        "created_at_unix_ms": 1,
    });
    std::fs::write(dir.join("grant.json"), text.to_string()).unwrap();
    let grant = grant::read(dir).unwrap();
    let socket = |name: &str| OwnedFd::from(UnixListener::bind(dir.join(name)).unwrap());
    let estate = Estate {
        shared_state: SharedState::memfd().unwrap(),
        journal: Journal::memfd().unwrap(),
        control: socket("control.sock"),
        notify: socket("notify.sock"),
        lock: std::fs::File::create(dir.join("broker.lock"))
            .unwrap()
            .into(),
    };
    let name = name_of(&grant);
    Supervisor::new(dir, &grant, name, estate, FdStore::default()).unwrap()
}

/// As one whose thread is in the driver: a process that a signal of ours does not end.
#[test]
fn a_broker_that_does_not_die_is_not_waited_for() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: not root");
        return;
    }
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped()).uid(1000).gid(1000);
    let mut process = command.spawn().unwrap();
    let pid = process.id().cast_signed();
    let handle = PidFd::open(pid).unwrap();
    let (reports, reported) = mpsc::channel();
    let (goes_on, is_dead) = mpsc::channel();
    let supervising = std::thread::spawn(move || {
        let dir = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(dir.path());
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let broker = Child::adopt(1, (pid, handle), ours);
        supervisor.watch(&broker).unwrap();
        supervisor.broker = Some(broker);
        (supervisor.is_ready, supervisor.start_at) = (true, None);
        drop(theirs);
        supervisor.hear(1).unwrap();
        supervisor.follow_the_dead().unwrap();
        // Nobody else serves while it may still do something.
        let waits = (supervisor.broker.is_some(), supervisor.start_at.is_none());
        reports.send(waits).unwrap();
        is_dead.recv().unwrap();
        supervisor.follow_the_dead().unwrap();
        (supervisor.broker.is_none(), supervisor.start_at.is_some())
    });
    let waits = reported.recv_timeout(Duration::from_secs(60));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(waits, Ok((true, true)), "the supervisor waits");
    goes_on.send(()).unwrap();
    assert_eq!(supervising.join().unwrap(), (true, true));
}
