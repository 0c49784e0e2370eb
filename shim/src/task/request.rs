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
    /// `--criu PATH` asked for, as containerd before 2.0 can.
    pub criu_path: Option<PathBuf>,
    /// Where criu works while it restores the container; `None` is a folder of the bundle.
    pub criu_work_path: Option<PathBuf>,
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
    /// Given for a container that starts from a checkpoint.
    pub restore: Option<Restore>,
}

/// The checkpoint that a container starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// criu's images.
    pub image: PathBuf,
    /// The images that these were made on top of.
    pub parent: Option<PathBuf>,
}

/// How a running container is written to a checkpoint; `containerd.runc.v1.CheckpointOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where the images go.
    pub image: PathBuf,
    /// Earlier images, of which only the difference is written.
    pub parent: Option<PathBuf>,
    /// Where criu works and logs; `None` is a folder that is removed afterwards.
    pub work: Option<PathBuf>,
    /// What happens to the container.
    pub then: AfterCheckpoint,
    /// Established TCP connections are written.
    pub open_tcp: bool,
    /// Unix sockets with an end outside are written.
    pub external_unix_sockets: bool,
    /// Terminals are written.
    pub terminal: bool,
    /// File locks are written.
    pub file_locks: bool,
    /// Namespaces that are restored empty.
    pub empty_namespaces: Vec<String>,
    /// `soft`, `full` or `strict`; `None` is criu's own.
    pub cgroups_mode: Option<String>,
}

/// What becomes of a container of which a checkpoint was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AfterCheckpoint {
    /// It runs on.
    #[default]
    Run,
    /// It ends.
    Exit,
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
