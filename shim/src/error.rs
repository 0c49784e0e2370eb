//! Every way in which the shim can fail, one variant per step.

use std::io;
use std::path::PathBuf;

use crate::task::{BadName, ContainerId, Denied};

/// Whether the request or the host is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFault {
    /// What the container asks for is malformed.
    Request,
    /// What it asks for cannot be had here and now.
    Precondition,
}

/// Why a container gets no share.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct GpuError {
    /// Whose fault it is.
    pub fault: GpuFault,
    /// The whole chain of reasons, for the user.
    pub text: String,
}

/// What a call of this seam returns.
pub type GpuResult<T> = std::result::Result<T, GpuError>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is not containerd's.
    #[error("command line: {0} (containerd starts this program; see -help)")]
    CommandLine(String),
    /// A file or directory.
    #[error("cannot {doing} {path}")]
    File {
        /// The verb.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A call of the kernel that names no file.
    #[error("cannot {doing}")]
    System {
        /// The verb and its object.
        doing: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `config.json` or another file is not what its format says.
    #[error("{path} is not valid")]
    Json {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A request's body is not the JSON that it must be.
    #[error("{what} is not valid JSON")]
    RequestJson {
        /// Which field.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A message is not valid protobuf.
    #[error("cannot decode {what}")]
    Protobuf {
        /// Which message.
        what: &'static str,
        /// Why.
        #[source]
        source: protobuf::Error,
    },
    /// A request lacks something or names something impossible.
    #[error("{key} {value:?} is not allowed: {allowed}")]
    Invalid {
        /// Which field.
        key: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        allowed: &'static str,
    },
    /// Options in TOML.
    #[error("runtime options in {place}: {reason}, at `{line}`")]
    Options {
        /// Which file, or the field of the request.
        place: String,
        /// The line.
        line: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// A name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The container is not known.
    #[error("container {0} does not exist")]
    NoContainer(ContainerId),
    /// The identity is taken.
    #[error("container {0} already exists")]
    ContainerExists(ContainerId),
    /// The state machine says no.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// runc refused; its own words, which engines map to exit codes 125, 126 and 127.
    #[error("OCI runtime {verb} failed: {message}")]
    Runc {
        /// Which command.
        verb: &'static str,
        /// What its log says.
        message: String,
    },
    /// Something that the machine has few of.
    #[error("{0} is busy")]
    Busy(&'static str),
    /// A container of this group has a shim of another runtime, which knows no vGPU.
    #[error(
        "another runtime's shim serves this container's group at {0}: give all containers of a group one runtime, or this one a group of its own"
    )]
    ForeignShim(PathBuf),
    /// A program that mounts for the kernel.
    #[error("{program} failed: {message}")]
    Helper {
        /// Which.
        program: &'static str,
        /// What it says.
        message: String,
    },
    /// The control group went away with the container.
    #[error("container {0} has no control group")]
    NoCgroup(ContainerId),
    /// What a card holds for a container is not part of a checkpoint.
    #[error(
        "container {0} has a share of a GPU, whose state cannot be written to a checkpoint or restored from one"
    )]
    NoCheckpoint(ContainerId),
    /// Nobody has verified that the container is held to its share of a GPU, or the share is being released.
    #[error("container {0} is not held to its share of a GPU, and nothing is started in it")]
    Unverified(ContainerId),
    /// The GPU side refused or failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A client did not open its end of a FIFO.
    #[error("nobody opened {path} for reading within {waited_s} s")]
    FifoUnread {
        /// The FIFO.
        path: PathBuf,
        /// How long the shim waited.
        waited_s: u64,
    },
    /// runc ended without sending the terminal.
    #[error("runc sent no terminal")]
    NoConsole,
    /// The ttrpc server or client.
    #[error("ttrpc: {doing}")]
    Ttrpc {
        /// The verb and its object.
        doing: &'static str,
        /// Why.
        #[source]
        source: ttrpc::Error,
    },
    /// A task of ours ended without an answer, which only a panic does.
    #[error("internal: {0} did not finish")]
    Lost(&'static str),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// `.map_err(file("open", path))`
pub(crate) fn file(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::File {
        doing,
        path,
        source,
    }
}

/// `.map_err(system("fork"))`
pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System {
        doing,
        source: source.into(),
    }
}
