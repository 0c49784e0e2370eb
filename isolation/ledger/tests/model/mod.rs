//! A naive account: flat lists of facts, and every figure recounted from them by full scans.
//!
//! Nothing is shared with the ledger's way of working: no running sums, no reference counts (an allocation
//! lives while some fact names it), no tree (what a free takes with it is a fixpoint over all objects),
//! no spans (a mapping is one fact for each address).

use std::collections::{BTreeMap, BTreeSet};

use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, FileId, Freed, Limits, ObjectHandle,
    ObjectKind, PinFor, Place, ProcessId, Purpose, Refusal,
};

/// An allocation by the order in which it was made.
pub(crate) type Alloc = usize;

#[derive(Clone, Debug)]
pub(crate) struct MadeAllocation {
    pub(crate) demand: Demand,
    pub(crate) process: ProcessId,
}

#[derive(Clone, Debug)]
pub(crate) struct ClientFact {
    pub(crate) client: ClientHandle,
    pub(crate) file: FileId,
    pub(crate) process: ProcessId,
}

#[derive(Clone, Debug)]
pub(crate) struct ObjectFact {
    pub(crate) client: ClientHandle,
    pub(crate) handle: ObjectHandle,
    pub(crate) parent: ObjectHandle,
    pub(crate) depends_on: Vec<ObjectHandle>,
    pub(crate) process: ProcessId,
    pub(crate) source: SourceFact,
}

#[derive(Clone, Debug)]
pub(crate) struct SourceFact {
    pub(crate) class: u32,
    pub(crate) kind: ObjectKind,
    pub(crate) card: Option<CardSlot>,
    pub(crate) alloc: Option<Alloc>,
}

/// One mapped address.
#[derive(Clone, Debug)]
pub(crate) struct MappedFact {
    pub(crate) file: FileId,
    pub(crate) card: CardSlot,
    pub(crate) address: u64,
    /// Which call mapped it: neighbours of different calls are different pieces.
    pub(crate) call: usize,
    pub(crate) alloc: Option<Alloc>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) quotas: BTreeMap<CardSlot, u64>,
    pub(crate) peaks: BTreeMap<CardSlot, u128>,
    pub(crate) limits: Limits,
    pub(crate) made: Vec<MadeAllocation>,
    pub(crate) clients: Vec<ClientFact>,
    pub(crate) objects: Vec<ObjectFact>,
    pub(crate) mapped: Vec<MappedFact>,
    pub(crate) ranges: Vec<(FileId, u64, u64)>,
    /// In the order of export: the last of an index is what an import gets.
    pub(crate) exports: Vec<(FileId, u32, SourceFact)>,
    pub(crate) reservations: Vec<(ObjectKind, Option<Demand>)>,
    pub(crate) pins: Vec<(SourceFact, PinFor)>,
    calls: usize,
}

impl Model {
    pub(crate) fn new(quotas: &[(CardSlot, u64)], limits: Limits) -> Self {
        Self {
            quotas: quotas.iter().copied().collect(),
            peaks: BTreeMap::new(),
            limits,
            made: Vec::new(),
            clients: Vec::new(),
            objects: Vec::new(),
            mapped: Vec::new(),
            ranges: Vec::new(),
            exports: Vec::new(),
            reservations: Vec::new(),
            pins: Vec::new(),
            calls: 0,
        }
    }

    // ---- figures ----

    pub(crate) fn living(&self) -> BTreeSet<Alloc> {
        let objects = self.objects.iter().filter_map(|it| it.source.alloc);
        let mapped = self.mapped.iter().filter_map(|it| it.alloc);
        let exports = self.exports.iter().filter_map(|(_, _, it)| it.alloc);
        let pins = self.pins.iter().filter_map(|(it, _)| it.alloc);
        objects.chain(mapped).chain(exports).chain(pins).collect()
    }

    pub(crate) fn held(&self, card: CardSlot) -> u128 {
        self.living()
            .into_iter()
            .map(|alloc| &self.made[alloc].demand)
            .filter(|demand| demand.card == card)
            .map(|demand| u128::from(demand.bytes))
            .sum()
    }

    pub(crate) fn reserved(&self, card: CardSlot) -> u128 {
        self.reservations
            .iter()
            .filter_map(|(_, demand)| *demand)
            .filter(|demand| demand.card == card)
            .map(|demand| u128::from(demand.bytes))
            .sum()
    }

    pub(crate) fn used(&self, card: CardSlot) -> u128 {
        self.held(card) + self.reserved(card)
    }

    pub(crate) fn quota(&self, card: CardSlot) -> u64 {
        self.quotas.get(&card).copied().unwrap_or(0)
    }

    /// (memory, context) by process.
    pub(crate) fn by_process(&self, card: CardSlot) -> BTreeMap<ProcessId, (u128, u128)> {
        let mut sums: BTreeMap<ProcessId, (u128, u128)> = BTreeMap::new();
        for alloc in self.living() {
            let MadeAllocation { demand, process } = &self.made[alloc];
            if demand.card == card && demand.bytes > 0 {
                let sum = sums.entry(*process).or_default();
                match demand.purpose {
                    Purpose::Memory => sum.0 += u128::from(demand.bytes),
                    Purpose::Context => sum.1 += u128::from(demand.bytes),
                }
            }
        }
        sums
    }

    fn objects_of(&self, needed: Option<ObjectKind>) -> u64 {
        let is = |kind: ObjectKind| needed.is_none_or(|needed| needed == kind);
        let clients = self.clients.iter().map(|_| ObjectKind::Client);
        let objects = self.objects.iter().map(|it| it.source.kind);
        let reserved = self.reservations.iter().map(|(kind, _)| *kind);
        let pinned = self
            .pins
            .iter()
            .filter(|(_, purpose)| *purpose == PinFor::Duplicate)
            .map(|(source, _)| source.kind);
        let all = clients.chain(objects).chain(reserved).chain(pinned);
        all.filter(|kind| is(*kind)).count() as u64
    }

    /// Runs of neighbouring addresses that one call mapped.
    fn pieces(&self) -> u64 {
        let starts = self.mapped.iter().filter(|it| {
            !self.mapped.iter().any(|other| {
                other.file == it.file
                    && other.card == it.card
                    && other.call == it.call
                    && other.address.checked_add(1) == Some(it.address)
            })
        });
        starts.count() as u64
    }

    pub(crate) fn count(&self, counted: Counted) -> u64 {
        match counted {
            Counted::Kind(kind) => self.objects_of(Some(kind)),
            Counted::Objects => self.objects_of(None),
            Counted::Ranges => self.ranges.len() as u64,
            Counted::Mappings => {
                let under_way: u64 = self
                    .pins
                    .iter()
                    .map(|(_, purpose)| match purpose {
                        PinFor::Map { cards } => u64::from(*cards),
                        PinFor::Duplicate | PinFor::Export => 0,
                    })
                    .sum();
                self.pieces() + under_way
            }
            Counted::Exports => {
                let exports = self.exports.iter();
                let places: BTreeSet<_> = exports.clone().map(|(file, at, _)| (file, at)).collect();
                let held: BTreeSet<_> = exports
                    .filter_map(|(file, _, it)| Some((file, it.alloc?)))
                    .collect();
                let under_way = self.pins.iter().filter(|(_, it)| *it == PinFor::Export);
                (places.len() + held.len() + 2 * under_way.count()) as u64
            }
        }
    }

    pub(crate) fn object(&self, client: ClientHandle, handle: ObjectHandle) -> Option<&ObjectFact> {
        self.objects
            .iter()
            .find(|it| it.client == client && it.handle == handle)
    }

    pub(crate) fn card_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<CardSlot> {
        let mut at = self.object(client, handle)?;
        loop {
            if at.source.kind == ObjectKind::Invalidated {
                return None;
            }
            let own = at.source.card;
            let memory = at.source.alloc.map(|alloc| self.made[alloc].demand.card);
            if let Some(card) = own.or(memory) {
                return Some(card);
            }
            if at.parent == client.as_object() || at.parent == at.handle {
                return None;
            }
            at = self.object(client, at.parent)?;
        }
    }

    // ---- what happens ----

    fn allowed(&self, counted: Counted, more: u64) -> Result<(), Refusal> {
        match self.limits.most(counted) {
            Some(limit) if self.count(counted) + more > limit => {
                Err(Refusal::TooMany { counted, limit })
            }
            _ => Ok(()),
        }
    }

    fn object_allowed(&self, kind: ObjectKind) -> Result<(), Refusal> {
        self.allowed(Counted::Kind(kind), 1)?;
        self.allowed(Counted::Objects, 1)
    }

    pub(crate) fn reserve(
        &mut self,
        kind: ObjectKind,
        demand: Option<Demand>,
    ) -> Result<(), Refusal> {
        self.object_allowed(kind)?;
        if let Some(demand) = demand {
            let card = demand.card;
            if !self.quotas.contains_key(&card) {
                return Err(Refusal::NoShare { card });
            }
            let used = self.used(card);
            let quota_bytes = self.quota(card);
            let after = used + u128::from(demand.bytes);
            if demand.bytes > 0 && after > u128::from(quota_bytes) {
                return Err(Refusal::OverQuota {
                    card,
                    requested_bytes: demand.bytes,
                    used_bytes: narrow(used),
                    quota_bytes,
                });
            }
        }
        self.reservations.push((kind, demand));
        Ok(())
    }

    pub(crate) fn check_range(&self) -> Result<(), Refusal> {
        self.allowed(Counted::Ranges, 1)
    }

    pub(crate) fn pin(
        &mut self,
        client: ClientHandle,
        object: ObjectHandle,
        purpose: PinFor,
    ) -> Result<(), Refusal> {
        if !self.clients.iter().any(|it| it.client == client) {
            return Err(Refusal::ForeignClient { client });
        }
        let source = match self.object(client, object) {
            Some(found) if found.source.kind != ObjectKind::Invalidated => found.source.clone(),
            Some(_) | None => return Err(Refusal::UnknownObject { client, object }),
        };
        self.pin_source(source, purpose)
    }

    pub(crate) fn pin_export(
        &mut self,
        file: FileId,
        index: u32,
        purpose: PinFor,
    ) -> Result<(), Refusal> {
        let last = self
            .exports
            .iter()
            .rfind(|(f, i, _)| (*f, *i) == (file, index));
        let source = match last {
            Some((_, _, source)) => source.clone(),
            None => return Err(Refusal::UnknownExport { file, index }),
        };
        self.pin_source(source, purpose)
    }

    fn pin_source(&mut self, source: SourceFact, purpose: PinFor) -> Result<(), Refusal> {
        match purpose {
            PinFor::Duplicate => self.object_allowed(source.kind)?,
            PinFor::Map { cards } => self.allowed(Counted::Mappings, u64::from(cards))?,
            PinFor::Export => self.allowed(Counted::Exports, 2)?,
        }
        self.pins.push((source, purpose));
        Ok(())
    }

    pub(crate) fn open_client(
        &mut self,
        file: FileId,
        client: ClientHandle,
        process: ProcessId,
        reservation: usize,
    ) {
        self.reservations.remove(reservation);
        self.clients.retain(|it| it.client != client);
        self.objects.retain(|it| it.client != client);
        self.clients.push(ClientFact {
            client,
            file,
            process,
        });
    }

    pub(crate) fn see_client(
        &mut self,
        file: FileId,
        client: ClientHandle,
        process: ProcessId,
    ) -> bool {
        match self.clients.iter().find(|it| it.client == client) {
            Some(known) => known.file == file,
            None => {
                self.clients.push(ClientFact {
                    client,
                    file,
                    process,
                });
                true
            }
        }
    }

    /// Adds an object after the driver's success. Returns by how much the share is now exceeded, when that
    /// is this object's doing.
    pub(crate) fn add_object(
        &mut self,
        place: Place,
        mut source: SourceFact,
        depends_on: &[ObjectHandle],
        reservation: usize,
        actual: Actual,
    ) -> Option<u64> {
        let (_, demand) = self.reservations.remove(reservation);
        self.vacate(place);
        let mut over = None;
        if let Some(mut demand) = demand {
            let reserved_bytes = demand.bytes;
            if let Actual::Bytes(bytes) = actual {
                demand.bytes = bytes;
            }
            source.alloc = Some(self.made.len());
            self.made.push(MadeAllocation {
                demand,
                process: place.process,
            });
            self.put(place, source, depends_on);
            let used = narrow(self.used(demand.card));
            let exceeded = used.saturating_sub(self.quota(demand.card));
            if demand.bytes > reserved_bytes && exceeded > 0 {
                over = Some(exceeded);
            }
        } else {
            self.put(place, source, depends_on);
        }
        over
    }

    pub(crate) fn add_unconfirmed(
        &mut self,
        place: Place,
        source: SourceFact,
        depends_on: &[ObjectHandle],
    ) -> bool {
        let ours = self
            .clients
            .iter()
            .any(|it| it.client == place.client && it.file == place.file);
        let named = self
            .objects
            .iter()
            .filter(|it| it.client == place.client)
            .any(|it| it.handle == place.handle || leans_on(it, place.handle));
        let is_root = place.handle == place.client.as_object();
        if !ours || named || is_root || self.object_allowed(source.kind).is_err() {
            return false;
        }
        self.put(place, source, depends_on);
        true
    }

    pub(crate) fn duplicate(&mut self, pin: usize, place: Place, depends_on: &[ObjectHandle]) {
        // Room is made while the pin still holds, so it keeps its memory through a replacement.
        self.vacate(place);
        let (source, _) = self.pins.remove(pin);
        self.put(place, source, depends_on);
    }

    fn put(&mut self, place: Place, source: SourceFact, depends_on: &[ObjectHandle]) {
        self.objects.push(ObjectFact {
            client: place.client,
            handle: place.handle,
            parent: place.parent,
            depends_on: depends_on.to_vec(),
            process: place.process,
            source,
        });
    }

    fn vacate(&mut self, place: Place) {
        let Place {
            client,
            file,
            process,
            ..
        } = place;
        if self
            .clients
            .iter()
            .any(|it| it.client == client && it.file != file)
        {
            self.clients.retain(|it| it.client != client);
            self.objects.retain(|it| it.client != client);
        }
        self.see_client(file, client, process);
        self.free_object(client, place.handle);
    }

    pub(crate) fn free(&mut self, client: ClientHandle, handle: ObjectHandle) {
        if handle == client.as_object() {
            self.clients.retain(|it| it.client != client);
            self.objects.retain(|it| it.client != client);
        } else {
            self.free_object(client, handle);
        }
    }

    fn free_object(&mut self, client: ClientHandle, handle: ObjectHandle) {
        let taken_out = self.all_on(client, handle, is_below);
        let dead = self.all_on(client, handle, leans_on);
        self.objects
            .retain(|it| it.client != client || !taken_out.contains(&it.handle));
        for object in &mut self.objects {
            if object.client == client && dead.contains(&object.handle) {
                object.source.kind = ObjectKind::Invalidated;
                object.source.alloc = None;
                object.source.card = None;
                object.depends_on.clear();
            }
        }
    }

    /// A handle, what hangs on it, and what hangs on that.
    fn all_on(
        &self,
        client: ClientHandle,
        handle: ObjectHandle,
        hangs_on: fn(&ObjectFact, ObjectHandle) -> bool,
    ) -> BTreeSet<ObjectHandle> {
        let mut all = BTreeSet::from([handle]);
        loop {
            let more: Vec<ObjectHandle> = self
                .objects
                .iter()
                .filter(|it| it.client == client && !all.contains(&it.handle))
                .filter(|it| all.iter().any(|other| hangs_on(it, *other)))
                .map(|it| it.handle)
                .collect();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        let owned: Vec<ClientHandle> = self
            .clients
            .iter()
            .filter(|it| it.file == file)
            .map(|it| it.client)
            .collect();
        self.clients.retain(|it| it.file != file);
        self.objects.retain(|it| !owned.contains(&it.client));
        self.drop_address_space(file);
        self.exports.retain(|(exporting, _, _)| *exporting != file);
    }

    pub(crate) fn drop_address_space(&mut self, file: FileId) {
        self.mapped.retain(|it| it.file != file);
        self.ranges.retain(|(of, _, _)| *of != file);
    }

    pub(crate) fn add_range(&mut self, file: FileId, base: u64, last: u64) {
        self.ranges
            .retain(|(of, b, l)| *of != file || *l < base || *b > last);
        self.ranges.push((file, base, last));
    }

    pub(crate) fn map(
        &mut self,
        pin: usize,
        file: FileId,
        base: u64,
        last: u64,
        cards: &[CardSlot],
    ) {
        let alloc = self.pins[pin].0.alloc;
        for card in cards {
            self.unmap(file, base, last, Some(*card));
            self.calls += 1;
            self.mapped.extend((base..=last).map(|address| MappedFact {
                file,
                card: *card,
                address,
                call: self.calls,
                alloc,
            }));
        }
        self.pins.remove(pin);
    }

    pub(crate) fn unmap(&mut self, file: FileId, base: u64, last: u64, card: Option<CardSlot>) {
        self.mapped.retain(|it| {
            it.file != file
                || card.is_some_and(|card| card != it.card)
                || it.address < base
                || it.address > last
        });
    }

    pub(crate) fn free_range(&mut self, file: FileId, base: u64) {
        if let Some(at) = self
            .ranges
            .iter()
            .position(|(of, b, _)| *of == file && *b == base)
        {
            let (_, _, last) = self.ranges.remove(at);
            self.unmap(file, base, last, None);
            return;
        }
        // The pieces that start here: walk each run of the same call to its end.
        let before = self.mapped.clone();
        let has = |card, address: Option<u64>, call| {
            before.iter().any(|it| {
                it.file == file && it.card == card && Some(it.address) == address && it.call == call
            })
        };
        for start in before.iter().filter(|it| {
            it.file == file
                && it.address == base
                && !has(it.card, it.address.checked_sub(1), it.call)
        }) {
            let mut last = base;
            while has(start.card, last.checked_add(1), start.call) {
                last += 1;
            }
            self.unmap(file, base, last, Some(start.card));
        }
    }

    pub(crate) fn export(&mut self, pin: usize, file: FileId, index: u32) {
        let (source, _) = self.pins.remove(pin);
        self.exports.push((file, index, source));
    }

    /// What went between `before` and now, from a count of what lived then.
    pub(crate) fn freed_since(&self, before: &Before) -> Freed {
        let living = self.living();
        let mut freed = Freed::default();
        for alloc in before.living.difference(&living) {
            let demand = self.made[*alloc].demand;
            if demand.bytes > 0 {
                let bytes = freed.bytes.entry(demand.card).or_default();
                *bytes = bytes.saturating_add(demand.bytes);
            }
        }
        freed
    }

    pub(crate) fn before(&self) -> Before {
        Before {
            living: self.living(),
            things: self.clients.len() + self.objects.len(),
            scheduled: self.scheduled(),
        }
    }

    /// Channel groups and channels.
    pub(crate) fn scheduled(&self) -> BTreeSet<(ClientHandle, ObjectHandle)> {
        let is_scheduled = |kind| matches!(kind, ObjectKind::ChannelGroup | ObjectKind::Channel);
        let objects = self
            .objects
            .iter()
            .filter(|it| is_scheduled(it.source.kind));
        objects.map(|it| (it.client, it.handle)).collect()
    }

    /// To be called after every step.
    pub(crate) fn record_peaks(&mut self) {
        for card in (0..=u8::MAX).map(CardSlot).take(8) {
            let held = self.held(card);
            let peak = self.peaks.entry(card).or_default();
            *peak = held.max(*peak);
        }
    }
}

pub(crate) struct Before {
    living: BTreeSet<Alloc>,
    /// Clients and objects.
    pub(crate) things: usize,
    pub(crate) scheduled: BTreeSet<(ClientHandle, ObjectHandle)>,
}

fn leans_on(object: &ObjectFact, other: ObjectHandle) -> bool {
    let depends = || object.depends_on.contains(&other) && is_another(object, other);
    is_below(object, other) || depends()
}

fn is_below(object: &ObjectFact, other: ObjectHandle) -> bool {
    object.parent == other && is_another(object, other)
}

fn is_another(object: &ObjectFact, other: ObjectHandle) -> bool {
    other != object.client.as_object() && other != object.handle
}

/// A wide sum as the ledger shows it.
pub(crate) fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
