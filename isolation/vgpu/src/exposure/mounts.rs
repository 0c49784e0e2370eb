//! `mounts` and `root`: files of the host that lead out of the container.

use std::path::{Path, PathBuf};

use cards::Weakness;
use serde_json::{Map, Value};

use super::host::cleaned;
use super::namespaces::Namespaces;
use super::{Finding, HostFiles, devices};
use crate::{Error, spec};

/// Where engines listen.
const ENGINE_SOCKETS: [&str; 6] = [
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/podman/podman.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];

/// Where MPS has its pipes unless `CUDA_MPS_PIPE_DIRECTORY` says otherwise.
const MPS_PIPES: &str = "/tmp/nvidia-mps";
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// A file that an MPS server has among its pipes.
const MPS_FILE: &str = "nvidia-cuda-mps-control.pid";

const X11_SOCKETS: &str = "/tmp/.X11-unix";

/// Folders from which the host takes what it runs as root; bound whole and writable they are as good as `/`.
const SYSTEM_FOLDERS: [&str; 18] = [
    "/boot",
    "/etc",
    "/etc/cgpu",
    "/etc/cron.d",
    "/etc/systemd",
    "/root",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
    "/usr/local/bin",
    "/usr/sbin",
    "/var",
    "/var/lib",
    "/var/lib/containerd",
    "/var/lib/docker",
    "/var/lib/kubelet",
];

/// Files of procfs through which root without any capability changes the host.
const PROC_GUARDED: [&str; 3] = ["sys", "sysrq-trigger", "bus"];

pub(super) fn findings(
    root: &Map<String, Value>,
    namespaces: &Namespaces,
    state_dir: &Path,
    host: &dyn HostFiles,
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    if let Some(path) = root
        .get("root")
        .and_then(|root| root.get("path"))
        .and_then(Value::as_str)
        && Path::new(path).is_absolute()
        && host.resolve(Path::new(path)) == Path::new("/")
    {
        findings.push(Finding::new(Weakness::HostRoot, "root.path", path));
    }
    let scene = Scene {
        guarded: guarded(root)?,
        mps_folder: mps_folder(root)?,
        state_dir: host.resolve(state_dir),
        namespaces,
        host,
    };
    for entry in spec::list(root, "", "mounts")? {
        let Some(mount) = Mount::read(entry) else {
            continue;
        };
        let found = if mount.is_bind() {
            scene.of_bind(&mount)
        } else {
            scene.of_filesystem(&mount)
        };
        findings.extend(found.into_iter().map(|weakness| {
            let from = if mount.source.is_empty() {
                mount.kind
            } else {
                mount.source
            };
            Finding::new(
                weakness,
                "mounts",
                format!("{from} at {}", mount.destination),
            )
        }));
    }
    Ok(findings)
}

struct Mount<'a> {
    kind: &'a str,
    source: &'a str,
    destination: &'a str,
    options: Vec<&'a str>,
}

impl<'a> Mount<'a> {
    fn read(entry: &'a Value) -> Option<Self> {
        let text = |key| entry.get(key).and_then(Value::as_str).unwrap_or("");
        entry.as_object()?;
        Some(Self {
            kind: text("type"),
            source: text("source"),
            destination: text("destination"),
            options: entry
                .get("options")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect(),
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    fn is_bind(&self) -> bool {
        self.kind == "bind" || self.has("bind") || self.has("rbind")
    }

    /// The last of `ro` and `rw` counts; a recursive bind leaves what is mounted below it writable.
    fn is_read_only(&self) -> bool {
        let last = self
            .options
            .iter()
            .rev()
            .find(|option| matches!(**option, "ro" | "rw" | "rro"));
        match last {
            Some(&"rro") => true,
            Some(&"ro") => !self.has("rbind"),
            _ => false,
        }
    }
}

struct Scene<'a> {
    /// `linux.readonlyPaths` and `linux.maskedPaths`.
    guarded: Vec<PathBuf>,
    /// Where the container's programs look for an MPS server.
    mps_folder: Option<PathBuf>,
    state_dir: PathBuf,
    namespaces: &'a Namespaces,
    host: &'a dyn HostFiles,
}

impl Scene<'_> {
    fn of_bind(&self, mount: &Mount<'_>) -> Vec<Weakness> {
        let source = Path::new(mount.source);
        if !source.is_absolute() {
            // Below the bundle, which is root's; out of it nobody knows where.
            let leaves = source
                .components()
                .any(|part| part == std::path::Component::ParentDir);
            return leaves.then_some(Weakness::HostRoot).into_iter().collect();
        }
        let real = self.host.resolve(source);
        if real == Path::new("/") {
            return vec![Weakness::HostRoot];
        }
        let holds = |path: &str| self.host.resolve(Path::new(path)).starts_with(&real);
        let is_below = |path: &str| real.starts_with(path);
        let mut found = Vec::new();
        if real == Path::new("/dev") {
            found.push(Weakness::HostDev);
        }
        found.extend(devices::of_file(&real, self.host));
        if is_below("/proc") && !is_below("/proc/driver") {
            found.push(Weakness::HostProc);
        }
        if is_below("/sys") && !mount.is_read_only() {
            found.push(if is_below("/sys/fs/cgroup") {
                Weakness::HostCgroup
            } else {
                Weakness::HostSys
            });
        }
        if SYSTEM_FOLDERS
            .iter()
            .any(|folder| real == Path::new(folder))
            && !mount.is_read_only()
        {
            found.push(Weakness::HostRoot);
        }
        if real.starts_with(&self.state_dir) || self.state_dir.starts_with(&real) {
            found.push(Weakness::CgpuState);
        }
        // A folder in which a socket may come to stand counts whether or not the engine runs now.
        if ENGINE_SOCKETS.iter().any(|socket| holds(socket)) {
            found.push(Weakness::EngineSocket);
        }
        if self.is_mps(&real, mount.destination) {
            found.push(Weakness::Mps);
        }
        if is_below(X11_SOCKETS) || (holds(X11_SOCKETS) && self.host.exists(Path::new(X11_SOCKETS)))
        {
            found.push(Weakness::X11);
        }
        found
    }

    fn is_mps(&self, real: &Path, destination: &str) -> bool {
        let named = self
            .mps_folder
            .as_ref()
            .is_some_and(|folder| folder.starts_with(cleaned(Path::new(destination))));
        let pipes = Path::new(MPS_PIPES);
        real.starts_with(pipes)
            || named
            || self.host.exists(&real.join(MPS_FILE))
            || (pipes.starts_with(real) && self.host.exists(&pipes.join(MPS_FILE)))
    }

    fn of_filesystem(&self, mount: &Mount<'_>) -> Vec<Weakness> {
        let is_shielded = self.namespaces.shields_root_s_files();
        let weakness = match mount.kind {
            "sysfs" if !mount.is_read_only() && !is_shielded => Weakness::HostSys,
            "debugfs" | "tracefs" | "securityfs" | "configfs" | "efivarfs" | "bpf"
                if !is_shielded =>
            {
                Weakness::HostSys
            }
            "cgroup" | "cgroup2"
                if !mount.is_read_only() && !self.namespaces.has_own_cgroup() && !is_shielded =>
            {
                Weakness::HostCgroup
            }
            "devtmpfs" => Weakness::HostDev,
            "proc" if !mount.is_read_only() && !is_shielded && !self.is_guarded(mount) => {
                Weakness::ProcSys
            }
            // A filesystem from a disk of the host.
            _ if mount.source.starts_with("/dev/") => Weakness::HostDevices,
            _ => return Vec::new(),
        };
        vec![weakness]
    }

    fn is_guarded(&self, mount: &Mount<'_>) -> bool {
        let at = cleaned(Path::new(mount.destination));
        PROC_GUARDED
            .iter()
            .all(|name| self.guarded.contains(&at.join(name)))
    }
}

fn guarded(root: &Map<String, Value>) -> Result<Vec<PathBuf>, Error> {
    let Some(linux) = root.get("linux").filter(|linux| !linux.is_null()) else {
        return Ok(Vec::new());
    };
    let linux = spec::object(linux, "linux")?;
    let mut paths = Vec::new();
    for key in ["readonlyPaths", "maskedPaths"] {
        let listed = spec::list(linux, "linux", key)?;
        paths.extend(
            listed
                .iter()
                .filter_map(Value::as_str)
                .map(|path| cleaned(Path::new(path))),
        );
    }
    Ok(paths)
}

fn mps_folder(root: &Map<String, Value>) -> Result<Option<PathBuf>, Error> {
    let Some(process) = root.get("process").filter(|process| !process.is_null()) else {
        return Ok(None);
    };
    let variables = spec::process_environment(spec::object(process, "process")?)?;
    Ok(variables
        .iter()
        .rfind(|(name, value)| *name == MPS_VARIABLE && value.starts_with('/'))
        .map(|(_, folder)| cleaned(Path::new(folder))))
}
