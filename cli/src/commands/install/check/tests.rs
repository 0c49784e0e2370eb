use serde_json::json;

use super::crio::crio_would_see;
use super::daemon::{dockerd_flags, flags_of_the_daemon};
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
    assert_eq!(lost, [vec!["a", "pause"], vec!["gone"]]);
}

#[test]
fn a_handler_whose_name_only_begins_alike_is_another_s() {
    let path = ["plugins", "cri", "runtimes", "cgpu-old", "runtime_type"].map(str::to_owned);
    assert!(!is_of_runtime(&path, "cgpu"));
    assert!(is_of_runtime(&path, "cgpu-old"));
    let dotted = ["runtimes", "cgpu.v2"].map(str::to_owned);
    assert!(!is_of_runtime(&dotted, "cgpu"));
}

/// As CRI-O 1.34 prints it, much shortened.
#[test]
fn what_a_later_file_of_crio_s_sets_is_seen() {
    let printed = |path: &str, default: &str| {
        format!(
            "[crio]\n# root = \"/r\"\n[crio.runtime]\n{default}\n[crio.runtime.runtimes.cgpu]\nruntime_path = \"{path}\"\nruntime_type = \"oci\"\n"
        )
    };
    let request = |as_default| plan::tests::request(as_default);
    let own = request(AsDefault::Yes).program(plan::WRAPPER);
    let ours = "default_runtime = \"cgpu\"";
    crio_would_see(&request(AsDefault::Yes), &printed(&own, ours)).unwrap();
    let others = "default_runtime = \"kata\"";
    crio_would_see(&request(AsDefault::No), &printed(&own, others)).unwrap();
    for (printed, reply) in [
        (printed(&own, others), "kata as default runtime"),
        (
            printed(&own, "# default_runtime = \"crun\""),
            "its own as default",
        ),
        (printed("/opt/kata", ours), "but /opt/kata"),
        (printed(&own, ours).replace(".cgpu]", ".crun]"), "not see"),
    ] {
        let error = crio_would_see(&request(AsDefault::Yes), &printed).unwrap_err();
        assert!(error.to_string().contains(reply), "{error}");
    }
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

#[test]
fn no_flag_of_a_daemon_s_undoes_the_check() {
    let line = b"dockerd\0--validate=false\0-H\0tcp://0.0.0.0\0--validate\0--debug\0";
    let flags = dockerd_flags(line).unwrap();
    assert_eq!(flags, ["-H", "tcp://0.0.0.0", "--debug"]);
}

/// A script that is dockerd: it shows what it was given.
#[test]
fn the_check_s_own_flags_are_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("dockerd");
    let script = "#!/bin/sh\nlast=; for argument; do last2=$last1; last1=$last; last=$argument; done\n\
        [ \"$last2 $last1\" = '--validate --config-file' ] || { echo \"$*\" >&2; exit 1; }\n";
    let written = Command::new("sh")
        .args([
            "-c",
            "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"",
            "sh",
            script,
        ])
        .arg(&program)
        .status();
    assert!(written.unwrap().success());
    fs::create_dir_all(dir.path().join("etc/docker")).unwrap();
    let (before, after) = (Tree::new(), Tree::new());
    let subject = Subject {
        engine: Engine::Docker,
        root: dir.path(),
        program: Some(&program),
        version: Some(WITH_VALIDATE),
        before: &before,
        after: &after,
        request: None,
        gone: &[],
        how: How::Exact,
    };
    let checked = check(&subject).unwrap();
    assert!(matches!(checked, Checked::Passed { .. }), "{checked:?}");
}

#[test]
fn flags_are_those_of_root_s_process_that_runs_the_very_program() {
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    // A copy of another inode, with the name and flags of a daemon.
    let (program, copy) = (dir.path().join("dockerd"), dir.path().join("copy"));
    for file in [&program, &copy] {
        assert!(
            Command::new("cp")
                .arg("/bin/sleep")
                .arg(file)
                .status()
                .unwrap()
                .success()
        );
    }
    assert!(
        Command::new("chmod")
            .arg("-R")
            .arg("a+rx")
            .arg(dir.path())
            .status()
            .unwrap()
            .success()
    );
    let start = |file: &Path, user: u32| {
        let mut command = Command::new(file);
        let child = command.arg0("/usr/bin/dockerd").arg("60").uid(user).spawn();
        child.ok()
    };
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: no process of root's can be started");
        return;
    }
    let mut foreign = start(&copy, 0).unwrap();
    let mut user_s = start(&program, 65_534).unwrap();
    assert_eq!(flags_of_the_daemon(&program), [""; 0]);
    let mut daemon = start(&program, 0).unwrap();
    let flags = flags_of_the_daemon(&program);
    for child in [&mut foreign, &mut user_s, &mut daemon] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(flags, ["60"]);
}
