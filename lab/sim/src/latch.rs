//! What threads wait behind until it is opened, without missing that the broker they wait for has gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Closed when it is made; once opened it stays open.
#[derive(Debug)]
pub(crate) struct Latch(EventFd);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The gate is open.
    Opened,
    /// The other side of the connection has closed it.
    PeerGone,
}

impl Latch {
    pub(crate) fn closed() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?))
    }

    pub(crate) fn open(&self) {
        // Nobody reads the counter, so it stays readable; a full one is readable already.
        if let Err(error) = self.0.write(1) {
            tracing::debug!(%error, "the gate was open");
        }
    }

    /// Waits, also for the end of a connection where one is given.
    pub(crate) fn wait(&self, peer: Option<BorrowedFd<'_>>) -> Waited {
        let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // No event is asked for: POLLHUP comes unasked.
        fds.extend(peer.map(|peer| PollFd::new(peer, PollFlags::empty())));
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_ready) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "a gate cannot be waited for");
                    return Waited::PeerGone;
                }
            }
            let stirred = |at: usize| fds.get(at).and_then(PollFd::any).unwrap_or(false);
            if stirred(0) {
                return Waited::Opened;
            }
            if stirred(1) {
                return Waited::PeerGone;
            }
        }
    }
}
