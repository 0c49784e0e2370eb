//! Memory of the host's that programs have mapped (MAP_MEMORY, ALLOC_MEMORY), charged for as long as they may have it.
//!
//! RM_FREE ends no mapping: the driver keeps the pages until the file that they are mapped with is closed (`nv_alloc_release` and
//! `nvidia_close`, kernel-open/nvidia), and no control group counts them. A control file has one piece of memory to map for all its life
//! (`nv_add_mapping_context_to_file`: a second one is NV_ERR_STATE_IN_USE), and its mappings keep it open. So what such a file was named for
//! stays charged until nobody has the file any more ([`crate::last_reference`]). The driver may free the pages a moment later: for that moment
//! a program that unmaps in one thread and maps in another has more.
//!
//! In strict mode. A successor knows only what is mapped with itself in place: it lets go of what its predecessor held. In compat mode the caller executes these calls, and may name another file than the broker has read.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Mutex;

use driver::{FdSlot, FileId};
use journal::limits::MOST_HOST_MAPPINGS;
use journal::{Change, Journal};
use ledger::{AllocationId, CardSlot, ClientHandle, ObjectHandle, Operation, PinFor, PinToken};
use nvabi::{escape, status};
use sys::sync::lock;
use verdict::{Effect, Memory, Switch};

use super::{Account, Denied, JudgedCall, Why};
use crate::last_reference::{LastReferences, Watching};

/// What the container's files have mapped of the host's memory, or have had.
#[derive(Debug, Default)]
pub(crate) struct HostMappings {
    watched: LastReferences,
    /// References: one of each file, and one more for each mapping with it that the driver has refused.
    held: Mutex<HashMap<(FileId, AllocationId), PinToken>>,
}

impl HostMappings {
    /// Holds what an object has of the host's memory, for as long as anybody has a file. Nothing for other objects.
    fn hold(
        &self,
        change: &mut Change<'_>,
        object: (ClientHandle, ObjectHandle),
        (slot, file): (&FdSlot, FileId),
    ) -> Result<(), Why> {
        let allocation = change.ledger.object(object.0, object.1);
        let allocation = allocation.and_then(|object| object.allocation);
        let is_hosts = change.ledger.card_of(object.0, object.1) == Some(CardSlot::HOST);
        let Some(allocation) = allocation.filter(|_| is_hosts) else {
            return Ok(());
        };
        let mut held = lock(&self.held);
        if held.contains_key(&(file, allocation)) {
            return Ok(());
        }
        if held.len() >= MOST_HOST_MAPPINGS {
            return Err(Why::TooManyHostMappings);
        }
        let pin = change
            .pin(object, PinFor::Map { cards: 0 })
            .map_err(Why::Ledger)?;
        match self.watched.watch(slot.fd.as_fd(), file) {
            Ok(Watching::Yes) => {}
            // A simulated card's: there is no driver behind it that could keep anything.
            Ok(Watching::Impossible) => {
                change.record(Operation::Unpin { pin });
                return Ok(());
            }
            Err(error) => {
                tracing::warn!(%error, "what is mapped of the host's memory stays charged to the container's end");
            }
        }
        held.insert((file, allocation), pin);
        Ok(())
    }
}

/// The file that a call maps memory with; of somebody else's file the driver wants nothing.
fn file_of(fds: &[FdSlot]) -> Option<(&FdSlot, FileId)> {
    let named = fds.iter().find(|slot| slot.segment == 0);
    named.and_then(|slot| Some((slot, slot.file?.0)))
}

impl Account {
    /// Before the driver maps memory of the host's: holds it, until the file that it is mapped with is gone. Nothing for other calls.
    ///
    /// # Errors
    /// [`Why::TooManyHostMappings`], or the ledger's; nothing is held then.
    pub(super) fn begin_host_mapping(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        fds: &[FdSlot],
    ) -> Result<(), Denied> {
        let (Some(mapped), Some(file)) = (mapped_by(call), file_of(fds)) else {
            return Ok(());
        };
        let held = match mapped {
            Mapped::Object(object) => self.host_mappings.hold(change, object, file),
            // Calls under way may pass the limit by their number.
            Mapped::New(_) if lock(&self.host_mappings.held).len() < MOST_HOST_MAPPINGS => Ok(()),
            Mapped::New(_) => Err(Why::TooManyHostMappings),
        };
        held.map_err(|why| self.denied(call, status::NV_ERR_INSUFFICIENT_RESOURCES, why))
    }

    /// The driver has made memory of the host's, and mapped it in the same call.
    pub(super) fn end_host_mapping(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        fds: &[FdSlot],
    ) {
        if let (Some(Mapped::New(client)), Some(file)) = (mapped_by(call), file_of(fds))
            && let Some(made) = call.new_handle()
            && let Err(why) = self
                .host_mappings
                .hold(change, (client, ObjectHandle(made)), file)
        {
            tracing::error!(%why, "what was mapped for the CPU is not held");
        }
    }

    /// Lets go of what was mapped with files that nobody has any more; says whether there were any.
    pub(crate) fn let_unmapped_go(&self, journal: &Journal) -> bool {
        let gone = match self.host_mappings.watched.take_gone() {
            Ok(gone) => gone,
            Err(error) => {
                tracing::warn!(%error, "what was mapped of the host's memory stays charged");
                return false;
            }
        };
        let gone: HashSet<FileId> = gone.into_iter().collect();
        let unmapped: Vec<PinToken> = {
            let mut held = lock(&self.host_mappings.held);
            let unmapped = held.extract_if(|(file, _), _| gone.contains(file));
            unmapped.map(|(_, pin)| pin).collect()
        };
        if unmapped.is_empty() {
            return false;
        }
        let mut change = journal.change();
        for pin in unmapped {
            change.record(Operation::Unpin { pin });
        }
        true
    }
}

/// What a call maps.
enum Mapped {
    Object((ClientHandle, ObjectHandle)),
    /// What it makes, in this client.
    New(ClientHandle),
}

fn mapped_by(call: &JudgedCall<'_>) -> Option<Mapped> {
    if let Effect::CpuMapping {
        client,
        memory,
        switch: Switch::On,
        ..
    } = *call.effect
    {
        return Some(Mapped::Object((ClientHandle(client), ObjectHandle(memory))));
    }
    // Whether it maps as well its flags say (`NVOS02_FLAGS_MAPPING`); it names a file in either case.
    if let Effect::Memory(Memory { client, .. }) = *call.effect
        && call.op.escape() == Some(escape::Id::AllocMemory)
    {
        return Some(Mapped::New(ClientHandle(client)));
    }
    None
}
