//! Starting `cgpu-executor`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Name of the program.
pub const PROGRAM: &str = "cgpu-executor";

/// Why an executor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Its socket could not be made.
    #[error("listening on {path}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The pipe that it is held by could not be made.
    #[error("making the executor's lifeline")]
    Lifeline(#[source] io::Error),
    /// The program could not be started.
    #[error("starting {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A memory node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors, as the kernel lists them: `0-15,32-47`.
    pub cpus: String,
}

/// A started executor.
#[derive(Debug)]
pub struct Started {
    /// The process.
    pub child: Child,
    /// It ends once this is closed, wherever it was inherited to, and no broker is connected any more.
    pub lifeline: OwnedFd,
}

/// The program that belongs to the running one: beside it.
///
/// # Errors
/// The system's, where the running program cannot be named.
pub fn beside_this_program() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(PROGRAM))
}

/// Starts an executor that listens at `socket`; connections wait from now on, whether it is ready or not. It runs on a node's processors
/// and takes that node's memory first, where one is given: a driver takes system memory by the policy of whoever makes the call.
///
/// The caller still holds CAP_SETUID, CAP_SETGID and CAP_SETPCAP: the executor uses them to become nobody, and ends
/// where it cannot. Its standard error is the caller's.
///
/// # Errors
/// [`SpawnError`]; the socket may be left behind.
pub fn spawn(
    program: &Path,
    socket: &Path,
    near: Option<&NumaNode>,
) -> Result<Started, SpawnError> {
    let mut command = Command::new(program);
    if let Some(NumaNode { number, cpus }) = near {
        command.args(["--node", &number.to_string(), "--cpus", cpus]);
    }
    spawn_with(command, socket)
}

/// As [`spawn`], by a command of the caller's that ends in executing the program.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with(mut command: Command, socket: &Path) -> Result<Started, SpawnError> {
    let listen = |source| SpawnError::Listen {
        path: socket.to_owned(),
        source,
    };
    sys::absent_is_fine(std::fs::remove_file(socket)).map_err(listen)?;
    let listener = sys::fd_passing::listen_seqpacket(socket).map_err(listen)?;
    let (watched, lifeline) = io::pipe().map_err(SpawnError::Lifeline)?;
    let child = command
        .stdin(Stdio::from(listener))
        .stdout(Stdio::from(watched))
        .spawn()
        .map_err(|source| SpawnError::Start {
            program: PathBuf::from(command.get_program()),
            source,
        })?;
    Ok(Started {
        child,
        lifeline: lifeline.into(),
    })
}
