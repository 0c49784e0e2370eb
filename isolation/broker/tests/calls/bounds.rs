//! What a tenant makes grow, and how far.

use std::collections::BTreeSet;

use ledger::{ClientHandle, Counted, ObjectHandle, ObjectKind, Operation, PinFor, Refusal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::layout::export_object;
use nvabi::{Release, class, control, status, uvm};
use serde_json::Value;
use verdict::policy::Managed;

use crate::Test;
use crate::agent::Ask;
use crate::fake::GRANULE;
use crate::fixture::{Fixture, until};
use crate::kept::Kept;
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "bounds::many_ended_processes_are_one_figure_of_the_status",
        ended_processes,
    ),
    (
        "bounds::refusals_by_the_thousand_leave_a_short_log",
        flood_of_refusals,
    ),
    (
        "bounds::beyond_each_maximum_is_the_drivers_own_status",
        beyond_each_maximum,
    ),
    (
        "bounds::files_beyond_the_maximum_get_emfile",
        files_beyond_the_maximum,
    ),
    (
        "bounds::a_full_ledger_outlives_its_broker",
        a_full_ledger_outlives_its_broker,
    ),
    (
        "bounds::threads_that_will_be_needed_again_stay",
        threads_that_will_be_needed_again_stay,
    ),
];

const FULL: u32 = status::NV_ERR_INSUFFICIENT_RESOURCES;
const R: Release = Release::R570;
/// Objects that are made by real calls where no number is given in the environment.
const OBJECTS: u32 = 4096;
const OBJECTS_IN_ENVIRONMENT: &str = "CGPU_TEST_OBJECTS";

fn bytes_of(cards: &Value) -> u64 {
    let cards = cards.as_array().unwrap();
    cards
        .iter()
        .map(|card| card["used_bytes"].as_u64().unwrap())
        .sum()
}

fn ended_processes() {
    const PROCESSES: u32 = 100;
    let kept = Kept::new(1 << 40);
    let (tenant, process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocated = tenant.memory(fd, client, device, 1, GRANULE);
    assert_eq!(allocated.status(), rm::OK);
    let before = kept.status().to_string().len();
    for handle in 0..PROCESSES {
        // Its memory stays: the file is its parent's as well.
        let (child, _pid) = tenant.process(&[fd]);
        let allocated = child.memory(fd, client, device, 10 + handle, GRANULE);
        assert_eq!(allocated.status(), rm::OK);
    }
    let mut status = Value::Null;
    until("all of them are known to have ended", || {
        status = kept.status();
        status["processes"]
            .as_array()
            .is_some_and(|listed| listed.len() == 1)
    });
    assert_eq!(status["processes"][0]["pid"], process.0.id());
    let ended = &status["folded"]["ended"];
    assert_eq!(ended[0]["processes"], PROCESSES);
    assert_eq!(bytes_of(ended), u64::from(PROCESSES) * GRANULE);
    let listed = bytes_of(&status["processes"][0]["cards"]);
    assert_eq!(listed + bytes_of(ended), bytes_of(&status["cards"]));
    let after = status.to_string().len();
    assert!(after < before + 512, "{before} bytes, and then {after}");
}

fn flood_of_refusals() {
    let kept = Kept::new(1 << 30);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let before = kept.log().len();
    // Each spells its reason in its own way, as far as it can: calls, classes and sizes that there are none of.
    for number in 0..4000_u32 {
        let called = match number % 3 {
            0 => tenant.call(fd, rm::ALLOC, &rm::alloc(number, 1, 2, number, 0), &[]),
            1 => tenant.call(fd, rm::ALLOC ^ ((number % 200) << 16), &[0; 64], &[]),
            _ => tenant.call(
                fd,
                rm::ALLOC,
                &rm::control(number, number, number, 0, number),
                &[],
            ),
        };
        drop(called);
    }
    let status = kept.status();
    assert!(
        status["calls"]["refused"].as_u64().unwrap() > 1000,
        "{status}"
    );
    let log = kept.log();
    let lines = log[before..].lines().count();
    // 64 reasons that are told apart, one for all others, and each again after ten seconds.
    assert!(lines <= 3 * 65, "{lines} lines: {log}");
    assert!(log.len() < 64 << 10, "{} bytes", log.len());
    assert!(status["health"]["suppressed_logs"].as_u64().unwrap() > 0);
}

/// Sets aside what is left of something, as calls under way do; the last token gives one of it back.
fn fill(fixture: &Fixture, kind: ObjectKind) -> (u64, Operation) {
    let mut last = None;
    loop {
        // A frame of the journal has an end.
        let mut change = fixture.container.journal.change();
        for _ in 0..1024 {
            match change.ledger(Operation::Reserve { kind, demand: None }) {
                Ok(ledger::Applied::Reserved(reservation)) => last = Some(reservation),
                Err(Refusal::TooMany { limit, .. }) => {
                    let reservation = last.expect("there was room");
                    return (limit, Operation::RollBack { reservation });
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The call is refused while something is at its maximum, and goes its way when one less is there.
fn beyond_each_maximum() {
    let (ctl, below) = (class::KEPLER_CHANNEL_GROUP_A, class::FERMI_VASPACE_A);
    for (kind, most) in [
        (ObjectKind::Client, 4096),
        (ObjectKind::ChannelGroup, 1024),
        (ObjectKind::VaSpace, 1024),
        (ObjectKind::Device, 1024),
        (ObjectKind::Other, 1 << 14),
        (ObjectKind::PeerSession, 64),
        (ObjectKind::Event, 1024),
        (ObjectKind::SharedData, 64),
        (ObjectKind::Debugger, 64),
        (ObjectKind::Memory, 1 << 18),
    ] {
        let fixture = Fixture::new(1 << 40);
        let (tenant, fd, client, device) = with_device(&fixture);
        let (limit, one_less) = fill(&fixture, kind);
        assert_eq!(limit, most, "{kind:?}");
        let call = || match kind {
            ObjectKind::Client => {
                let arg = rm::alloc(0, 0, 0, rm::ROOT, 0);
                tenant.call(fd, rm::ALLOC, &arg, &[]).status()
            }
            ObjectKind::ChannelGroup => tenant.on_engine(fd, (client, device), ctl, 1).0,
            ObjectKind::VaSpace => tenant.on_engine(fd, (client, device), below, 0).0,
            ObjectKind::Device => {
                let arg = rm::alloc(client, client, 0, 0x80, tenant.params_address());
                tenant.call(fd, rm::ALLOC, &arg, &[0; 56]).status()
            }
            // A doorbell.
            ObjectKind::Other => tenant.on_engine(fd, (client, device), 0xc461, 0).0,
            ObjectKind::Debugger => tenant.on_engine(fd, (client, device), 0x83de, 0).0,
            ObjectKind::PeerSession => tenant.on_engine(fd, (client, device), 0x503c, 0).0,
            ObjectKind::Event => tenant.on_engine(fd, (client, device), 0x79, 0).0,
            ObjectKind::SharedData => tenant.on_engine(fd, (client, device), 0xde, 0).0,
            _ => tenant.memory(fd, client, device, 0, GRANULE).status(),
        };
        let seen = fixture.fake.seen().len();
        assert_eq!(call(), FULL, "{kind:?}");
        assert_eq!(fixture.fake.seen().len(), seen, "no driver hears of it");
        fixture.container.journal.change().record(one_less);
        assert_eq!((call(), call()), (rm::OK, FULL), "{kind:?}");
    }
    let fixture = Fixture::with_managed(1 << 40, Managed::Charge);
    let (tenant, fd, client, device) = with_device(&fixture);
    let memory = tenant.memory(fd, client, device, 5, GRANULE);
    assert_eq!(memory.status(), rm::OK);
    let pin = |purpose| {
        let (client, object) = (ClientHandle(client), ObjectHandle(5));
        let pin = Operation::Pin {
            client,
            object,
            purpose,
        };
        match fixture.container.journal.change().ledger(pin) {
            Ok(ledger::Applied::Pinned(pin)) => Ok(Operation::Unpin { pin }),
            Err(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    };
    let record = |operation| drop(fixture.container.journal.change().record(operation));
    // Mappings, as calls under way that are about so many cards.
    let uvm_file = tenant.open(&fixture.path("nvidia-uvm"));
    let map = || {
        tenant.ask(&Ask::MapManaged {
            fd: uvm_file,
            bytes: 4096,
        })
    };
    let all_but_one = pin(PinFor::Map {
        cards: (1 << 18) - 1,
    })
    .unwrap();
    map().unwrap();
    assert_eq!(map(), Err(12), "ENOMEM");
    record(all_but_one);
    map().unwrap();
    // Ranges.
    let range = |number: u64| {
        let row = uvm::UVM_CREATE_EXTERNAL_RANGE;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u64(&mut arg, uvm::map_external::BASE, number << 16);
        put_u64(&mut arg, uvm::map_external::LENGTH, 4096);
        let called = tenant.call(uvm_file, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    };
    for chunk in 0..128 {
        let mut change = fixture.container.journal.change();
        for number in 0..1024 {
            let number = chunk * 1024 + number;
            if number > 0 {
                change.record(Operation::AddRange {
                    uvm_file: ledger::FileId(1 << 40),
                    span: ledger::Span::new(number << 16, 4096).unwrap(),
                });
            }
        }
    }
    assert_eq!((range(1), range(2)), (rm::OK, FULL));
    // Exports.
    let transfer_file = tenant.open(&fixture.path("nvidiactl"));
    let export = || {
        let mut params = vec![0; 24];
        put_u32(&mut params, export_object::TYPE, export_object::TYPE_RM);
        put_u32(&mut params, export_object::H_DEVICE, device);
        put_u32(&mut params, export_object::H_OBJECT, 5);
        put(&mut params, export_object::FD, &transfer_file.to_le_bytes());
        let cmd = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
        tenant.control(fd, (client, client), cmd, &params).0
    };
    let mut pins = Vec::new();
    while let Ok(unpin) = pin(PinFor::Export) {
        pins.push(unpin);
    }
    assert_eq!(pins.len(), 1 << 16);
    assert_eq!(export(), FULL);
    pins.into_iter().for_each(record);
    assert_eq!(export(), rm::OK);
    // Registrations with UVM.
    let register = || {
        let row = uvm::UVM_REGISTER_CHANNEL;
        let mut arg = vec![0; row.size.of(R) as usize];
        let uuid = broker::account::uuid_bytes(crate::fake::UUID).unwrap();
        put(&mut arg, uvm::REGISTERED_UUID, &uuid);
        put_u32(&mut arg, uvm::REGISTERED_CLIENT, client);
        put_u32(&mut arg, uvm::REGISTERED_OBJECT, 5);
        let called = tenant.call(uvm_file, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    };
    let mut pins = Vec::new();
    while let Ok(unpin) = pin(PinFor::Register) {
        pins.push(unpin);
    }
    assert_eq!((pins.len(), register()), (1 << 14, FULL));
    pins.into_iter().for_each(record);
    assert_eq!(register(), rm::OK);
    // Semaphore pools.
    let pool = |base: u64| {
        let row = uvm::UVM_ALLOC_SEMAPHORE_POOL;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u64(&mut arg, uvm::map_external::BASE, base);
        put_u64(&mut arg, uvm::map_external::LENGTH, 4096);
        let called = tenant.call(uvm_file, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    };
    {
        let mut change = fixture.container.journal.change();
        for number in 1..4096 {
            let kind = ObjectKind::Other;
            let reserved = change.ledger(Operation::Reserve { kind, demand: None });
            let Ok(ledger::Applied::Reserved(reservation)) = reserved else {
                panic!("{reserved:?}");
            };
            let file = driver::FileId(1 << 40);
            change.record_op(journal::state::Op::Pool(
                file,
                (number << 16, 4096),
                reservation,
            ));
        }
    }
    assert_eq!((pool(1 << 40), pool(1 << 41)), (rm::OK, FULL));
    let counted = fixture
        .container
        .journal
        .change()
        .ledger
        .count(Counted::Exports);
    assert_eq!(counted, 2, "a place, and what it holds");
}

fn files_beyond_the_maximum() {
    const DESCRIPTORS: u64 = 512;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard).unwrap();
    let fixture = Fixture::new(1 << 30);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let tenant = fixture.tenant();
    let open = || tenant.open(&fixture.path("nvidiactl"));
    let files: Vec<i32> = (0..DESCRIPTORS / 2).map(|_| open()).collect();
    let call = |fd: i32| {
        let arg = rm::alloc(0, 0, 0, rm::ROOT, 0);
        tenant.call(fd, rm::ALLOC, &arg, &[]).ret
    };
    for fd in &files {
        assert_eq!(call(*fd), Ok(0));
    }
    let beyond = open();
    assert_eq!(call(beyond), Err(24), "EMFILE");
    assert_eq!(call(files[0]), Ok(0), "those that it has go on");
    tenant.close(files[7]);
    assert_eq!(call(beyond), Ok(0), "it looks for what is closed");
    let clients = fixture.container.journal.change().ledger.clients().count();
    assert_eq!(clients as u64, DESCRIPTORS / 2 + 1);
}

/// As many clients as there may be, made by real calls, and some memory; all of the memory that there may be where the environment says
/// so.
fn a_full_ledger_outlives_its_broker() {
    let objects = std::env::var(OBJECTS_IN_ENVIRONMENT);
    let objects = objects.map_or(OBJECTS, |text| text.parse().unwrap());
    let kept = Kept::new(1 << 50);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let below = Some((client, device));
    let fill = |below, count: u32| {
        let mut made = 0;
        while made < count {
            // An answer has its time.
            let count = (count - made).min(1024);
            let more = tenant.ok(&Ask::Fill { fd, below, count });
            made += u32::try_from(more).unwrap();
            if more < i64::from(count) {
                break;
            }
        }
        i64::from(made)
    };
    assert_eq!(fill(None, 5000), 4096 - 1, "beside the first one");
    // All objects together are no more than 2^18.
    let most = (1 << 18) - 4096 - 1;
    let made = fill(below, objects);
    assert_eq!(made, i64::from(objects).min(most));
    let bytes = made.cast_unsigned() * GRANULE;
    let before = (kept.used_bytes(), kept.fake.held_bytes());
    assert_eq!(before, (bytes, bytes));
    for _ in 0..3 {
        let broker = kept.broker_pid().unwrap();
        kept.signal(broker, Signal::SIGKILL);
        // The next one has all of it, and is as full.
        assert_eq!(fill(None, 1), 0);
        if made == most {
            assert_eq!(fill(below, 1), 0);
        }
        assert_eq!((kept.used_bytes(), kept.fake.held_bytes()), before);
        assert_ne!(kept.broker_pid(), Some(broker));
    }
    assert_eq!(tenant.free(fd, client, client, device), rm::OK);
    assert_eq!((kept.used_bytes(), kept.fake.held_bytes()), (0, 0));
    tenant.close(fd);
    until("all clients are gone with their file", || {
        kept.fake.client_count() == 0
    });
    let again = tenant.open(&kept.node("nvidiactl"));
    let count = 5000;
    until("there is room again", || {
        tenant.ok(&Ask::Fill {
            fd: again,
            below: None,
            count,
        }) > 0
    });
}

/// To start a thread costs more than to serve a call, so that who calls from several threads at once must not have them made anew each
/// time.
fn threads_that_will_be_needed_again_stay() {
    // Fewer than may rest.
    const CALLERS: u32 = 6;
    const BURSTS: u32 = 20;
    let fixture = Fixture::new(1 << 40);
    let (tenant, fd, ..) = with_device(&fixture);
    // Calls of one client follow one another.
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let caller = tenant.thread();
            let client = caller.client(fd);
            let device = caller.device(fd, client);
            (caller, client, device)
        })
        .collect();
    // Numbers of threads are given anew as late as possible.
    let mut seen = BTreeSet::new();
    for burst in 1..=BURSTS {
        fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
        std::thread::scope(|scope| {
            let called: Vec<_> = callers
                .iter()
                .map(|(caller, client, device)| {
                    scope.spawn(move || caller.memory(fd, *client, *device, burst, GRANULE))
                })
                .collect();
            fixture
                .fake
                .wait_for_held(usize::try_from(CALLERS).unwrap());
            seen.extend(threads_named("calls"));
            fixture.fake.let_go();
            for one in called {
                assert_eq!(one.join().unwrap().status(), rm::OK);
            }
        });
    }
    // One for each call, one that waits, and those that were late when one more was due.
    let most = usize::try_from(2 * (CALLERS + 1)).unwrap();
    assert!(seen.len() <= most, "{} threads: {seen:?}", seen.len());
}

/// Numbers of this process's threads of a name.
fn threads_named(name: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let all = tasks.map(|task| task.unwrap().path());
    all.filter(|path| {
        // One that has just ended has no name any more.
        let comm = std::fs::read_to_string(path.join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    })
    .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
    .collect()
}
