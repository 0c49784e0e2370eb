//! What a ledger costs in memory: each object, mapping, range and export no more than the share that a broker's memory is promised
//! from (docs/guide/limits.md). Measured as the kernel counts it, in a process of its own for each shape.

use std::fs;
use std::process::Command;

use ledger::{
    Actual, Adopted, CardSlot, ClientHandle, Demand, FileId, Ledger, NewObject, ObjectHandle,
    ObjectKind, PinFor, Place, ProcessId, Purpose, Span,
};

/// Chosen in a child's environment.
const SHAPE: &str = "CGPU_TEST_SHAPE";
const COUNT: u32 = 40_000;
/// What one of them may cost.
const MOST_BYTES: u64 = 256;

const FILE: FileId = FileId(1);
const CLIENT: ClientHandle = ClientHandle(1);
const CARDS: [CardSlot; 8] = [
    CardSlot(0),
    CardSlot(1),
    CardSlot(2),
    CardSlot(3),
    CardSlot(4),
    CardSlot(5),
    CardSlot(6),
    CardSlot(7),
];

type Shape = (&'static str, fn(&mut Ledger, u32));

const SHAPES: [Shape; 8] = [
    ("memory below one device", |ledger, number| {
        memory(ledger, number, ObjectHandle(5), &[]);
    }),
    ("memory in no order", |ledger, number| {
        let handle = number.wrapping_mul(0x9e37_79b1) | 1;
        memory(ledger, handle, ObjectHandle(5), &[]);
    }),
    (
        "memory, each below the one before and dependent on it",
        |ledger, number| {
            let before = ObjectHandle(number + 999);
            memory(ledger, number, before, &[before]);
        },
    ),
    ("two thirds of them freed again", |ledger, number| {
        for part in 0..3 {
            memory(ledger, 3 * number + part, ObjectHandle(5), &[]);
        }
        for part in 0..2 {
            ledger.free(CLIENT, ObjectHandle(1000 + 3 * number + part));
        }
    }),
    ("external mappings", |ledger, number| {
        if number == 0 {
            memory(ledger, 0, ObjectHandle(5), &[]);
        }
        let pin = ledger.pin(CLIENT, ObjectHandle(1000), PinFor::Map { cards: 1 });
        ledger.map_external(pin.expect("it is there"), FILE, span(number), &CARDS[..1]);
    }),
    ("managed memory on eight cards", |ledger, number| {
        let mapped = ledger.map_managed(FILE, span(number), ProcessId(7), &CARDS);
        mapped.expect("it fits");
    }),
    ("external ranges", |ledger, number| {
        ledger.add_range(FILE, span(number));
    }),
    ("exports of others", |ledger, number| {
        let adopted = Adopted {
            origin: u64::from(number),
            class: 0x40,
            demand: Some(demand()),
            process: ProcessId(7),
        };
        ledger
            .adopt_export(FileId(u64::from(number >> 8)), number & 0xff, adopted)
            .expect("it fits");
    }),
];

fn demand() -> Demand {
    Demand {
        card: CARDS[0],
        bytes: 4096,
        purpose: Purpose::Memory,
    }
}

fn span(number: u32) -> Span {
    Span::new(u64::from(number) * 8192, 4096).expect("not empty")
}

fn memory(ledger: &mut Ledger, number: u32, parent: ObjectHandle, depends_on: &[ObjectHandle]) {
    let reservation = ledger.reserve(ObjectKind::Memory, Some(demand()));
    let object = NewObject {
        place: Place {
            file: FILE,
            client: CLIENT,
            parent,
            handle: ObjectHandle(number.wrapping_add(1000)),
            process: ProcessId(7),
        },
        class: 0x40,
        kind: ObjectKind::Memory,
        card: None,
        depends_on,
    };
    ledger.add_object(object, reservation.expect("it fits"), Actual::AsReserved);
}

/// This process's private memory.
fn private_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("Linux");
    let kib = text
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.sum::<u64>() << 10
}

fn measured((_, one): Shape) -> u64 {
    let quotas = CARDS.map(|card| (card, u64::MAX));
    let before = private_bytes();
    let mut ledger = Ledger::new(&quotas);
    (0..COUNT).for_each(|number| one(&mut ledger, number));
    let bytes = private_bytes() - before;
    drop(ledger);
    bytes / u64::from(COUNT)
}

#[test]
fn each_thing_in_a_ledger_costs_no_more_than_its_share() {
    if let Ok(name) = std::env::var(SHAPE) {
        let shape = SHAPES.into_iter().find(|(of, _)| *of == name);
        println!("\nbytes={}", measured(shape.expect("one of them")));
        return;
    }
    let costs: Vec<(&str, u64)> = SHAPES
        .into_iter()
        .map(|(name, _)| {
            let child = Command::new("/proc/self/exe")
                .args(["--nocapture", "--exact"])
                .arg("each_thing_in_a_ledger_costs_no_more_than_its_share")
                .env(SHAPE, name)
                .output()
                .expect("this program");
            let text = String::from_utf8_lossy(&child.stdout).into_owned();
            let cost = text.lines().find_map(|line| line.strip_prefix("bytes="));
            let cost = cost.unwrap_or_else(|| panic!("{name}: {text}"));
            (name, cost.parse().expect("a number"))
        })
        .collect();
    assert!(
        costs.iter().all(|(_, bytes)| *bytes <= MOST_BYTES),
        "{costs:#?}"
    );
}
