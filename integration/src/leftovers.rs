//! What a node must not leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the shims of every containerd put their sockets; the path is fixed in containerd. Each node has its own.
pub const SHIM_SOCKETS: &str = "/run/containerd/s";
/// Where shims keep runc's state, one folder a namespace.
const RUNC_STATE: &str = "/run/containerd/runc";

/// What belongs to one node, to be looked for when it ends.
#[derive(Debug)]
pub struct Belongings {
    roots: Vec<PathBuf>,
    namespaces: Vec<String>,
    sockets_before: BTreeSet<PathBuf>,
}

impl Belongings {
    /// Everything of the node is below one of `roots` or in one of `namespaces`, both used by nobody else.
    pub fn new(roots: &[&Path], namespaces: &[&str]) -> Self {
        Self {
            roots: roots.iter().map(|root| root.to_path_buf()).collect(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            sockets_before: shim_sockets(),
        }
    }

    /// Processes of the node: by command line, environment or cgroup. `(pid, what it is)`.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let own = std::process::id().to_string();
        let roots: Vec<String> = self
            .roots
            .iter()
            .map(|root| root.to_string_lossy().into_owned())
            .collect();
        let named = |text: &str| roots.iter().any(|root| text.contains(root));
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(pid) = name.parse::<i32>() else {
                continue;
            };
            if name == own {
                continue;
            }
            let read = |file: &str| {
                fs::read(entry.path().join(file))
                    .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
                    .unwrap_or_default()
            };
            let command = read("cmdline");
            // A zombie has no command line; its parent is the one to report.
            if command.is_empty() {
                continue;
            }
            let cgroup = read("cgroup");
            let ours = named(&command)
                || named(&read("environ"))
                || self
                    .namespaces
                    .iter()
                    .any(|namespace| cgroup.contains(&format!("/{namespace}/")));
            if ours {
                found.push((pid, command.trim().to_owned()));
            }
        }
        found
    }

    /// Mount points below the roots, deepest first; what is mounted at a root itself is the node's own.
    pub fn mounts(&self) -> Vec<PathBuf> {
        // A test may be in a mount namespace of its own, which is its thread's and not its process's.
        let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let mut mounts: Vec<PathBuf> = text
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .map(PathBuf::from)
            .filter(|path| {
                let below = |root: &PathBuf| path.starts_with(root) && path != root;
                self.roots.iter().any(below)
            })
            .collect();
        mounts.reverse();
        mounts
    }

    /// Shim sockets that came since the node began and that nobody listens on: what a killed shim leaves.
    pub fn dead_sockets(&self) -> Vec<PathBuf> {
        // In this order: a socket that another node makes in between is none of the found ones, and is not taken for dead.
        let found = shim_sockets();
        let bound = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        found
            .difference(&self.sockets_before)
            .filter(|path| {
                // The second name of a socket of cgpu's is not the one that it was bound by.
                let bound_by = path.to_string_lossy().replace("/cgpu-", "/");
                !bound.contains(&bound_by) && path.exists()
            })
            .cloned()
            .collect()
    }

    /// runc's state folders of containers in our namespaces.
    pub fn runc_state(&self) -> Vec<PathBuf> {
        self.namespaces
            .iter()
            .flat_map(|namespace| entries(&Path::new(RUNC_STATE).join(namespace)))
            .collect()
    }

    /// cgroups of containers in our namespaces.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        self.namespace_cgroups()
            .iter()
            .flat_map(|folder| entries(folder))
            .filter(|path| path.is_dir())
            .collect()
    }

    /// Control groups of its vGPUs' own processes.
    pub fn own_groups(&self) -> Vec<PathBuf> {
        own_groups(&self.roots)
    }

    /// The empty parents that engines leave on purpose: one cgroup a namespace, and runc's state folder.
    pub fn remove_parents(&self) {
        let state = self
            .namespaces
            .iter()
            .map(|name| Path::new(RUNC_STATE).join(name));
        for folder in self.namespace_cgroups().into_iter().chain(state) {
            // Not empty means a leftover, which is reported by name elsewhere.
            drop(fs::remove_dir(folder));
        }
    }

    fn namespace_cgroups(&self) -> Vec<PathBuf> {
        let hierarchies = entries(Path::new("/sys/fs/cgroup"))
            .into_iter()
            .chain([PathBuf::from("/sys/fs/cgroup")]);
        hierarchies
            .flat_map(|hierarchy| {
                self.namespaces
                    .iter()
                    .map(move |namespace| hierarchy.join(namespace))
            })
            .filter(|path| path.is_dir() && !path.is_symlink())
            .collect()
    }

    /// One line for each thing that is left.
    pub fn report(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .processes()
            .into_iter()
            .map(|(pid, what)| format!("process {pid}: {what}"))
            .collect();
        let paths = |kind: &str, paths: Vec<PathBuf>| -> Vec<String> {
            paths
                .into_iter()
                .map(|path| format!("{kind} {}", path.display()))
                .collect()
        };
        left.extend(paths("mount", self.mounts()));
        left.extend(paths("dead shim socket", self.dead_sockets()));
        left.extend(paths("runc state", self.runc_state()));
        left.extend(paths("cgroup", self.cgroups()));
        left.extend(paths("own group", self.own_groups()));
        left
    }
}

/// Control groups of vGPUs' own processes whose state folder is one of these: their names end in its suffix, 64 bits of FNV-1a.
pub fn own_groups(state_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let suffixes: Vec<String> = state_dirs
        .iter()
        .map(|dir| {
            let bytes = dir.as_os_str().as_encoded_bytes();
            let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            format!("@{hash:016x}")
        })
        .collect();
    let root = PathBuf::from("/sys/fs/cgroup");
    let mut parents: Vec<PathBuf> = ["memory", "cpu", "pids", "cpuacct"]
        .map(|controller| root.join(controller).join("cgpu"))
        .to_vec();
    parents.extend([root.join("cgpu"), root.join("system.slice/cgpu.service")]);
    let is_of_these = |path: &PathBuf| {
        let name = path.to_string_lossy();
        path.is_dir()
            && suffixes
                .iter()
                .any(|suffix| name.ends_with(suffix.as_str()))
    };
    let all = parents.iter().flat_map(|parent| entries(parent));
    all.filter(is_of_these).collect()
}

fn shim_sockets() -> BTreeSet<PathBuf> {
    entries(Path::new(SHIM_SOCKETS)).into_iter().collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// Grants, vGPU folders and claims that are in a state folder of cgpu.
pub fn grants(state_dir: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for claim in entries(&state_dir.join("claims")) {
        left.push(format!("claim {}", claim.display()));
    }
    for namespace in entries(&state_dir.join("vgpus")) {
        for container in entries(&namespace) {
            left.push(format!("vgpu {}", container.display()));
        }
    }
    for card in entries(&state_dir.join("cards")) {
        let file = card.join("reservations.json");
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let held = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|file| {
                let grants = file.get("grants")?;
                Some(match grants {
                    serde_json::Value::Array(list) => list.len(),
                    serde_json::Value::Object(map) => map.len(),
                    _ => 1,
                })
            });
        match held {
            Some(0) => {}
            Some(count) => left.push(format!("{count} grants in {}", file.display())),
            None => left.push(format!("no readable grants in {}", file.display())),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Daemon;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_process_of_the_node_is_found_and_its_end_seen() {
        let root = tempfile::tempdir().unwrap();
        let belongings = Belongings::new(&[root.path()], &["no-such-namespace"]);
        let mut daemon = Daemon::start(
            "sleep",
            Command::new("sleep").arg("1000").env("ROOT", root.path()),
            &root.path().join("log"),
        )
        .unwrap();
        let pid = i32::try_from(daemon.pid().unwrap()).unwrap();
        // In the middle of an execve, of which it makes two, a process has neither command line nor environment.
        daemon
            .wait_ready(Duration::from_secs(60), || {
                Ok(belongings
                    .processes()
                    .iter()
                    .any(|(found, _)| *found == pid))
            })
            .unwrap();
        daemon.stop(Duration::from_secs(5)).unwrap();
        assert_eq!(belongings.report(), Vec::<String>::new());
    }

    #[test]
    fn a_dead_socket_is_reported_of_ones_own_node_alone() -> anyhow::Result<()> {
        if let Some(reason) = crate::skip::lacks_root() {
            crate::skip!(
                "a_dead_socket_is_reported_of_ones_own_node_alone",
                "{reason}"
            );
        }
        // On threads of their own, as tests are: the second node begins before the first one's shim is killed.
        let (begun, begins) = std::sync::mpsc::channel();
        let (killed, is_killed) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let node = crate::node::Node::bare().unwrap();
            begun.send(()).unwrap();
            is_killed.recv().unwrap();
            let left = node.leftovers();
            node.finish().unwrap();
            left
        });
        let killed_shims = std::thread::spawn(move || {
            let node = crate::node::Node::bare().unwrap();
            begins.recv().unwrap();
            let socket = Path::new(SHIM_SOCKETS).join("0123");
            drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
            killed.send(()).unwrap();
            (socket, node.leftovers())
        });
        let (socket, left) = killed_shims.join().unwrap();
        assert_eq!(left, [format!("dead shim socket {}", socket.display())]);
        assert_eq!(other.join().unwrap(), Vec::<String>::new());
        assert!(!socket.exists());
        Ok(())
    }

    #[test]
    fn a_grant_left_in_reservations_is_reported() {
        let state = tempfile::tempdir().unwrap();
        let card = state.path().join("cards/GPU-1");
        fs::create_dir_all(&card).unwrap();
        fs::write(
            card.join("reservations.json"),
            r#"{"version":1,"grants":[]}"#,
        )
        .unwrap();
        assert_eq!(grants(state.path()), Vec::<String>::new());
        fs::write(
            card.join("reservations.json"),
            r#"{"version":1,"grants":[{}]}"#,
        )
        .unwrap();
        assert_eq!(grants(state.path()).len(), 1);
    }
}
