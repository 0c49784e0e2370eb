//! What the supervisor hands over.

use std::os::fd::{AsFd, OwnedFd};

use supervisor::link::{self, Estate, FromSupervisor, Stored, SupervisorLink};

use super::Error;

/// All that comes between `Take` and `Start`.
pub(super) struct Handed {
    /// How many brokers have served before.
    pub(super) replaced: u64,
    pub(super) estate: Estate,
    /// Token, the process that it is of, and the listener.
    pub(super) listeners: Vec<(u64, Option<i32>, OwnedFd)>,
    pub(super) stored: Vec<(Stored, OwnedFd)>,
}

impl Handed {
    /// Waits for it; `None` when the supervisor ends, or says something else.
    ///
    /// # Errors
    /// [`Error::Supervisor`]
    pub(super) fn receive(link: &SupervisorLink) -> Result<Option<Self>, Error> {
        let Some(socket) = link.socket() else {
            return Ok(None);
        };
        let next = || {
            link::receive::<FromSupervisor>(socket.as_fd())
                .map_err(|source| Error::Supervisor("hearing", source))
        };
        let Some((FromSupervisor::Take { replaced }, fds)) = next()? else {
            return Ok(None);
        };
        let Some(estate) = Estate::take(&mut fds.into_iter()) else {
            return Ok(None);
        };
        let mut handed = Self {
            replaced,
            estate,
            listeners: Vec::new(),
            stored: Vec::new(),
        };
        loop {
            let Some((message, fds)) = next()? else {
                return Ok(None);
            };
            match (message, fds.into_iter().next()) {
                (FromSupervisor::Listener { token, pid }, Some(fd)) => {
                    handed.listeners.push((token, pid, fd));
                }
                (FromSupervisor::Stored(what), Some(fd)) => handed.stored.push((what, fd)),
                (FromSupervisor::Start, None) => return Ok(Some(handed)),
                _ => return Ok(None),
            }
        }
    }
}
