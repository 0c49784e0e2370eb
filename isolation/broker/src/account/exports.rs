//! Objects put into control files, and taken out of them.
//!
//! An export is one more reference, which the file holds until nobody has it open. An import is a handle for what the ledger
//! knows the file to hold, so memory that stays within the container is counted once. What another container of the share
//! group has exported is charged to this one as well, once, before the first import of it: neither of the two knows when the other lets go,
//! and memory that both pay for is never too little.

use control::{HOST, PeerExport};
use driver::{FileId, FileKind};
use journal::Change;
use journal::reservation::Reservation;
use journal::state::State;
use ledger::{
    Adopted, CardSlot, ClientHandle, Demand, ObjectHandle, Operation, PinFor, ProcessId, Purpose,
};
use nvabi::status;
use verdict::{Export, Import, Op, TakenOut};

use super::translation::{card_slot, status_of};
use super::{Account, Denied, JudgedCall, Why, names};

/// The file that a control's parameters name, as far as it is one of the driver's.
pub type TransferFile = Option<(FileId, FileKind)>;

impl Account {
    /// Whether all that a call takes out of a file was put there by this container.
    #[must_use]
    pub fn has_exported(state: &State, taken: &TakenOut, transfer_file: TransferFile) -> bool {
        let Some((file, FileKind::Ctl)) = transfer_file else {
            return false;
        };
        let file = ledger::FileId(file.0);
        let ledger = &state.ledger;
        match taken {
            TakenOut::Slots(slots) => slots
                .clone()
                .all(|index| ledger.has_export(file, index) && !ledger.is_adopted(file, index)),
            TakenOut::Figures => ledger.exported_by(file).next().is_some(),
        }
    }

    /// Charges what another container has exported and this one is about to import.
    ///
    /// # Errors
    /// No memory for what does not fit; insufficient permissions for what is on a card that is not granted.
    pub fn adopt(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        file: FileId,
        export: &PeerExport,
    ) -> Result<(), Denied> {
        let demand = match &export.memory {
            Some(memory) => {
                let slot = self.slots.iter().position(|slot| slot.uuid == memory.card);
                let host = (memory.card == HOST).then_some(CardSlot::HOST);
                let card = slot.and_then(card_slot).or(host);
                let card = card.ok_or_else(|| self.foreign(call.op))?;
                Some(Demand {
                    card,
                    bytes: memory.bytes,
                    purpose: Purpose::Memory,
                })
            }
            None => None,
        };
        let operation = Operation::AdoptExport {
            file: ledger::FileId(file.0),
            index: export.index,
            adopted: Adopted {
                origin: export.origin,
                class: export.class,
                demand,
                process: ProcessId(call.origin.process),
            },
        };
        change
            .ledger(operation)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        self.remember_import(change, ledger::FileId(file.0), export.index);
        Ok(())
    }

    /// The refusal of a file that nobody of ours has exported by.
    #[must_use]
    pub fn foreign(&self, op: &Op) -> Denied {
        let status = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
        Denied {
            refusal: op.refuse(status, self.release),
            why: Why::ForeignExport,
        }
    }

    /// One reference for each object, on its way into the file.
    pub(super) fn reserve_exports(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        export: &Export,
    ) -> Result<Reservation, Denied> {
        let Some((file, FileKind::Ctl)) = call.origin.transfer_file else {
            return Err(self.denied(call, status::NV_ERR_INVALID_PARAMETER, Why::NoControlFile));
        };
        if replaces_reported(change, file, export) {
            return Err(self.denied(call, status::NV_ERR_STATE_IN_USE, Why::ReportedExport));
        }
        // RM would export an address space too, and import it below whatever the call names (`space_without_a_card`, names.rs).
        let client = ClientHandle(export.client);
        let not_exported = export.objects.iter().copied().find(|object| {
            let found = change.ledger.object(client, ObjectHandle(*object));
            found.is_some_and(|found| !names::is_memory(found))
        });
        if let Some(object) = not_exported {
            let client = export.client;
            let why = Why::NoMemory { client, object };
            return Err(self.denied(call, status::NV_ERR_INVALID_ARGUMENT, why));
        }
        let mut pins = Vec::new();
        for object in &export.objects {
            let pinned =
                (*object != 0).then(|| change.pin((client, ObjectHandle(*object)), PinFor::Export));
            match pinned.transpose() {
                Ok(pin) => pins.push(pin),
                Err(refusal) => {
                    change.unpin_all(&pins);
                    return Err(self.denied_by_ledger(call, refusal));
                }
            }
        }
        let first = export.first;
        Ok(Reservation::Exports { first, pins })
    }

    /// One reference for each object, on its way out of the file.
    pub(super) fn reserve_imports(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        import: &Import,
    ) -> Result<Reservation, Denied> {
        let Some((file, FileKind::Ctl)) = call.origin.transfer_file else {
            return Err(self.foreign(call.op));
        };
        let mut pins = Vec::new();
        for index in indices(import) {
            match change.pin_export((ledger::FileId(file.0), index), PinFor::Duplicate) {
                Ok(pin) => pins.push(Some(pin)),
                Err(refusal) => {
                    change.unpin_all(&pins);
                    let status = match refusal {
                        ledger::Refusal::UnknownExport { .. } => {
                            status::NV_ERR_INSUFFICIENT_PERMISSIONS
                        }
                        ledger::Refusal::OverQuota { .. }
                        | ledger::Refusal::NoShare { .. }
                        | ledger::Refusal::TooMany { .. }
                        | ledger::Refusal::ForeignClient { .. }
                        | ledger::Refusal::UnknownObject { .. } => status_of(&refusal),
                    };
                    return Err(self.denied(call, status, Why::Ledger(refusal)));
                }
            }
        }
        Ok(Reservation::Imports {
            client: import.client,
            parent: import.parent,
            handles_at: import.handles_at,
            types_at: import.types_at,
            pins,
        })
    }
}

/// Whether an export changes a place whose object another container has been told of: that one is charged for what was there, and would import
/// what is there then. Nothing (a handle of 0) takes back what is there, and another object could follow.
fn replaces_reported(state: &State, file: FileId, export: &Export) -> bool {
    let is_reported = state.file(file).is_some_and(|entry| entry.is_reported);
    let mut places = (u32::from(export.first)..).take(export.objects.len());
    is_reported && places.any(|index| state.ledger.has_export(ledger::FileId(file.0), index))
}

fn indices(import: &Import) -> impl Iterator<Item = u32> {
    let first = u32::from(import.first);
    first..first.saturating_add(u32::from(import.count))
}
