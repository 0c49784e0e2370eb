use super::*;

#[test]
fn the_last_error_of_a_log_is_found_among_other_lines() {
    let log = concat!(
        "{\"level\":\"error\",\"msg\":\"first\",\"time\":\"x\"}\nnot json\n",
        "{\"level\":\"error\",\"msg\":\"second\",\"time\":\"x\"}\n{\"level\":\"warning\",\"msg\":\"w\",\"time\":\"x\"}\n"
    );
    assert_eq!(last_error(log).as_deref(), Some("second"));
    assert_eq!(last_error("{\"level\":\"info\",\"msg\":\"i\"}"), None);
}

#[test]
fn systemd_is_inferred_from_the_form_of_the_cgroups_path() {
    for systemd in [
        "system.slice:docker:0123",
        "kubepods-pod1.slice:cri-containerd:abc",
        ":cgpu:x",
    ] {
        assert!(is_systemd_path(systemd), "{systemd}");
    }
    for plain in [
        "/docker/0123",
        "/default/a:b",
        "x",
        "a:b",
        "a:b:c:d",
        "/a:b:c",
        "",
    ] {
        assert!(!is_systemd_path(plain), "{plain}");
    }
}

#[test]
fn what_is_saved_is_read_back_and_absence_means_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let defaults = Runc::saved(dir.path(), "ns").unwrap();
    assert_eq!(defaults.runc.root, Path::new("/run/containerd/runc/ns"));
    assert_eq!(defaults.caller, None);
    let options = RuncOptions {
        binary_name: Some("crun".into()),
        root: Some("/r".into()),
        ..RuncOptions::default()
    };
    let runc = Runc::new("ns", &options, None);
    runc.save(dir.path()).unwrap();
    let caller = Caller::this().unwrap();
    let saved = Runc::saved(dir.path(), "ns").unwrap();
    assert_eq!((&saved.runc, &saved.caller), (&runc, &caller));
    // As a shim wrote it that did not name itself.
    fs::write(dir.path().join(SAVED), serde_json::to_vec(&runc).unwrap()).unwrap();
    let saved = Runc::saved(dir.path(), "ns").unwrap();
    assert_eq!((saved.runc, saved.caller), (runc, None));
    fs::write(dir.path().join(SAVED), "{").unwrap();
    Runc::saved(dir.path(), "ns").unwrap_err();
}

#[test]
fn runc_is_not_given_the_notify_socket_of_an_engine_that_is_a_unit() {
    let runc = Runc::new("ns", &RuncOptions::default(), None);
    let command = runc.command(Path::new("/log"));
    let removed = (std::ffi::OsStr::new("NOTIFY_SOCKET"), None);
    assert!(command.get_envs().any(|variable| variable == removed));
}
