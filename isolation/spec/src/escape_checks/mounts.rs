//! `mounts` and `root`: files of the host that lead out of the container.
//!
//! Judged is every file and folder that a mount takes from the host, whatever its type: the source of a bind mount, the layers of an
//! overlay, the source of every other filesystem that names a file, and the container's own root. Each by all the paths that
//! the same files have ([`super::mount_table`]), with what is mounted below it, and in both directions: what it is in, and what is
//! in it ([`super::places`]).

use std::path::{Path, PathBuf};

use cards::Weakness;
use host_config::config::KEPT;
use host_config::host_files::HostFiles;
use host_config::own_places::OwnPlaces;
use host_config::walk::cleaned;
use nvabi::proc_files::PARAMS_PATH;
use serde_json::{Map, Value};

use super::Error;
use super::mount::{Access, Mount};
use super::mount_table::MountTable;
use super::namespaces::Namespaces;
use super::places::Listens;
use super::{Finding, devices, places};
use crate::json;

/// Where MPS has its pipes unless `CUDA_MPS_PIPE_DIRECTORY` says otherwise.
const MPS_PIPES: &str = "/tmp/nvidia-mps";
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// A file that an MPS server has among its pipes.
const MPS_FILE: &str = "nvidia-cuda-mps-control.pid";

const X11_SOCKETS: &str = "/tmp/.X11-unix";

/// Filesystems that are the kernel's own words, wherever they are mounted.
const OF_CONTROL_GROUPS: [&str; 3] = ["cgroup", "cgroup2", "cpuset"];
const OF_SYSFS: [&str; 14] = [
    "binfmt_misc",
    "bpf",
    "configfs",
    "debugfs",
    "efivarfs",
    "fusectl",
    "nfsd",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Filesystems that are made for the container, and hold nothing that it does not put there.
const OWN: [&str; 4] = ["tmpfs", "ramfs", "mqueue", "devpts"];

/// Filesystems whose source is a word, not a place.
const SOURCELESS: [&str; 8] = [
    "tmpfs", "ramfs", "mqueue", "devpts", "proc", "sysfs", "cgroup", "cgroup2",
];

/// How mounts of the host are seen in the container, and those of the container nowhere else. A word without `r` is for the topmost mount
/// alone: all that is mounted below stays shared, and what the runtime mounts over it appears on the host (with runc 1.1, by trying).
const NOT_SHARED: [&str; 3] = ["", "rslave", "rprivate"];

/// What drivers show of themselves; some of it root can write.
const OF_DRIVERS: &str = "/proc/driver";

/// The spec's name in a bundle.
const SPEC: &str = "config.json";

/// Files of procfs through which root without any capability changes the host.
const PROC_GUARDED: [&str; 3] = ["sys", "sysrq-trigger", "bus"];

pub(super) fn findings(
    root: &Map<String, Value>,
    namespaces: &Namespaces,
    own: &OwnPlaces,
    host: &dyn HostFiles,
) -> Result<Vec<Finding>, Error> {
    let context = Context {
        root: root_of(root, own, host),
        guarded: guarded(root)?,
        mps_folder: mps_folder(root)?,
        own,
        namespaces,
        host,
        table: MountTable::read(&host.mount_table().map_err(Error::MountTable)?),
    };
    let mut findings = Vec::new();
    findings.extend(context.of_root(root));
    if let Some(how) = root
        .get("linux")
        .and_then(|linux| linux.get("rootfsPropagation"))
        .and_then(Value::as_str)
        .filter(|how| !NOT_SHARED.contains(how))
    {
        findings.push(Finding::new(
            Weakness::HostRoot,
            "linux.rootfsPropagation",
            how,
        ));
    }
    for entry in json::list(root, "", "mounts")? {
        let Some(mount) = Mount::read(entry) else {
            continue;
        };
        if mount.is_remount() {
            let value = format!("remount at {}", mount.destination);
            findings.push(Finding::new(Weakness::HostRoot, "mounts", value));
        }
        for (source, weakness) in context.of_mount(&mount) {
            let value = format!("{source} at {}", mount.destination);
            findings.push(Finding::new(weakness, "mounts", value));
        }
    }
    Ok(findings)
}

/// Where a mount takes files from.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    path: &'a Path,
    access: Access,
    /// With what is mounted below.
    is_recursive: bool,
    /// The kind of filesystem that it is on, where that is to be judged.
    kind: &'a str,
}

struct Context<'a> {
    /// The container's root; below the bundle where that is not known.
    root: Option<PathBuf>,
    /// `linux.readonlyPaths` and `linux.maskedPaths`.
    guarded: Vec<PathBuf>,
    /// Where the container's programs look for an MPS server.
    mps_folder: Option<PathBuf>,
    own: &'a OwnPlaces,
    namespaces: &'a Namespaces,
    host: &'a dyn HostFiles,
    table: MountTable,
}

impl Context<'_> {
    fn of_root(&self, root: &Map<String, Value>) -> Vec<Finding> {
        let Some(folder) = root.get("root").filter(|folder| !folder.is_null()) else {
            return Vec::new();
        };
        let Some(path) = folder.get("path").and_then(Value::as_str) else {
            return Vec::new();
        };
        let access = match folder.get("readonly").and_then(Value::as_bool) {
            Some(true) => Access::Read,
            Some(false) | None => Access::Write,
        };
        let source = Source {
            path: Path::new(path),
            access,
            is_recursive: true,
            kind: "",
        };
        let finding = |weakness| Finding::new(weakness, "root.path", path);
        self.of_source(source, &|real| places::is_stored_root(real), None)
            .into_iter()
            .map(finding)
            .collect()
    }

    /// What a mount leads to, each with the source that does.
    fn of_mount(&self, mount: &Mount<'_>) -> Vec<(String, Weakness)> {
        let mut found = Vec::new();
        let mut judge = |path: &str, access, is_recursive| {
            let source = Source {
                path: Path::new(path),
                access,
                is_recursive,
                kind: "",
            };
            let weaknesses = self.of_source(source, &places::is_engine_s, Some(mount));
            found.extend(weaknesses.into_iter().map(|one| (path.to_owned(), one)));
        };
        if mount.is_bind() {
            judge(mount.source, mount.access(), mount.is_recursive());
            return found;
        }
        let layers = mount.layers();
        for (layer, access) in &layers {
            judge(layer, *access, false);
        }
        // Whatever else is mounted from a file of the host: a disk's node, an image.
        if mount.source.starts_with('/') && !SOURCELESS.contains(&mount.kind) {
            judge(mount.source, mount.access(), false);
        }
        // The runtime is in the container's root when it mounts, not in the bundle, and the image's links lead where they like.
        let relative = layers
            .into_iter()
            .filter(|(layer, _)| !layer.starts_with('/'));
        found.extend(relative.map(|(layer, _)| (layer, Weakness::HostRoot)));
        found.extend(self.of_filesystem(mount).into_iter().map(|weakness| {
            let from = if mount.source.is_empty() {
                mount.kind
            } else {
                mount.source
            };
            (from.to_owned(), weakness)
        }));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// What a file or folder of the host leads to: by every path that it has, and with what is mounted below. `is_made`: whether
    /// an engine made it for containers.
    fn of_source(
        &self,
        source: Source<'_>,
        is_made: &dyn Fn(&Path) -> bool,
        mount: Option<&Mount<'_>>,
    ) -> Vec<Weakness> {
        let mut found = Vec::new();
        // Runtimes clean a path before they follow it, or do not.
        for path in [source.path.to_owned(), cleaned(source.path)] {
            let Some(path) = self.absolute(source.path, &path) else {
                if mount.is_some() && self.is_of_the_root(source, &path) {
                    found.push(Weakness::ProcSys);
                }
                // Below a bundle that is not known, which is root's; out of it nobody knows where.
                let mut parts = source.path.components();
                if parts.any(|part| part == std::path::Component::ParentDir) {
                    found.push(Weakness::HostRoot);
                }
                continue;
            };
            let lead = self.host.lead(&path);
            if lead.is_magic {
                found.push(Weakness::HostProc);
            }
            if lead.is_endless {
                found.push(Weakness::HostRoot);
            }
            if mount.is_some() && self.is_of_the_root(source, &lead.end) {
                found.push(Weakness::ProcSys);
            }
            if self.is_the_bundle_s(source.path, &lead.end) {
                continue;
            }
            let mut judge = |path: &Path, access| {
                let place = |path: &Path, kind: &str| {
                    let source = Source {
                        path,
                        access,
                        is_recursive: source.is_recursive,
                        kind,
                    };
                    self.of_place(source, is_made, mount)
                };
                found.extend(place(path, self.table.kind(path).unwrap_or_default()));
                for alias in self.table.aliases(path) {
                    found.extend(place(&alias, ""));
                }
            };
            judge(&lead.end, source.access);
            if source.is_recursive {
                let access = match mount {
                    Some(mount) if !mount.is_read_only() => Access::Write,
                    Some(_) => Access::Read,
                    None => source.access,
                };
                for below in self.table.below(&lead.end) {
                    judge(&below, access);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A relative path is below the bundle.
    fn absolute(&self, written: &Path, path: &Path) -> Option<PathBuf> {
        if written.is_absolute() {
            return Some(path.to_owned());
        }
        self.own.bundle.as_ref().map(|bundle| bundle.join(written))
    }

    /// Whether files are taken from the container's own root: it has the container's procfs by then, without what is made read-only at
    /// `/proc` alone. The host's own root is another finding.
    fn is_of_the_root(&self, source: Source<'_>, path: &Path) -> bool {
        let host_s = Path::new("/");
        self.root.as_deref().is_some_and(|root| {
            let is_in = path.starts_with(root) || (source.is_recursive && root.starts_with(path));
            is_in && root != host_s && path != host_s
        })
    }

    /// What a relative path leads to in its bundle is the container's own.
    fn is_the_bundle_s(&self, written: &Path, real: &Path) -> bool {
        !written.is_absolute()
            && self.own.bundle.as_ref().is_some_and(|bundle| {
                let bundle = self.host.resolve(bundle);
                real != bundle && real.starts_with(bundle)
            })
    }

    /// One path without links.
    fn of_place(
        &self,
        source: Source<'_>,
        is_made: &dyn Fn(&Path) -> bool,
        mount: Option<&Mount<'_>>,
    ) -> Vec<Weakness> {
        let real = source.path;
        if real == Path::new("/") {
            return vec![Weakness::HostRoot];
        }
        let resolve = |path: &Path| self.host.resolve(path);
        let is_below = |path: &str| real.starts_with(path);
        let is_written = source.access == Access::Write;
        let mut found = Vec::new();
        if real == Path::new("/dev") {
            found.push(Weakness::HostDev);
        }
        found.extend(devices::of_file(real, self.host));
        found.extend(of_the_kernel(source, mount));
        let mut is_in_state = false;
        for own in self.own.state_dirs(self.host) {
            is_in_state |= real.starts_with(&own);
            if places::overlap(real, &own) {
                found.push(Weakness::CgpuState);
            }
        }
        if is_written
            && self
                .own
                .programs
                .iter()
                .any(|own| places::overlap(real, own))
        {
            found.push(Weakness::HostRoot);
        }
        if is_written && self.is_a_bundle_s(real) {
            found.push(Weakness::HostRoot);
        }
        if !is_made(real) {
            // Text is no socket: `/run/systemd/resolve/resolv.conf`, read-only.
            let is_text = !is_written && self.host.is_plain_file(real);
            let listens = places::listens(real, &resolve).filter(|_| !is_text);
            if listens.is_some() {
                found.push(Weakness::EngineSocket);
            }
            let is_named = listens == Some(Listens::Here) || is_in_state;
            let is_data = self
                .own
                .data_folders
                .iter()
                .any(|data| real.starts_with(data));
            if is_written && !is_data && !is_named && places::is_system(real, &resolve) {
                found.push(Weakness::HostRoot);
            }
        }
        if mount.is_some_and(|mount| self.is_mps(real, mount.destination)) {
            found.push(Weakness::Mps);
        }
        let x11 = Path::new(X11_SOCKETS);
        let holds_x11 = resolve(x11).starts_with(real) && self.host.exists(x11);
        if mount.is_some() && (is_below(X11_SOCKETS) || holds_x11) {
            found.push(Weakness::X11);
        }
        found
    }

    /// With its own spec in hand a container writes the next one, and with the configuration of another container it names programs
    /// that root runs for that one. Where another bundle is, nobody here knows (podman's `--root`); the configuration in it tells.
    fn is_a_bundle_s(&self, real: &Path) -> bool {
        let own = self.own.bundle.as_ref();
        if own.is_some_and(|bundle| self.host.resolve(bundle).starts_with(real)) {
            return true;
        }
        let is_one = |folder: &Path| self.host.exists(&folder.join(KEPT));
        real.ends_with(KEPT)
            || is_one(real)
            || (real.ends_with(SPEC) && real.parent().is_some_and(is_one))
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
            "devtmpfs" => Weakness::HostDev,
            kind if OWN.contains(&kind) => return Vec::new(),
            "overlay" if !mount.source.contains('/') => return Vec::new(),
            // A user namespace may mount those that are made for it, and the kernel gives it no other.
            "sysfs" | "cgroup" | "cgroup2" | "proc" if mount.is_read_only() || is_shielded => {
                return Vec::new();
            }
            "sysfs" => Weakness::HostSys,
            "cgroup" | "cgroup2" if self.namespaces.has_own_cgroup() => return Vec::new(),
            "proc" if self.is_guarded(mount) => return Vec::new(),
            "proc" => Weakness::ProcSys,
            kind if OF_CONTROL_GROUPS.contains(&kind) => Weakness::HostCgroup,
            kind if OF_SYSFS.contains(&kind) && is_shielded => return Vec::new(),
            kind if OF_SYSFS.contains(&kind) => Weakness::HostSys,
            // Of a disk of the host, or of nobody here knows what.
            _ => Weakness::HostDevices,
        };
        vec![weakness]
    }

    /// Elsewhere than at `/proc` the paths that are made read-only may be others when that is done: by a link of the image's, or by what is
    /// mounted over it meanwhile.
    fn is_guarded(&self, mount: &Mount<'_>) -> bool {
        let at = cleaned(Path::new(mount.destination));
        at == Path::new("/proc")
            && PROC_GUARDED
                .iter()
                .all(|name| self.guarded.contains(&at.join(name)))
    }
}

/// What a path leads to that is the kernel's own words.
fn of_the_kernel(source: Source<'_>, mount: Option<&Mount<'_>>) -> Option<Weakness> {
    let (real, kind) = (source.path, source.kind);
    let is_written = source.access == Access::Write;
    if real.starts_with("/proc") || kind == "proc" {
        // Nobody can write the parameters, and the driver's own tools bind them as they are.
        let is_read = !is_written || real == Path::new(PARAMS_PATH);
        let passes = real.starts_with(OF_DRIVERS) && is_read;
        return (!passes).then_some(Weakness::HostProc);
    }
    // What is mounted below `/sys` is as much the kernel's.
    if mount.map_or(!is_written, Mount::is_read_only) {
        None
    } else if real.starts_with("/sys/fs/cgroup") || OF_CONTROL_GROUPS.contains(&kind) {
        Some(Weakness::HostCgroup)
    } else if real.starts_with("/sys") || OF_SYSFS.contains(&kind) {
        Some(Weakness::HostSys)
    } else {
        None
    }
}

/// Where the container's root is.
fn root_of(spec: &Map<String, Value>, own: &OwnPlaces, host: &dyn HostFiles) -> Option<PathBuf> {
    let written = Path::new(spec.get("root")?.get("path")?.as_str()?);
    match &own.bundle {
        Some(bundle) => Some(host.resolve(&bundle.join(written))),
        None if written.is_absolute() => Some(host.resolve(written)),
        None => Some(cleaned(written)),
    }
}

fn guarded(root: &Map<String, Value>) -> Result<Vec<PathBuf>, Error> {
    let Some(linux) = root.get("linux").filter(|linux| !linux.is_null()) else {
        return Ok(Vec::new());
    };
    let linux = json::object(linux, "linux")?;
    let mut paths = Vec::new();
    for key in ["readonlyPaths", "maskedPaths"] {
        let listed = json::list(linux, "linux", key)?;
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
    let variables = json::process_environment(json::object(process, "process")?)?;
    Ok(variables
        .iter()
        .rfind(|(name, value)| *name == MPS_VARIABLE && value.starts_with('/'))
        .map(|(_, folder)| cleaned(Path::new(folder))))
}
