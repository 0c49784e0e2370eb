//! The ledger's running sums against a full count of what they sum up.

use std::collections::{BTreeMap, BTreeSet};

use crate::charge::Purpose;
use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle};
use crate::kinds::{Counted, ObjectKind};
use crate::ledger::{EXPORTS_OF_A_PLACE, Ledger, PinFor};
use crate::tree::Object;

/// A running sum that is not what a full count yields: a bug in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discrepancy {
    /// Bytes held on a card.
    Held {
        /// The card.
        card: CardSlot,
        /// The running sum.
        recorded_bytes: u128,
        /// The full count.
        counted_bytes: u128,
    },
    /// Bytes of a card that have a handle.
    Named {
        /// The card.
        card: CardSlot,
        /// The running sum.
        recorded_bytes: u128,
        /// The full count.
        counted_bytes: u128,
    },
    /// Bytes reserved on a card.
    Reserved {
        /// The card.
        card: CardSlot,
        /// The running sum.
        recorded_bytes: u128,
        /// The full count.
        counted_bytes: u128,
    },
    /// References to an allocation (recorded 0: it is referred to but gone).
    References {
        /// The allocation.
        allocation: AllocationId,
        /// The running count.
        recorded: u64,
        /// The full count.
        counted: u64,
    },
    /// How many there are of something.
    Count {
        /// Of what.
        counted: Counted,
        /// The running count.
        recorded: u64,
        /// The full count.
        found: u64,
    },
    /// An object's edge that the tree's index lacks, a client that its file's lacks, or the other way round.
    Edges {
        /// The client.
        client: ClientHandle,
    },
    /// Operations left something out that could not be: see [`Ledger::inconsistencies`].
    Inconsistent {
        /// How often.
        times: u64,
    },
    /// What registrations hold is not what is recorded as held.
    Registrations,
    /// Pieces of address space that overlap.
    Overlap {
        /// The uvm file.
        file: FileId,
    },
}

impl Ledger {
    /// Counts everything and compares. Cost: all of the ledger; for tests and diagnosis.
    ///
    /// # Errors
    /// The first discrepancy.
    pub fn check_invariants(&self) -> Result<(), Discrepancy> {
        self.check_references()?;
        self.check_bytes()?;
        self.check_counts()?;
        self.check_edges()?;
        self.check_pieces()?;
        self.check_registrations()?;
        match self.inconsistencies() {
            0 => Ok(()),
            times => Err(Discrepancy::Inconsistent { times }),
        }
    }

    /// How often an operation had to leave something out that could not be, such as one more reference to what is gone: a bug in the
    /// ledger, or in whoever makes its operations. Part of the state, so that a successor knows it too.
    #[must_use]
    pub fn inconsistencies(&self) -> u64 {
        self.accounts.inconsistencies()
    }

    fn check_references(&self) -> Result<(), Discrepancy> {
        let handles = self
            .clients
            .values()
            .flat_map(|it| it.tree.objects.values())
            .filter_map(|object| object.allocation);
        let pieces = self
            .mappings
            .values()
            .flat_map(|pieces| pieces.iter())
            .filter_map(|(_, piece)| piece.allocation);
        let exports = self
            .exports
            .values()
            .flat_map(|exports| exports.references.iter().copied());
        let pins = self.pins.values().filter_map(|it| it.source.allocation);
        let mut named: BTreeMap<AllocationId, u32> = BTreeMap::new();
        for id in handles.clone() {
            let count = named.entry(id).or_default();
            *count = count.saturating_add(1);
        }
        let mut found: BTreeMap<AllocationId, u64> = BTreeMap::new();
        let registered = self.registrations.allocations();
        for id in handles
            .chain(pieces)
            .chain(exports)
            .chain(pins)
            .chain(registered)
        {
            let count = found.entry(id).or_default();
            *count = count.saturating_add(1);
        }
        for (id, allocation) in self.accounts.allocations() {
            let handles = named.remove(&id).unwrap_or(0);
            if handles != allocation.handles {
                return Err(Discrepancy::References {
                    allocation: id,
                    recorded: u64::from(allocation.handles),
                    counted: u64::from(handles),
                });
            }
            let counted = found.remove(&id).unwrap_or(0);
            if counted != u64::from(allocation.references) || counted == 0 {
                return Err(Discrepancy::References {
                    allocation: id,
                    recorded: u64::from(allocation.references),
                    counted,
                });
            }
        }
        match found.into_iter().next() {
            Some((allocation, counted)) => Err(Discrepancy::References {
                allocation,
                recorded: 0,
                counted,
            }),
            None => Ok(()),
        }
    }

    fn check_bytes(&self) -> Result<(), Discrepancy> {
        for (card, share) in self.accounts.shares() {
            let allocated = || {
                self.accounts
                    .allocations()
                    .filter(|(_, it)| it.card == card)
            };
            let managed = self.managed.values().flatten();
            let managed = managed.flat_map(|(base, piece)| piece.charges(*base));
            let counted = self.counts.all();
            let counted = counted.map(|(counted, many)| self.counts.host_bytes(counted, many));
            let counted = (card == CardSlot::HOST).then(|| counted.sum::<u64>());
            let counted_bytes: u128 = allocated()
                .map(|(_, it)| it.bytes)
                .chain(managed.filter(|it| it.card == card).map(|it| it.bytes))
                .chain(counted)
                .map(u128::from)
                .sum();
            if counted_bytes != share.held_bytes {
                return Err(Discrepancy::Held {
                    card,
                    recorded_bytes: share.held_bytes,
                    counted_bytes,
                });
            }
            let counted_bytes: u128 = allocated()
                .filter(|(_, it)| it.purpose == Purpose::Memory && it.handles > 0)
                .map(|(_, it)| u128::from(it.bytes))
                .sum();
            if counted_bytes != share.named_bytes {
                return Err(Discrepancy::Named {
                    card,
                    recorded_bytes: share.named_bytes,
                    counted_bytes,
                });
            }
            let counted_bytes: u128 = self
                .reservations
                .values()
                .filter_map(|held| held.demand)
                .filter(|demand| demand.card == card)
                .map(|demand| u128::from(demand.bytes))
                .sum();
            if counted_bytes != share.reserved_bytes {
                return Err(Discrepancy::Reserved {
                    card,
                    recorded_bytes: share.reserved_bytes,
                    counted_bytes,
                });
            }
        }
        Ok(())
    }

    fn live_ranges(&self) -> u64 {
        let ranges = self.ranges.values().map(|ranges| wide(ranges.len()));
        ranges.fold(self.staying_ranges, u64::saturating_add)
    }

    fn check_counts(&self) -> Result<(), Discrepancy> {
        let mut found: BTreeMap<Counted, u64> = BTreeMap::new();
        let mut record = |counted: Counted, more: u64| {
            if more > 0 {
                let count = found.entry(counted).or_default();
                *count = count.saturating_add(more);
            }
        };
        let mut record_kind = |kind: ObjectKind| {
            record(Counted::Kind(kind), 1);
            record(Counted::Objects, 1);
        };
        for client in self.clients.values() {
            record_kind(ObjectKind::Client);
            for object in client.tree.objects.values() {
                record_kind(object.kind);
            }
        }
        for held in self.reservations.values() {
            record_kind(held.kind);
        }
        for held in self.registrations.held.values() {
            if held.name.is_none() {
                record_kind(held.kind);
            }
        }
        for pinned in self.pins.values() {
            if pinned.purpose == PinFor::Duplicate {
                record_kind(pinned.source.kind);
            }
        }
        for pinned in self.pins.values() {
            if let PinFor::Map { cards } = pinned.purpose {
                record(Counted::Mappings, u64::from(cards));
            }
        }
        for pieces in self.mappings.values() {
            record(Counted::Mappings, wide(pieces.len()));
        }
        for pieces in self.managed.values() {
            record(Counted::Mappings, wide(pieces.len()));
        }
        for exports in self.exports.values() {
            record(Counted::Exports, exports.count());
        }
        for pinned in self.pins.values() {
            if pinned.purpose == PinFor::Export {
                record(Counted::Exports, EXPORTS_OF_A_PLACE);
            }
        }
        record(Counted::Registrations, self.registrations.count());
        for pinned in self.pins.values() {
            if pinned.purpose == PinFor::Register {
                record(Counted::Registrations, 1);
            }
        }
        record(Counted::Ranges, self.live_ranges());
        let uvm_files = wide(self.uvm_files.len()).saturating_add(self.staying_uvm_files);
        record(Counted::UvmFiles, uvm_files);
        let recorded: BTreeMap<Counted, u64> = self.counts.all().collect();
        let names: BTreeSet<Counted> = recorded.keys().chain(found.keys()).copied().collect();
        for counted in names {
            let recorded = recorded.get(&counted).copied().unwrap_or(0);
            let found = found.get(&counted).copied().unwrap_or(0);
            if recorded != found {
                return Err(Discrepancy::Count {
                    counted,
                    recorded,
                    found,
                });
            }
        }
        Ok(())
    }

    fn check_edges(&self) -> Result<(), Discrepancy> {
        for (client, it) in &self.clients {
            let tree = &it.tree;
            let edge = |(handle, object): (&ObjectHandle, &Object)| Some((object.parent?, *handle));
            let children: BTreeSet<_> = tree.objects.iter().filter_map(edge).collect();
            let dependants: BTreeSet<_> = tree.needs.iter().map(|(of, to)| (*to, *of)).collect();
            let is_device =
                |object: &Object| matches!(object.kind, ObjectKind::Device | ObjectKind::Subdevice);
            let devices = tree.objects.iter().filter(|(_, it)| is_device(it));
            let mut dependent = tree.needs.iter().map(|(of, _)| of);
            let is_listed = self.clients_by_file.contains(&(it.file, *client));
            if children != tree.children
                || dependants != tree.dependants
                || !devices.map(|(handle, _)| handle).eq(&tree.devices)
                || !dependent.all(|of| tree.objects.contains_key(of))
                || !is_listed
            {
                return Err(Discrepancy::Edges { client: *client });
            }
        }
        match self
            .clients_by_file
            .iter()
            .find(|(file, client)| self.owner_file(*client) != Some(*file))
        {
            Some((_, client)) => Err(Discrepancy::Edges { client: *client }),
            None => Ok(()),
        }
    }

    fn check_registrations(&self) -> Result<(), Discrepancy> {
        let by_pins = self.pins.values().flat_map(|it| &it.holds);
        let found = self.registrations.references(by_pins);
        let held = self.registrations.held.iter();
        let recorded = held.map(|(id, held)| (*id, held.references));
        let is_object = |(client, handle)| self.object(client, handle).is_some();
        match recorded.eq(found) && self.registrations.is_named(is_object) {
            true => Ok(()),
            false => Err(Discrepancy::Registrations),
        }
    }

    fn check_pieces(&self) -> Result<(), Discrepancy> {
        for ((file, _), pieces) in &self.mappings {
            let mut end = None;
            for (base, piece) in pieces.iter() {
                if piece.last < base || end.is_some_and(|end| base <= end) || pieces.is_empty() {
                    return Err(Discrepancy::Overlap { file: *file });
                }
                end = Some(piece.last);
            }
        }
        for (file, pieces) in &self.managed {
            let mut end = None;
            for (base, piece) in pieces {
                if piece.last < *base || end.is_some_and(|end| *base <= end) {
                    return Err(Discrepancy::Overlap { file: *file });
                }
                end = Some(piece.last);
            }
        }
        Ok(())
    }
}
