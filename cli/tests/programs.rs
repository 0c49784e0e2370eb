//! The programs as a person starts them, on a machine without any driver.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

use std::process::{Command, Output};
use std::sync::LazyLock;

fn cgpu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cgpu"))
        .args(arguments)
        .env("CGPU_CONFIG", config())
        .output()
        .unwrap()
}

/// A configuration whose state folder does not exist. All tests share it, so it is written once: one that is written anew is cut off
/// for a moment, in which another test reads it.
fn config() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        let path = format!("{}/no-driver.toml", env!("CARGO_TARGET_TMPDIR"));
        let state_dir = format!("{}/no-state", env!("CARGO_TARGET_TMPDIR"));
        let text = format!("state_dir = \"{state_dir}\"\n[driver]\nkind = \"sim\"\n");
        std::fs::write(&path, text).unwrap();
        path
    });
    &PATH
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn smi_without_a_driver_names_the_node_and_fails() {
    let empty = tempfile::tempdir().unwrap();
    let dev = empty.path().to_str().unwrap();
    let output = cgpu(&["smi", "--dev", dev]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains(&format!("{dev}/nvidiactl")));
    assert!(output.stdout.is_empty());
}

#[cfg(feature = "host")]
#[test]
fn smi_on_a_host_reports_that_neither_driver_nor_simulator_answers() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("SKIP: smi_on_a_host_reports_that_neither_driver_nor_simulator_answers: a driver");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let config = folder.path().join("cgpu.toml");
    std::fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
    let smi = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
        let output = command.arg("smi").env("CGPU_CONFIG", &config).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        error_of(&output)
    };
    let neither = smi();
    assert!(
        neither.contains("cgpu-sim does not run") && neither.contains("cgpu-sim --profile"),
        "{neither}"
    );
    // What a killed simulator leaves.
    std::fs::create_dir_all(state.join("sim")).unwrap();
    std::fs::write(state.join("sim/cards.json"), "{}").unwrap();
    let silent = smi();
    assert!(
        silent.contains("does not answer") && silent.contains("sim.sock"),
        "{silent}"
    );
}

#[cfg(feature = "host")]
mod host {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn ps_is_empty_and_leaves_nothing_where_nothing_was_granted() {
        let output = cgpu(&["ps", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            reply,
            serde_json::json!({"version": 1, "vgpus": [], "elsewhere": []})
        );
        let state_dir = format!("{}/no-state", env!("CARGO_TARGET_TMPDIR"));
        assert!(!std::path::Path::new(&state_dir).exists());
    }

    #[test]
    fn doctor_fails_and_reports_what_is_missing() {
        let output = cgpu(&["doctor", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", error_of(&output));
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["can_start"], false);
        let driver = reply["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == "driver")
            .unwrap();
        assert_eq!(driver["level"], "missing");
        assert!(driver["remedy"].is_string());
    }

    #[test]
    fn a_repair_that_is_not_made_is_not_reported_as_made() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: a_repair_that_is_not_made_is_not_reported_as_made: not root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (state, config) = (folder.path().join("state"), folder.path().join("cgpu.toml"));
        std::fs::create_dir_all(state.join("sim")).unwrap();
        let card = serde_json::json!({
            "uuid": "GPU-0", "name": "Simulated", "memory_bytes": 24_u64 << 30, "minor": 0, "index": 0, "pci": "00000000:01:00.0",
        });
        let cards =
            serde_json::json!({"version": 1, "driver_version": "570.195.03", "cards": [card]});
        std::fs::write(state.join("sim/cards.json"), cards.to_string()).unwrap();
        let doctor = |configuration: &str, options: &[&str]| {
            std::fs::write(&config, configuration).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
            command.args(["doctor", "--repair"]).args(options);
            let output = command.env("CGPU_CONFIG", &config).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let fine = format!("state_dir = {state:?}\n");
        let reply = doctor(&fine, &["--card", "0"]);
        for part in ["nothing was left behind", "GPU-0 was not marked unhealthy"] {
            assert!(reply.contains(part), "no {part}: {reply}");
        }
        let reply = doctor("state_dir = 7\n", &["--card", "0"]);
        assert!(reply.contains("Repair: not done"), "{reply}");
        assert!(!reply.contains("nothing was left behind"), "{reply}");
        let reply: serde_json::Value =
            serde_json::from_str(&doctor("state_dir = 7\n", &["--json"])).unwrap();
        assert!(reply["reclaimed"].is_null() && reply["cleared_cards"].is_null());
    }

    /// By another process: a child that a test beside this one forks meanwhile would hold the copy open for writing, and it could
    /// not be started.
    fn copy_of_cgpu(to: &std::path::Path) {
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_cgpu")).arg(to);
        assert!(copy.status().unwrap().success());
    }

    #[test]
    fn doctor_without_root_reports_so_and_blames_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            println!(
                "SKIP: doctor_without_root_reports_so_and_blames_nothing_else: starts as root"
            );
            return;
        }
        // Whoever it is must be able to reach the program.
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = folder.path().join("cgpu");
        copy_of_cgpu(&program);
        let nobody = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            command.args(arguments).uid(65534).gid(65534);
            command.output().unwrap()
        };
        let output = nobody(&["doctor"]);
        assert_eq!(output.status.code(), Some(1));
        let reply = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(reply.contains("sudo cgpu doctor"), "{reply}");
        for wrong in [
            "CONFIG_CHECKPOINT",
            "neither the kernel",
            "move it away",
            "No GPU container",
        ] {
            assert!(!reply.contains(wrong), "{wrong}: {reply}");
        }
        let output = nobody(&["doctor", "--repair"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            error_of(&output).contains("needs root"),
            "{}",
            error_of(&output)
        );
    }

    #[test]
    fn run_judges_the_request_before_it_starts_anything() {
        for (memory, part) in [("0", "at least 1Mi"), ("4 apples", "4 apples")] {
            let output = cgpu(&["run", "--memory", memory, "--", "true"]);
            let error = error_of(&output);
            let is_root = nix::unistd::geteuid().is_root();
            let code = if is_root { 2 } else { 1 };
            assert_eq!(output.status.code(), Some(code), "{error}");
            assert!(
                error.contains(if is_root { part } else { "root" }),
                "{error}"
            );
        }
    }

    #[test]
    fn run_and_set_name_a_bad_share_and_what_is_allowed() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: run_and_set_name_a_bad_share_and_what_is_allowed: needs root");
            return;
        }
        for (option, value, parts) in [
            ("--compute", "0", &["--compute", "1 to 100"][..]),
            ("--compute", "101", &["101", "1 to 100"]),
            ("--compute", "much", &["much", "1 to 100"]),
            ("--weight", "0", &["--weight", "1 to 1000"]),
            ("--weight", "1001", &["1001", "1 to 1000"]),
            ("--policy", "greedy", &["greedy", "0 or fair-share"]),
            ("--policy", "fixed", &["fixed", "--compute"]),
            ("--priority", "urgent", &["urgent", "high, normal, low"]),
            ("--mode", "fast", &["--mode", "strict, compat"]),
            ("--managed", "never", &["--managed", "charge, deny, allow"]),
            ("--card-figures", "hide", &["--card-figures", "show"]),
            ("--registered-memory", "no", &["--registered-memory"]),
            ("--share-group", "my group", &["--share-group", "1 to 63"]),
        ] {
            let output = cgpu(&["run", "--memory", "1Gi", option, value, "--", "true"]);
            assert_eq!(output.status.code(), Some(2), "{option} {value}");
            for part in parts {
                let error = error_of(&output);
                assert!(error.contains(part), "{option} {value}: {error}");
                assert!(!error.contains("cgpu.io"), "{option} {value}: {error}");
            }
        }
        for (arguments, code, part) in [
            (
                &["set", "gone", "--compute", "30%"][..],
                1,
                "no container \"gone\"",
            ),
            (&["set", "gone", "--compute", "101"], 2, "1 to 100"),
            (&["explain", "--memory", "4"], 2, "--memory"),
            (
                &["set", "gone"],
                2,
                "nothing to change: give at least one of --memory",
            ),
            (
                &["set", "--card", "0"],
                2,
                "nothing to change: give at least one of --policy",
            ),
            (&["set", "--card", "0", "--policy", "greedy"], 2, "greedy"),
            (&["set", "--card", "0", "--prio-ratio", "-1"], 2, "20 to 99"),
            (
                &["set", "--card", "0", "--policy", "soft"],
                1,
                "no simulated cards",
            ),
        ] {
            let output = cgpu(arguments);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}");
            let error = error_of(&output);
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
        // What goes with a card does not go with a container, and the other way round.
        for arguments in [
            &["set", "c1", "--max-tenants", "3"][..],
            &["set", "c1", "--card", "0", "--policy", "soft"],
            &["set", "--card", "0", "--compute", "30"],
            &["set", "--policy", "soft"],
            &["set"],
        ] {
            let output = cgpu(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        }
        let error = error_of(&cgpu(&["set"]));
        assert!(
            error.contains("a container") && error.contains("--card"),
            "{error}"
        );
    }

    #[test]
    fn commands_of_the_host_report_so_in_a_container_and_without_root() {
        if !nix::unistd::geteuid().is_root() {
            println!(
                "SKIP: commands_of_the_host_report_so_in_a_container_and_without_root: needs root"
            );
            return;
        }
        let (program, config) = (env!("CARGO_BIN_EXE_cgpu"), config());
        for command in ["ps", "cards", "doctor", "events", "metrics"] {
            let script = format!(
                "mount -t tmpfs none /dev && touch /dev/cgpu-slice.json && exec {program} {command}"
            );
            let output = Command::new("unshare")
                .args(["--mount", "sh", "-c", &script])
                .env("CGPU_CONFIG", config)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1), "{command}");
            let error = error_of(&output);
            assert!(
                error.contains("for the host") && error.contains("cgpu smi"),
                "{error}"
            );
        }
        // A folder of root's, as the state folder is, and somebody else.
        let folder = tempfile::tempdir().unwrap();
        let set = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        set(folder.path(), 0o755);
        let program = folder.path().join("cgpu");
        copy_of_cgpu(&program);
        let state = folder.path().join("state");
        std::fs::create_dir_all(state.join("vgpus")).unwrap();
        set(&state, 0o700);
        let config = folder.path().join("cgpu.toml");
        std::fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
        for arguments in [
            &["ps"][..],
            &["cards"],
            &["events"],
            &["metrics"],
            &["set", "c1", "--memory", "1Gi"],
        ] {
            let mut command = Command::new(&program);
            command.args(arguments).env("CGPU_CONFIG", &config);
            let output = command.uid(65534).gid(65534).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let error = error_of(&output);
            assert!(error.contains("sudo"), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn a_wrong_configuration_is_named() {
        let path = format!("{}/wrong.toml", env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(&path, "memroy = 1\n").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .arg("ps")
            .env("CGPU_CONFIG", &path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = error_of(&output);
        assert!(
            error.contains("wrong.toml") && error.contains("memroy"),
            "{error}"
        );
    }
}

#[cfg(not(feature = "host"))]
#[test]
fn a_build_for_containers_reports_what_it_does_not_have() {
    for arguments in [
        &["ps"][..],
        &["doctor"],
        &["top", "--help"],
        &["set", "web", "--memory", "6Gi"],
        &["run", "--memory", "4Gi", "--", "true"],
    ] {
        let output = cgpu(arguments);
        assert_eq!(output.status.code(), Some(1));
        let error = error_of(&output);
        assert!(
            error.contains("this command is for the host; in a container, `cgpu smi`"),
            "{arguments:?}: {error}"
        );
    }
    let output = cgpu(&["sim"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error_of(&output).contains("unrecognized subcommand 'sim'"),
        "{}",
        error_of(&output)
    );
    let help = String::from_utf8(cgpu(&["--help"]).stdout).unwrap();
    assert!(help.contains("smi ") && !help.contains("doctor"), "{help}");
}

#[cfg(feature = "host")]
#[test]
fn a_number_of_tables_for_the_full_screen_is_a_wrong_command_line() {
    let line = format!("{} top -n 5", env!("CARGO_BIN_EXE_cgpu"));
    // With a terminal of its own.
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("CGPU_CONFIG", config())
        .stdin(std::process::Stdio::null())
        .output();
    let Ok(output) = output else {
        println!(
            "SKIP: a_number_of_tables_for_the_full_screen_is_a_wrong_command_line: no script(1)"
        );
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("give --batch or --json"), "{output:?}");
    assert_eq!(output.status.code(), Some(2), "{text}");
}

#[test]
fn version_is_one_line_and_the_command_names_the_commit_and_its_time() {
    for option in ["--version", "-V"] {
        let output = cgpu(&[option]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, concat!("cgpu ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    let output = cgpu(&["version", "--json"]);
    assert!(output.status.success(), "{}", error_of(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let git = Command::new("git")
        .args(["show", "--no-patch", "--format=%H %ct", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let known = git.ok().filter(|output| output.status.success());
    let (commit, time) = match known {
        Some(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            let (commit, time) = text.trim_end().split_once(' ').unwrap();
            (commit.to_owned(), time.parse::<u64>().ok())
        }
        None => ("unknown".to_owned(), None),
    };
    let epoch = option_env!("SOURCE_DATE_EPOCH").and_then(|epoch| epoch.parse().ok());
    assert_eq!(document["commit"], commit);
    assert_eq!(document["built_at_unix_s"].as_u64(), epoch.or(time));
    let output = cgpu(&["version"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(concat!("cgpu ", env!("CARGO_PKG_VERSION"), "\n")));
    assert!(text.contains(&commit) && text.contains("R570 from 570."));
}
