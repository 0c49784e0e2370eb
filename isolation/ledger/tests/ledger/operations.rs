//! A journal of a ledger brings the same ledger back, from whatever moment's snapshot it starts.

use ledger::{
    Actual, Adopted, Applied, CardSlot, ClientHandle, Counted, Demand, FileId, Ledger, Limits,
    ObjectHandle, ObjectKind, Operation, PinFor, PinToken, Place, ProcessId, Purpose, Registered,
    ReservationToken, Span, Unregistered,
};
use proptest::prelude::*;

/// A step with tokens by their place among those that are out.
#[derive(Clone, Debug)]
enum Step {
    SetQuota(u64),
    Reserve(u64),
    RollBack(usize),
    OpenClient(u32, usize),
    Add(Place, usize, Option<u64>),
    Unconfirmed(Place),
    Pin(u32, u32, PinFor),
    PinExport(u32, PinFor),
    Unpin(usize),
    Duplicate(usize, Place),
    Range(Span),
    Map(usize, Span),
    Unmap(Span),
    FreeRange(u64),
    Export(usize, u32),
    Free(u32, u32),
    Recharge(u32, u32, u64),
    Close(u64),
    Register(usize, u32, u32),
    Unregister,
    DropSpace,
    MapManaged(Span),
    FoundManaged(Span),
    UnmapManaged(Span),
    Adopt(u32, u64, u64),
}

const CARD: CardSlot = CardSlot(0);
const UVM: FileId = FileId(9);

fn place() -> impl Strategy<Value = Place> {
    (0_u32..3, 0_u32..8, 3_u32..8).prop_map(|(client, parent, handle)| Place {
        file: FileId(client.into()),
        client: ClientHandle(client),
        parent: ObjectHandle(parent),
        handle: ObjectHandle(handle),
        process: ProcessId(1),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    let purpose = || {
        prop_oneof![
            Just(PinFor::Duplicate),
            Just(PinFor::Map { cards: 1 }),
            Just(PinFor::Export),
            Just(PinFor::Register)
        ]
    };
    let span = || {
        (0_u64..40, 1_u64..20)
            .prop_map(|(base, length)| Span::new(base, length).expect("not empty"))
    };
    prop_oneof![
        1 => (50_u64..200).prop_map(Step::SetQuota),
        8 => (0_u64..40).prop_map(Step::Reserve),
        1 => which().prop_map(Step::RollBack),
        2 => (0_u32..3, which()).prop_map(|(c, w)| Step::OpenClient(c, w)),
        8 => (place(), which(), proptest::option::of(0_u64..60)).prop_map(|(p, w, b)| Step::Add(p, w, b)),
        1 => place().prop_map(Step::Unconfirmed),
        8 => (0_u32..3, 3_u32..8, purpose()).prop_map(|(c, h, p)| Step::Pin(c, h, p)),
        1 => (0_u32..2, purpose()).prop_map(|(i, p)| Step::PinExport(i, p)),
        1 => which().prop_map(Step::Unpin),
        3 => (which(), place()).prop_map(|(w, p)| Step::Duplicate(w, p)),
        2 => span().prop_map(Step::Range),
        4 => (which(), span()).prop_map(|(w, s)| Step::Map(w, s)),
        2 => span().prop_map(Step::Unmap),
        1 => (0_u64..40).prop_map(Step::FreeRange),
        2 => (which(), 0_u32..2).prop_map(|(w, i)| Step::Export(w, i)),
        3 => (0_u32..3, 3_u32..8).prop_map(|(c, h)| Step::Free(c, h)),
        2 => (0_u32..3, 3_u32..8, 0_u64..60).prop_map(|(c, h, b)| Step::Recharge(c, h, b)),
        1 => (0_u64..3).prop_map(Step::Close),
        4 => (which(), 0_u32..3, 3_u32..8).prop_map(|(w, c, h)| Step::Register(w, c, h)),
        1 => Just(Step::Unregister),
        1 => Just(Step::DropSpace),
        2 => span().prop_map(Step::MapManaged),
        1 => span().prop_map(Step::FoundManaged),
        1 => span().prop_map(Step::UnmapManaged),
        1 => (0_u32..2, 0_u64..3, 0_u64..40).prop_map(|(i, o, b)| Step::Adopt(i, o, b)),
    ]
}

#[derive(Default)]
struct Tokens {
    reservations: Vec<ReservationToken>,
    pins: Vec<PinToken>,
}

fn take<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(which % from.len()))
}

impl Tokens {
    /// The operation, unless it needs a token and none is out.
    fn operation(&mut self, step: &Step) -> Option<Operation> {
        Some(match step.clone() {
            Step::SetQuota(quota_bytes) => Operation::SetQuota {
                card: CARD,
                quota_bytes,
            },
            Step::Reserve(bytes) => Operation::Reserve {
                kind: ObjectKind::Memory,
                demand: (bytes > 0).then_some(Demand {
                    card: CARD,
                    bytes,
                    purpose: Purpose::Memory,
                }),
            },
            Step::RollBack(which) => Operation::RollBack {
                reservation: take(&mut self.reservations, which)?,
            },
            Step::OpenClient(client, which) => Operation::OpenClient {
                file: FileId(client.into()),
                client: ClientHandle(client),
                process: ProcessId(1),
                reservation: take(&mut self.reservations, which)?,
            },
            Step::Add(place, which, bytes) => Operation::AddObject {
                place,
                class: 0x40,
                kind: ObjectKind::Memory,
                card: None,
                depends_on: vec![ObjectHandle(5)],
                reservation: take(&mut self.reservations, which)?,
                actual: bytes.map_or(Actual::AsReserved, Actual::Bytes),
            },
            Step::Unconfirmed(place) => Operation::AddUnconfirmed {
                place,
                class: 1,
                kind: ObjectKind::Other,
            },
            Step::Pin(client, object, purpose) => Operation::Pin {
                client: ClientHandle(client),
                object: ObjectHandle(object),
                purpose,
            },
            Step::PinExport(index, purpose) => Operation::PinExport {
                file: UVM,
                index,
                purpose,
            },
            Step::Unpin(which) => Operation::Unpin {
                pin: take(&mut self.pins, which)?,
            },
            Step::Duplicate(which, place) => Operation::Duplicate {
                pin: take(&mut self.pins, which)?,
                place,
            },
            Step::Range(span) => Operation::AddRange {
                uvm_file: UVM,
                span,
            },
            Step::Map(which, span) => Operation::MapExternal {
                pin: take(&mut self.pins, which)?,
                uvm_file: UVM,
                span,
                cards: vec![CARD],
            },
            Step::Unmap(span) => Operation::UnmapExternal {
                uvm_file: UVM,
                span,
                card: None,
            },
            Step::FreeRange(base) => Operation::FreeRange {
                uvm_file: UVM,
                base,
            },
            Step::Export(which, index) => Operation::Export {
                pin: take(&mut self.pins, which)?,
                file: UVM,
                index,
            },
            Step::Register(which, client, object) => Operation::Register {
                pin: take(&mut self.pins, which)?,
                uvm_file: UVM,
                card: CARD,
                registered: Registered::Channel {
                    client: ClientHandle(client),
                    channel: ObjectHandle(object),
                },
            },
            Step::Unregister => Operation::Unregister {
                uvm_file: UVM,
                which: Unregistered::Card(CARD),
            },
            Step::Free(client, object) => Operation::Free {
                client: ClientHandle(client),
                object: ObjectHandle(object),
            },
            Step::Recharge(client, object, bytes) => Operation::Recharge {
                client: ClientHandle(client),
                object: ObjectHandle(object),
                bytes,
            },
            Step::Close(file) => Operation::CloseFile { file: FileId(file) },
            Step::MapManaged(span) => Operation::MapManaged {
                uvm_file: UVM,
                span,
                process: ProcessId(1),
                cards: vec![CARD],
            },
            Step::FoundManaged(span) => Operation::FoundManaged {
                uvm_file: UVM,
                span,
                process: ProcessId(2),
                cards: vec![CARD],
            },
            Step::UnmapManaged(span) => Operation::UnmapManaged {
                uvm_file: UVM,
                span,
            },
            Step::Adopt(index, origin, bytes) => Operation::AdoptExport {
                file: UVM,
                index,
                adopted: Adopted {
                    origin,
                    class: 0x40,
                    demand: Some(Demand {
                        card: CARD,
                        bytes,
                        purpose: Purpose::Memory,
                    }),
                    process: ProcessId(1),
                },
            },
            Step::DropSpace => Operation::DropAddressSpace { uvm_file: UVM },
        })
    }
}

fn written<T: serde::Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("it can be written")
}

proptest! {
    #[test]
    fn what_is_replayed_is_what_was(steps in proptest::collection::vec(step(), 1..120), cut in any::<usize>()) {
        let limits = Limits::none().with(Counted::Objects, 40).with(Counted::Mappings, 12);
        let mut ledger = Ledger::with_limits(&[(CARD, 100)], limits);
        let mut tokens = Tokens::default();
        let cut = cut % steps.len();
        let mut snapshot = written(&ledger);
        let mut journal = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if at == cut {
                snapshot = written(&ledger);
                journal.clear();
            }
            let Some(operation) = tokens.operation(step) else { continue };
            let bytes = written(&operation);
            let before = written(&ledger);
            match ledger.apply(operation) {
                Ok(applied) => {
                    match &applied {
                        Applied::Reserved(token) => tokens.reservations.push(*token),
                        Applied::Pinned(token) => tokens.pins.push(*token),
                        Applied::Done | Applied::Recorded(_) | Applied::Freed(_) => {}
                    }
                    journal.push((bytes, applied));
                }
                Err(_refusal) => prop_assert_eq!(before, written(&ledger), "a refusal changes nothing"),
            }
        }
        let mut again: Ledger = postcard::from_bytes(&snapshot).expect("its own snapshot");
        for (bytes, applied) in &journal {
            let operation: Operation = postcard::from_bytes(bytes).expect("its own operation");
            prop_assert_eq!(&again.apply(operation).expect("it was not refused"), applied);
        }
        prop_assert_eq!(written(&again), written(&ledger));
        prop_assert_eq!(again.check_invariants(), Ok(()));
    }
}
