//! What goes wrong on a card: who is hit, who is told, and who goes on.

use std::os::unix::fs::FileExt;

use crate::tenant::card::{BUFFER, Card, HOST, MIB, copy, signal, until};
use crate::tenant::{Tenant, ada};
use crate::wire::{Connection, PIECE_BYTES, piece, start, ticket, used};
use driver::wire::{Answer, Fault, Request};
use driver::{Incident, IncidentKind};
use nvabi::bytes::u32_at;
use nvabi::control;
use nvabi::layout::nvos21;
use nvabi::status::NV_ERR_GPU_IS_LOST;

/// `NV_ERR_RC_ERROR`
const RC_ERROR: u32 = 0x60;
const TOKEN: u32 = control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN;

#[test]
fn an_xid_ends_the_channels_of_its_session_and_no_others() {
    let machine = ada("570.195.03", 64, 2);
    let hit = Card::open_in(&machine, "ns/hit");
    let neighbour = Card::open_in(&machine, "ns/neighbour");
    let uuid = machine.cards()[0].uuid();
    let xid = |uuid: &str, session: &str| {
        machine.fault(&Fault::Xid {
            uuid: uuid.to_owned(),
            session: session.to_owned(),
            number: 43,
        })
    };
    // Another card: nothing of the session is there.
    xid(&machine.cards()[1].uuid(), "ns/hit").unwrap();
    hit.submit(&signal(HOST, 1));
    until("the ring before the fault", || hit.host_word(0) == 1);

    xid(&uuid, "ns/hit").unwrap();
    hit.submit(&signal(HOST, 2));
    let mut notifier = [0; 16];
    hit.notifier.read_exact_at(&mut notifier, 0).unwrap();
    assert_eq!((u32_at(&notifier, 8), notifier[14]), (Some(43), 0xff));
    let dead = |channel| hit.tenant.ask(channel, TOKEN, &[]).unwrap_err();
    assert_eq!(dead(hit.channel), RC_ERROR);
    for turn in [1, 2] {
        neighbour.submit(&signal(HOST, turn));
        until("the neighbour's ring", || neighbour.host_word(0) == turn);
    }
    neighbour.tenant.ask(neighbour.channel, TOKEN, &[]).unwrap();
    // A reset does not help, and the end of the fault neither; memory can still be had.
    machine.fault(&Fault::Clear).unwrap();
    assert_eq!(
        hit.tenant.ask(hit.channel, 0x906f_0102, &[]).unwrap_err(),
        RC_ERROR
    );
    assert_eq!(hit.host_word(0), 1);
    hit.tenant.vidmem(hit.device, 1).unwrap();

    let of = |card: &Card, after| card.tenant.session.incidents(after);
    let seen: Vec<_> = of(&hit, 0)
        .iter()
        .map(|incident| (incident.sequence, incident.uuid.clone(), incident.own))
        .collect();
    let other = machine.cards()[1].uuid();
    assert_eq!(
        seen,
        [(1, other, Some(true)), (2, uuid.clone(), Some(true))]
    );
    assert_eq!(
        of(&neighbour, 1),
        [Incident {
            sequence: 2,
            uuid,
            pci: "0000:01:00".to_owned(),
            kind: IncidentKind::Xid {
                number: 43,
                detail: "injected".to_owned()
            },
            own: Some(false),
        }]
    );
    assert!(of(&neighbour, 2).is_empty());
    assert!(xid("GPU-0", "ns/hit").unwrap_err().contains("GPU-0"));
    assert!(
        xid(&machine.cards()[0].uuid(), "ns/none")
            .unwrap_err()
            .contains("ns/none")
    );
}

#[test]
fn a_fault_of_a_tenants_own_is_an_incident_of_its_own() {
    let machine = ada("570.195.03", 64, 1);
    let (faulty, other) = (
        Card::open_in(&machine, "ns/faulty"),
        Tenant::new(&machine, "ns/other"),
    );
    // Again and again: what one session does pushes out nothing of the others.
    let uuid = machine.cards()[0].uuid();
    machine.fault(&Fault::CardLost { uuid }).unwrap();
    machine.fault(&Fault::Clear).unwrap();
    for turn in 1..=80 {
        faulty.submit(&copy(0xdead_0000, BUFFER, 64));
        let newest = || {
            let all = faulty.tenant.session.incidents(0);
            all.last().map_or(0, |incident| incident.sequence)
        };
        until("the fault is reported", || newest() == turn + 1);
        faulty.tenant.ask(faulty.channel, 0x906f_0102, &[]).unwrap();
    }
    let seen = other.session.incidents(0);
    assert_eq!(
        (seen.len(), seen[0].kind.clone(), seen[0].own),
        (65, IncidentKind::CardLost, None)
    );
    for incident in &seen[1..] {
        assert!(
            matches!(
                &incident.kind,
                IncidentKind::Xid {
                    number: 13 | 31,
                    ..
                }
            ) && incident.own == Some(false),
            "{incident:?}"
        );
    }
}

#[test]
fn a_lost_card_answers_nobody_and_runs_nothing_until_it_is_back() {
    let machine = ada("570.195.03", 64, 2);
    let card = Card::open_in(&machine, "ns/one");
    let other = Tenant::new(&machine, "ns/other");
    let (second, _sub) = other.device(1);
    let uuid = machine.cards()[0].uuid();
    machine.fault(&Fault::CardLost { uuid }).unwrap();
    card.submit(&signal(HOST, 1));
    assert_eq!(
        card.tenant.vidmem(card.device, 1).unwrap_err(),
        NV_ERR_GPU_IS_LOST
    );
    assert_eq!(
        card.tenant.ask(card.channel, TOKEN, &[]).unwrap_err(),
        NV_ERR_GPU_IS_LOST
    );
    other.vidmem(second, 1).unwrap();
    assert_eq!(card.host_word(0), 0);
    let reported = other.session.incidents(0);
    assert_eq!((reported.len(), reported[0].own), (1, None));
    machine.fault(&Fault::Clear).unwrap();
    until("the ring goes on", || card.host_word(0) == 1);
}

#[test]
fn calls_that_hang_keep_nobody_else_and_are_done_once_when_they_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut supervisor = Connection::open(dir.path(), "ns/one");
    let objects = supervisor.device();
    let mut neighbour = Connection::open(dir.path(), "ns/other");
    let hang = Fault::Hang {
        session: "ns/one".to_owned(),
        calls: 1,
    };
    assert_eq!(neighbour.ask(&Request::Fault(hang)).0, Answer::Ok);
    // The first call hangs; another call slot of the session, and another session, do not.
    let hung = Connection::open(dir.path(), "ns/one");
    hung.send(&piece(ticket(0, 1), objects));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut call = 2;
    // Which of the calls it is depends on who is read first: one of them it is.
    supervisor.send(&piece(ticket(1, call), objects));
    while !hung.has_answer() && !supervisor.has_answer() {
        assert!(std::time::Instant::now() < deadline, "both calls hang");
        std::thread::yield_now();
    }
    let (mut free, stuck, stuck_ticket) = if hung.has_answer() {
        (hung, supervisor, ticket(1, call))
    } else {
        (supervisor, hung, ticket(0, 1))
    };
    free.finished();
    for _more in 0..3 {
        call += 1;
        free.done(&piece(ticket(2, call), objects));
    }
    neighbour.device();
    assert_eq!(used(&server), 4 * PIECE_BYTES);
    assert!(!stuck.has_answer());
    // The broker of the hanging call is killed, the next one asks for it again, and waits as well.
    drop(stuck);
    let mut next = Connection::open(dir.path(), "ns/one");
    next.send(&piece(stuck_ticket, objects));
    free.done(&piece(ticket(2, call + 1), objects));
    assert!(!next.has_answer());
    assert_eq!(neighbour.ask(&Request::Fault(Fault::Clear)).0, Answer::Ok);
    let (block, _file) = next.finished();
    assert_eq!(u32_at(&block, nvos21::STATUS), Some(0));
    assert_eq!(used(&server), 6 * PIECE_BYTES);
}

#[test]
fn a_session_whose_last_broker_dies_in_a_hanging_call_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut only = Connection::open(dir.path(), "ns/one");
    let objects = only.device();
    only.done(&piece(ticket(0, 1), objects));
    let mut observer = Connection::open(dir.path(), "ns/observer");
    let hang = Fault::Hang {
        session: "ns/one".to_owned(),
        calls: 9,
    };
    assert_eq!(observer.ask(&Request::Fault(hang)).0, Answer::Ok);
    only.send(&piece(ticket(0, 2), objects));
    let second = Connection::open(dir.path(), "ns/one");
    second.send(&piece(ticket(0, 2), objects));
    drop((only, second));
    until("the session is freed", || used(&server) == 0);
    // A new one of the same name starts from nothing and does not hang.
    let mut anew = Connection::open(dir.path(), "ns/one");
    let objects = anew.device();
    anew.done(&piece(ticket(0, 1), objects));
    assert_eq!(used(&server), PIECE_BYTES);
}

#[test]
fn sums_count_what_has_a_handle_once_and_show_what_no_call_has_requested() {
    let machine = ada("570.195.03", 64, 2);
    let tenant = Tenant::new(&machine, "ns/one");
    let second = Tenant::of_process(&machine, "ns/one", 77);
    let other = Tenant::new(&machine, "ns/other");
    let sums = |tenant: &Tenant| {
        let sums = tenant.session.sums();
        assert_eq!(sums[0].uuid, machine.cards()[0].uuid());
        [sums[0].memory_bytes, sums[1].memory_bytes]
    };
    let (first, _sub) = tenant.device(0);
    let (on_second, _sub) = tenant.device(1);
    let space = tenant
        .alloc(
            first,
            nvabi::class::FERMI_VASPACE_A,
            0,
            Some(&mut vec![0; 56]),
        )
        .unwrap();
    let uuid = machine.cards()[0].profile.uuid;
    let uvm = tenant.uvm_file(uuid, space);
    let (memory, _bytes) = tenant.vidmem(first, 4 * MIB).unwrap();
    tenant.vidmem(on_second, 1).unwrap();
    tenant
        .memory(first, nvabi::class::NV01_MEMORY_SYSTEM, MIB)
        .unwrap();
    assert_eq!((sums(&tenant), sums(&other)), ([4 * MIB, 64 << 10], [0, 0]));
    let (device, _sub) = second.device(0);
    let copy = second.dup(device, &tenant, memory).unwrap();
    assert_eq!(sums(&second), [4 * MIB, 64 << 10]);
    tenant.free(memory).unwrap();
    assert_eq!(sums(&tenant), [4 * MIB, 64 << 10]);
    tenant.create_range(uvm, 0x10_0000_0000, 4 * MIB).unwrap();
    second.free(copy).unwrap();
    assert_eq!(sums(&tenant), [0, 64 << 10]);

    let (memory, _bytes) = tenant.vidmem(first, 4 * MIB).unwrap();
    tenant
        .map_external(uvm, uuid, 0x10_0000_0000, 4 * MIB, memory)
        .unwrap();
    tenant.free(memory).unwrap();
    assert_eq!(sums(&tenant), [0, 64 << 10]);
    assert_eq!(machine.account()[0].used_bytes, 4 * MIB);

    let leak = |bytes| {
        machine.fault(&Fault::Leak {
            uuid: machine.cards()[0].uuid(),
            session: "ns/other".to_owned(),
            bytes,
        })
    };
    leak(3 * MIB).unwrap();
    assert_eq!((sums(&other), sums(&tenant)), ([3 * MIB, 0], [0, 64 << 10]));
    assert_eq!(machine.account()[0].used_bytes, 7 * MIB);
    assert!(leak(1 << 40).unwrap_err().contains("0x51"));
    machine.fault(&Fault::Clear).unwrap();
    assert_eq!(sums(&other), [0, 0]);
    assert_eq!(machine.account()[0].used_bytes, 4 * MIB);
}
