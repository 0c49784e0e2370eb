//! What a container has exported, for the broker of another container of its share group.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use control::{ExportsOf, HOST, PeerExport, PeerExports, PeerMemory};
use ledger::Exported;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::container::Container;
use crate::peers::Peers;

/// Answers another broker: what this container has exported by the file that is under a number in the asking process.
pub(super) fn answer(
    container: &Container,
    asker: &UnixStream,
    request: &ExportsOf,
) -> PeerExports {
    let ours = container.call_rules.peers.as_ref().map(Peers::group);
    let asker = getsockopt(&asker.as_fd(), PeerCredentials).map(|peer| peer.pid());
    let (true, Ok(pid)) = (ours == Some(request.group.as_str()), asker) else {
        return PeerExports {
            exports: Vec::new(),
        };
    };
    let same = container.files.of_process(pid, request.fd).ok().flatten();
    let same = same.map(|file| ledger::FileId(file.id.0));
    let state = container.journal.change();
    let reported = |exported: Exported| {
        let memory = match exported.allocation {
            Some(id) => {
                let allocation = state.ledger.allocation(id)?;
                let slots = container.account.slots();
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
    let exports = same.map(|file| {
        state
            .ledger
            .exported_by(file)
            .filter_map(reported)
            .collect()
    });
    PeerExports {
        exports: exports.unwrap_or_default(),
    }
}
