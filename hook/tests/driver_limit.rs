//! `cgpu-runtime` with backend `driver-limit`: real runc and real cgroups, a library that plays NVML, and a driver that is
//! played by a mount over `/proc/driver` in a mount namespace of the call's own. Skips aloud without what it needs.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cards::store::DiskStore;
use cards::{Backend, Card, ContainerKey, GpuUuid, Grant, SimulatedInventory};
use serde_json::{Value, json};

const PLAY_LIMITS: &str = "CGPU_TEST_PLAY_LIMITS";
const BUSYBOX: &str = "/bin/busybox";
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

struct Host {
    dir: tempfile::TempDir,
    cgroup_root: PathBuf,
    group: String,
}

impl Host {
    fn find(name: &str) -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        for program in ["runc", "unshare", "cc"] {
            if Command::new(program).arg("--version").output().is_err() {
                return skip(&format!("no {program}"));
            }
        }
        let static_busybox = fs::read(BUSYBOX)
            .is_ok_and(|bytes| !bytes.windows(8).any(|window| window == b"/ld-linu"));
        if !static_busybox {
            return skip("no static busybox");
        }
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let v2 = roots.into_iter().find(|root| {
            root.join("cgroup.procs").exists() && root.join("cgroup.controllers").exists()
        });
        let Some(root) = v2 else {
            return skip("no cgroup v2");
        };
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let library = at.join("libnvidia-ml.so.1");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../isolation/limits/tests/fake_nvml.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DVERSION=\"615.71.09\"", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", at.display()))
            .arg(source)
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
                "state_dir = \"{}\"\n[driver]\nkind = \"kernel\"\nlibraries = \"none\"\n[backend]\nlimits_program = \"{}\"\nnvml_library = \"{}\"\ncgroup_root = \"{}\"\n",
                state.display(),
                limits.display(),
                library.display(),
                root.display()
            ),
        )
        .unwrap();
        Some(Self {
            cgroup_root: root.to_owned(),
            group: format!("cgpu-hook-test-{}-{name}", std::process::id()),
            dir,
        })
    }

    fn bundle(&self, id: &str) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        for folder in ["rootfs/bin", "rootfs/proc", "rootfs/dev"] {
            fs::create_dir_all(bundle.join(folder)).unwrap();
        }
        fs::copy(BUSYBOX, bundle.join("rootfs/bin/busybox")).unwrap();
        let spec = json!({
            "ociVersion": "1.0.2",
            "annotations": {"cgpu.io/memory": "4Gi"},
            "process": {"args": ["/bin/busybox", "sh", "-c", "exit 0"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": []},
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {
                "cgroupsPath": format!("/{}/{id}", self.group),
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
                "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
            },
        });
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        bundle
    }

    /// A call as an engine makes it, on a host with the played driver. Says the code and standard error.
    fn runtime(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let err = self.dir.path().join("stderr");
        let script = "mount --make-rprivate / && mount --bind \"$0\" /proc/driver && mount --bind \"$0/devices\" /proc/devices && exec \"$@\"";
        let status = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(self.dir.path().join("driver"))
            .arg(env!("CARGO_BIN_EXE_cgpu-runtime"))
            .arg("--root")
            .arg(self.root())
            .args(arguments)
            .env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&err).unwrap())
            .status()
            .unwrap();
        (status.code(), fs::read_to_string(err).unwrap())
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("runtime-runc/moby")
    }

    /// Soft and hard of the driver's last call, and the cgroup.
    fn last_limit(&self) -> Option<[String; 3]> {
        let text = fs::read_to_string(self.dir.path().join("limits")).ok()?;
        let arguments: Vec<&str> = text.lines().last()?.split(' ').collect();
        Some([arguments[1], arguments[2], arguments[3]].map(str::to_owned))
    }

    fn state_of(&self, id: &str) -> Option<Value> {
        let output = Command::new("runc")
            .arg("--root")
            .arg(self.root())
            .args(["state", id])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn folder(&self, id: &str) -> PathBuf {
        let key = ContainerKey::new("moby", id).unwrap();
        self.dir.path().join("state/vgpus").join(key.relative_dir())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(fs::remove_dir(self.cgroup_root.join(&self.group)));
    }
}

#[test]
fn a_container_is_held_when_create_returns_and_let_go_before_runc_deletes_it() {
    let Some(host) = Host::find("held") else {
        return;
    };
    let bundle = host.bundle("c1");
    let bundle = bundle.to_str().unwrap();
    let (code, reply) = host.runtime(&["create", "--bundle", bundle, "c1"]);
    assert_eq!(code, Some(0), "{reply}");
    let grant = Grant::read(&host.folder("c1")).unwrap();
    assert_eq!(grant.backend, Backend::DriverLimit);
    assert_eq!(host.state_of("c1").unwrap()["status"], "created");
    let [soft, hard, cgroup] = host.last_limit().unwrap();
    assert_eq!((soft.as_str(), hard.as_str()), (QUOTA, QUOTA));
    assert_eq!(
        Path::new(&cgroup),
        host.cgroup_root.join(&host.group).join("c1")
    );
    assert!(Path::new(&cgroup).is_dir());

    assert_eq!(host.runtime(&["start", "c1"]).0, Some(0));
    while host.state_of("c1").unwrap()["status"] != "stopped" {
        std::thread::yield_now();
    }
    let (code, reply) = host.runtime(&["delete", "c1"]);
    assert_eq!(code, Some(0), "{reply}");
    // The played driver sets nothing on a folder that is gone: it was there still.
    let [soft, hard, of] = host.last_limit().unwrap();
    assert_eq!(
        (soft.as_str(), hard.as_str(), of),
        ("0", QUOTA, cgroup.clone())
    );
    assert!(!Path::new(&cgroup).exists());
    assert!(!host.folder("c1").exists());
}

#[test]
fn a_container_that_cannot_be_held_does_not_exist_when_create_returns() {
    let Some(host) = Host::find("unheld") else {
        return;
    };
    let bundle = host.bundle("c1");
    let bundle = bundle.to_str().unwrap();
    for (fault, expected) in [
        ("set", "does not set the limit of card GPU-0"),
        ("readback", "holds soft 4294967296 and hard 4294971392"),
    ] {
        fs::write(host.dir.path().join("fault"), fault).unwrap();
        let (code, reply) = host.runtime(&["create", "--bundle", bundle, "c1"]);
        assert_eq!(code, Some(1), "{reply}");
        assert!(reply.contains(expected), "{fault}: {reply}");
        assert!(host.state_of("c1").is_none());
        assert!(!host.folder("c1").exists());
        assert!(!host.cgroup_root.join(&host.group).join("c1").exists());
    }
}

#[test]
fn a_run_in_one_step_is_refused_since_nothing_could_hold_it_in_between() {
    let Some(host) = Host::find("run") else {
        return;
    };
    let bundle = host.bundle("c1");
    for arguments in [&["run", "--bundle"][..], &["run", "--detach", "--bundle"]] {
        let arguments = [arguments, &[bundle.to_str().unwrap(), "c1"]].concat();
        let (code, reply) = host.runtime(&arguments);
        assert_eq!(code, Some(1), "{reply}");
        assert!(reply.contains("use create and start"), "{reply}");
        assert!(host.state_of("c1").is_none());
        assert!(!host.folder("c1").exists());
    }
    assert_eq!(host.last_limit(), None);
}
