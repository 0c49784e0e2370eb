//! What every test of containers needs: whether this machine can, a bundle, and how a refusal is read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::json;

/// Of this process alone: another run of the same test, or what is left of one, has containers of the same names.
pub(crate) static NAMESPACE: LazyLock<String> =
    LazyLock::new(|| format!("cgpu-shim-test-{}", std::process::id()));
const BUSYBOX: &str = "/bin/busybox";

/// Says why a test cannot run here.
pub(crate) fn missing() -> Option<&'static str> {
    // Looked for, not run: the reaper of a test beside this one would take its end.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runc = std::env::split_paths(&path).any(|dir| dir.join("runc").is_file());
    if !nix::unistd::geteuid().is_root() {
        Some("not root")
    } else if !runc {
        Some("no runc in PATH")
    } else if !Path::new(BUSYBOX).exists() {
        Some("no /bin/busybox (package busybox-static)")
    } else {
        None
    }
}

macro_rules! need_runc {
    () => {
        if let Some(reason) = crate::harness::missing() {
            println!("SKIP: {reason}");
            return;
        }
    };
}
pub(crate) use need_runc;

/// The container's control group, below each controller.
pub(crate) fn cgroup(id: &str) -> String {
    format!("/cgpu-shim-test/{}-{id}", std::process::id())
}

/// A bundle in `dir` whose init runs a shell script.
pub(crate) fn bundle(dir: &Path, id: &str, script: &str, terminal: bool) -> PathBuf {
    let bundle = dir.join(id);
    let bin = bundle.join("rootfs/bin");
    fs::create_dir_all(&bin).expect("a root file system");
    fs::create_dir(bundle.join("rootfs/proc")).expect("a mount point");
    fs::create_dir(bundle.join("rootfs/dev")).expect("a mount point");
    fs::copy(BUSYBOX, bin.join("busybox")).expect("busybox");
    for applet in [
        "sh", "cat", "head", "sleep", "seq", "tty", "stty", "true", "wc",
    ] {
        std::os::unix::fs::symlink("busybox", bin.join(applet)).expect("a link");
    }
    let spec = json!({
        "ociVersion": "1.0.2",
        "process": process(&["/bin/sh", "-c", script], terminal),
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["newinstance", "ptmxmode=0666"]},
        ],
        "linux": {
            "cgroupsPath": cgroup(id),
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "mount"}, {"type": "uts"}],
            "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
        },
        "annotations": {"io.containerd.runc.v2.group": "group"},
    });
    fs::write(bundle.join("config.json"), spec.to_string()).expect("a spec");
    bundle
}

pub(crate) fn process(args: &[&str], terminal: bool) -> serde_json::Value {
    json!({"terminal": terminal, "user": {"uid": 0, "gid": 0}, "args": args, "cwd": "/", "env": ["PATH=/bin"]})
}

/// runc's own directory of the container.
pub(crate) fn runc_state(id: &str) -> PathBuf {
    Path::new("/run/containerd/runc")
        .join(NAMESPACE.as_str())
        .join(id)
}
