use serde_json::json;

use super::*;

#[test]
fn a_value_that_is_lost_or_changed_is_named_and_a_default_is_not() {
    let before =
        json!({"a": {"pause": "mine", "empty": "", "list": [], "deep": {"n": 1}}, "gone": 2});
    let mut lost = Vec::new();
    losses(&before, &before, &mut Vec::new(), &mut lost);
    assert!(lost.is_empty());
    let after = json!({"a": {"pause": "other", "deep": {"n": 1, "more": 2}}});
    losses(&before, &after, &mut Vec::new(), &mut lost);
    assert_eq!(lost, ["a.pause", "gone"]);
}

#[test]
fn only_a_dockerd_of_the_usual_file_reports_with_which_flags_it_is_checked() {
    let line = |arguments: &[&str]| format!("{}\0", arguments.join("\0")).into_bytes();
    let flags = dockerd_flags(&line(&["/usr/bin/dockerd", "-H", "fd://", "--debug"]));
    assert_eq!(flags.unwrap(), ["-H", "fd://", "--debug"]);
    let usual = [
        "dockerd",
        "--config-file=/etc/docker/daemon.json",
        "--debug",
    ];
    assert_eq!(dockerd_flags(&line(&usual)).unwrap(), ["--debug"]);
    for other in [
        &["dockerd", "--config-file", "/tmp/other.json"][..],
        &["containerd", "--debug"],
        &["", "dockerd"],
    ] {
        assert_eq!(dockerd_flags(&line(other)), None, "{other:?}");
    }
}
