//! `cgpu install` and `cgpu uninstall` as a person starts them, on folders of their own.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

/// By what the removal of the package knows an engine that would start nothing.
const NO_CONTAINER: &str = "the engine starts no container";

/// A root with our programs, so that `install` finds what it names.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in ["containerd-shim-cgpu-v2", "cgpu-runtime", "cgpu-hook"] {
        program(root.path(), name, "");
    }
    root
}

fn program(root: &Path, name: &str, text: &str) {
    put(
        root,
        &format!("usr/bin/{name}"),
        &format!("#!/bin/sh\n{text}"),
    );
    let path = root.join("usr/bin").join(name);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
    command.args(arguments).arg("--root").arg(root);
    command
}

fn cgpu(root: &Path, arguments: &[&str]) -> Output {
    command(root, arguments).output().unwrap()
}

#[test]
fn what_was_registered_by_hand_is_named_by_uninstall_and_stays() {
    let root = root();
    let root = root.path();
    let daemon = r#"{"runtimes": {"gpu": {"path": "/usr/bin/cgpu-runtime"}}}"#;
    put(root, "etc/docker/daemon.json", daemon);
    let named = "/etc/docker/daemon.json names /usr/bin/cgpu-runtime, which `cgpu install` did not write: take it out by hand";
    let of_docker = |report: &Value| {
        let engines = report["engines"].as_array().unwrap();
        let docker = engines.iter().find(|one| one["engine"] == "docker");
        let docker = docker.unwrap_or_else(|| panic!("{report}"));
        (docker["state"].clone(), docker["remarks"].clone())
    };
    let text = cgpu(root, &["uninstall", "--dry-run"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains(named) && !text.contains("in no engine"),
        "{text}"
    );
    let report = done(root, &["uninstall", "--engine", "docker"]);
    assert_eq!(of_docker(&report), ("skipped".into(), vec![named].into()));
    // Beside what `cgpu install` has written.
    done(root, &["install", "--engine", "docker@28"]);
    let report = done(root, &["uninstall"]);
    let (state, remarks) = of_docker(&report);
    assert_eq!(state, "changed");
    assert!(
        remarks.as_array().unwrap().contains(&named.into()),
        "{remarks}"
    );
    let left = fs::read_to_string(root.join("etc/docker/daemon.json")).unwrap();
    assert_eq!(left, daemon);
    // Its default, without which it starts nothing.
    let default = daemon.replacen('{', r#"{"default-runtime": "gpu", "#, 1);
    put(root, "etc/docker/daemon.json", &default);
    let is_needed = || {
        let (_, remarks) = of_docker(&done(root, &["uninstall"]));
        remarks.to_string().contains(NO_CONTAINER)
    };
    assert!(!is_needed(), "there is no docker");
    program(root, "dockerd", "");
    assert!(is_needed());
    // Another installation's, which is left.
    put(root, "opt/cgpu/cgpu-runtime", "");
    let other = default.replace("/usr/bin", "/opt/cgpu");
    put(root, "etc/docker/daemon.json", &other);
    assert!(!is_needed(), "{other}");
    // By another path, where a link leads to the file.
    fs::remove_file(root.join("etc/docker/daemon.json")).unwrap();
    put(
        root,
        "etc/docker/of-the-site.json",
        &default.replace("/usr/bin", "/sbin"),
    );
    symlink("of-the-site.json", root.join("etc/docker/daemon.json")).unwrap();
    symlink("usr/bin", root.join("sbin")).unwrap();
    assert!(is_needed());
}

#[test]
fn what_was_registered_by_hand_is_found_in_every_file_that_an_engine_reads() {
    let podman = "[engine]\nruntime = \"x\"\n[engine.runtimes]\nx = [\"/usr/bin/cgpu-runtime\"]\n";
    let crio = "[crio.runtime]\ndefault_runtime = \"x\"\n[crio.runtime.runtimes.x]\nruntime_path = \"/usr/bin/cgpu-runtime\"\n";
    let containerd = "[plugins.x.containerd]\ndefault_runtime_name = \"x\"\n[plugins.x.containerd.runtimes.x]\nruntime_type = \"io.containerd.cgpu.v2\"\n";
    let template = format!("{{{{ template \"base\" . }}}}\n{containerd}");
    let hook = r#"{"hook": {"path": "/usr/bin/cgpu-hook"}, "when": {"always": true}}"#;
    for (program_of_engine, path, text) in [
        ("podman", "/usr/share/containers/containers.conf", podman),
        ("podman", "/etc/containers/containers.conf", podman),
        (
            "podman",
            "/etc/containers/containers.conf.d/site.conf",
            podman,
        ),
        ("crio", "/etc/crio/crio.conf", crio),
        ("crio", "/etc/crio/crio.conf.d/00-site", crio),
        ("containerd", "/etc/containerd/conf.d/site.toml", containerd),
        (
            "k3s",
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
            &template,
        ),
        (
            "rke2",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl",
            &template,
        ),
        ("podman", "/etc/containers/oci/hooks.d/site.json", hook),
        ("crio", "/usr/share/containers/oci/hooks.d/site.json", hook),
    ] {
        let root = root();
        let root = root.path();
        program(root, program_of_engine, "");
        put(root, path.trim_start_matches('/'), text);
        let report = done(root, &["uninstall", "--dry-run"]).to_string();
        for part in [&*format!("{path} names"), NO_CONTAINER] {
            assert!(report.contains(part), "{path}: {report}");
        }
        assert_eq!(fs::read_to_string(root.join(&path[1..])).unwrap(), text);
    }
}

#[test]
fn a_command_line_that_is_wrong_on_every_host_ends_with_2() {
    let root = root();
    let code = |arguments: &[&str]| cgpu(root.path(), arguments).status.code();
    let docker = ["install", "--engine", "docker@28"];
    for wrong in [
        &["--programs", "bin"][..],
        &["--engine", "docker@20.10"],
        &["--restart"],
    ] {
        assert_eq!(code(&[&docker[..], wrong].concat()), Some(2), "{wrong:?}");
    }
    // What another host has is no wrong command line.
    let absent = [&docker[..], &["--programs", "/opt/none"]].concat();
    assert_eq!(code(&absent), Some(1));
    let by_signal = ["install", "--restart=signal", "--engine", "docker@28"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
    let output = command.args(by_signal).arg("--dry-run").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

fn refused(root: &Path, arguments: &[&str]) -> String {
    let output = cgpu(root, arguments);
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn done(root: &Path, arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let output = cgpu(root, &arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bad_input_is_reported_and_changes_nothing() {
    let root = root();
    let root = root.path();
    let docker = ["install", "--engine", "docker@28"];
    for (arguments, reply) in [
        (
            &["install", "--engine", "dokcer"][..],
            "allowed are containerd, docker",
        ),
        (
            &["install", "--engine", "docker"],
            "--engine docker@VERSION",
        ),
        (&["install", "--engine", "docker@28,docker@20.10"], "twice"),
        (
            &["install", "--engine", "docker@28", "--runtime", "runc"],
            "another runtime's name",
        ),
        (
            &["install", "--engine", "docker@28", "--runtime", "C_gpu"],
            "a-z, 0-9 and -",
        ),
        (
            &["install", "--engine", "docker@28", "--programs", "bin"],
            "must be absolute",
        ),
        (
            &[
                "install",
                "--engine",
                "docker@28",
                "--programs",
                "/opt/none",
            ],
            "opt/none/containerd-shim-cgpu-v2",
        ),
        (
            &["install", "--engine", "docker@28", "--restart"],
            "cannot be used with --root",
        ),
        (&["install"], "no engine is below"),
        (
            &["uninstall", "--engine", "docker"],
            "cgpu is not installed in docker; it is installed in: none",
        ),
    ] {
        let error = refused(root, arguments);
        assert!(error.contains(reply), "{arguments:?}: {error}");
    }
    for (text, reply) in [
        (
            "{\n  \"debug\": true,\n  // why\n}",
            "daemon.json: not JSON",
        ),
        ("{\"runtimes\": 3}", "runtimes is no object"),
        (
            "{\"runtimes\": {\"cgpu\": {\"path\": \"/opt/kata\"}}}",
            "--runtime",
        ),
        ("{\"runtimes\": {}, \"runtimes\": {}}", "stands twice"),
        ("[]", "a list, not an object"),
    ] {
        put(root, "etc/docker/daemon.json", text);
        let error = refused(root, &docker);
        assert!(error.contains(reply), "{error}");
        assert_eq!(
            fs::read_to_string(root.join("etc/docker/daemon.json")).unwrap(),
            text
        );
    }
    fs::write(root.join("etc/docker/daemon.json"), [0xff, 0xfe]).unwrap();
    assert!(refused(root, &docker).contains("not UTF-8"));
    fs::remove_file(root.join("etc/docker/daemon.json")).unwrap();
    symlink("elsewhere.json", root.join("etc/docker/daemon.json")).unwrap();
    assert!(refused(root, &docker).contains("symbolic link"));
    assert!(
        !root.join("var").exists(),
        "no state stays behind a refusal"
    );
    let error = refused(&root.join("nowhere"), &docker);
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn a_dry_run_shows_the_diff_and_leaves_everything() {
    let root = root();
    let root = root.path();
    put(root, "etc/docker/daemon.json", "{\n  \"debug\": true\n}\n");
    let report = done(
        root,
        &["install", "--engine", "docker@28,crio", "--dry-run"],
    );
    assert_eq!(report["dry_run"], true);
    assert_eq!(report["engines"][0]["state"], "changed");
    assert_eq!(
        report["engines"][0]["files"][0]["diff"],
        "--- a/etc/docker/daemon.json\n+++ b/etc/docker/daemon.json\n@@ -1,3 +1,8 @@\n {\n-  \"debug\": true\n+  \"debug\": true,\n+  \"runtimes\": {\n+    \"cgpu\": {\n+      \"runtimeType\": \"/usr/bin/containerd-shim-cgpu-v2\"\n+    }\n+  }\n }\n"
    );
    assert_eq!(report["engines"][1]["files"][0]["action"], "create");
    assert_eq!(report["engines"][1]["check"]["outcome"], "not_run");
    assert!(!root.join("var").exists() && !root.join("etc/crio").exists());
}

#[test]
fn the_document_reports_what_was_done_and_what_comes_next() {
    let root = root();
    let root = root.path();
    let install = [
        "install",
        "--engine",
        "docker@20.10,podman",
        "--runtime",
        "gpu",
        "--default",
    ];
    let report = done(root, &install);
    assert_eq!(
        (&report["version"], &report["action"]),
        (&1.into(), &"install".into())
    );
    assert_eq!(report["runtime"], "gpu");
    let docker = &report["engines"][0];
    assert_eq!(
        (&docker["engine"], &docker["version"]),
        (&"docker".into(), &"20.10".into())
    );
    assert_eq!(docker["then"], "systemctl reload docker");
    assert_eq!(report["engines"][1]["then"], Value::Null);
    let written: Value =
        serde_json::from_str(&fs::read_to_string(root.join("etc/docker/daemon.json")).unwrap())
            .unwrap();
    assert_eq!(written["default-runtime"], "gpu");
    assert_eq!(written["runtimes"]["gpu"]["path"], "/usr/bin/cgpu-runtime");
    let again = done(root, &install);
    assert_eq!(again["engines"][0]["state"], "unchanged");
    assert_eq!(again["engines"][0]["then"], Value::Null);
    // One engine, then the rest.
    let out = done(root, &["uninstall", "--engine", "podman"]);
    assert_eq!(out["engines"].as_array().unwrap().len(), 1);
    assert!(!root.join("etc/containers").exists() && root.join("etc/docker/daemon.json").exists());
    let out = done(root, &["uninstall"]);
    assert_eq!(out["engines"][0]["files"][0]["action"], "remove");
    assert!(!root.join("etc").exists() && !root.join("var").exists());
    assert_eq!(
        done(root, &["uninstall"])["engines"],
        Value::Array(Vec::new())
    );
}

#[test]
fn engines_are_found_by_their_programs_and_give_their_version() {
    let root = root();
    let root = root.path();
    program(
        root,
        "podman",
        "case $* in --version) echo podman version 9.9.9-dev;; *info*) echo cgpu;; esac",
    );
    program(root, "dockerd", "echo Docker version 27.1.2, build abc");
    let report = done(root, &["install"]);
    let named: Vec<(&Value, &Value)> = report["engines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|engine| (&engine["engine"], &engine["version"]))
        .collect();
    assert_eq!(
        named,
        [
            (&"docker".into(), &"27.1".into()),
            (&"podman".into(), &"9.9".into())
        ]
    );
    done(root, &["uninstall"]);
    // Its program says nothing that could be a version.
    program(root, "dockerd", "echo Docker");
    assert!(refused(root, &["install", "--engine", "docker"]).contains("says no version"));
}

#[test]
fn an_engine_that_refuses_the_new_file_keeps_the_old_one() {
    let root = root();
    let root = root.path();
    put(root, "etc/docker/daemon.json", "{}\n");
    // Takes any file without runtimes.
    program(
        root,
        "dockerd",
        "case $1 in --version) echo Docker version 27.0.1;; *) grep -q runtimes \"$3\" || exit 0; echo \"$3: no runtimes today\" >&2; exit 1;; esac",
    );
    let error = refused(root, &["install"]);
    assert!(
        error.contains(
            "dockerd refuses the new configuration: /etc/docker/daemon.json: no runtimes today"
        ),
        "{error}"
    );
    assert_eq!(
        fs::read_to_string(root.join("etc/docker/daemon.json")).unwrap(),
        "{}\n"
    );
    assert!(!root.join("var").exists());
    // It says the same of the file as it is: no reason not to, and said.
    program(
        root,
        "dockerd",
        "case $1 in --version) echo Docker version 27.0.1;; *) echo no proxy >&2; exit 1;; esac",
    );
    let report = done(root, &["install"]);
    assert_eq!(report["engines"][0]["check"]["outcome"], "not_run");
    let reason = report["engines"][0]["check"]["reason"].as_str().unwrap();
    assert!(reason.contains("no proxy"), "{reason}");
}

#[test]
fn cri_o_checks_the_new_drop_in_among_the_others() {
    let root = root();
    let root = root.path();
    put(root, "etc/crio/crio.conf", "[crio]\n");
    put(
        root,
        "etc/crio/crio.conf.d/10-crun.conf",
        "[crio.runtime.runtimes.crun]\n",
    );
    // `crio --config FILE --config-dir FOLDER config`, as its manual has it.
    program(
        root,
        "crio",
        "case $1$3$5 in --version) echo crio version 1.30.2;; --config--config-dirconfig) cat $2 $4/*;; *) exit 9;; esac",
    );
    let report = done(root, &["install"]);
    assert_eq!(
        report["engines"][0]["check"]["outcome"], "passed",
        "{report}"
    );
    program(
        root,
        "crio",
        "case $1 in --version) echo crio version 1.30.2;; *) grep -q cgpu $4/* || exit 0; echo no more runtimes >&2; exit 1;; esac",
    );
    done(root, &["uninstall"]);
    let error = refused(root, &["install"]);
    assert!(
        error.contains("CRI-O refuses the new configuration: no more runtimes"),
        "{error}"
    );
    assert!(!root.join("etc/crio/crio.conf.d/99-cgpu.conf").exists());
}

#[test]
fn what_the_admin_needs_of_the_runtime_is_not_taken_away() {
    let root = root();
    let root = root.path();
    // Refuses a default runtime that no entry stands for, as dockerd does.
    program(
        root,
        "dockerd",
        "case $1 in --version) echo Docker version 27.0.1;; *) ! grep -q default-runtime \"$3\" || grep -q runtimeType \"$3\" || { echo specified default runtime \\'cgpu\\' does not exist >&2; exit 1; };; esac",
    );
    done(root, &["install"]);
    let path = root.join("etc/docker/daemon.json");
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replacen('{', "{\n  \"default-runtime\": \"cgpu\",", 1);
    fs::write(&path, &edited).unwrap();
    let error = refused(root, &["uninstall"]);
    assert!(
        error.contains("does not exist") && error.contains("nothing was changed"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    fs::write(&path, text.replacen('{', "{\n  \"debug\": true,", 1)).unwrap();
    let report = done(root, &["uninstall"]);
    assert_eq!(report["engines"][0]["files"][0]["action"], "edit");
    assert!(
        report["engines"][0]["remarks"][0]
            .as_str()
            .unwrap()
            .contains("was changed since"),
        "{report}"
    );
    assert_eq!(
        fs::read_to_string(&path).unwrap().trim(),
        "{\n  \"debug\": true\n}"
    );
}

/// An engine that was told of cgpu, and has it as its default runtime by a file of somebody else's.
fn keeps_a_default_of_others(engine: &str, ours: &str, file: &str, as_default: &str, other: &str) {
    let root = root();
    let root = root.path();
    program(
        root,
        "containerd",
        // 2.x joins the sections of the files that are imported.
        "case $* in --version) echo containerd v2.1.4;; *) cat \"$2\"; grep -q runtimes.cgpu \"$2\" || cat \"${2%/*}\"/conf.d/*.toml 2> /dev/null | grep -v ^version; exit 0;; esac",
    );
    program(
        root,
        "podman",
        "case $* in --version) echo podman version 5.4.2;; *gpu2*) echo gpu2;; *) echo cgpu;; esac",
    );
    program(
        root,
        "crio",
        "case $1 in --version) echo crio version 1.30.2;; *) cat $2 $4/*;; esac",
    );
    let before = fs::read_to_string(root.join(file)).ok();
    let before = before.unwrap_or_else(|| match engine {
        "containerd" => "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n".to_owned(),
        _ => String::new(),
    });
    put(root, file, &before);
    done(root, &["install", "--engine", engine]);
    put(root, file, &format!("{before}{as_default}"));
    let installed = fs::read_to_string(root.join(ours)).unwrap();
    for arguments in [
        &["uninstall"][..],
        &["uninstall", "--dry-run"],
        &["install", "--engine", engine, "--runtime", "gpu2"],
    ] {
        let error = refused(root, arguments);
        assert!(
            error.contains("the default runtime \"cgpu\", which does not exist then"),
            "{engine} {arguments:?}: {error}"
        );
        assert_eq!(fs::read_to_string(root.join(ours)).unwrap(), installed);
    }
    // Another one is the default again, and then one of the same name stays.
    for others in [
        as_default.replace("cgpu", "runc"),
        format!("{as_default}{other}"),
    ] {
        put(root, file, &format!("{before}{others}"));
        let report = done(root, &["uninstall"]);
        assert_eq!(report["engines"][0]["files"][0]["action"], "remove");
        assert!(!root.join(ours).exists());
        put(root, file, &before);
        done(root, &["install", "--engine", engine]);
    }
}

#[test]
fn a_runtime_that_another_file_makes_the_default_stays() {
    keeps_a_default_of_others(
        "containerd",
        "etc/containerd/conf.d/cgpu.toml",
        "etc/containerd/config.toml",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = \"cgpu\"\n",
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.cgpu]\nruntime_type = \"mine\"\n",
    );
    keeps_a_default_of_others(
        "crio",
        "etc/crio/crio.conf.d/99-cgpu.conf",
        "etc/crio/crio.conf.d/10-own.conf",
        "[crio.runtime]\ndefault_runtime = \"cgpu\"\n",
        "[crio.runtime.runtimes.cgpu]\nruntime_path = \"/opt/mine\"\n",
    );
    keeps_a_default_of_others(
        "podman",
        "etc/containers/containers.conf.d/cgpu.conf",
        "etc/containers/containers.conf",
        "[engine]\nruntime = \"cgpu\"\n",
        "[engine.runtimes]\ncgpu = [\"/opt/mine\"]\n",
    );
}

/// An `install` that changes nothing, after one that restarted nothing.
#[test]
fn an_engine_that_has_not_read_its_files_is_named_again() {
    let root = root();
    let root = root.path();
    let daemon = root.join("usr/bin/dockerd");
    // By another process: what a test beside this one forks meanwhile would hold the copy open for writing.
    let mut copy = Command::new("cp");
    assert!(
        copy.args(["/bin/sleep"])
            .arg(&daemon)
            .status()
            .unwrap()
            .success()
    );
    let mut running = Command::new(&daemon).arg("1000").spawn().unwrap();
    let install = ["install", "--engine", "docker@28"];
    let first = done(root, &install);
    let minute = Duration::from_secs(60);
    let now = SystemTime::now();
    let then = [now + minute, now - minute].map(|changed| {
        let mut options = fs::File::options();
        let file = options
            .write(true)
            .open(root.join("etc/docker/daemon.json"));
        file.unwrap().set_modified(changed).unwrap();
        let report = done(root, &install);
        assert_eq!(report["engines"][0]["state"], "unchanged", "{report}");
        report["engines"][0]["then"].clone()
    });
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(first["engines"][0]["state"], "changed", "{first}");
    assert_eq!(then, ["systemctl reload docker".into(), Value::Null]);
}

#[test]
fn many_at_once_leave_what_one_leaves() {
    let root = root();
    let root = root.path();
    // As every host has it. Of folders above it that are not there nobody knows who made them once several runs did.
    fs::create_dir_all(root.join("var/lib")).unwrap();
    let engines = ["containerd@2.1", "docker@28", "podman", "crio"];
    for round in 0..4 {
        let children: Vec<_> = engines
            .iter()
            .map(|engine| {
                command(root, &["install", "--engine", engine])
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        for path in [
            "etc/containerd/conf.d/cgpu.toml",
            "etc/docker/daemon.json",
            "etc/containers/containers.conf.d/cgpu.conf",
            "etc/crio/crio.conf.d/99-cgpu.conf",
        ] {
            assert!(root.join(path).exists(), "{path}");
        }
        // All of them again, by hands that know nothing of each other.
        let children: Vec<_> = (0..3)
            .map(|_| {
                command(root, &["uninstall"])
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert!(
            !root.join("etc").exists() && !root.join("var/lib/cgpu").exists(),
            "round {round}"
        );
    }
}
