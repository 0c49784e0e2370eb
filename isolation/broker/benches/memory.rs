//! What a broker's tables cost: `cargo bench -p cgpu-broker --bench memory [-- --json]`.
//!
//! The account of a container and its journal, as a broker has them, are filled with so many of something in a process of its own, by the
//! operations that calls make. Private memory is what the kernel counts of that process, but for the journal, which is counted by
//! itself. A second process then takes the journal over, as a successor does.
//!
//! The promise is 16 MiB and 256 bytes for each thing. The 16 MiB are the whole program's; what it takes with a container that has made
//! calls, and holds little, is a row of `cargo xtask bench memory`.

#![expect(clippy::unwrap_used, reason = "a measurement fails by it")]

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use broker::account::{Account, Slot, uuid_bytes};
use driver::{CardIdentity, FileId, FileKind, ImplicitBytes};
use journal::Journal;
use journal::limits::MOST_CARDS;
use journal::state::Op;
use ledger::{
    Actual, Adopted, Applied, CardSlot, ClientHandle, Demand, ObjectHandle, ObjectKind, Operation,
    PinFor, Place, ProcessId, Purpose, Refusal, Span,
};
use nvabi::Release;
use serde::{Deserialize, Serialize};

/// Which state a child is to fill, or take over.
const STATE: &str = "CGPU_BENCH_STATE";
const SUCCESSOR: &str = "CGPU_BENCH_SUCCESSOR";
/// Where a successor finds the journal.
const JOURNAL: &str = "CGPU_BENCH_JOURNAL";
const BASE_BYTES: u64 = 16 << 20;
const THING_BYTES: u64 = 256;
const ALL: u64 = u64::MAX;

/// A row of the result.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    name: String,
    unit: String,
    median: f64,
    p99: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<f64>,
}

/// What a child found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Found {
    things: u64,
    private_bytes: u64,
    journal_bytes: u64,
    /// To take the journal over, of a successor.
    ms: f64,
}

/// Something of which there can be many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Clients,
    Processes,
    Managed,
    Mappings,
    Ranges,
    Exports,
    Files,
    Events,
}

const KINDS: [Kind; 9] = [
    Kind::Clients,
    Kind::Processes,
    Kind::Memory,
    Kind::Managed,
    Kind::Mappings,
    Kind::Ranges,
    Kind::Exports,
    Kind::Files,
    Kind::Events,
];

/// Name, what it holds and how many of it.
const STATES: [(&str, &[(Kind, u64)]); 12] = [
    ("nothing", &[]),
    ("10 000 objects", &[(Kind::Memory, 10_000)]),
    ("100 000 objects", &[(Kind::Memory, 100_000)]),
    ("objects at their maximum", &[(Kind::Memory, ALL)]),
    ("objects of 20 000 processes", &[(Kind::Processes, 20_000)]),
    ("clients at their maximum", &[(Kind::Clients, ALL)]),
    ("managed memory at its maximum", &[(Kind::Managed, ALL)]),
    ("mappings at their maximum", &[(Kind::Mappings, ALL)]),
    ("ranges at their maximum", &[(Kind::Ranges, ALL)]),
    ("exports at their maximum", &[(Kind::Exports, ALL)]),
    (
        "files at their maximum",
        &[(Kind::Files, ALL), (Kind::Events, ALL)],
    ),
    (
        "everything at its maximum",
        &[
            (Kind::Clients, ALL),
            (Kind::Memory, ALL),
            (Kind::Managed, ALL),
            (Kind::Ranges, ALL),
            (Kind::Exports, ALL),
            (Kind::Files, ALL),
            (Kind::Events, ALL),
        ],
    ),
];

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(STATE) {
        return fill(&name);
    }
    if let Ok(path) = std::env::var(JOURNAL) {
        return resume(&path);
    }
    let mut rows = Vec::new();
    let is_bench = std::env::args().any(|flag| flag == "--bench");
    // `cargo test` runs the first two, without a figure.
    let states = if is_bench { STATES.len() } else { 2 };
    for (name, _) in STATES.iter().take(states) {
        let reply = Command::new("/proc/self/exe")
            .env(STATE, name)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let [filled, resumed]: [Found; 2] = serde_json::from_slice(&reply.stdout).unwrap();
        let target = BASE_BYTES + THING_BYTES * filled.things;
        let mib = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap()) / 1024.0;
        for (what, value, target) in [
            ("private memory", filled.private_bytes, Some(target)),
            (
                "private memory of a successor",
                resumed.private_bytes,
                Some(target),
            ),
            ("journal", filled.journal_bytes, Some(512 << 20)),
        ] {
            rows.push(Row {
                name: format!("{what}, {name}"),
                unit: "MiB".to_owned(),
                median: mib(value),
                p99: mib(value),
                target: target.map(mib),
            });
        }
        rows.push(Row {
            name: format!("a journal taken over, {name}"),
            unit: "ms".to_owned(),
            median: resumed.ms,
            p99: resumed.ms,
            target: None,
        });
    }
    if std::env::args().any(|word| word == "--json") {
        println!("{}", serde_json::to_string(&rows).unwrap());
    } else {
        for row in &rows {
            let target = row.target.map(|target| format!("≤ {target:.1}"));
            let target = target.unwrap_or_default();
            println!(
                "{:>10.1} {:4} {target:>10}  {}",
                row.median, row.unit, row.name
            );
        }
    }
    ExitCode::SUCCESS
}

/// Of a container with as many cards as its maxima go by.
fn account() -> Account {
    let (slots, cards): (Vec<Slot>, Vec<CardIdentity>) = (0..MOST_CARDS.into())
        .map(|minor: u32| {
            let uuid = format!("GPU-00000000-0000-0000-0000-0000000000a{minor}");
            let slot = Slot {
                uuid_bytes: uuid_bytes(&uuid).unwrap(),
                uuid: uuid.clone(),
                minor,
                quota_bytes: u64::MAX,
            };
            let card = CardIdentity {
                uuid,
                minor,
                gpu_id: 0x100 + minor,
                device_instance: minor,
                memory_bytes: 1 << 40,
            };
            (slot, card)
        })
        .unzip();
    Account::new(Release::R570, slots, &cards, ImplicitBytes::default())
}

fn fill(name: &str) -> ExitCode {
    let (_, holds) = STATES.into_iter().find(|(of, _)| *of == name).unwrap();
    let memfd = Journal::memfd().unwrap();
    let journal = Journal::open(memfd.try_clone().unwrap(), || account().fresh_state()).unwrap();
    let mut things = 0;
    for kind in KINDS {
        for (_, most) in holds.iter().filter(|(of, _)| *of == kind) {
            things += (0..*most)
                .take_while(|number| make(&journal, kind, *number))
                .count();
        }
    }
    let things = u64::try_from(things).unwrap();
    let filled = found(things, &memfd, 0.0);
    let path = format!("/proc/{}/fd/{}", std::process::id(), memfd.as_raw_fd());
    // The former owner is dead when a successor comes.
    drop(journal);
    let reply = Command::new("/proc/self/exe")
        .env_remove(STATE)
        .env(JOURNAL, path)
        .env(SUCCESSOR, things.to_string())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let resumed: Found = serde_json::from_slice(&reply.stdout).unwrap();
    println!("{}", serde_json::to_string(&[filled, resumed]).unwrap());
    ExitCode::SUCCESS
}

fn resume(path: &str) -> ExitCode {
    let memfd = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let memfd = OwnedFd::from(memfd);
    let began = Instant::now();
    let journal = Journal::open(memfd.try_clone().unwrap(), || panic!("it is written")).unwrap();
    let ms = began.elapsed().as_secs_f64() * 1000.0;
    let things = std::env::var(SUCCESSOR).unwrap().parse().unwrap();
    let found = found(things, &memfd, ms);
    drop(journal);
    println!("{}", serde_json::to_string(&found).unwrap());
    ExitCode::SUCCESS
}

/// Makes one more; says whether there was room.
fn make(journal: &Journal, kind: Kind, number: u64) -> bool {
    let client = ClientHandle(7);
    let file = ledger::FileId(3);
    let small = u32::try_from(number).unwrap();
    let process = match kind {
        Kind::Processes => ProcessId(i32::try_from(number).unwrap() + 1000),
        _ => ProcessId(1000),
    };
    let span = Span::new(0x7000_0000_0000 + number * 8192, 4096).unwrap();
    let demand = Some(Demand {
        card: CardSlot(0),
        bytes: 1 << 16,
        purpose: Purpose::Memory,
    });
    let mut change = journal.change();
    let mut ledger = |operation| match change.ledger(operation) {
        Ok(applied) => Some(applied),
        Err(Refusal::TooMany { .. }) => None,
        Err(other) => panic!("{other}"),
    };
    let reserved = |applied| match applied {
        Applied::Reserved(reservation) => reservation,
        other => panic!("{other:?}"),
    };
    match kind {
        Kind::Memory | Kind::Processes => {
            let kind = ObjectKind::Memory;
            let Some(applied) = ledger(Operation::Reserve { kind, demand }) else {
                return false;
            };
            ledger(Operation::AddObject {
                place: Place {
                    file,
                    client,
                    parent: ObjectHandle(0x5c00_0001),
                    handle: ObjectHandle(0x5c00_0010 + small),
                    process,
                },
                class: 0x40,
                kind,
                card: None,
                depends_on: Vec::new(),
                reservation: reserved(applied),
                actual: Actual::Bytes(1 << 16),
            });
        }
        Kind::Clients => {
            let kind = ObjectKind::Client;
            let Some(applied) = ledger(Operation::Reserve { kind, demand: None }) else {
                return false;
            };
            ledger(Operation::OpenClient {
                file,
                client: ClientHandle(0xc1d0_0000 + small),
                process,
                reservation: reserved(applied),
            });
        }
        Kind::Managed => {
            let mapped = ledger(Operation::MapManaged {
                uvm_file: file,
                span,
                process,
                cards: vec![CardSlot(0)],
            });
            return mapped.is_some();
        }
        Kind::Mappings => {
            if number == 0 {
                let kind = ObjectKind::Memory;
                let applied = ledger(Operation::Reserve { kind, demand }).unwrap();
                ledger(Operation::AddObject {
                    place: Place {
                        file,
                        client,
                        parent: ObjectHandle(1),
                        handle: ObjectHandle(2),
                        process,
                    },
                    class: 0x40,
                    kind,
                    card: None,
                    depends_on: Vec::new(),
                    reservation: reserved(applied),
                    actual: Actual::AsReserved,
                });
            }
            let pinned = ledger(Operation::Pin {
                client,
                object: ObjectHandle(2),
                purpose: PinFor::Map { cards: 1 },
            });
            let Some(Applied::Pinned(pin)) = pinned else {
                return false;
            };
            ledger(Operation::MapExternal {
                pin,
                uvm_file: file,
                span,
                cards: vec![CardSlot(0)],
            });
        }
        Kind::Ranges => {
            if change.ledger.check_range().is_err() {
                return false;
            }
            change.record(Operation::AddRange {
                uvm_file: file,
                span,
            });
        }
        Kind::Exports => {
            let adopted = ledger(Operation::AdoptExport {
                file: ledger::FileId(100 + (number >> 8)),
                index: small & 0xff,
                adopted: Adopted {
                    origin: number,
                    class: 0x40,
                    demand,
                    process,
                },
            });
            return adopted.is_some();
        }
        Kind::Files => {
            // `files::FileTable` bounds them, by descriptors that a state has none of.
            let id = change.next_file();
            change.record_op(Op::FileSeen(id, FileKind::Uvm));
            return number + 1 < 12_288;
        }
        Kind::Events => {
            change.record_op(Op::OsEvent(FileId(1), (7, small)));
            return number + 1 < 4096;
        }
    }
    true
}

/// Of this process.
fn found(things: u64, memfd: &OwnedFd, ms: f64) -> Found {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_journal = false;
    let mut private_kib = 0;
    for line in text.lines() {
        let mut parts = line.split_whitespace();
        let first = parts.next().unwrap_or_default();
        if first.starts_with("Private_") && !is_journal {
            private_kib += parts.next().unwrap().parse::<u64>().unwrap();
        }
        if !first.ends_with(':') {
            is_journal = line.contains("cgpu-journal");
        }
    }
    let stat = nix::sys::stat::fstat(memfd).unwrap();
    Found {
        things,
        private_bytes: private_kib << 10,
        journal_bytes: u64::try_from(stat.st_blocks).unwrap() * 512,
        ms,
    }
}
