//! `cgpu-runtime` under a rootless engine: containers that ask for nothing are plain runc's, a vGPU is refused with the reason. Skips aloud
//! without root (which starts the others), runc, unshare or a static busybox, and where users may make no user namespaces.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const USER: u32 = 1000;
const BUSYBOX: &str = "/bin/busybox";

/// A folder of the user's, with the programs that it can reach.
struct Home {
    dir: tempfile::TempDir,
}

/// How a rootless engine runs its runtime.
#[derive(Debug, Clone, Copy)]
enum As {
    /// As the user, as runc itself allows.
    User,
    /// As root of a user namespace, as podman and docker do.
    MappedRoot,
}

impl Home {
    fn find(test: &str) -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {test}: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        for program in ["runc", "unshare"] {
            if Command::new(program).arg("--version").output().is_err() {
                return skip(&format!("no {program}"));
            }
        }
        let Ok(busybox) = fs::read(BUSYBOX) else {
            return skip("no busybox");
        };
        // A dynamic program names its loader.
        if busybox.windows(8).any(|window| window == b"/ld-linu") {
            return skip("busybox is not static");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let home = Self { dir };
        let runtime = home.path("cgpu-runtime");
        // By another process: what a test beside this one forks meanwhile would hold a copy open for writing.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_cgpu-runtime"))
            .arg(&runtime)
            .status()
            .unwrap();
        assert!(copied.success());
        fs::create_dir_all(home.path("run")).unwrap();
        chown(home.path("run"), Some(USER), Some(USER)).unwrap();
        if !home
            .start(As::MappedRoot, Path::new("true"), &[])
            .status
            .success()
        {
            return skip("users may make no user namespaces");
        }
        Some(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A bundle as `runc spec --rootless` makes one.
    fn bundle(&self, name: &str, how: As, annotations: &Value) -> PathBuf {
        let bundle = self.path(name);
        for folder in ["rootfs/bin", "rootfs/proc", "rootfs/dev"] {
            fs::create_dir_all(bundle.join(folder)).unwrap();
        }
        fs::copy(BUSYBOX, bundle.join("rootfs/bin/busybox")).unwrap();
        let outside = match how {
            As::User => USER,
            As::MappedRoot => 0,
        };
        let map = json!([{"containerID": 0, "hostID": outside, "size": 1}]);
        let spec = json!({
            "ociVersion": "1.0.2",
            "annotations": annotations,
            "process": {"args": ["/bin/busybox", "id", "-u"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": []},
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "user"}],
                "uidMappings": map,
                "gidMappings": map,
            },
        });
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let owned = Command::new("chown")
            .args(["-R", &format!("{USER}:{USER}")])
            .arg(&bundle)
            .status()
            .unwrap();
        assert!(owned.success());
        bundle
    }

    fn start(&self, how: As, program: &Path, arguments: &[&str]) -> Output {
        let mut command = match how {
            As::User => Command::new(program),
            As::MappedRoot => {
                let mut unshare = Command::new("unshare");
                unshare.args(["--user", "--map-root-user"]).arg(program);
                unshare
            }
        };
        command.args(arguments).uid(USER).gid(USER);
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        command.env_remove("CGPU_CONFIG").stdin(Stdio::null());
        command.output().unwrap()
    }

    fn run(&self, how: As, program: &Path, bundle: &Path, id: &str) -> Output {
        let (root, bundle) = (self.path("run/runc"), bundle.to_str().unwrap());
        let arguments = [
            "--root",
            root.to_str().unwrap(),
            "run",
            "--bundle",
            bundle,
            id,
        ];
        self.start(how, program, &arguments)
    }
}

#[test]
fn a_rootless_engine_runs_plain_containers_and_gets_no_vgpu() {
    let Some(home) = Home::find("a_rootless_engine_runs_plain_containers_and_gets_no_vgpu") else {
        return;
    };
    for (how, name, sentence) in [
        (As::User, "user", "its engine runs as user 1000"),
        (
            As::MappedRoot,
            "root",
            "its engine runs in a user namespace",
        ),
    ] {
        let plain = home.bundle(&format!("plain-{name}"), how, &json!({}));
        let theirs = home.run(how, Path::new("runc"), &plain, "theirs");
        let ours = home.run(how, &home.path("cgpu-runtime"), &plain, "ours");
        assert_eq!(ours, theirs, "{how:?}");
        assert_eq!(ours.stdout, b"0\n", "{how:?}: {ours:?}");
        let asking = json!({"cgpu.io/memory": "1Gi"});
        let asking = home.bundle(&format!("asks-{name}"), how, &asking);
        let refused = home.run(how, &home.path("cgpu-runtime"), &asking, "asks");
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && text.contains(sentence),
            "{how:?}: {text}"
        );
        assert!(text.contains("by an engine of root's"), "{text}");
        let left = fs::read_dir(home.path("run/runc")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "nothing of the container is left");
    }
}
