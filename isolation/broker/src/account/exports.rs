//! Objects put into control files, and taken out of them.
//!
//! An export is one more reference, which the file holds until nobody has it open. An import is a handle for what the ledger
//! knows the file to hold, so memory that stays within the container is counted once. What another container of the share
//! group has exported is charged to this one as well, once, before the first import of it: neither of the two knows when the other lets go,
//! and memory that both pay for is never too little.

use driver::{FileId, FileKind, Segment};
use ledger::{
    Adopted, Applied, CardSlot, Demand, ObjectHandle, ObjectKind, Operation, PinFor, PinToken,
    Place, ProcessId, Purpose,
};
use nvabi::bytes::u32_at;
use nvabi::status;
use verdict::{Effect, Export, Import, Op, Refusal};

use super::translation::{card_slot, status_of};
use super::{Account, Why};
use crate::journal::Change;
use crate::peers::{HOST, PeerExport};
use crate::state::{SetAside, State};

/// The file that a control's parameters name, as far as it is one of the driver's.
pub type Carrier = Option<(FileId, FileKind)>;

/// Memory, and what stands for memory of several cards.
fn may_be_exported(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::Memory | ObjectKind::Other => true,
        ObjectKind::Client
        | ObjectKind::Device
        | ObjectKind::Subdevice
        | ObjectKind::VaSpace
        | ObjectKind::ChannelGroup
        | ObjectKind::Channel
        | ObjectKind::ContextShare
        | ObjectKind::Invalidated => false,
    }
}

impl Account {
    /// Whether all that a call takes out of a file was put there by this container.
    #[must_use]
    pub fn has_exported(state: &State, effect: &Effect, carrier: Carrier) -> bool {
        let Some((file, FileKind::Ctl)) = carrier else {
            return false;
        };
        let file = ledger::FileId(file.0);
        let ledger = &state.ledger;
        match effect {
            Effect::Import(import) => indices(import)
                .all(|index| ledger.has_export(file, index) && !ledger.is_adopted(file, index)),
            Effect::ExportInfo { .. } => ledger.exported_by(file).next().is_some(),
            Effect::None
            | Effect::Client
            | Effect::MapDma { .. }
            | Effect::Object { .. }
            | Effect::Memory(_)
            | Effect::Free { .. }
            | Effect::Dup { .. }
            | Effect::Range { .. }
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            | Effect::FreeRange { .. }
            | Effect::Export(_)
            | Effect::Managed { .. }
            | Effect::ChannelClients { .. }
            | Effect::Schedule(_)
            | Effect::OsEvent { .. }
            | Effect::Pool { .. }
            | Effect::Answered { .. }
            | Effect::NamesCards { .. }
            | Effect::View(_) => true,
        }
    }

    /// Charges what another container has exported and this one is about to import.
    ///
    /// # Errors
    /// No memory for what does not fit; insufficient permissions for what lies on a card that is not granted.
    pub fn adopt(
        &self,
        change: &mut Change<'_>,
        op: &Op,
        file: FileId,
        process: i32,
        export: &PeerExport,
    ) -> Result<(), (Refusal, Why)> {
        let demand = match &export.memory {
            Some(memory) => {
                let slot = self.slots.iter().position(|slot| slot.uuid == memory.card);
                let host = (memory.card == HOST).then_some(CardSlot::HOST);
                let card = slot.and_then(card_slot).or(host);
                let card = card.ok_or_else(|| self.foreign(op))?;
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
                process: ProcessId(process),
            },
        };
        change.ledger(operation).map(drop).map_err(|refusal| {
            let status = status_of(&refusal);
            (op.refuse(status, self.release), Why::Ledger(refusal))
        })
    }

    /// The refusal of a file that nobody of ours has exported by.
    #[must_use]
    pub fn foreign(&self, op: &Op) -> (Refusal, Why) {
        let status = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
        (op.refuse(status, self.release), Why::ForeignExport)
    }

    /// One reference for each object, on its way into the file.
    pub(super) fn pin_exports(
        &self,
        change: &mut Change<'_>,
        export: &Export,
        carrier: Carrier,
        op: &Op,
    ) -> Result<SetAside, (Refusal, Why)> {
        let Some((_, FileKind::Ctl)) = carrier else {
            let status = status::NV_ERR_INVALID_PARAMETER;
            return Err((op.refuse(status, self.release), Why::NoControlFile));
        };
        // RM would export an address space too, and import it below whatever the call names (`space_without_a_card`, names.rs).
        let not_exported = export.objects.iter().copied().find(|object| {
            let client = ledger::ClientHandle(export.client);
            let found = change.ledger.object(client, ObjectHandle(*object));
            found.is_some_and(|found| !may_be_exported(found.kind))
        });
        if let Some(object) = not_exported {
            let refusal = op.refuse(status::NV_ERR_INVALID_ARGUMENT, self.release);
            let client = export.client;
            return Err((refusal, Why::NoMemory { client, object }));
        }
        let pins = export.objects.iter().map(|object| {
            (*object != 0).then_some(Operation::Pin {
                client: ledger::ClientHandle(export.client),
                object: ObjectHandle(*object),
                purpose: PinFor::Export,
            })
        });
        self.pin_all(change, pins, op)
    }

    /// One reference for each object, on its way out of the file.
    pub(super) fn pin_imports(
        &self,
        change: &mut Change<'_>,
        import: &Import,
        carrier: Carrier,
        op: &Op,
    ) -> Result<SetAside, (Refusal, Why)> {
        let Some((file, FileKind::Ctl)) = carrier else {
            return Err(self.foreign(op));
        };
        let pins = indices(import).map(|index| {
            Some(Operation::PinExport {
                file: ledger::FileId(file.0),
                index,
                purpose: PinFor::Duplicate,
            })
        });
        self.pin_all(change, pins, op)
    }

    fn pin_all(
        &self,
        change: &mut Change<'_>,
        pins: impl Iterator<Item = Option<Operation>>,
        op: &Op,
    ) -> Result<SetAside, (Refusal, Why)> {
        let mut taken: Vec<Option<PinToken>> = Vec::new();
        for pin in pins {
            let pinned = pin.map(|operation| change.ledger(operation)).transpose();
            match pinned {
                Ok(Some(Applied::Pinned(pin))) => taken.push(Some(pin)),
                Ok(_) => taken.push(None),
                Err(refusal) => {
                    self.give_back(change, &SetAside::Pins(taken));
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
                    return Err((op.refuse(status, self.release), Why::Ledger(refusal)));
                }
            }
        }
        Ok(SetAside::Pins(taken))
    }

    pub(super) fn book_exports(
        &self,
        change: &mut Change<'_>,
        export: &Export,
        pins: &[Option<PinToken>],
        carrier: Carrier,
    ) {
        let Some((file, _)) = carrier else {
            return self.give_back(change, &SetAside::Pins(pins.to_vec()));
        };
        for (index, pin) in (u32::from(export.first)..).zip(pins) {
            if let Some(pin) = *pin {
                change.record(Operation::Export {
                    pin,
                    file: ledger::FileId(file.0),
                    index,
                });
            }
        }
    }

    pub(super) fn book_imports(
        change: &mut Change<'_>,
        import: &Import,
        pins: &[Option<PinToken>],
        params: &[u8],
        place: impl Fn(&State, u32) -> Place,
    ) {
        for (slot, pin) in pins.iter().enumerate() {
            let Some(pin) = *pin else { continue };
            let handle = u32_at(params, import.handles_at + slot * 4).unwrap_or_default();
            let is_empty = import
                .types_at
                .is_some_and(|at| params.get(at + slot) == Some(&0));
            if handle == 0 || is_empty {
                change.record(Operation::Unpin { pin });
            } else {
                let place = place(change, handle);
                change.record(Operation::Duplicate { pin, place });
            }
        }
    }
}

/// Whether what an export put into a file, or what an import made of it, is there.
pub(super) fn stands(state: &State, effect: &Effect, carrier: Carrier, answer: &[Segment]) -> bool {
    let (Some((file, _)), Some(params)) = (carrier, answer.get(1)) else {
        return false;
    };
    let file = ledger::FileId(file.0);
    if let Effect::Export(export) = effect {
        let mut places = (u32::from(export.first)..).zip(&export.objects);
        return places.all(|(index, object)| *object == 0 || state.ledger.has_export(file, index));
    }
    if let Effect::Import(import) = effect {
        let handles = (0..usize::from(import.count))
            .filter_map(|slot| u32_at(&params.bytes, import.handles_at + slot * 4));
        let client = ledger::ClientHandle(import.client);
        let known = |handle| state.ledger.object(client, ObjectHandle(handle)).is_some();
        let mut made = handles.filter(|handle| *handle != 0).peekable();
        return made.peek().is_some() && made.all(known);
    }
    false
}

fn indices(import: &Import) -> impl Iterator<Item = u32> {
    let first = u32::from(import.first);
    first..first.saturating_add(u32::from(import.count))
}
