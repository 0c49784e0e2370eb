//! Containers of one pod.

use cards::lock::FileLock;
use cards::{ContainerKey, FrontendKind};
use serde_json::json;

use super::*;
use crate::state::ContainerDir;

impl TestHost {
    /// A container of the one pod, as containerd's CRI says it.
    fn create_in_pod(
        &self,
        id: &str,
        container: &str,
        of_pod: &[(&str, &str)],
    ) -> Result<Option<Created>, Error> {
        let mut annotations = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": "5a4d",
            "io.kubernetes.cri.container-name": container,
            "io.kubernetes.cri.sandbox-name": "p1",
            "io.kubernetes.cri.sandbox-namespace": "team-a",
        });
        for (term, value) in of_pod {
            annotations[*term] = json!(value);
        }
        let bundle = self.bundle(id, annotations);
        create(&self.config, &key(id), &bundle, FrontendKind::Shim)
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
    assert_eq!(host.reserved_mib(), 4 << 10);
    let called = || crate::names_of(&host.config, &key("2")).text();
    assert_eq!(called().as_deref(), Some("p1/app"));

    let reply = host_config::chain(&host.create_in_pod("3", "sidecar", &of_pod).unwrap_err());
    for part in [
        "cgpu.io/memory.app",
        "cgpu.io/memory.sidecar",
        "container app has it",
    ] {
        assert!(reply.contains(part), "{reply}");
    }
    assert_eq!(host.reserved_mib(), 4 << 10, "not doubled");
    // Another pod's, and one of no pod, are others.
    let other = host.create("4", "4Gi").unwrap().unwrap();
    assert_eq!(host.reserved_mib(), 8 << 10);
    drop(other);
    release(&host.config, &key("4")).unwrap();

    // Started again: a new container of the same name.
    drop(app);
    release(&host.config, &key("2")).unwrap();
    assert_eq!(called(), None, "nothing is left of it");
    let again = host.create_in_pod("5", "app", &of_pod).unwrap().unwrap();
    assert_eq!(host.reserved_mib(), 4 << 10);
    drop(again);
    release(&host.config, &key("5")).unwrap();
    host.assert_clean(&"pod");
}

#[test]
fn who_only_reports_that_it_is_in_a_pod_does_not_keep_the_pod_s_amount() {
    let host = TestHost::new();
    let of_pod = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-id": "5a4d",
        "io.kubernetes.cri.container-name": "thief",
        "cgpu.io/memory": "4Gi",
    });
    let bundle = host.bundle("t", of_pod);
    let elsewhere = ContainerKey::new("moby", "t").unwrap();
    let thief = create(&host.config, &elsewhere, &bundle, FrontendKind::Runtime).unwrap();
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
    let reply = host_config::chain(&host.create_in_pod("1", &long, &of_pod).unwrap_err());
    assert!(reply.contains("at most 4096"), "{reply}");
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
    assert_eq!(host.reserved_mib(), 6 << 10);
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
    let listener = std::os::unix::net::UnixListener::bind(dir.control_socket()).unwrap();
    drop(init);
    // Another in place of the played one, which ends with its frontend.
    let lock = FileLock::take(&dir.broker_lock()).unwrap();
    let requested = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        // A connection that is closed with something unread ends in an error for who has written it.
        BufReader::new(&connection)
            .read_line(&mut String::new())
            .unwrap();
        writeln!(connection, "{}", json!(control::Status::default())).unwrap();
        drop(lock);
    });
    let app = host.create_in_pod("2", "app", &of_pod).unwrap().unwrap();
    requested.join().unwrap();
    assert_eq!(host.reserved_mib(), 20 << 10);
    assert!(!dir.exists());
    drop(app);
    release(&host.config, &key("2")).unwrap();
    host.assert_clean(&"pod");
}
