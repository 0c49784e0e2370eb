//! At which pace a container makes contexts, and what it makes and frees beside them.

use std::fs;

use cards::{ComputeTerms, GpuUuid};
use ledger::{
    Actual, Applied, ClientHandle, ObjectHandle, ObjectKind, Operation, Place, ProcessId,
    ReservationToken,
};
use nvabi::class;
use plan::{Policy, Priority};
use sys::sync;
use verdict::Effect;

use super::*;
use crate::passage::Passage;
use crate::tenant::Disposition;

const CLIENT: u32 = 9;
const DEVICE: u32 = 10;
const FILE: ledger::FileId = ledger::FileId(1);
const PROCESS: ProcessId = ProcessId(1);

/// A client of the container's, with a device of the card.
fn add_device(share: &Share) {
    let reservation = reserved(share, ObjectKind::Client);
    share
        .context
        .journal
        .change()
        .record(Operation::OpenClient {
            file: FILE,
            client: ClientHandle(CLIENT),
            process: PROCESS,
            reservation,
        });
    add(share, (ObjectKind::Device, DEVICE), CLIENT, &[]);
}

fn reserved(share: &Share, kind: ObjectKind) -> ReservationToken {
    let reserve = Operation::Reserve { kind, demand: None };
    match share.context.journal.change().record(reserve) {
        Applied::Reserved(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

/// An object that goes with its parent, and with what it depends on.
fn add(share: &Share, of: (ObjectKind, u32), parent: u32, depends_on: &[u32]) {
    add_of_class(share, of, (parent, 0), depends_on);
}

fn add_of_class(
    share: &Share,
    (kind, handle): (ObjectKind, u32),
    (parent, class): (u32, u32),
    depends_on: &[u32],
) {
    let reservation = reserved(share, kind);
    share.context.journal.change().record(Operation::AddObject {
        place: Place {
            file: FILE,
            client: ClientHandle(CLIENT),
            parent: ObjectHandle(parent),
            handle: ObjectHandle(handle),
            process: PROCESS,
        },
        class,
        kind,
        card: (kind == ObjectKind::Device).then_some(CardSlot(0)),
        depends_on: depends_on.iter().copied().map(ObjectHandle).collect(),
        reservation,
        actual: Actual::AsReserved,
    });
}

/// What is made below the device.
fn made(class: u32) -> Effect {
    Effect::Object {
        class: class::of(class).unwrap(),
        client: CLIENT,
        parent: DEVICE,
        device_instance: None,
    }
}

/// What a call has passed that does not wait.
fn passes<'a>(share: &'a Share, effect: &Effect) -> Option<Passage<'a>> {
    match share.disposition(effect, &[], &|| false) {
        Disposition::Goes(passage) => Some(passage),
        Disposition::Answered | Disposition::Refused(_) | Disposition::GivenUp => None,
    }
}

/// How many contexts it may begin to make at once, of so many.
fn contexts_at_once(share: &Share, most: usize) -> usize {
    let group = made(class::KEPLER_CHANNEL_GROUP_A);
    let passed = (0..most).map_while(|_| passes(share, &group));
    passed.collect::<Vec<_>>().len()
}

#[test]
fn a_native_container_beside_one_that_has_terms_makes_contexts_at_a_pace() {
    const MANY: usize = 20;
    let host = Host::new();
    host.write_rules(Policy::Native);
    let (native, high) = (
        ComputeTerms::default(),
        ComputeTerms {
            priority: Priority::High,
            ..ComputeTerms::default()
        },
    );
    reserve_each(&host, &[("c", &native)]);
    let share = host.broker(native.clone());
    share.start(Beginning::First).unwrap();
    add_device(&share);
    assert_eq!(contexts_at_once(&share, MANY), MANY, "nobody is beside it");
    reserve_each(&host, &[("c", &native), ("d", &high)]);
    share.reconcile();
    assert!(contexts_at_once(&share, MANY) < MANY);
    share.stop();
}

#[test]
fn a_native_container_makes_contexts_at_a_pace_where_another_card_has_terms() {
    const MANY: usize = 20;
    const ELSEWHERE: &str = "GPU-1";
    let host = Host::new();
    host.write_rules(Policy::Native);
    let native = ComputeTerms::default();
    reserve_each(&host, &[("c", &native)]);
    reserve_on(&host, ELSEWHERE, &[("d", &native)]);
    let share = host.broker(native);
    share.start(Beginning::First).unwrap();
    add_device(&share);
    let at_once = || {
        sync::lock(&share.node).read_long_ago();
        contexts_at_once(&share, MANY)
    };
    assert_eq!(at_once(), MANY, "nobody of the node has terms");
    reserve_on(&host, ELSEWHERE, &[("d", &percent(30))]);
    assert!(at_once() < MANY);
    assert!(!is_held(&share), "nobody holds it for that");
    let elsewhere =
        cards::reservations::file_of(host.folder.path(), &GpuUuid::new(ELSEWHERE).unwrap());
    fs::remove_file(&elsewhere).unwrap();
    assert_eq!(at_once(), MANY);
    fs::write(&elsewhere, "{").unwrap();
    assert!(at_once() < MANY, "it cannot be read");
    fs::remove_dir_all(host.folder.path().join("cards")).unwrap();
    assert!(at_once() < MANY, "nothing is there to be read");
}

fn freed(object: u32) -> Effect {
    Effect::Free {
        client: CLIENT,
        object,
    }
}

/// Has an object be freed, which takes long; whether that is counted.
fn takes_long(share: &Share, object: u32) -> bool {
    const LONG: std::time::Duration = std::time::Duration::from_millis(1_600);
    let mut passage = passes(share, &freed(object)).expect("what frees does not wait");
    let counted = passage.paced.as_mut();
    let counted = counted.map(|paced| paced.since = paced.since.checked_sub(LONG).unwrap());
    counted.is_some()
}

const GT200_DEBUGGER: u32 = 0x83de;

/// A container with terms, and a client with a device of its card.
fn governed_with_device() -> (Host, Arc<Share>) {
    let host = Host::new();
    host.write_rules(Policy::Native);
    reserve(&host, &percent(30));
    let share = host.broker(percent(30));
    share.start(Beginning::First).unwrap();
    add_device(&share);
    (host, share)
}

#[test]
fn trees_that_are_freed_count_to_the_pace_of_what_makes_them_and_never_wait() {
    let (_host, share) = governed_with_device();
    let [group, engine_object, memory] = [
        class::KEPLER_CHANNEL_GROUP_A,
        GT200_DEBUGGER,
        class::NV01_MEMORY_LOCAL_USER,
    ]
    .map(made);
    for _ in 0..100 {
        assert!(!takes_long(&share, DEVICE), "nothing is below it");
    }
    assert!(passes(&share, &engine_object).is_some());
    for _ in 0..7 {
        assert!(takes_long(&share, CLIENT));
    }
    assert!(passes(&share, &engine_object).is_none());
    // Contexts have an allowance of their own, and memory has none.
    assert!(passes(&share, &group).is_some() && passes(&share, &memory).is_some());
    assert!(takes_long(&share, CLIENT));
    share.stop();
}

#[test]
fn what_frees_is_counted_where_others_go_with_it() {
    const ABOVE: u32 = 11;
    const BELOW: u32 = 12;
    const DEPENDS: u32 = 13;
    let (_host, share) = governed_with_device();
    add(&share, (ObjectKind::Other, ABOVE), DEVICE, &[]);
    assert!(takes_long(&share, DEVICE) && !takes_long(&share, ABOVE));
    add(&share, (ObjectKind::Other, BELOW), ABOVE, &[]);
    assert!(takes_long(&share, ABOVE) && !takes_long(&share, BELOW));
    add(&share, (ObjectKind::Other, DEPENDS), DEVICE, &[BELOW]);
    assert!(takes_long(&share, BELOW) && !takes_long(&share, DEPENDS));
    share.stop();
}

#[test]
fn what_is_freed_where_nobody_has_terms_is_not_counted() {
    let host = Host::new();
    host.write_rules(Policy::Native);
    let native = ComputeTerms::default();
    reserve_each(&host, &[("c", &native)]);
    let share = host.broker(native.clone());
    share.start(Beginning::First).unwrap();
    add_device(&share);
    assert!(takes_long(&share, CLIENT), "it is not known yet");
    assert!(passes(&share, &made(GT200_DEBUGGER)).is_some());
    assert!(!takes_long(&share, CLIENT));
    reserve_on(&host, "GPU-1", &[("d", &percent(30))]);
    sync::lock(&share.node).read_long_ago();
    assert!(passes(&share, &made(GT200_DEBUGGER)).is_some());
    assert!(takes_long(&share, CLIENT));
    share.stop();
}

#[test]
fn virtual_memory_with_its_mappings_waits_for_what_frees_have_taken() {
    const VIRTUAL: u32 = 11;
    const NV50_MEMORY_VIRTUAL: u32 = 0x50a0;
    let (_host, share) = governed_with_device();
    let of = (DEVICE, NV50_MEMORY_VIRTUAL);
    add_of_class(&share, (ObjectKind::Memory, VIRTUAL), of, &[]);
    let mapped = Effect::MapDma {
        client: CLIENT,
        device: DEVICE,
        dma: VIRTUAL,
        memory: VIRTUAL,
        offset: 0,
        bytes: 4096,
    };
    assert!(passes(&share, &mapped).is_some());
    for _ in 0..7 {
        assert!(takes_long(&share, VIRTUAL));
    }
    assert!(passes(&share, &mapped).is_none());
    assert!(passes(&share, &made(NV50_MEMORY_VIRTUAL)).is_none());
    assert!(takes_long(&share, VIRTUAL));
    share.stop();
}
