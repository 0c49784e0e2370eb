//! Everything that a broker can tell a ledger, in any order, against the ledger's own naive model.

// The model is with the ledger's property tests: one opinion of what a ledger is, driven in two ways.
mod input;
#[path = "../../../../isolation/ledger/tests/ledger/model/mod.rs"]
mod model;

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Unstructured;
use ledger::{
    Applied, CardSlot, ClientHandle, Counted, Demand, FileId, Freed, Ledger, Limits, ObjectKind,
    Operation, PinToken, Place, ProcessId, Recorded, Refusal, ReservationToken,
};

use self::input::{
    Object, actual, card, client, demand, file, handle, kind, limits, pin_for, place, process,
    registered, span, unregistered,
};
use self::model::{Model, narrow, with_host_bytes};

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
const FILES: u64 = 3;
/// The model recounts everything after every step: what a run costs grows with their square.
const STEPS_MAX: usize = 120;

/// The body.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(limits) = limits(&mut input) else {
        return;
    };
    let mut pair = Pair::new(limits);
    for _step in 0..STEPS_MAX {
        if input.is_empty() || pair.step(&mut input).is_err() {
            break;
        }
        pair.compare();
    }
    pair.wind_down();
}

/// The ledger, the model, and the tokens of calls under way, in the order of the model's lists.
struct Pair {
    ledger: Ledger,
    model: Model,
    reservations: Vec<ReservationToken>,
    pins: Vec<PinToken>,
    limits: Limits,
    /// What a journal would hold.
    log: Vec<Operation>,
}

const QUOTAS: [(CardSlot, u64); 3] = [(CARDS[0], 100), (CARDS[1], 60), (CardSlot::HOST, 80)];

impl Pair {
    fn new(limits: Limits) -> Self {
        let limits = with_host_bytes(limits);
        Self {
            ledger: Ledger::with_limits(&QUOTAS, limits.clone()),
            model: Model::new(&QUOTAS, limits.clone()),
            reservations: Vec::new(),
            pins: Vec::new(),
            limits,
            log: Vec::new(),
        }
    }

    /// Makes a change, and notes it as a journal does.
    fn apply(&mut self, operation: Operation) -> Result<Applied, Refusal> {
        let applied = self.ledger.apply(operation.clone())?;
        self.log.push(operation);
        Ok(applied)
    }

    /// A change that nothing refuses.
    fn done(&mut self, operation: Operation) {
        let applied = self.apply(operation);
        assert!(applied.is_ok(), "{applied:?}");
    }

    fn freed(&mut self, operation: Operation) -> Freed {
        match self.apply(operation) {
            Ok(Applied::Freed(freed)) => freed,
            other => panic!("{other:?}"),
        }
    }

    fn recorded(&mut self, operation: Operation) -> Recorded {
        match self.apply(operation) {
            Ok(Applied::Recorded(recorded)) => recorded,
            other => panic!("{other:?}"),
        }
    }

    /// A successor that reads the journal has the same ledger, to the last field.
    fn replay(&self) {
        let limits = self.limits.clone();
        let mut successor = Ledger::with_limits(&QUOTAS, limits);
        for operation in &self.log {
            let applied = successor.apply(operation.clone());
            assert!(applied.is_ok(), "{operation:?} was accepted: {applied:?}");
        }
        assert_eq!(format!("{successor:?}"), format!("{:?}", self.ledger));
    }

    /// A token of any call under way: the broker's threads end theirs in any order.
    fn reservation(
        &mut self,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<Option<(usize, ReservationToken)>> {
        let Some(last) = self.reservations.len().checked_sub(1) else {
            return Ok(None);
        };
        let at = input.int_in_range(0..=last)?;
        Ok(Some((at, self.reservations.remove(at))))
    }

    fn pin(
        &mut self,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<Option<(usize, PinToken)>> {
        let Some(last) = self.pins.len().checked_sub(1) else {
            return Ok(None);
        };
        let at = input.int_in_range(0..=last)?;
        Ok(Some((at, self.pins.remove(at))))
    }

    /// 1 if a success at this place makes its client known (anew).
    fn new_client(&self, place: Place) -> usize {
        usize::from(self.ledger.owner_file(place.client) != Some(place.file))
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let before = self.model.before();
        let done = if input.arbitrary()? {
            self.objects(input)?
        } else {
            self.references(input)?
        };
        self.model.record_peaks();
        if let Some((freed, added)) = done {
            let things = self.model.clients.len() + self.model.objects.len();
            let living = self.model.scheduled();
            let mut gone = before.scheduled.difference(&living);
            assert!(gone.all(|it| freed.scheduled.contains(it)));
            assert!(freed.scheduled.is_subset(&before.scheduled));
            let expected = Freed {
                scheduled: freed.scheduled.clone(),
                objects: u64::try_from(before.things + added - things).expect("a small number"),
                ..self.model.freed_since(&before)
            };
            assert_eq!(freed, expected);
        }
        Ok(())
    }

    /// Reservations, clients and objects.
    fn objects(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        Ok(match input.int_in_range(0..=28_u8)? {
            0 => {
                let (card, quota_bytes) = (card(input)?, input.int_in_range(0..=149)?);
                self.done(Operation::SetQuota { card, quota_bytes });
                self.model.quotas.insert(card, quota_bytes);
                None
            }
            1..=8 => self.reserve(input)?,
            9 => {
                if let Some((at, reservation)) = self.reservation(input)? {
                    self.done(Operation::RollBack { reservation });
                    self.model.reservations.remove(at);
                }
                None
            }
            10 => self.open_client(input)?,
            11 => {
                let (file, client, process) = (file(input)?, client(input)?, process(input)?);
                self.done(Operation::SeeClient {
                    file,
                    client,
                    process,
                });
                let is_its_own = self.model.see_client(file, client, process);
                assert_eq!(self.ledger.owner_file(client) == Some(file), is_its_own);
                None
            }
            12..=19 => self.add_object(input)?,
            20 | 21 => {
                let object = Object {
                    card: None,
                    depends_on: Vec::new(),
                    ..Object::read(input)?
                };
                self.done(Operation::AddUnconfirmed {
                    place: object.place,
                    class: object.class,
                    kind: object.kind,
                });
                self.model.add_unconfirmed(object.place, object.fact(), &[]);
                None
            }
            22 | 23 => {
                let (client, handle) = (client(input)?, handle(input)?);
                self.model.free(client, handle);
                let operation = Operation::Free {
                    client,
                    object: handle,
                };
                Some((self.freed(operation), 0))
            }
            _ => {
                let file = file(input)?;
                self.model.close_file(file);
                Some((self.freed(Operation::CloseFile { file }), 0))
            }
        })
    }

    /// Reserves for a call, or is refused.
    fn reserve(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let kind = kind(input)?;
        let demand = if input.ratio(1, 5)? {
            None
        } else {
            Some(demand(input)?)
        };
        let expected = self.model.reserve(kind, demand);
        match self.apply(Operation::Reserve { kind, demand }) {
            Ok(applied) => {
                assert_eq!(expected, Ok(()));
                let Applied::Reserved(token) = applied else {
                    panic!("{applied:?}")
                };
                self.reservations.push(token);
            }
            Err(refusal) => assert_eq!(expected, Err(refusal)),
        }
        Ok(None)
    }

    /// A client is made by a call under way.
    fn open_client(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (file, client, process) = (file(input)?, client(input)?, process(input)?);
        Ok(self.reservation(input)?.map(|(at, reservation)| {
            self.model.open_client(file, client, process, at);
            let recorded = self.recorded(Operation::OpenClient {
                file,
                client,
                process,
                reservation,
            });
            (recorded.replaced, 1)
        }))
    }

    /// An object is made by a call under way.
    fn add_object(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (object, actual) = (Object::read(input)?, actual(input)?);
        let Some((at, reservation)) = self.reservation(input)? else {
            return Ok(None);
        };
        let added = self.new_client(object.place) + 1;
        let over =
            self.model
                .add_object(object.place, object.fact(), &object.depends_on, at, actual);
        let Recorded {
            over_quota_bytes,
            replaced,
            ..
        } = self.recorded(Operation::AddObject {
            place: object.place,
            class: object.class,
            kind: object.kind,
            card: object.card,
            depends_on: object.depends_on,
            reservation,
            actual,
        });
        assert_eq!(over_quota_bytes, over);
        Ok(Some((replaced, added)))
    }

    /// Pins, duplicates, mappings, ranges and exports.
    fn references(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        Ok(match input.int_in_range(0..=27_u8)? {
            0..=7 => self.pin_object(input)?,
            8 | 9 => self.pin_export(input)?,
            10 => self.pin(input)?.map(|(at, pin)| {
                self.model.unpin(at);
                (self.freed(Operation::Unpin { pin }), 0)
            }),
            11..=13 => {
                let place = place(input)?;
                self.pin(input)?.map(|(at, pin)| {
                    let added = self.new_client(place) + 1;
                    self.model.duplicate(at, place, &[]);
                    let recorded = self.recorded(Operation::Duplicate { pin, place });
                    (recorded.replaced, added)
                })
            }
            14 => {
                let (file, span) = (file(input)?, span(input)?);
                let allowed = self.ledger.check_range();
                assert_eq!(allowed, self.model.check_range());
                if allowed.is_ok() {
                    let uvm_file = file;
                    self.done(Operation::AddRange { uvm_file, span });
                    self.model.add_range(file, span.base(), span.last());
                }
                None
            }
            15..=18 => self.map_external(input)?,
            19 | 20 => self.unmap_external(input)?,
            21 => {
                let (file, span) = (file(input)?, span(input)?);
                self.model.free_range(file, span.base());
                let operation = Operation::FreeRange {
                    uvm_file: file,
                    base: span.base(),
                };
                Some((self.freed(operation), 0))
            }
            22 => {
                let file = file(input)?;
                self.model.drop_address_space(file);
                let operation = Operation::DropAddressSpace { uvm_file: file };
                Some((self.freed(operation), 0))
            }
            23 | 24 => {
                let (uvm_file, card, registered) = (file(input)?, card(input)?, registered(input)?);
                self.pin(input)?.map(|(at, pin)| {
                    self.model.register(at, uvm_file, card, registered);
                    let operation = Operation::Register {
                        pin,
                        uvm_file,
                        card,
                        registered,
                    };
                    (self.freed(operation), 0)
                })
            }
            25 => {
                let (uvm_file, which) = (file(input)?, unregistered(input)?);
                self.model.unregister(uvm_file, which);
                let operation = Operation::Unregister { uvm_file, which };
                Some((self.freed(operation), 0))
            }
            26 => {
                let uvm_file = file(input)?;
                let opened = self.apply(Operation::OpenUvmFile { uvm_file });
                assert_eq!(opened.map(|_| ()), self.model.open_uvm_file(uvm_file));
                None
            }
            _ => {
                let (file, index) = (file(input)?, input.int_in_range(0..=1)?);
                self.pin(input)?.map(|(at, pin)| {
                    self.model.export(at, file, index);
                    (self.freed(Operation::Export { pin, file, index }), 0)
                })
            }
        })
    }

    /// Pins, or is refused, as the model expects it.
    fn take_pin(&mut self, operation: Operation, expected: Result<(), Refusal>) {
        match self.apply(operation) {
            Ok(applied) => {
                assert_eq!(expected, Ok(()));
                let Applied::Pinned(token) = applied else {
                    panic!("{applied:?}")
                };
                self.pins.push(token);
            }
            Err(refusal) => assert_eq!(expected, Err(refusal)),
        }
    }

    /// Pins an object, or is refused.
    fn pin_object(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (client, handle, purpose) = (client(input)?, handle(input)?, pin_for(input)?);
        let expected = self.model.pin(client, handle, purpose);
        self.take_pin(
            Operation::Pin {
                client,
                object: handle,
                purpose,
            },
            expected,
        );
        Ok(None)
    }

    /// Pins what a file exports, or is refused.
    fn pin_export(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (file, index, purpose) = (file(input)?, input.int_in_range(0..=1)?, pin_for(input)?);
        let expected = self.model.pin_export(file, index, purpose);
        self.take_pin(
            Operation::PinExport {
                file,
                index,
                purpose,
            },
            expected,
        );
        Ok(None)
    }

    /// Maps what is pinned on some cards.
    fn map_external(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (file, span) = (file(input)?, span(input)?);
        let cards = (0..input.int_in_range(0..=2_u8)?)
            .map(|_| card(input))
            .collect::<arbitrary::Result<Vec<_>>>()?;
        Ok(self.pin(input)?.map(|(at, pin)| {
            self.model.map(at, file, span.base(), span.last(), &cards);
            let operation = Operation::MapExternal {
                pin,
                uvm_file: file,
                span,
                cards,
            };
            (self.freed(operation), 0)
        }))
    }

    /// Ends maps of one card, or of all.
    fn unmap_external(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
        let (file, span) = (file(input)?, span(input)?);
        let card = if input.arbitrary()? {
            Some(card(input)?)
        } else {
            None
        };
        self.model.unmap(file, span.base(), span.last(), card);
        let operation = Operation::UnmapExternal {
            uvm_file: file,
            span,
            card,
        };
        Ok(Some((self.freed(operation), 0)))
    }

    fn compare(&self) {
        let Self { ledger, model, .. } = self;
        assert_eq!(ledger.check_invariants(), Ok(()));
        let of_host = narrow(model.used(CardSlot::HOST));
        assert_eq!(ledger.used(CardSlot::HOST), of_host);
        for card in CARDS {
            assert_eq!(ledger.quota(card), model.quota(card));
            assert_eq!(ledger.used(card), narrow(model.used(card)));
            assert_eq!(ledger.reserved(card), narrow(model.reserved(card)));
            let left = u128::from(model.quota(card)).saturating_sub(model.used(card));
            assert_eq!(u128::from(ledger.available(card)), left);
            let peak = model.peaks.get(&card).copied().unwrap_or(0);
            assert_eq!(ledger.peak(card), narrow(peak));
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
            assert_eq!(processes, expected);
            assert_eq!(ledger.processes_on(card), processes.len() as u64);
        }
        for counted in all_kinds().map(Counted::Kind).chain([
            Counted::Objects,
            Counted::Mappings,
            Counted::Ranges,
            Counted::Exports,
            Counted::Registrations,
            Counted::UvmFiles,
        ]) {
            assert_eq!(ledger.count(counted), model.count(counted), "{counted}");
        }
        let clients: BTreeSet<_> = ledger.clients().collect();
        let expected: BTreeSet<_> = model
            .clients
            .iter()
            .map(|it| (it.client, it.file, it.process))
            .collect();
        assert_eq!(clients, expected);
        self.compare_objects();
    }

    fn compare_objects(&self) {
        let Self { ledger, model, .. } = self;
        let found: usize = (0..3)
            .map(|it| ledger.objects(ClientHandle(it)).count())
            .sum();
        assert_eq!(found, model.objects.len());
        for fact in &model.objects {
            let object = ledger
                .object(fact.client, fact.handle)
                .unwrap_or_else(|| panic!("{fact:?} is missing"));
            assert_eq!(
                (object.class, object.kind, object.card, object.process),
                (
                    fact.source.class,
                    fact.source.kind,
                    fact.source.card,
                    fact.process
                )
            );
            assert_eq!(
                ledger.card_of(fact.client, fact.handle),
                model.card_of(fact.client, fact.handle)
            );
            let memory = object.allocation.and_then(|id| ledger.allocation(id));
            let expected = fact.source.alloc.map(|alloc| &model.made[alloc]);
            assert_eq!(
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
        let snapshot = ledger.snapshot();
        let wide = |entries: usize| u64::try_from(entries).expect("a small number");
        assert_eq!(snapshot.allocations, wide(model.living().len()));
        assert_eq!(snapshot.reservations, wide(model.reservations.len()));
        assert_eq!(snapshot.pins, wide(model.pins.len()));
    }

    /// Ends every call under way and closes every file: nothing may be left.
    fn wind_down(mut self) {
        self.replay();
        for reservation in std::mem::take(&mut self.reservations) {
            self.done(Operation::RollBack { reservation });
        }
        for file in (0..FILES).map(FileId) {
            self.done(Operation::CloseFile { file });
        }
        for pin in std::mem::take(&mut self.pins) {
            self.done(Operation::Unpin { pin });
        }
        assert_eq!(self.ledger.check_invariants(), Ok(()));
        let left = self.ledger.snapshot();
        assert_eq!(left.counts, vec![]);
        assert_eq!((left.allocations, left.exporting_files), (0, 0));
        for card in left.cards {
            assert_eq!((card.held_bytes, card.reserved_bytes), (0, 0));
        }
    }
}

/// What a step freed, and how many clients and objects it added; `None` where a step frees nothing.
type Step = Option<(Freed, usize)>;
