//! Long sequences of everything that can be told to a ledger, hostile ones among them, against a naive
//! model. After every step all figures, objects and answers are the model's.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Model, SourceFact, narrow, with_host_bytes};
use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, FileId, Freed, Ledger, Limits, NewObject,
    ObjectHandle, ObjectKind, Pin, PinFor, Place, ProcessId, Purpose, Recorded, Registered,
    Reservation, Span, Unregistered,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// What a call makes.
const KINDS: [ObjectKind; 9] = [
    ObjectKind::Client,
    ObjectKind::Device,
    ObjectKind::Subdevice,
    ObjectKind::Memory,
    ObjectKind::VaSpace,
    ObjectKind::ChannelGroup,
    ObjectKind::Channel,
    ObjectKind::ContextShare,
    ObjectKind::Other,
];

/// The same, and what becomes of one.
fn all_kinds() -> impl Iterator<Item = ObjectKind> {
    KINDS.into_iter().chain([ObjectKind::Invalidated])
}

const CARDS: [CardSlot; 3] = [CardSlot(0), CardSlot(1), CardSlot(7)];

#[derive(Clone, Debug)]
struct Object {
    place: Place,
    class: u32,
    kind: ObjectKind,
    card: Option<CardSlot>,
    depends_on: Vec<ObjectHandle>,
}

#[derive(Clone, Debug)]
enum Step {
    SetQuota(CardSlot, u64),
    Reserve(ObjectKind, Option<Demand>),
    RollBack(usize),
    OpenClient(FileId, ClientHandle, ProcessId, usize),
    SeeClient(FileId, ClientHandle, ProcessId),
    Add(Object, usize, Actual),
    /// Reserved and added.
    Made(Object, Demand),
    AddUnconfirmed(Object),
    Pin(ClientHandle, ObjectHandle, PinFor),
    PinExport(FileId, u32, PinFor),
    Unpin(usize),
    Duplicate(usize, Place, Vec<ObjectHandle>),
    OpenUvmFile(FileId),
    AddRange(FileId, Span),
    Map(usize, FileId, Span, Vec<CardSlot>),
    Unmap(FileId, Span, Option<CardSlot>),
    FreeRange(FileId, u64),
    DropAddressSpace(FileId),
    Export(usize, FileId, u32),
    Free(ClientHandle, ObjectHandle),
    CloseFile(FileId),
    Register(usize, FileId, CardSlot, Registered),
    Unregister(FileId, Unregistered),
}

fn file() -> impl Strategy<Value = FileId> {
    (0_u64..3).prop_map(FileId)
}

fn client() -> impl Strategy<Value = ClientHandle> {
    (0_u32..3).prop_map(ClientHandle)
}

/// Overlaps with the clients' handles: an object may bear, or hang below, any client's name.
fn handle() -> impl Strategy<Value = ObjectHandle> {
    (0_u32..9).prop_map(ObjectHandle)
}

fn process() -> impl Strategy<Value = ProcessId> {
    (1_i32..4).prop_map(ProcessId)
}

fn kind() -> impl Strategy<Value = ObjectKind> {
    proptest::sample::select(KINDS.to_vec())
}

fn card() -> impl Strategy<Value = CardSlot> {
    prop_oneof![5 => Just(CARDS[0]), 3 => Just(CARDS[1]), 1 => Just(CARDS[2])]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        12 => 0_u64..40,
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
    ]
}

fn demand() -> impl Strategy<Value = Demand> {
    let purpose = prop_oneof![Just(Purpose::Memory), Just(Purpose::Context)];
    (card(), bytes(), purpose).prop_map(|(card, bytes, purpose)| Demand {
        card,
        bytes,
        purpose,
    })
}

fn place() -> impl Strategy<Value = Place> {
    // Clients mostly stay on their own file, as in life; sometimes a record contradicts that.
    let on = prop_oneof![9 => Just(None), 1 => file().prop_map(Some)];
    (on, client(), handle(), handle(), process()).prop_map(
        |(on, client, parent, handle, process)| Place {
            file: on.unwrap_or_else(|| FileId(u64::from(client.0))),
            client,
            parent,
            handle,
            process,
        },
    )
}

fn depends_on() -> impl Strategy<Value = Vec<ObjectHandle>> {
    prop_oneof![
        3 => Just(Vec::new()),
        2 => proptest::collection::vec(handle(), 1..4),
    ]
}

fn object() -> impl Strategy<Value = Object> {
    let card = prop_oneof![3 => Just(None), 1 => card().prop_map(Some)];
    (place(), 0_u32..4, kind(), card, depends_on()).prop_map(
        |(place, class, kind, card, depends_on)| Object {
            place,
            class,
            kind,
            card,
            depends_on,
        },
    )
}

/// Two short stretches, at either end of the address space.
fn span() -> impl Strategy<Value = Span> {
    (any::<bool>(), 0_u64..12, 1_u64..10).prop_map(|(high, at, length)| {
        let base = if high { u64::MAX - at } else { at };
        let length = if high { length.min(at + 1) } else { length };
        Span::new(base, length).expect("neither empty nor past the end")
    })
}

fn pin_for() -> impl Strategy<Value = PinFor> {
    prop_oneof![
        Just(PinFor::Duplicate),
        (0_u32..3).prop_map(|cards| PinFor::Map { cards }),
        Just(PinFor::Export),
        Just(PinFor::Register),
    ]
}

fn registered() -> impl Strategy<Value = Registered> {
    (any::<bool>(), 0_u32..2, 2_u32..5).prop_map(|(is_channel, client, handle)| {
        let (client, handle) = (ClientHandle(client), ObjectHandle(handle));
        match is_channel {
            true => Registered::Channel {
                client,
                channel: handle,
            },
            false => Registered::Space {
                client,
                space: handle,
            },
        }
    })
}

fn unregistered() -> impl Strategy<Value = Unregistered> {
    prop_oneof![
        card().prop_map(Unregistered::Card),
        (0_u32..2, 2_u32..5).prop_map(|(client, channel)| Unregistered::Channel {
            client: ClientHandle(client),
            channel: ObjectHandle(channel),
        }),
    ]
}

/// Groups, channels in them and objects on these, which come and go while they are registered.
fn registration_step() -> impl Strategy<Value = Step> {
    let which = any::<usize>();
    let name = || (0_u32..2, 2_u32..6);
    let made = (0_u32..2, 0_usize..5, bytes()).prop_map(|(client, at, bytes)| {
        let client = ClientHandle(client);
        let (handle, parent, kind, needs) = [
            (2, 0, ObjectKind::ChannelGroup, None),
            (3, 2, ObjectKind::Channel, Some(5)),
            (4, 3, ObjectKind::Other, None),
            (5, 2, ObjectKind::ContextShare, None),
            (3, 0, ObjectKind::VaSpace, None),
        ][at];
        let object = Object {
            place: Place {
                file: FileId(u64::from(client.0)),
                client,
                parent: match parent {
                    0 => client.as_object(),
                    parent => ObjectHandle(parent),
                },
                handle: ObjectHandle(handle),
                process: ProcessId(1),
            },
            class: 1,
            kind,
            card: None,
            depends_on: needs.map(ObjectHandle).into_iter().collect(),
        };
        let demand = Demand {
            card: CARDS[0],
            bytes: bytes % 8,
            purpose: Purpose::Context,
        };
        (object, demand)
    });
    prop_oneof![
        10 => made.prop_map(|(object, demand)| Step::Made(object, demand)),
        6 => name().prop_map(|(c, h)| Step::Pin(ClientHandle(c), ObjectHandle(h), PinFor::Register)),
        6 => (which, 1_u64..3, card(), registered())
            .prop_map(|(w, f, c, r)| Step::Register(w, FileId(f), c, r)),
        3 => (1_u64..3, unregistered()).prop_map(|(f, u)| Step::Unregister(FileId(f), u)),
        5 => name().prop_map(|(c, h)| Step::Free(ClientHandle(c), ObjectHandle(h))),
        1 => which.prop_map(Step::Unpin),
        1 => (1_u64..3).prop_map(|f| Step::CloseFile(FileId(f))),
    ]
}

fn actual() -> impl Strategy<Value = Actual> {
    prop_oneof![
        2 => Just(Actual::AsReserved),
        1 => bytes().prop_map(Actual::Bytes),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>();
    prop_oneof![
        1 => (card(), 0_u64..150).prop_map(|(c, q)| Step::SetQuota(c, q)),
        8 => (kind(), proptest::option::weighted(0.8, demand()))
            .prop_map(|(k, d)| Step::Reserve(k, d)),
        1 => which.prop_map(Step::RollBack),
        1 => (file(), client(), process(), which)
            .prop_map(|(f, c, p, w)| Step::OpenClient(f, c, p, w)),
        1 => (file(), client(), process()).prop_map(|(f, c, p)| Step::SeeClient(f, c, p)),
        8 => (object(), which, actual()).prop_map(|(o, w, a)| Step::Add(o, w, a)),
        2 => object().prop_map(Step::AddUnconfirmed),
        8 => (client(), handle(), pin_for()).prop_map(|(c, h, p)| Step::Pin(c, h, p)),
        2 => (file(), 0_u32..2, pin_for()).prop_map(|(f, i, p)| Step::PinExport(f, i, p)),
        1 => which.prop_map(Step::Unpin),
        3 => (which, place(), depends_on()).prop_map(|(w, p, d)| Step::Duplicate(w, p, d)),
        1 => file().prop_map(Step::OpenUvmFile),
        1 => (file(), span()).prop_map(|(f, s)| Step::AddRange(f, s)),
        4 => (which, file(), span(), proptest::collection::vec(card(), 0..3))
            .prop_map(|(w, f, s, c)| Step::Map(w, f, s, c)),
        3 => (file(), span(), proptest::option::of(card()))
            .prop_map(|(f, s, c)| Step::Unmap(f, s, c)),
        2 => (file(), span()).prop_map(|(f, s)| Step::FreeRange(f, s.base())),
        1 => file().prop_map(Step::DropAddressSpace),
        2 => (which, file(), 0_u32..2).prop_map(|(w, f, i)| Step::Export(w, f, i)),
        4 => (client(), handle()).prop_map(|(c, h)| Step::Free(c, h)),
        1 => file().prop_map(Step::CloseFile),
        3 => (which, file(), card(), registered())
            .prop_map(|(w, f, c, r)| Step::Register(w, f, c, r)),
        1 => (file(), unregistered()).prop_map(|(f, u)| Step::Unregister(f, u)),
    ]
}

/// Four memory objects of one client, the last without device memory.
fn prelude() -> Vec<Step> {
    let client = ClientHandle(0);
    let mut steps = vec![Step::SeeClient(FileId(0), client, ProcessId(1))];
    for (n, at) in (3_u32..7).enumerate() {
        let demand = Demand {
            card: CARDS[n % 2],
            bytes: 10 + u64::from(at),
            purpose: Purpose::Memory,
        };
        steps.push(Step::Reserve(
            ObjectKind::Memory,
            (at < 6).then_some(demand),
        ));
        let place = Place {
            file: FileId(0),
            client,
            parent: client.as_object(),
            handle: ObjectHandle(at),
            process: ProcessId(1),
        };
        let object = Object {
            place,
            class: 0x40,
            kind: ObjectKind::Memory,
            card: None,
            depends_on: Vec::new(),
        };
        steps.push(Step::Add(object, 0, Actual::AsReserved));
    }
    steps
}

/// What is done with memory once it is there: mostly mappings, ranges and exports of few files.
fn reference_step() -> impl Strategy<Value = Step> {
    let which = any::<usize>();
    let uvm = || (1_u64..3).prop_map(FileId);
    let memory = || (3_u32..7).prop_map(ObjectHandle);
    let cards = prop_oneof![
        4 => card().prop_map(|card| vec![card]),
        1 => proptest::collection::vec(card(), 0..4),
    ];
    prop_oneof![
        8 => (memory(), pin_for()).prop_map(|(h, p)| Step::Pin(ClientHandle(0), h, p)),
        2 => (uvm(), 0_u32..2, pin_for()).prop_map(|(f, i, p)| Step::PinExport(f, i, p)),
        5 => (which, uvm(), span(), cards).prop_map(|(w, f, s, c)| Step::Map(w, f, s, c)),
        3 => (which, uvm(), 0_u32..2).prop_map(|(w, f, i)| Step::Export(w, f, i)),
        1 => (which, place(), depends_on()).prop_map(|(w, p, d)| Step::Duplicate(w, p, d)),
        3 => (uvm(), span()).prop_map(|(f, s)| Step::AddRange(f, s)),
        3 => (uvm(), span()).prop_map(|(f, s)| Step::FreeRange(f, s.base())),
        3 => (uvm(), span(), proptest::option::of(card()))
            .prop_map(|(f, s, c)| Step::Unmap(f, s, c)),
        1 => which.prop_map(Step::Unpin),
        1 => memory().prop_map(|h| Step::Free(ClientHandle(0), h)),
        1 => uvm().prop_map(Step::CloseFile),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        Just(Limits::none()),
        (1_u64..5, 3_u64..16, 1_u64..6, 1_u64..4, 2_u64..6).prop_map(|limits| {
            let (kind, all, maps, ranges, exports) = limits;
            let limits = Limits::none()
                .with(Counted::Objects, all)
                .with(Counted::Mappings, maps)
                .with(Counted::Ranges, ranges)
                .with(Counted::Exports, exports)
                .with(Counted::Registrations, ranges)
                .with(Counted::UvmFiles, ranges);
            KINDS
                .iter()
                .fold(limits, |limits, it| limits.with(Counted::Kind(*it), kind))
        }),
    ]
}

/// The ledger, the model, and the tokens of calls under way, in the order of the model's lists.
struct Pair {
    ledger: Ledger,
    model: Model,
    reservations: Vec<Reservation>,
    pins: Vec<Pin>,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let quotas = [(CARDS[0], 100), (CARDS[1], 60), (CardSlot::HOST, 80)];
        let limits = with_host_bytes(limits);
        Self {
            ledger: Ledger::with_limits(&quotas, limits.clone()),
            model: Model::new(&quotas, limits),
            reservations: Vec::new(),
            pins: Vec::new(),
        }
    }

    fn take_reservation(&mut self, which: usize) -> Option<(usize, Reservation)> {
        let at = which.checked_rem(self.reservations.len())?;
        Some((at, self.reservations.remove(at)))
    }

    fn take_pin(&mut self, which: usize) -> Option<(usize, Pin)> {
        let at = which.checked_rem(self.pins.len())?;
        Some((at, self.pins.remove(at)))
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let before = self.model.before();
        let mut added = 0;
        let freed = match step {
            Step::SetQuota(card, quota_bytes) => {
                self.ledger.set_quota(*card, *quota_bytes);
                self.model.quotas.insert(*card, *quota_bytes);
                None
            }
            Step::Reserve(kind, demand) => {
                match self.ledger.reserve(*kind, *demand) {
                    Ok(reservation) => {
                        prop_assert_eq!(Ok(()), self.model.reserve(*kind, *demand));
                        self.reservations.push(reservation);
                    }
                    Err(refusal) => {
                        prop_assert_eq!(Err(refusal), self.model.reserve(*kind, *demand));
                    }
                }
                None
            }
            Step::RollBack(which) => {
                if let Some((at, reservation)) = self.take_reservation(*which) {
                    self.ledger.roll_back(reservation);
                    self.model.reservations.remove(at);
                }
                None
            }
            Step::OpenClient(file, client, process, which) => {
                self.take_reservation(*which).map(|(at, reservation)| {
                    self.model.open_client(*file, *client, *process, at);
                    added = 1;
                    self.ledger
                        .open_client(*file, *client, *process, reservation)
                        .replaced
                })
            }
            Step::SeeClient(file, client, process) => {
                prop_assert_eq!(
                    self.ledger.see_client(*file, *client, *process),
                    self.model.see_client(*file, *client, *process)
                );
                None
            }
            Step::Add(object, which, actual) => match self.take_reservation(*which) {
                Some((at, reservation)) => {
                    added = self.new_client(object.place) + 1;
                    let over = self.model.add_object(
                        object.place,
                        fact(object),
                        &object.depends_on,
                        at,
                        *actual,
                    );
                    let Recorded {
                        over_quota_bytes,
                        replaced,
                        ..
                    } = self.ledger.add_object(new(object), reservation, *actual);
                    prop_assert_eq!(over_quota_bytes, over);
                    Some(replaced)
                }
                None => None,
            },
            Step::AddUnconfirmed(object) => {
                prop_assert_eq!(
                    self.ledger.add_unconfirmed(new(object)),
                    self.model
                        .add_unconfirmed(object.place, fact(object), &object.depends_on)
                );
                None
            }
            Step::Pin(client, handle, purpose) => {
                let expected = self.model.pin(*client, *handle, *purpose);
                match self.ledger.pin(*client, *handle, *purpose) {
                    Ok(pin) => {
                        prop_assert_eq!(Ok(()), expected);
                        self.pins.push(pin);
                    }
                    Err(refusal) => prop_assert_eq!(Err(refusal), expected),
                }
                None
            }
            Step::PinExport(file, index, purpose) => {
                let expected = self.model.pin_export(*file, *index, *purpose);
                match self.ledger.pin_export(*file, *index, *purpose) {
                    Ok(pin) => {
                        prop_assert_eq!(Ok(()), expected);
                        self.pins.push(pin);
                    }
                    Err(refusal) => prop_assert_eq!(Err(refusal), expected),
                }
                None
            }
            Step::Unpin(which) => self.take_pin(*which).map(|(at, pin)| {
                self.model.unpin(at);
                self.ledger.unpin(pin)
            }),
            Step::Duplicate(which, place, depends_on) => self.take_pin(*which).map(|(at, pin)| {
                added = self.new_client(*place) + 1;
                self.model.duplicate(at, *place, depends_on);
                self.ledger.duplicate(pin, *place, depends_on).replaced
            }),
            Step::OpenUvmFile(file) => {
                let opened = self.ledger.open_uvm_file(*file);
                prop_assert_eq!(opened, self.model.open_uvm_file(*file));
                None
            }
            Step::AddRange(file, span) => {
                let allowed = self.ledger.check_range();
                prop_assert_eq!(&allowed, &self.model.check_range());
                if allowed.is_ok() {
                    self.ledger.add_range(*file, *span);
                    self.model.add_range(*file, span.base(), span.last());
                }
                None
            }
            Step::Map(which, file, span, cards) => self.take_pin(*which).map(|(at, pin)| {
                self.model.map(at, *file, span.base(), span.last(), cards);
                self.ledger.map_external(pin, *file, *span, cards)
            }),
            Step::Unmap(file, span, card) => {
                self.model.unmap(*file, span.base(), span.last(), *card);
                Some(self.ledger.unmap_external(*file, *span, *card))
            }
            Step::FreeRange(file, base) => {
                self.model.free_range(*file, *base);
                Some(self.ledger.free_range(*file, *base))
            }
            Step::DropAddressSpace(file) => {
                self.model.drop_address_space(*file);
                Some(self.ledger.drop_address_space(*file))
            }
            Step::Export(which, file, index) => self.take_pin(*which).map(|(at, pin)| {
                self.model.export(at, *file, *index);
                self.ledger.export(pin, *file, *index)
            }),
            Step::Free(client, handle) => {
                self.model.free(*client, *handle);
                Some(self.ledger.free(*client, *handle))
            }
            Step::Made(..) => return self.make(step),
            Step::Register(which, file, card, registered) => {
                self.take_pin(*which).map(|(at, pin)| {
                    self.model.register(at, *file, *card, *registered);
                    self.ledger.register(pin, *file, *card, *registered)
                })
            }
            Step::Unregister(file, which) => {
                self.model.unregister(*file, *which);
                Some(self.ledger.unregister(*file, *which))
            }
            Step::CloseFile(file) => {
                self.model.close_file(*file);
                Some(self.ledger.close_file(*file))
            }
        };
        self.model.record_peaks();
        if let Some(freed) = freed {
            let things = self.model.clients.len() + self.model.objects.len();
            let living = self.model.scheduled();
            prop_assert!(
                before
                    .scheduled
                    .difference(&living)
                    .all(|it| freed.scheduled.contains(it))
            );
            prop_assert!(freed.scheduled.is_subset(&before.scheduled));
            let expected = Freed {
                scheduled: freed.scheduled.clone(),
                objects: (before.things + added - things) as u64,
                ..self.model.freed_since(&before)
            };
            prop_assert_eq!(freed, expected);
        }
        Ok(())
    }

    fn make(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Step::Made(object, demand) = step else {
            return Ok(());
        };
        let before = self.reservations.len();
        self.apply(&Step::Reserve(object.kind, Some(*demand)))?;
        if self.reservations.len() == before {
            return Ok(());
        }
        self.apply(&Step::Add(object.clone(), before, Actual::AsReserved))
    }

    /// 1 if a success at this place makes its client known (anew).
    fn new_client(&self, place: Place) -> usize {
        usize::from(self.ledger.owner_file(place.client) != Some(place.file))
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let Self { ledger, model, .. } = self;
        prop_assert_eq!(ledger.check_invariants(), Ok(()));
        let of_host = narrow(model.used(CardSlot::HOST));
        prop_assert_eq!(ledger.used(CardSlot::HOST), of_host);
        for card in CARDS {
            prop_assert_eq!(ledger.quota(card), model.quota(card));
            prop_assert_eq!(ledger.used(card), narrow(model.used(card)));
            prop_assert_eq!(ledger.reserved(card), narrow(model.reserved(card)));
            let left = u128::from(model.quota(card)).saturating_sub(model.used(card));
            prop_assert_eq!(u128::from(ledger.available(card)), left);
            let peak = model.peaks.get(&card).copied().unwrap_or(0);
            prop_assert_eq!(ledger.peak(card), narrow(peak));
            let processes: BTreeMap<ProcessId, (u64, u64)> = ledger
                .usage_by_process(card)
                .into_iter()
                .map(|it| (it.process, (it.memory_bytes, it.context_bytes)))
                .collect();
            let expected: BTreeMap<ProcessId, (u64, u64)> = model
                .by_process(card)
                .into_iter()
                .map(|(process, (memory, context))| (process, (narrow(memory), narrow(context))))
                .collect();
            prop_assert_eq!(processes, expected);
        }
        for counted in all_kinds().map(Counted::Kind).chain([
            Counted::Objects,
            Counted::Mappings,
            Counted::Ranges,
            Counted::Exports,
            Counted::Registrations,
            Counted::UvmFiles,
        ]) {
            prop_assert_eq!(ledger.count(counted), model.count(counted), "{}", counted);
        }
        let clients: BTreeSet<_> = ledger.clients().collect();
        let expected: BTreeSet<_> = model
            .clients
            .iter()
            .map(|it| (it.client, it.file, it.process))
            .collect();
        prop_assert_eq!(clients, expected);
        self.compare_objects()?;
        let snapshot = ledger.snapshot();
        prop_assert_eq!(snapshot.allocations, model.living().len() as u64);
        prop_assert_eq!(snapshot.reservations, model.reservations.len() as u64);
        prop_assert_eq!(snapshot.pins, model.pins.len() as u64);
        Ok(())
    }

    fn compare_objects(&self) -> Result<(), TestCaseError> {
        let Self { ledger, model, .. } = self;
        let found: usize = (0..3)
            .map(|c| ledger.objects(ClientHandle(c)).count())
            .sum();
        prop_assert_eq!(found, model.objects.len());
        let by_kind: usize = all_kinds().map(|it| ledger.objects_of(it).count()).sum();
        prop_assert_eq!(by_kind, model.objects.len());
        for fact in &model.objects {
            let object = ledger.object(fact.client, fact.handle);
            prop_assert!(object.is_some(), "{:?} is missing", fact);
            let Some(object) = object else { continue };
            let edge =
                |other: &ObjectHandle| *other != fact.client.as_object() && *other != fact.handle;
            prop_assert_eq!(object.class, fact.source.class);
            prop_assert_eq!(object.kind, fact.source.kind);
            prop_assert_eq!(object.card, fact.source.card);
            prop_assert_eq!(object.process, fact.process);
            prop_assert_eq!(object.parent, Some(fact.parent).filter(edge));
            prop_assert_eq!(
                ledger.card_of(fact.client, fact.handle),
                model.card_of(fact.client, fact.handle)
            );
            let memory = object.allocation.and_then(|id| ledger.allocation(id));
            let expected = fact.source.alloc.map(|alloc| &model.made[alloc]);
            prop_assert_eq!(
                memory.map(|it| (it.card, it.bytes, it.purpose, it.process)),
                expected.map(|it| {
                    let Demand {
                        card,
                        bytes,
                        purpose,
                    } = it.demand;
                    (card, bytes, purpose, it.process)
                })
            );
        }
        Ok(())
    }

    /// Ends every call under way and closes every file: nothing may be left.
    fn wind_down(mut self) -> Result<(), TestCaseError> {
        for reservation in self.reservations.drain(..) {
            self.ledger.roll_back(reservation);
        }
        for file in 0..3 {
            self.ledger.close_file(FileId(file));
        }
        for pin in self.pins.drain(..) {
            self.ledger.unpin(pin);
        }
        prop_assert_eq!(self.ledger.check_invariants(), Ok(()));
        let left = self.ledger.snapshot();
        prop_assert_eq!(left.counts, vec![]);
        prop_assert_eq!(left.allocations, 0);
        prop_assert_eq!(left.exporting_files, 0);
        for card in left.cards {
            prop_assert_eq!((card.held_bytes, card.reserved_bytes), (0, 0));
        }
        Ok(())
    }
}

fn new(object: &Object) -> NewObject<'_> {
    NewObject {
        place: object.place,
        class: object.class,
        kind: object.kind,
        card: object.card,
        depends_on: &object.depends_on,
    }
}

fn fact(object: &Object) -> SourceFact {
    SourceFact {
        class: object.class,
        kind: object.kind,
        card: object.card,
        alloc: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ledger_agrees_with_the_naive_model_after_every_step(
        limits in limits(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut pair = Pair::new(limits);
        for step in &steps {
            pair.apply(step)?;
            pair.compare()?;
        }
        pair.wind_down()?;
    }

    #[test]
    fn references_agree_with_the_naive_model_after_every_step(
        steps in proptest::collection::vec(reference_step(), 1..120),
    ) {
        let mut pair = Pair::new(Limits::none());
        for step in prelude().iter().chain(&steps) {
            pair.apply(step)?;
            pair.compare()?;
        }
        pair.wind_down()?;
    }

    #[test]
    fn registrations_agree_with_the_naive_model_after_every_step(
        steps in proptest::collection::vec(registration_step(), 1..120),
    ) {
        let mut pair = Pair::new(Limits::none());
        for client in [0, 1] {
            let (file, client) = (FileId(u64::from(client)), ClientHandle(client));
            pair.apply(&Step::SeeClient(file, client, ProcessId(1)))?;
        }
        for step in &steps {
            pair.apply(step)?;
            pair.compare()?;
        }
        pair.wind_down()?;
    }
}
