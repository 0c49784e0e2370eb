//! `cgpu run` with backend `driver-limit`: a real cgroup, a library that plays NVML, and a driver that is played by a mount
//! over `/proc/driver` in a mount namespace of the call's own. Skips aloud without what it needs.
#![cfg(feature = "host")]
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cards::store::DiskStore;
use cards::{Card, GpuUuid, SimulatedInventory};

const PLAY_LIMITS: &str = "CGPU_TEST_PLAY_LIMITS";
const QUOTA: &str = "4294967296";

/// Not a test: the test program as `cgpu-limits`.
#[test]
fn play_limits() {
    if std::env::var_os(PLAY_LIMITS).is_none() {
        return;
    }
    let question: limits::Question = serde_json::from_reader(std::io::stdin()).unwrap();
    let answer = serde_json::to_vec(&limits::answer(&question)).unwrap();
    fs::write("/proc/self/fd/3", answer).unwrap();
}

struct Host(tempfile::TempDir);

impl Host {
    fn find() -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        for program in ["unshare", "cc"] {
            if Command::new(program).arg("--version").output().is_err() {
                return skip(&format!("no {program}"));
            }
        }
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let v2 = roots
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists());
        let Some(root) = v2 else {
            return skip("no cgroup v2");
        };
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let library = at.join("libnvidia-ml.so.1");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DVERSION=\"615.71.09\"", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", at.display()))
            .arg(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../isolation/limits/tests/fake_nvml.c"),
            )
            .status()
            .unwrap();
        assert!(compiled.success());
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at.join("cards"), "GPU-0\n").unwrap();
        fs::create_dir_all(at.join("driver/nvidia")).unwrap();
        fs::write(
            at.join("driver/devices"),
            "Character devices:\n195 nvidia\n511 nvidia-uvm\n",
        )
        .unwrap();
        fs::write(
            at.join("driver/nvidia/version"),
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  615.71.09  Mon Sep  7 00:00:00 UTC 2026\n",
        )
        .unwrap();
        let limits = at.join("cgpu-limits");
        fs::write(
            &limits,
            format!(
                "#!/bin/sh\nexec 3>&1 >/dev/null; {PLAY_LIMITS}=1 exec '{}' --exact play_limits\n",
                std::env::current_exe().unwrap().display()
            ),
        )
        .unwrap();
        fs::set_permissions(&limits, fs::Permissions::from_mode(0o755)).unwrap();
        // The saved answer of NVML for the loaded driver has the inventory's form.
        let state = at.join("state");
        fs::create_dir_all(state.join("sim")).unwrap();
        let card = Card {
            uuid: GpuUuid::new("GPU-0").unwrap(),
            name: "NVIDIA Played".to_owned(),
            memory_bytes: 24 << 30,
            minor: 0,
            index: 0,
            pci: "00000000:01:00.0".to_owned(),
            modes: cards::Modes::default(),
        };
        SimulatedInventory {
            version: 1,
            driver_version: "615.71.09".to_owned(),
            cards: vec![card],
        }
        .write(&DiskStore, &state)
        .unwrap();
        fs::rename(state.join("sim/cards.json"), state.join("cards.json")).unwrap();
        fs::write(
            at.join("cgpu.toml"),
            format!(
                "state_dir = \"{}\"\n[driver]\nkind = \"kernel\"\n[backend]\nlimits_program = \"{}\"\nnvml_library = \"{}\"\ncgroup_root = \"{}\"\n",
                state.display(),
                limits.display(),
                library.display(),
                root.display()
            ),
        )
        .unwrap();
        Some(Self(dir))
    }

    fn cgpu(&self, arguments: &[&str]) -> Output {
        self.cgpu_after("true", arguments)
    }

    /// After what a shell does in the call's mount namespace.
    fn cgpu_after(&self, done: &str, arguments: &[&str]) -> Output {
        let script = format!(
            "mount --make-rprivate / && mount --bind \"$0\" /proc/driver && mount --bind \"$0/devices\" /proc/devices && {done} && exec \"$@\""
        );
        Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(self.0.path().join("driver"))
            .arg(env!("CARGO_BIN_EXE_cgpu"))
            .args(arguments)
            .env("CGPU_CONFIG", self.0.path().join("cgpu.toml"))
            .output()
            .unwrap()
    }

    /// What has the played library loaded as the host's.
    fn with_nvml(&self) -> String {
        format!("export LD_LIBRARY_PATH='{}'", self.0.path().display())
    }

    /// Soft, hard and cgroup of each call of the setter.
    fn limits(&self) -> Vec<[String; 3]> {
        let text = fs::read_to_string(self.0.path().join("limits")).unwrap_or_default();
        text.lines()
            .map(|line| {
                let arguments: Vec<&str> = line.split(' ').collect();
                [arguments[1], arguments[2], arguments[3]].map(str::to_owned)
            })
            .collect()
    }

    fn assert_clean(&self) {
        assert!(!self.0.path().join("state/vgpus/cgpu-run").exists());
        for [_, _, cgroup] in self.limits() {
            assert!(!Path::new(&cgroup).exists(), "{cgroup}");
        }
    }
}

#[test]
fn the_command_starts_in_a_group_that_is_held_already_and_the_reservation_goes_with_it() {
    let Some(host) = Host::find() else { return };
    let state = host.0.path().join("limits");
    // What the command sees when it starts, and which group it is in.
    let script = format!(
        "cat {}; grep ^0:: /proc/self/cgroup; exit 7",
        state.display()
    );
    let reply = host.cgpu(&["run", "--memory", "4Gi", "--", "sh", "-c", &script]);
    let (out, err) = (
        String::from_utf8_lossy(&reply.stdout).into_owned(),
        String::from_utf8_lossy(&reply.stderr).into_owned(),
    );
    assert_eq!(reply.status.code(), Some(7), "{out}{err}");
    let [first, last] = host.limits().try_into().unwrap();
    assert_eq!((first[0].as_str(), first[1].as_str()), (QUOTA, QUOTA));
    assert_eq!((last[0].as_str(), last[1].as_str()), ("0", QUOTA));
    assert_eq!(first[2], last[2]);
    let group = PathBuf::from(&first[2]);
    let name = group.file_name().unwrap().to_str().unwrap();
    assert!(out.starts_with(&format!("GPU-0 {QUOTA} {QUOTA} ")), "{out}");
    assert!(out.trim_end().ends_with(name), "{out}");
    host.assert_clean();
}

#[test]
fn a_command_that_cannot_be_held_does_not_start() {
    let Some(host) = Host::find() else { return };
    let trace = host.0.path().join("ran");
    for (fault, expected) in [
        ("set", "does not set the limit of card GPU-0"),
        ("readback", "and holds soft"),
    ] {
        fs::write(host.0.path().join("fault"), fault).unwrap();
        let reply = host.cgpu(&[
            "run",
            "--memory",
            "4Gi",
            "--",
            "touch",
            trace.to_str().unwrap(),
        ]);
        let err = String::from_utf8_lossy(&reply.stderr);
        assert_eq!(reply.status.code(), Some(1), "{err}");
        assert!(err.contains(expected), "{fault}: {err}");
        assert!(!trace.exists());
        host.assert_clean();
    }
}

#[test]
fn doctor_reports_which_backend_a_container_would_get_and_what_the_others_lack() {
    let Some(host) = Host::find() else { return };
    let reply = host.cgpu(&["doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&reply.stdout).unwrap();
    let lacks = |at: usize| document["backends"][at]["why_not"].clone();
    assert!(
        lacks(0).as_str().unwrap().contains("615.71.09"),
        "{document}"
    );
    assert!(lacks(1).is_null(), "{document}");
    assert!(
        lacks(2).as_str().unwrap().contains("min_strength"),
        "{document}"
    );
    let found = document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "backend")
        .unwrap();
    assert!(
        found["found"]
            .as_str()
            .unwrap()
            .starts_with("driver-limit (auto, and broker is not offered"),
        "{found}"
    );
}

#[test]
fn the_first_start_of_a_boot_makes_the_folder_that_nvmls_answer_is_saved_in() {
    let Some(host) = Host::find() else { return };
    let state = host.0.path().join("state");
    fs::remove_dir_all(&state).unwrap();
    let command = ["run", "--memory", "4Gi", "--", "true"];
    let reply = host.cgpu_after(&host.with_nvml(), &command);
    let err = String::from_utf8_lossy(&reply.stderr);
    assert!(reply.status.success(), "{err}");
    assert!(!err.contains("cannot be saved"), "{err}");
    assert!(state.join("cards.json").is_file());
    host.assert_clean();
}

#[test]
fn cards_are_shown_while_nvmls_answer_cannot_be_saved() {
    let Some(host) = Host::find() else { return };
    let state = host.0.path().join("state");
    let full = format!(
        "{} && mount -t tmpfs -o size=4k,mode=0700 full '{state}' && head -c 4096 /dev/zero > '{state}/filler'",
        host.with_nvml(),
        state = state.display()
    );
    for command in [
        &["cards"][..],
        &["top", "--once"],
        &["metrics"],
        &["doctor"],
    ] {
        let reply = host.cgpu_after(&full, command);
        let (out, err) = (
            String::from_utf8_lossy(&reply.stdout),
            String::from_utf8_lossy(&reply.stderr),
        );
        assert!(err.contains("cannot be saved"), "{command:?}: {out}{err}");
        if command == ["doctor"] {
            assert!(
                out.contains("1 card") && !out.contains("libnvidia-ml.so.1"),
                "{out}"
            );
        } else {
            assert!(reply.status.success(), "{command:?}: {out}{err}");
            assert!(
                out.contains("GPU-0") || out.contains("NVIDIA Played"),
                "{command:?}: {out}"
            );
        }
    }
}
