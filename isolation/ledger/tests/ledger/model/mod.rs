//! A naive account: flat lists of facts, and every figure recounted from them by full scans.
//!
//! Nothing is shared with the ledger's way of working: no running sums, no reference counts (an allocation
//! lives while some fact names it), no tree (what a free takes with it is a fixpoint over all objects),
//! no spans (a mapping is one fact for each address).

use std::collections::{BTreeMap, BTreeSet};

use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, FileId, Freed, Limits, ObjectHandle,
    ObjectKind, PinFor, Place, ProcessId, Purpose, Refusal, Registered, Unregistered,
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
    /// Which it is, by the order in which they were made. What is only a name is none.
    pub(crate) serial: Option<usize>,
}

/// An object that a registration holds, whatever its handle names now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldFact {
    pub(crate) serial: usize,
    kind: ObjectKind,
    alloc: Option<Alloc>,
}

/// One registration.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredFact {
    file: FileId,
    card: CardSlot,
    registered: Registered,
    holds: Vec<HeldFact>,
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

/// The same limits, and what the driver takes of the host's memory for each.
pub(crate) fn with_host_bytes(limits: Limits) -> Limits {
    COSTING
        .into_iter()
        .fold(limits, |limits, (counted, bytes)| {
            limits.with_host_bytes(counted, bytes)
        })
}

const COSTING: [(Counted, u64); 3] = [
    (Counted::Objects, 3),
    (Counted::Ranges, 7),
    (Counted::UvmFiles, 11),
];

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
    uvm_files: BTreeSet<FileId>,
    /// In the order of export: the last of an index is what an import gets.
    pub(crate) exports: Vec<(FileId, u32, SourceFact)>,
    pub(crate) reservations: Vec<(ObjectKind, Option<Demand>)>,
    pub(crate) pins: Vec<(SourceFact, PinFor)>,
    /// What the pins for registrations hold, in the same order.
    holds: Vec<Vec<HeldFact>>,
    registrations: Vec<RegisteredFact>,
    /// What the context of a held object was charged to an object below it.
    contexts: BTreeMap<usize, Alloc>,
    serials: usize,
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
            uvm_files: BTreeSet::new(),
            exports: Vec::new(),
            reservations: Vec::new(),
            pins: Vec::new(),
            holds: Vec::new(),
            registrations: Vec::new(),
            contexts: BTreeMap::new(),
            serials: 0,
            calls: 0,
        }
    }

    // ---- figures ----

    pub(crate) fn living(&self) -> BTreeSet<Alloc> {
        let objects = self.objects.iter().filter_map(|it| it.source.alloc);
        let mapped = self.mapped.iter().filter_map(|it| it.alloc);
        let exports = self.exports.iter().filter_map(|(_, _, it)| it.alloc);
        let pins = self.pins.iter().filter_map(|(it, _)| it.alloc);
        let held = self.held_objects();
        let contexts = self.contexts.iter();
        let contexts = contexts.filter(|(serial, _)| held.iter().any(|it| it.serial == **serial));
        let contexts = contexts.map(|(_, alloc)| *alloc);
        let held = held.iter().filter_map(|it| it.alloc);
        let living = objects.chain(mapped).chain(exports).chain(pins);
        living.chain(held).chain(contexts).collect()
    }

    /// Every object that a registration holds, or a call under way, each once.
    fn held_objects(&self) -> Vec<HeldFact> {
        let registered = self.registrations.iter().flat_map(|it| &it.holds);
        let all = registered.chain(self.holds.iter().flatten());
        let by_serial: BTreeMap<usize, HeldFact> = all.map(|it| (it.serial, *it)).collect();
        by_serial.into_values().collect()
    }

    /// Those that no handle names.
    fn nameless(&self) -> impl Iterator<Item = HeldFact> + '_ {
        let held = self.held_objects().into_iter();
        held.filter(|it| !self.objects.iter().any(|o| o.serial == Some(it.serial)))
    }

    pub(crate) fn held(&self, card: CardSlot) -> u128 {
        let counted = COSTING
            .iter()
            .filter(|_| card == CardSlot::HOST)
            .map(|(counted, _)| self.limits.host_bytes(*counted, self.count(*counted)));
        self.living()
            .into_iter()
            .map(|alloc| &self.made[alloc].demand)
            .filter(|demand| demand.card == card)
            .map(|demand| u128::from(demand.bytes))
            .chain(counted.map(u128::from))
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
        let nameless = self.nameless().map(|it| it.kind);
        let all = clients.chain(objects).chain(reserved).chain(pinned);
        let all = all.chain(nameless);
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
            Counted::UvmFiles => self.uvm_files.len() as u64,
            Counted::Mappings => {
                let under_way: u64 = self
                    .pins
                    .iter()
                    .map(|(_, purpose)| match purpose {
                        PinFor::Map { cards } => u64::from(*cards),
                        PinFor::Duplicate | PinFor::Export | PinFor::Register => 0,
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
            Counted::Registrations => {
                let under_way = self.pins.iter().filter(|(_, it)| *it == PinFor::Register);
                (self.registrations.len() + under_way.count()) as u64
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
            _ => match self.limits.host_bytes(counted, more) {
                0 => Ok(()),
                bytes => self.fits(CardSlot::HOST, bytes, 0),
            },
        }
    }

    fn object_allowed(&self, kind: ObjectKind) -> Result<(), Refusal> {
        self.allowed(Counted::Kind(kind), 1)?;
        self.allowed(Counted::Objects, 1)
    }

    /// Whether bytes fit beside so many that are about to be used.
    fn fits(&self, card: CardSlot, bytes: u64, beside: u64) -> Result<(), Refusal> {
        if !self.quotas.contains_key(&card) {
            return Err(Refusal::NoShare { card });
        }
        let used = self.used(card) + u128::from(beside);
        let quota_bytes = self.quota(card);
        if bytes > 0 && used + u128::from(bytes) > u128::from(quota_bytes) {
            return Err(Refusal::OverQuota {
                card,
                requested_bytes: bytes,
                used_bytes: narrow(used),
                quota_bytes,
            });
        }
        Ok(())
    }

    pub(crate) fn reserve(
        &mut self,
        kind: ObjectKind,
        demand: Option<Demand>,
    ) -> Result<(), Refusal> {
        self.object_allowed(kind)?;
        if let Some(demand) = demand {
            self.fits(demand.card, demand.bytes, 0)?;
            let own = self.limits.host_bytes(Counted::Objects, 1);
            if demand.card == CardSlot::HOST {
                self.fits(CardSlot::HOST, own, demand.bytes)?;
            }
        }
        self.reservations.push((kind, demand));
        Ok(())
    }

    pub(crate) fn open_uvm_file(&mut self, file: FileId) -> Result<(), Refusal> {
        if !self.uvm_files.contains(&file) {
            self.allowed(Counted::UvmFiles, 1)?;
            self.uvm_files.insert(file);
        }
        Ok(())
    }

    pub(crate) fn check_range(&self) -> Result<Demand, Refusal> {
        self.allowed(Counted::Ranges, 1)?;
        Ok(Demand {
            card: CardSlot::HOST,
            bytes: self.limits.host_bytes(Counted::Ranges, 1),
            purpose: Purpose::Context,
        })
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
        self.pin_source(source, purpose)?;
        if purpose == PinFor::Register {
            let holds = self.held_by(client, object);
            *self.holds.last_mut().expect("of the pin just made") = holds;
        }
        Ok(())
    }

    /// What UVM would hold: the object, its group, the context shares that it needs.
    fn held_by(&mut self, client: ClientHandle, object: ObjectHandle) -> Vec<HeldFact> {
        let Some(found) = self.object(client, object).cloned() else {
            return Vec::new();
        };
        let mut all = vec![found.clone()];
        let of = |handle: ObjectHandle, kind: ObjectKind| {
            let other = self.object(client, handle);
            other
                .filter(|it| it.source.kind == kind && is_another(&found, handle))
                .cloned()
        };
        all.extend(of(found.parent, ObjectKind::ChannelGroup));
        let needs: BTreeSet<_> = found.depends_on.iter().copied().collect();
        all.extend(
            needs
                .into_iter()
                .filter_map(|it| of(it, ObjectKind::ContextShare)),
        );
        for object in &all {
            self.find_context(object);
        }
        let held = all.iter().filter_map(|it| {
            Some(HeldFact {
                serial: it.serial?,
                kind: it.source.kind,
                alloc: it.source.alloc,
            })
        });
        held.collect()
    }

    /// The greatest charge for a context below an object that is held from now on. One that is held already has it.
    fn find_context(&mut self, object: &ObjectFact) {
        let Some(serial) = object.serial else {
            return;
        };
        if self.held_objects().iter().any(|it| it.serial == serial) {
            return;
        }
        self.contexts.remove(&serial);
        let below = |parent: &ObjectFact| -> Vec<ObjectFact> {
            let all = self.objects.iter();
            let below = all.filter(|it| it.client == parent.client && is_below(it, parent.handle));
            let mut below: Vec<_> = below.cloned().collect();
            below.sort_by_key(|it| it.handle);
            below
        };
        let candidates = match object.source.kind {
            ObjectKind::Channel => below(object),
            ObjectKind::ChannelGroup => below(object).iter().flat_map(below).collect(),
            _ => return,
        };
        let charged = candidates.iter().filter_map(|it| self.context_of(it));
        if let Some(alloc) = charged.max_by_key(|it| self.made[*it].demand.bytes) {
            self.contexts.insert(serial, alloc);
        }
    }

    fn context_of(&self, object: &ObjectFact) -> Option<Alloc> {
        let alloc = object.source.alloc?;
        let is_context = self.made[alloc].demand.purpose == Purpose::Context;
        (is_context && object.source.kind == ObjectKind::Other).then_some(alloc)
    }

    pub(crate) fn unpin(&mut self, pin: usize) {
        self.take_pin(pin);
    }

    fn take_pin(&mut self, pin: usize) -> (SourceFact, Vec<HeldFact>) {
        let (source, _) = self.pins.remove(pin);
        (source, self.holds.remove(pin))
    }

    pub(crate) fn register(
        &mut self,
        pin: usize,
        file: FileId,
        card: CardSlot,
        registered: Registered,
    ) {
        let (_, holds) = self.take_pin(pin);
        if !holds.is_empty() {
            self.registrations.push(RegisteredFact {
                file,
                card,
                registered,
                holds,
            });
        }
    }

    pub(crate) fn unregister(&mut self, file: FileId, which: Unregistered) {
        match which {
            Unregistered::Card(card) => {
                self.registrations
                    .retain(|it| (it.file, it.card) != (file, card));
            }
            Unregistered::Channel { client, channel } => {
                let key = Registered::Channel { client, channel };
                let of_file = self.registrations.iter().enumerate();
                let matching = of_file.filter(|(_, it)| it.file == file && it.registered == key);
                // Of the first card, the oldest.
                if let Some((at, _)) = matching.min_by_key(|(at, it)| (it.card, *at)) {
                    self.registrations.remove(at);
                }
            }
        }
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
            // A call that comes to no piece is made also where there are too many.
            PinFor::Map { cards: 0 } => {}
            PinFor::Map { cards } => self.allowed(Counted::Mappings, u64::from(cards))?,
            PinFor::Export => self.allowed(Counted::Exports, 2)?,
            PinFor::Register => self.allowed(Counted::Registrations, 1)?,
        }
        self.pins.push((source, purpose));
        self.holds.push(Vec::new());
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
        let (source, _) = self.take_pin(pin);
        self.put(place, source, depends_on);
    }

    fn put(&mut self, place: Place, source: SourceFact, depends_on: &[ObjectHandle]) {
        self.serials += 1;
        let parent = self.object(place.client, place.parent).cloned();
        let above = parent.as_ref().map(|it| it.parent);
        let above = above.and_then(|it| self.object(place.client, it).cloned());
        self.objects.push(ObjectFact {
            serial: Some(self.serials),
            client: place.client,
            handle: place.handle,
            parent: place.parent,
            depends_on: depends_on.to_vec(),
            process: place.process,
            source,
        });
        let made = self.objects.last().cloned().expect("just put");
        let Some(alloc) = self.context_of(&made) else {
            return;
        };
        // The one that gives way is there until the new one is.
        self.record_peaks();
        // Below a held channel, and below a channel of a held group.
        let held = self.held_objects();
        let is_edge = |it: &&ObjectFact, below: &ObjectFact| is_below(below, it.handle);
        let parent = parent.as_ref().filter(|it| is_edge(it, &made));
        let above = above
            .as_ref()
            .filter(|it| parent.is_some_and(|of| is_edge(it, of)));
        for serial in [parent, above]
            .into_iter()
            .flatten()
            .filter_map(|it| it.serial)
        {
            let before = self
                .contexts
                .get(&serial)
                .map(|it| self.made[*it].demand.bytes);
            let more = before.is_none_or(|before| before < self.made[alloc].demand.bytes);
            if held.iter().any(|it| it.serial == serial) && more {
                self.contexts.insert(serial, alloc);
            }
        }
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
                object.serial = None;
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
        self.uvm_files.remove(&file);
        self.registrations.retain(|it| it.file != file);
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
        self.take_pin(pin);
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
        let (source, _) = self.take_pin(pin);
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
