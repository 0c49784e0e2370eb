//! A client's objects for the tests of this module, as the driver would have made them.

use journal::state::{Numbering, State};
use ledger::{
    Actual, Applied, CardSlot, ClientHandle, Demand, Ledger, ObjectHandle, ObjectKind, Operation,
    Place, ProcessId, Purpose,
};

pub(super) const CLIENT: u32 = 0xc1d0_0001;

/// A container with this client, and 1 GiB of each of these cards.
pub(super) fn state(cards: &[CardSlot]) -> State {
    let quotas: Vec<(CardSlot, u64)> = cards.iter().map(|card| (*card, 1 << 30)).collect();
    let mut state = State::new(Ledger::new(&quotas), Numbering::default());
    let seen = Operation::SeeClient {
        file: ledger::FileId(1),
        client: ClientHandle(CLIENT),
        process: ProcessId(7),
    };
    state.ledger.apply(seen).unwrap();
    state
}

pub(super) fn place((handle, parent): (u32, u32)) -> Place {
    Place {
        file: ledger::FileId(1),
        client: ClientHandle(CLIENT),
        parent: ObjectHandle(parent),
        handle: ObjectHandle(handle),
        process: ProcessId(7),
    }
}

/// An object of a class below a parent: a device of a card, memory with its card and bytes, or neither.
pub(super) fn add(
    state: &mut State,
    at: (u32, u32),
    (class, kind): (u32, ObjectKind),
    (card, memory): (Option<CardSlot>, Option<(CardSlot, u64)>),
) {
    let demand = memory.map(|(card, bytes)| Demand {
        card,
        bytes,
        purpose: Purpose::Memory,
    });
    let reserve = Operation::Reserve { kind, demand };
    let Applied::Reserved(reservation) = state.ledger.apply(reserve).unwrap() else {
        panic!("nothing is reserved");
    };
    let added = Operation::AddObject {
        place: place(at),
        class,
        kind,
        card,
        depends_on: Vec::new(),
        reservation,
        actual: Actual::AsReserved,
    };
    state.ledger.apply(added).unwrap();
}
