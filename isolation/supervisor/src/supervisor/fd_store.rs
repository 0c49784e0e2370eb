//! The descriptors that outlive brokers.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::epoll::Epoll;

use crate::link::Stored;

/// Listeners by token, and what brokers have stored.
#[derive(Debug, Default)]
pub(super) struct FdStore {
    listeners: BTreeMap<u64, (Option<i32>, OwnedFd)>,
    last_token: u64,
    stored: HashMap<Key, (Stored, OwnedFd)>,
}

/// A broker that releases a file need not know its kind.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    File(u64),
    Answer(u64),
    Session,
    LastReferences,
}

fn key(what: &Stored) -> Key {
    match what {
        Stored::File(id, _) => Key::File(id.0),
        Stored::Answer(call) => Key::Answer(*call),
        Stored::Session => Key::Session,
        Stored::LastReferences => Key::LastReferences,
    }
}

impl FdStore {
    pub(super) fn add_listener(&mut self, listener: OwnedFd, pid: Option<i32>) -> u64 {
        self.last_token = self.last_token.saturating_add(1);
        self.listeners.insert(self.last_token, (pid, listener));
        self.last_token
    }

    /// One that a broker serves already, by its token.
    pub(super) fn adopt_listener(&mut self, token: u64, listener: OwnedFd, pid: Option<i32>) {
        self.last_token = self.last_token.max(token);
        self.listeners.insert(token, (pid, listener));
    }

    /// No process has the filter any more.
    pub(super) fn forget_listener(&mut self, epoll: &Epoll, token: u64) {
        if let Some((_, listener)) = self.listeners.remove(&token) {
            let _closed_anyway = epoll.delete(listener);
        }
    }

    pub(super) fn listener(&self, token: u64) -> Option<(u64, Option<i32>, BorrowedFd<'_>)> {
        let (pid, listener) = self.listeners.get(&token)?;
        Some((token, *pid, listener.as_fd()))
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = (u64, Option<i32>, BorrowedFd<'_>)> {
        self.listeners
            .iter()
            .map(|(token, (pid, listener))| (*token, *pid, listener.as_fd()))
    }

    pub(super) fn store(&mut self, what: Stored, fd: OwnedFd) {
        self.stored.insert(key(&what), (what, fd));
    }

    pub(super) fn release(&mut self, what: &[Stored]) {
        for what in what {
            self.stored.remove(&key(what));
        }
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = (Stored, BorrowedFd<'_>)> {
        self.stored.values().map(|(what, fd)| (*what, fd.as_fd()))
    }
}
