//! What a broker hands to the supervisor that it has started.

use std::os::fd::BorrowedFd;
use std::path::Path;

use sys::pidfd::PidFd;

use super::Error;
use super::fd_store::FdStore;
use crate::link::{self, Estate, FromBroker, FromSupervisor};

/// All of it.
pub(super) struct Handed {
    /// The broker.
    pub(super) process: (i32, PidFd),
    /// How many brokers there were before it.
    pub(super) replaced: u64,
    pub(super) has_served: bool,
    pub(super) estate: Estate,
    pub(super) fd_store: FdStore,
}

/// Receives everything, from `Adopt` to `Ready`.
pub(super) fn receive(broker: BorrowedFd<'_>, dir: &Path) -> Result<Handed, Error> {
    let next = || {
        let message = link::receive::<FromBroker>(broker);
        message
            .map_err(Error::io("hearing the broker of", dir))?
            .ok_or(Error::NotHandedOver)
    };
    // Calls wait while everything goes over: not for a process that has no processor yet.
    link::send(broker, &FromSupervisor::Reads, &[])
        .map_err(Error::io("answering the broker of", dir))?;
    let (first, fds) = next()?;
    let FromBroker::Adopt {
        pid,
        replaced,
        has_served,
    } = first
    else {
        return Err(Error::NotHandedOver);
    };
    let mut fds = fds.into_iter();
    let estate = Estate::take(&mut fds).ok_or(Error::NotHandedOver)?;
    let handle = fds.next().ok_or(Error::NotHandedOver)?;
    let mut fd_store = FdStore::default();
    loop {
        let (message, fds) = next()?;
        match (message, fds.into_iter().next()) {
            (FromBroker::Listener { token, pid }, Some(fd)) => {
                fd_store.adopt_listener(token, fd, pid);
            }
            (FromBroker::Store(what), Some(fd)) => fd_store.store(what, fd),
            (FromBroker::Ready, None) => break,
            _ => return Err(Error::NotHandedOver),
        }
    }
    Ok(Handed {
        process: (pid, PidFd::from(handle)),
        replaced,
        has_served,
        estate,
        fd_store,
    })
}
