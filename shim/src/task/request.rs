//! What containerd asks for, in the shim's own words.

use std::path::PathBuf;

use super::identity::{ContainerId, ExecId};

/// Whether a process gets a pseudo terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// A pseudo terminal; there is no separate standard error.
    Pty,
    /// Three pipes.
    Pipes,
}

/// Where a process's standard streams go: a FIFO's path, `file://`, `binary://`, or empty for nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioRequest {
    /// Terminal or pipes.
    pub terminal: Terminal,
    /// Source of standard input.
    pub stdin: String,
    /// Sink of standard output.
    pub stdout: String,
    /// Sink of standard error.
    pub stderr: String,
}

/// One mount that makes up the root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// File system type, or `bind`.
    pub kind: String,
    /// Source, as in `mount(2)`.
    pub source: String,
    /// Path below the root file system; empty for the root itself.
    pub target: String,
    /// Options, as in fstab.
    pub options: Vec<String>,
}

/// What of `containerd.runc.v1.Options` this shim heeds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuncOptions {
    /// Name or path of the OCI runtime; `None` is `runc`.
    pub binary_name: Option<String>,
    /// runc's state directory, to which the namespace is appended.
    pub root: Option<PathBuf>,
    /// `--systemd-cgroup` asked for.
    pub systemd_cgroup: bool,
    /// `--no-pivot` asked for.
    pub no_pivot_root: bool,
    /// `--no-new-keyring` asked for.
    pub no_new_keyring: bool,
    /// Owner of the standard streams' pipes.
    pub io_uid: u32,
    /// Group of the standard streams' pipes.
    pub io_gid: u32,
    /// Control group (v1 path or v2 path) that the shim itself joins.
    pub shim_cgroup: Option<String>,
}

/// A container to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Its identity.
    pub id: ContainerId,
    /// The directory with `config.json`.
    pub bundle: PathBuf,
    /// Mounts that make up the root file system; empty when the engine has mounted it.
    pub rootfs: Vec<Mount>,
    /// The init process's streams.
    pub stdio: StdioRequest,
    /// How to call runc.
    pub options: RuncOptions,
}

/// A process to add to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// Its identity.
    pub id: ExecId,
    /// Its streams.
    pub stdio: StdioRequest,
    /// The OCI process, JSON.
    pub process_json: Vec<u8>,
}

/// New limits for a container: OCI `LinuxResources`, JSON, as it goes to `runc update`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources(pub Vec<u8>);

impl StdioRequest {
    /// No streams at all.
    #[must_use]
    pub fn nowhere() -> Self {
        let empty = String::new;
        Self {
            terminal: Terminal::Pipes,
            stdin: empty(),
            stdout: empty(),
            stderr: empty(),
        }
    }
}
