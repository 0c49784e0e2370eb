//! The container's folder and the process itself: what keeper and lone broker both deal with.

use std::error::Error as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use caps::{CapSet, CapsHashSet};
use cards::Grant;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;

use super::Error;
use crate::intake::{self, Handed};
use crate::start::{door_is_gone, has_grant};

/// Whether anybody still needs a container's broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abandonment {
    pub(crate) listeners: usize,
    pub(crate) has_served: bool,
}

impl Abandonment {
    /// No door holds its lock and no process has the filter: nobody will ever need this broker again.
    pub(crate) fn is_complete(self, dir: &Path) -> bool {
        self.listeners == 0 && door_is_gone(dir) && (self.has_served || !has_grant(dir))
    }
}

/// `namespace/container`
pub(crate) fn name_of(grant: &Grant) -> String {
    format!("{}/{}", grant.key.namespace(), grant.key.id())
}

/// Takes the lock that says that a broker lives.
pub(super) fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("broker.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(&path)
        .map_err(Error::io("opening", &path))?;
    if sys::lock::try_exclusive(&lock).map_err(Error::io("locking", &path))? {
        Ok(lock)
    } else {
        Err(Error::Taken(path))
    }
}

/// The socket that a door has bound and given as standard input: what is sent there before this process runs waits in it.
/// `None` where the standard input is something else.
pub(super) fn given_listener() -> io::Result<Option<OwnedFd>> {
    let stdin = io::stdin();
    if !getsockopt(&stdin.as_fd(), AcceptConn).unwrap_or(false) {
        return Ok(None);
    }
    let listener = stdin.as_fd().try_clone_to_owned()?;
    // A second descriptor would keep the socket open in every child.
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(Some(listener))
}

/// Every file of the tenant is a descriptor here and in the broker.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        tracing::warn!(error = %errno, "the limit of open files stays as it is");
    }
}

/// The keeper needs none: it signals its own children, and what it executes becomes root's again.
pub(super) fn drop_capabilities() -> Result<(), Error> {
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &CapsHashSet::new()).map_err(Error::Capabilities)?;
    }
    Ok(())
}

/// Says `ready` on standard output and closes it: the door waits for this.
pub(super) fn say_ready() -> io::Result<()> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    {
        let mut stdout = io::stdout().lock();
        stdout.write_all(b"ready\n")?;
        stdout.flush()?;
    }
    nix::unistd::dup2_stdout(null)?;
    Ok(())
}

/// Accepts one hand-over of a listener.
pub(crate) fn accept_listener(notify: BorrowedFd<'_>) -> Result<Handed, intake::Error> {
    let connection = sys::fd_passing::accept(notify).map_err(|source| intake::Error::Io {
        step: "accepting on notify.sock",
        source,
    })?;
    intake::receive(&connection)
}

/// Names this process in `broker.pid`, as the door does for a keeper (`vgpu::broker`).
pub(crate) fn record_identity(dir: &Path) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Field 22; the fields are counted behind the program's name, which can hold anything.
    let start_ticks = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.split(' ').nth(22 - 3))
        .and_then(|field| field.parse::<u64>().ok());
    let identity = serde_json::json!({
        "pid": std::process::id(),
        "start_ticks": start_ticks.unwrap_or_default(),
    });
    std::fs::write(dir.join("broker.pid"), identity.to_string())
}

/// An error with its sources.
pub(super) fn in_one_line(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
