//! What to do while the system gives no descriptor, no memory or no thread: keep some in reserve, pause instead of spinning, and
//! wait a moment before a call fails for it.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use caps::Capability;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// Whoever has it passes descriptors however many of its user's are in unread messages, of the whole host (`too_many_unix_fds`): a tenant
/// who is the same user could keep all others from that. CAP_SYS_ADMIN would do as well, which NVIDIA's driver obeys.
pub const PASSES_DESCRIPTORS: Capability = Capability::CAP_SYS_RESOURCE;
/// Enough for one control connection with its answer, or one hand-over.
const SPARES: usize = 6;
/// A socket whose connection could not be accepted is not looked at for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// A call waits so often, so long each time, before it fails for lack of a descriptor.
const TRIES: u32 = 40;
const PATIENCE: Duration = Duration::from_millis(25);

/// Whether an error says that the system has nothing to give at this moment.
#[must_use]
pub fn is_scarcity(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(
            Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOMEM
                | Errno::ENOBUFS
                | Errno::EAGAIN
                // Root's descriptors in unread messages, where there is no [`PASSES_DESCRIPTORS`].
                | Errno::ETOOMANYREFS
        )
    )
}

/// Does something that needs descriptors, and again after a moment while there are none and `goes_on` says so.
///
/// # Errors
/// That of the last try.
pub fn wait_out<T>(
    goes_on: impl Fn() -> bool,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for _try in 0..TRIES {
        match attempt() {
            Err(error) if is_scarcity(&error) && goes_on() => std::thread::sleep(PATIENCE),
            other => return other,
        }
    }
    attempt()
}

/// Descriptors that are open for nothing, and closed when one is needed.
#[derive(Debug, Default)]
pub struct Spares(Vec<OwnedFd>);

impl Spares {
    /// As many as the system gives now.
    pub fn new() -> Self {
        let mut spares = Self::default();
        // The next look takes what there is none of now.
        let _later = spares.refill();
        spares
    }

    /// Takes what is missing, if there is any to be had.
    ///
    /// # Errors
    /// There are not as many, or none beyond them.
    pub fn refill(&mut self) -> io::Result<()> {
        while self.0.len() < SPARES {
            self.0.push(File::open("/dev/null")?.into());
        }
        File::open("/dev/null").map(drop)
    }

    /// Closes all.
    pub fn release(&mut self) {
        self.0.clear();
    }
}

/// A watched socket that is left alone for a while after it could not be served: it would be reported again at once.
#[derive(Debug)]
pub struct Watched {
    token: u64,
    paused_until: Option<Instant>,
}

impl Watched {
    /// Of a socket that is watched under this token.
    #[must_use]
    pub fn new(token: u64) -> Self {
        Self {
            token,
            paused_until: None,
        }
    }

    /// Looks at it no more until [`Watched::resume`].
    pub fn pause(&mut self, epoll: &Epoll, socket: BorrowedFd<'_>) {
        self.paused_until = Some(Instant::now() + PAUSE);
        let mut nothing = EpollEvent::new(EpollFlags::empty(), self.token);
        // It is registered; the worst that comes of a failure is another turn.
        let _registered = epoll.modify(socket, &mut nothing);
    }

    /// Looks at it again once the pause is over.
    pub fn resume(&mut self, epoll: &Epoll, socket: BorrowedFd<'_>) {
        if self
            .paused_until
            .is_some_and(|until| Instant::now() >= until)
        {
            let mut input = EpollEvent::new(EpollFlags::EPOLLIN, self.token);
            if epoll.modify(socket, &mut input).is_ok() {
                self.paused_until = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn scarcity_is_waited_out_and_other_errors_are_not() {
        let tries = Cell::new(0);
        let after_three = wait_out(
            || true,
            || {
                tries.set(tries.get() + 1);
                if tries.get() <= 3 {
                    return Err(Errno::EMFILE.into());
                }
                Ok(tries.get())
            },
        );
        assert_eq!(after_three.unwrap(), 4);
        let gone = wait_out::<()>(
            || true,
            || {
                tries.set(tries.get() + 1);
                Err(Errno::ESRCH.into())
            },
        );
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(Errno::ESRCH as i32));
        assert_eq!(tries.get(), 5);
        // A caller that waits no more is not waited for either.
        let given_up = wait_out::<()>(|| false, || Err(Errno::ENFILE.into()));
        assert!(is_scarcity(&given_up.unwrap_err()));
    }
}
