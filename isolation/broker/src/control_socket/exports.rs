//! What a container has exported, for the broker of another container of its share group.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use control::{ExportsOf, HOST, PeerExport, PeerExports, PeerMemory};
use journal::Journal;
use journal::reservation::Reservation;
use journal::state::{Op, State};
use ledger::{Exported, FileId};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::account::Account;
use crate::files::FileTable;

/// The file of this container's that another broker asks about: the one under a number in the asking process. `None` where there is none, or
/// where the two containers have no share group in common.
pub(super) fn file_of(
    files: &FileTable,
    group: Option<&str>,
    asker: &UnixStream,
    request: &ExportsOf,
) -> Option<FileId> {
    if group != Some(request.group.as_str()) {
        return None;
    }
    let asker = getsockopt(&asker.as_fd(), PeerCredentials).ok()?;
    let same = files.of_process(asker.pid(), request.fd).ok().flatten()?;
    Some(FileId(same.id.0))
}

/// Answers the other broker: what this container has exported by the file, and does not replace from now on. Of a place that an export is on its
/// way to nobody knows what is there.
pub(super) fn by(account: &Account, journal: &Journal, file: Option<FileId>) -> PeerExports {
    let Some(file) = file else {
        return PeerExports {
            exports: Vec::new(),
        };
    };
    let mut state = journal.change();
    let of = driver::FileId(file.0);
    if state.is_claimed(of) && state.file(of).is_some_and(|entry| !entry.is_reported) {
        state.record_op(Op::FileReported(of));
    }
    let reported = |exported: Exported| {
        let memory = match exported.allocation {
            Some(id) => {
                let allocation = state.ledger.allocation(id)?;
                let slots = account.slots();
                let card = match allocation.card {
                    ledger::CardSlot::HOST => HOST.to_owned(),
                    card => slots.get(usize::from(card.0))?.uuid.clone(),
                };
                Some(PeerMemory {
                    card,
                    bytes: allocation.bytes,
                })
            }
            None => None,
        };
        Some(PeerExport {
            index: exported.index,
            class: exported.class,
            memory,
            origin: exported.allocation.map_or(u64::MAX, |id| id.number()),
        })
    };
    let exports = state.ledger.exported_by(file);
    let settled = exports.filter(|exported| !is_on_its_way(&state, of, exported.index));
    PeerExports {
        exports: settled.filter_map(reported).collect(),
    }
}

/// Whether the driver may be putting something into a place of a file.
fn is_on_its_way(state: &State, file: driver::FileId, index: u32) -> bool {
    state.open().any(|(_, call)| {
        let Reservation::Exports { first, pins } = &call.begun.reservation else {
            return false;
        };
        let mut named = call.begun.fds.iter().filter_map(|fd| fd.file);
        let place = index
            .checked_sub(u32::from(*first))
            .and_then(|at| pins.get(usize::try_from(at).ok()?));
        call.finished.is_none() && place.is_some() && named.any(|(named, _kind)| named == file)
    })
}
