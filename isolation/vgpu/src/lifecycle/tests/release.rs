//! What is ended without the state lock, while others take it.

use std::fs;

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
    let dir = ContainerDir::of(&host.config.state_dir, &key("c1"));
    while backend::is_live(&dir).unwrap() {
        std::thread::yield_now();
    }
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
