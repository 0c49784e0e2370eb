//! Clients and objects: what is recorded of them once the driver has made or freed them.

use crate::charge::Demand;
#[cfg(doc)]
use crate::charge::Purpose;
use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle, ProcessId};
use crate::kinds::{Counted, ObjectKind};
use crate::ledger::{Client, Freed, Ledger, Reservation, Reserved, Source, edge};
use crate::steps::Stepped;
use crate::tree::{Object, Tree};

/// Where a new handle stands, and who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// The file on which the call was executed; it owns the client.
    pub file: FileId,
    /// The client.
    pub client: ClientHandle,
    /// The parent; the client's own handle for what hangs at the root.
    pub parent: ObjectHandle,
    /// The new object's handle, as the driver returned it.
    pub handle: ObjectHandle,
    /// The process that made the call.
    pub process: ProcessId,
}

/// An object that the driver has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewObject<'a> {
    /// Where it stands.
    pub place: Place,
    /// The driver's class number.
    pub class: u32,
    /// What it is to the ledger.
    pub kind: ObjectKind,
    /// The card, for a device.
    pub card: Option<CardSlot>,
    /// Objects of the same client whose free takes this one with it.
    pub depends_on: &'a [ObjectHandle],
}

/// How much memory the driver really took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Actual {
    /// What was reserved.
    AsReserved,
    /// The size that the driver wrote back. Of a reservation without device memory it means nothing.
    Bytes(u64),
}

/// What a record did beside adding the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The allocation that the new handle refers to.
    pub allocation: Option<AllocationId>,
    /// By how many bytes the card's share is now exceeded, when this very record (more taken than was
    /// reserved) made it so or made it worse. It is recorded all the same.
    pub over_quota_bytes: Option<u64>,
    /// What had this handle before, and all that went with it.
    pub replaced: Freed,
}

impl Ledger {
    /// Records a client that the driver has made on `file`, with the reservation of its slot. A client of
    /// the same handle that is held must be gone, and is freed first.
    pub fn open_client(
        &mut self,
        file: FileId,
        client: ClientHandle,
        process: ProcessId,
        reservation: Reservation,
    ) -> Recorded {
        self.settle(reservation);
        let mut replaced = Freed::default();
        self.drop_client(client, &mut replaced);
        self.insert_client(file, client, process);
        Recorded {
            replaced,
            ..Recorded::default()
        }
    }

    /// Notes a client whose making was not seen, after a call that named it *succeeded* on `file`: only the
    /// driver's success proves that the client is this file's and not another tenant's. Nothing is ever
    /// replaced. Returns whether the client is now known on this file.
    pub fn see_client(&mut self, file: FileId, client: ClientHandle, process: ProcessId) -> bool {
        if !self.clients.contains_key(&client) {
            self.insert_client(file, client, process);
        }
        self.owner_file(client) == Some(file)
    }

    /// Records an object that the driver has made, and charges it with what it really took. Its client is
    /// noted if it was not known; one known on another file must be gone, and is freed first, and so is an
    /// object of the same handle with all that hangs on it.
    pub fn add_object(
        &mut self,
        new: NewObject<'_>,
        reservation: Reservation,
        actual: Actual,
    ) -> Recorded {
        let demand = self
            .settle(reservation)
            .and_then(|held: Reserved| held.demand);
        let mut recorded = Recorded {
            replaced: self.vacate(new.place),
            ..Recorded::default()
        };
        if let Some(demand) = demand {
            self.charge_actual(demand, new.place.process, actual, &mut recorded);
        }
        let source = Source {
            class: new.class,
            kind: new.kind,
            card: new.card,
            allocation: recorded.allocation,
        };
        self.insert_object(new.place, source, new.depends_on, &mut recorded.replaced);
        recorded
    }

    /// Notes an uncharged object of a call whose result the broker will not see (the kernel executes it
    /// after the answer). It changes nothing that is held: if the client is not known on this file or the
    /// handle is taken, nothing is added. Returns whether it was.
    pub fn add_unconfirmed(&mut self, new: NewObject<'_>) -> bool {
        let Place {
            file,
            client,
            handle,
            ..
        } = new.place;
        let free = self.clients.get(&client).is_some_and(|owner| {
            owner.file == file && !owner.tree.is_named(handle) && handle != client.as_object()
        });
        if free && self.check_object(new.kind).is_ok() {
            let source = Source {
                class: new.class,
                kind: new.kind,
                card: new.card,
                allocation: None,
            };
            // Without an allocation it takes nobody's place.
            self.insert_object(new.place, source, new.depends_on, &mut Freed::default());
            return true;
        }
        false
    }

    /// Sets what the driver takes by itself for an object ([`Purpose::Context`]) to a better figure; further handles share it. It is not
    /// refused, also where it passes the quota: the driver has taken it. What is asked for by size, or is not known, stays.
    pub fn recharge(&mut self, client: ClientHandle, object: ObjectHandle, bytes: u64) {
        let allocation = self.object(client, object).and_then(|it| it.allocation);
        if let Some(id) = allocation {
            self.accounts.recharge(id, bytes);
        }
    }

    /// Records that the driver has freed an object: it, everything below it, everything that depends on
    /// these. Of the last the names are left, as [`ObjectKind::Invalidated`]: with nothing charged, and counted as objects. The client's own handle frees the client. What is not known is no error: the driver too
    /// answers such a free with success.
    pub fn free(&mut self, client: ClientHandle, handle: ObjectHandle) -> Freed {
        let mut freed = Freed::default();
        if handle == client.as_object() {
            self.drop_client(client, &mut freed);
        } else {
            self.drop_object(client, handle, &mut freed);
        }
        freed
    }

    /// Records that the last descriptor of a file is closed: its clients, mappings, ranges, exports and registrations go.
    /// No call may be under way on the file (the broker's own descriptor keeps it alive that long).
    pub fn close_file(&mut self, file: FileId) -> Freed {
        let mut freed = self.drop_address_space(file);
        self.drop_all_registrations(file, &mut freed);
        let all = (file, ClientHandle(0))..=(file, ClientHandle(u32::MAX));
        let owned: Vec<ClientHandle> = self
            .clients_by_file
            .range(all)
            .map(|(_, client)| *client)
            .stepped()
            .collect();
        for client in owned {
            self.drop_client(client, &mut freed);
        }
        if self.uvm_files.remove(&file) {
            self.count_fewer(Counted::UvmFiles, 1);
        }
        if let Some(exports) = self.exports.remove(&file) {
            self.count_fewer(Counted::Exports, exports.count());
            for allocation in exports.references.into_iter().stepped() {
                self.release(Some(allocation), &mut freed);
            }
        }
        freed
    }

    /// Puts an object in where [`Ledger::vacate`] has made room, and counts it.
    pub(crate) fn insert_object(
        &mut self,
        place: Place,
        source: Source,
        depends_on: &[ObjectHandle],
        freed: &mut Freed,
    ) {
        let Place {
            client,
            parent,
            handle,
            process,
            ..
        } = place;
        let Some(owner) = self.clients.get_mut(&client) else {
            // It was noted before its object.
            self.accounts.record_inconsistency();
            return;
        };
        let needs = depends_on
            .iter()
            .filter_map(|other| edge(client, handle, *other));
        let parent = edge(client, handle, parent);
        let allocation = source
            .allocation
            .and_then(|id| self.accounts.allocation(id));
        let above = parent.and_then(|parent| owner.tree.objects.get(&parent));
        let on_card = source
            .card
            .or_else(|| allocation.map(|allocation| allocation.card))
            .or_else(|| above?.on_card);
        let object = Object {
            class: source.class,
            kind: source.kind,
            parent,
            process,
            card: source.card,
            on_card,
            allocation: source.allocation,
        };
        owner.tree.insert(handle, object, needs);
        if let Some(id) = source.allocation {
            self.accounts.name(id);
        }
        self.count_object(source.kind);
        self.hold_context(client, parent, (source.kind, source.allocation), freed);
    }

    /// The driver has made `place.handle`: whatever the ledger has in its way is gone.
    pub(crate) fn vacate(&mut self, place: Place) -> Freed {
        let mut freed = Freed::default();
        if self
            .owner_file(place.client)
            .is_some_and(|file| file != place.file)
        {
            self.drop_client(place.client, &mut freed);
        }
        if !self.clients.contains_key(&place.client) {
            self.insert_client(place.file, place.client, place.process);
        }
        self.drop_object(place.client, place.handle, &mut freed);
        freed
    }

    fn charge_actual(
        &mut self,
        demand: Demand,
        process: ProcessId,
        actual: Actual,
        recorded: &mut Recorded,
    ) {
        let bytes = match actual {
            Actual::AsReserved => demand.bytes,
            Actual::Bytes(bytes) => bytes,
        };
        let id = self
            .accounts
            .charge(demand.card, bytes, demand.purpose, process);
        recorded.allocation = Some(id);
        if bytes > demand.bytes {
            let over = self
                .used(demand.card)
                .saturating_sub(self.quota(demand.card));
            recorded.over_quota_bytes = (over > 0).then_some(over);
        }
    }

    fn insert_client(&mut self, file: FileId, client: ClientHandle, process: ProcessId) {
        self.count_object(ObjectKind::Client);
        self.clients_by_file.insert((file, client));
        self.clients.insert(
            client,
            Client {
                file,
                process,
                tree: Tree::default(),
            },
        );
    }

    fn drop_client(&mut self, client: ClientHandle, freed: &mut Freed) {
        if let Some(gone) = self.clients.remove(&client) {
            self.clients_by_file.remove(&(gone.file, client));
            self.uncount_object(ObjectKind::Client);
            let objects = gone.tree.objects;
            freed.objects = freed
                .objects
                .saturating_add(wide(objects.len()).saturating_add(1));
            self.bury(client, objects.into_iter(), freed);
        }
    }

    fn drop_object(&mut self, client: ClientHandle, handle: ObjectHandle, freed: &mut Freed) {
        if let Some(owner) = self.clients.get_mut(&client) {
            let removed = owner.tree.remove(handle);
            for _name in removed.invalidated.iter().stepped() {
                self.count_object(ObjectKind::Invalidated);
            }
            freed.objects = freed.objects.saturating_add(wide(removed.taken_out.len()));
            let gone = removed.taken_out.into_iter().chain(removed.invalidated);
            self.bury(client, gone, freed);
        }
    }

    fn bury(
        &mut self,
        client: ClientHandle,
        objects: impl Iterator<Item = (ObjectHandle, Object)>,
        freed: &mut Freed,
    ) {
        for (handle, object) in objects.stepped() {
            if matches!(object.kind, ObjectKind::ChannelGroup | ObjectKind::Channel) {
                freed.scheduled.insert((client, handle));
            }
            // What a registration holds counts on.
            if !self.lose_name(client, handle) {
                self.uncount_object(object.kind);
            }
            if let Some(id) = object.allocation {
                self.accounts.unname(id);
                self.release(Some(id), freed);
            }
        }
    }
}
