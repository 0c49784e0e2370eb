//! What is looked up on this host to judge a container's spec: the one way from the checks to the host.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::walk::{Walked, walk};

/// This process's mounts.
pub const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// The kind of a device node, and its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Character or block.
    pub kind: NodeKind,
    /// Its major number.
    pub major: u64,
    /// Its minor number.
    pub minor: u64,
}

/// Of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// Bytes in order.
    Character,
    /// Blocks at random.
    Block,
}

/// The host as the checks see it; tests have another one.
pub trait HostFiles {
    /// Where an absolute path leads.
    fn lead(&self, path: &Path) -> Walked;
    /// Its end alone.
    fn resolve(&self, path: &Path) -> PathBuf {
        self.lead(path).end
    }
    /// The text of [`MOUNT_TABLE`].
    ///
    /// # Errors
    /// The kernel does not give it.
    fn mount_table(&self) -> std::io::Result<String>;
    /// Whether the path leads to a plain file.
    fn is_plain_file(&self, path: &Path) -> bool;
    /// Whether anything is there.
    fn exists(&self, path: &Path) -> bool;
    /// The device node at a path; `None`: another kind of file, or nothing.
    fn node(&self, path: &Path) -> Option<Node>;
    /// Whether the file is a namespace of this kind that is certainly not the host's.
    fn is_foreign_namespace(&self, kind: &str, path: &Path) -> bool;
    /// The users of the user namespace at a path, as its `uid_map` has them for this process; `None` where they cannot be read.
    fn users_of(&self, path: &Path) -> Option<String>;
    /// The kernel's list of device majors (`/proc/devices`).
    fn devices(&self) -> String;
}

/// The host itself.
#[derive(Debug, Clone, Copy)]
pub struct ThisHost;

impl HostFiles for ThisHost {
    fn lead(&self, path: &Path) -> Walked {
        walk(path)
    }

    fn mount_table(&self) -> std::io::Result<String> {
        std::fs::read(MOUNT_TABLE).map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    fn is_plain_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn node(&self, path: &Path) -> Option<Node> {
        let metadata = std::fs::metadata(path).ok()?;
        let kind = metadata.file_type();
        let kind = if kind.is_char_device() {
            NodeKind::Character
        } else if kind.is_block_device() {
            NodeKind::Block
        } else {
            return None;
        };
        Some(Node {
            kind,
            major: nix::sys::stat::major(metadata.rdev()),
            minor: nix::sys::stat::minor(metadata.rdev()),
        })
    }

    fn is_foreign_namespace(&self, kind: &str, path: &Path) -> bool {
        let file = match kind {
            "mount" => "mnt",
            "network" => "net",
            other => other,
        };
        // Of process 1, not of this one: an engine may itself live in namespaces of its own.
        let identity = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        let own = |process: &str| identity(&Path::new("/proc").join(process).join("ns").join(file));
        let ours = own("self");
        // Some hosts show process 1's namespaces to nobody. Where /proc is of our own PID namespace, its process 1 is in it.
        let of_our_processes = || ours.filter(|_| kind == "pid" && proc_is_of_our_namespace());
        match (identity(path), own("1").or_else(of_our_processes), ours) {
            (Some(named), Some(first), Some(ours)) => named != first && named != ours,
            _ => false,
        }
    }

    fn users_of(&self, path: &Path) -> Option<String> {
        sys::user_namespace::users_of(path).ok()
    }

    fn devices(&self) -> String {
        std::fs::read_to_string("/proc/devices").unwrap_or_default()
    }
}

/// `NSpid` of a process has a number for each PID namespace from that of the mounted /proc down to its own.
fn proc_is_of_our_namespace() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}
