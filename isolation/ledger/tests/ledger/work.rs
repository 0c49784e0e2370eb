//! What an operation costs: it walks through what it takes out or lists, however much else there is. Entries are counted, not time.

#![cfg(debug_assertions)]

use ledger::{
    Actual, CardSlot, ClientHandle, Demand, FileId, Freed, Ledger, NewObject, ObjectHandle,
    ObjectKind, PinFor, Place, ProcessId, Purpose, Span, steps,
};

const PROCESS: ProcessId = ProcessId(7);
const CARD: CardSlot = CardSlot(0);
const UVM: FileId = FileId(1);
const CLIENT: ClientHandle = ClientHandle(1);
const PARENT: ObjectHandle = ObjectHandle(0xf000_0000);

fn wide(number: u32) -> u64 {
    u64::from(number)
}

fn place(file: FileId, client: ClientHandle, parent: ObjectHandle, handle: u32) -> Place {
    Place {
        file,
        client,
        parent,
        handle: ObjectHandle(handle),
        process: PROCESS,
    }
}

fn add(ledger: &mut Ledger, place: Place, kind: ObjectKind) {
    let demand = Demand {
        card: CARD,
        bytes: 4096,
        purpose: Purpose::Memory,
    };
    let demand = (kind == ObjectKind::Memory).then_some(demand);
    let reservation = ledger.reserve(kind, demand).expect("no limit");
    let object = NewObject {
        place,
        class: 0x40,
        kind,
        card: (kind == ObjectKind::Device).then_some(CARD),
        depends_on: &[],
    };
    ledger.add_object(object, reservation, Actual::AsReserved);
}

fn span(number: u32) -> Span {
    Span::new(wide(number) * 8192, 4096).expect("not empty")
}

/// So many of everything: a file each with a client, a range, managed memory, a mapping and an export; a client with as many
/// children of one parent, and one with objects each below the other.
fn filled(count: u32) -> Ledger {
    let mut ledger = Ledger::new(&[(CARD, u64::MAX)]);
    ledger.see_client(UVM, CLIENT, PROCESS);
    let deep = ClientHandle(2);
    ledger.see_client(UVM, deep, PROCESS);
    add(
        &mut ledger,
        place(UVM, deep, deep.as_object(), 9),
        ObjectKind::Device,
    );
    for number in 0..count {
        let file = FileId(100 + wide(number));
        let own = ClientHandle(100 + number);
        ledger.see_client(file, own, PROCESS);
        add(&mut ledger, place(file, own, PARENT, 1), ObjectKind::Memory);
        let below = place(UVM, CLIENT, PARENT, 10 + number);
        add(&mut ledger, below, ObjectKind::Memory);
        let below = place(UVM, deep, ObjectHandle(9 + number), 10 + number);
        add(&mut ledger, below, ObjectKind::Other);
        for uvm in [UVM, file] {
            ledger.add_range(uvm, span(number));
            ledger
                .map_managed(uvm, span(number), PROCESS, &[CARD])
                .expect("it fits");
            let cards = [CardSlot(1)];
            let pin = ledger.pin(own, ObjectHandle(1), PinFor::Map { cards: 1 });
            ledger.map_external(pin.expect("it is there"), uvm, span(number), &cards);
        }
        let pin = ledger.pin(own, ObjectHandle(1), PinFor::Export);
        ledger.export(pin.expect("it is there"), file, 0);
    }
    ledger
}

/// What is walked through by each of the operations that are about one thing, in a ledger with so many of everything.
fn single_steps(count: u32) -> Vec<(&'static str, u64)> {
    let mut ledger = filled(count);
    let middle = count / 2;
    let (file, own) = (FileId(100 + wide(middle)), ClientHandle(100 + middle));
    let mut all = Vec::new();
    let mut of = |name, work: &mut dyn FnMut(&mut Ledger)| {
        let before = steps::taken();
        work(&mut ledger);
        all.push((name, steps::taken() - before));
    };
    of("add an object", &mut |ledger| {
        add(ledger, place(UVM, CLIENT, PARENT, 5), ObjectKind::Memory);
    });
    of("the card of a deep object", &mut |ledger| {
        let card = ledger.card_of(ClientHandle(2), ObjectHandle(9 + count));
        assert_eq!(card, Some(CARD));
    });
    of("free one of many children", &mut |ledger| {
        assert_eq!(ledger.free(CLIENT, ObjectHandle(10 + middle)).objects, 1);
    });
    of("free what is not there", &mut |ledger| {
        assert_eq!(ledger.free(CLIENT, ObjectHandle(7)), Freed::default());
    });
    of("free a range", &mut |ledger| {
        ledger.free_range(UVM, span(middle).base());
    });
    of("free another file's last range", &mut |ledger| {
        ledger.free_range(FileId(101), span(1).base());
    });
    of("unmap", &mut |ledger| {
        ledger.unmap_external(UVM, span(middle + 1), None);
    });
    of("unmap managed memory", &mut |ledger| {
        ledger.unmap_managed(UVM, span(middle + 1));
    });
    of("map managed memory", &mut |ledger| {
        let mapped = ledger.map_managed(UVM, span(middle + 1), PROCESS, &[CARD]);
        mapped.expect("it fits");
    });
    of("free a client", &mut |ledger| {
        let other = ClientHandle(101);
        assert_eq!(ledger.free(other, other.as_object()).objects, 2);
    });
    of("close a file", &mut |ledger| {
        assert_eq!(ledger.close_file(file).objects, 2);
        assert_eq!(ledger.owner_file(own), None);
    });
    of("the account as it stands", &mut |ledger| {
        assert!(ledger.snapshot().allocations > wide(count));
    });
    all
}

#[test]
fn what_is_about_one_thing_costs_the_same_in_a_ledger_four_times_as_full() {
    assert_eq!(single_steps(250), single_steps(1000));
}

#[test]
fn what_takes_many_out_walks_through_each_of_them_a_few_times() {
    const COUNT: u32 = 2000;
    let steps_of = |work: &dyn Fn(&mut Ledger) -> u64| {
        let mut ledger = filled(COUNT);
        let before = steps::taken();
        let objects = work(&mut ledger);
        assert_eq!(ledger.check_invariants(), Ok(()));
        (objects, steps::taken() - before)
    };
    // Its children, its mappings and its ranges.
    let most = wide(COUNT) * 6;
    for work in [
        (&|ledger: &mut Ledger| ledger.free(CLIENT, PARENT).objects) as &dyn Fn(&mut Ledger) -> u64,
        &|ledger: &mut Ledger| ledger.free(CLIENT, CLIENT.as_object()).objects,
        &|ledger: &mut Ledger| ledger.free(ClientHandle(2), ObjectHandle(9)).objects,
        &|ledger: &mut Ledger| ledger.close_file(UVM).objects,
    ] {
        let (objects, steps) = steps_of(work);
        assert!(objects >= wide(COUNT), "{objects} objects");
        assert!(steps <= most, "{steps} steps for {objects} objects");
    }
}
