//! How much of anything a container may have that has no size of its own. The state at all of these limits fits into the journal.

use ledger::{Counted, Limits, ObjectKind};

/// Counts that no honest container comes near; they bound memory that no size declares, and what a broker keeps. Beyond them a call gets
/// `NV_ERR_INSUFFICIENT_RESOURCES`, and `mmap` `ENOMEM`. Of a container with one card: see [`of_ledger`].
const OF_LEDGER: [(Counted, u64); 16] = [
    (Counted::Kind(ObjectKind::Client), 4096),
    (Counted::Kind(ObjectKind::ChannelGroup), 1024),
    (Counted::Kind(ObjectKind::Channel), 8192),
    (Counted::Kind(ObjectKind::VaSpace), 1024),
    // Each may have an address space of its own by default, whose page tables come out of what RM keeps of the card for itself (gpu/device_share.c).
    (Counted::Kind(ObjectKind::Device), 1024),
    // Engine objects and the like: most of them the driver hands to the firmware (`RS_FLAGS_ALLOC_RPC_TO_PHYS_RM`,
    // resource_list.h), whose heap is small and the same for all. A CUDA context has some hundreds.
    (Counted::Kind(ObjectKind::Other), 1 << 14),
    // The driver keeps an entry in the kernel's memory for each piece of memory that is registered with each of them, which no control group
    // counts (third_party_p2p.c, `CliAddThirdPartyP2PVidmemInfo`). A process has one for each card.
    (Counted::Kind(ObjectKind::PeerSession), 64),
    // The driver walks all that wait for an engine's interrupt at each one, in the interrupt's handler, and takes 64 bytes of the kernel's memory, which no
    // control group counts, for each that waits for something else and keeps records (`_gpuEngineEventNotificationListNotify`, `nv_post_event`). A
    // context has a few.
    (Counted::Kind(ObjectKind::Event), 1024),
    // Since 590 the driver walks all objects of all clients of the host, under its lock, whenever one is freed (`_gpushareddataGetPollDataUnion`,
    // gpu_user_shared_data.c). A context has one.
    (Counted::Kind(ObjectKind::SharedData), 64),
    // Each is a client with a device and a subdevice to the driver and its firmware, past the limits of these (`_ksmdbgssnInitClient`,
    // kernel_sm_debugger_session.c). A context has one.
    (Counted::Kind(ObjectKind::Debugger), 64),
    // In pieces of 2 MiB, which is what `cuMemCreate` makes at least, 512 GiB.
    (Counted::Objects, 1 << 18),
    // External ones and pieces of managed memory.
    (Counted::Mappings, 1 << 18),
    // One for what `cudaMalloc` takes at a time, which may be 2 MiB: 256 GiB. Each is charged to the host's memory as well
    // (`nvabi::uvm::EXTERNAL_RANGE_BYTES`).
    (Counted::Ranges, 1 << 17),
    // A place and the memory for it count one each.
    (Counted::Exports, 1 << 17),
    // Of every channel and address space that there may be, and as many again for a process that registers them anew.
    (Counted::Registrations, 1 << 14),
    // As many as there may be files.
    (Counted::UvmFiles, 12_288),
];

/// What the driver takes of the host's memory for an object, in no control group: 2 to 4 KiB for the object, its place among all of its client's,
/// and its references (`RsResourceRef`, and what the class adds; by reading, 580).
pub const OBJECT_BYTES: u64 = 4096;

/// What it takes for the client, the device and the subdevice of a debugger's session beside the session itself.
pub const DEBUGGER_BYTES: u64 = 3 * OBJECT_BYTES;

/// Beyond so many cards a container has no more of anything: what a broker keeps of it fits its control group and the journal.
pub const MOST_CARDS: u8 = 4;

/// What the ledger of a container with so many cards is limited to. Pieces of memory, their mappings and ranges go by cards. All else may be
/// on one of them, whose firmware and whose reserve of memory it takes: it has one limit whatever the cards.
#[must_use]
pub fn of_ledger(cards: usize) -> Limits {
    let cards = u8::try_from(cards)
        .unwrap_or(MOST_CARDS)
        .clamp(1, MOST_CARDS);
    OF_LEDGER
        .iter()
        .fold(Limits::none(), |limits, (counted, of_one)| {
            let times = match counted {
                Counted::Objects | Counted::Mappings | Counted::Ranges => cards,
                Counted::Kind(_)
                | Counted::Exports
                | Counted::Registrations
                | Counted::UvmFiles => 1,
            };
            limits.with(*counted, of_one.saturating_mul(times.into()))
        })
}

/// Events of a container. The driver keeps each in the kernel's memory, in one list for the whole host that every call walks, and their
/// numbers are looked up nowhere: nothing but this bounds them.
pub const MOST_OS_EVENTS: usize = 4096;

/// Semaphore pools of a container.
pub const MOST_POOLS: usize = 4096;

/// Files with which memory of the host's is mapped, each with a reference in the ledger, and mappings with them that the driver has refused.
pub const MOST_HOST_MAPPINGS: usize = 1 << 16;

/// Files of the driver that a container may have open; a call on any further one gets `EMFILE`. An executor may have 16 384
/// descriptors, for these files and the calls under way.
pub const MOST_FILES: usize = 12_288;

/// Calls under way, with those that wait before they are refused.
pub const MOST_CALLS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_no_size_is_counted() {
        for counted in [
            Counted::Objects,
            Counted::Mappings,
            Counted::Ranges,
            Counted::Exports,
            Counted::Registrations,
            Counted::UvmFiles,
        ] {
            for cards in [0, 1, 4, 64] {
                let most = of_ledger(cards).most(counted);
                assert!(
                    most.is_some_and(|most| most <= 1 << 20),
                    "{counted} has no limit"
                );
            }
        }
    }

    #[test]
    fn pieces_of_memory_are_limited_by_cards_up_to_four() {
        for counted in [Counted::Objects, Counted::Mappings] {
            let most = [0, 1, 2, 4, 8].map(|cards| of_ledger(cards).most(counted));
            assert_eq!(most, [18, 18, 19, 20, 20].map(|bits| Some(1 << bits)));
        }
        let ranges = [0, 1, 2, 4, 8].map(|cards| of_ledger(cards).most(Counted::Ranges));
        assert_eq!(ranges, [17, 17, 18, 19, 19].map(|bits| Some(1 << bits)));
        let devices = Counted::Kind(ObjectKind::Device);
        assert_eq!(of_ledger(1).most(devices), of_ledger(8).most(devices));
    }
}
