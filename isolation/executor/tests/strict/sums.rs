//! The ledger against the driver's own sums by process, which the executor asks for about itself.

use std::os::fd::AsFd;
use std::time::Duration;

use ::control::{Event, EventKind, Watching};
use broker::health::Plan;
use cards::OnViolation;
use driver::executor::ExecutorDriver;
use driver::{
    Binding, Call, Caller, CardSum, Driver, FdSlot, FileId, FileKind, FileRef, RequestedCard,
    Ticket,
};
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::{nvos21, nvos54, pid_info, pid_memory};
use nvabi::{control, status};

use crate::fixture::{Confined, Fixture, MIB, PATIENCE};
use crate::{Test, rm, until};

pub(crate) const TESTS: &[Test] = &[
    (
        "sums::the_driver_counts_what_the_ledger_has",
        the_driver_counts_what_the_ledger_has,
    ),
    (
        "sums::the_asker_has_the_cards_node_open_while_it_asks",
        the_asker_has_the_cards_node_open_while_it_asks,
    ),
    (
        "sums::two_executors_on_one_card_are_counted_apart",
        two_executors_on_one_card_are_counted_apart,
    ),
    (
        "sums::memory_with_several_handles_is_counted_once",
        memory_with_several_handles_is_counted_once,
    ),
    (
        "sums::a_driver_that_counts_more_is_reported",
        a_driver_that_counts_more_is_reported,
    ),
    ("sums::and_kills_where_it_shall", and_kills_where_it_shall),
    (
        "sums::a_refusal_is_reported_once_and_so_is_its_end",
        a_refusal_is_reported_once_and_so_is_its_end,
    ),
    (
        "sums::a_driver_that_knows_the_process_by_another_number_is_reported",
        a_driver_that_knows_the_process_by_another_number_is_reported,
    ),
    (
        "sums::an_answer_that_does_not_come_holds_up_nothing",
        an_answer_that_does_not_come_holds_up_nothing,
    ),
    (
        "sums::a_node_that_is_another_file_answers_no_sums",
        a_node_that_is_another_file_answers_no_sums,
    ),
];

const PID_INFO: u32 = control::NV2080_CTRL_CMD_GPU_GET_PID_INFO;

/// A tenant with a device and some memory.
struct Holding {
    tenant: Confined,
    fd: i32,
    client: u32,
    device: u32,
}

fn holding(fixture: &Fixture, bytes: u64) -> Holding {
    let tenant = fixture.tenant_without_card();
    let fd = tenant.0.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.0.client(fd);
    let node = tenant.0.open(&fixture.nodes().join("nvidia0"));
    let device = tenant.0.device(fd, client);
    let called = tenant.0.memory(fd, client, device, 7, bytes);
    assert_eq!(called.status(), rm::OK);
    // A device that is made stays; what else has the node open is the asker's doing.
    tenant.0.close(node);
    until("the executor has the control file alone", || {
        fixture.reconcile();
        fixture.kernel.open_files() == [FileKind::Ctl]
    });
    Holding {
        tenant,
        fd,
        client,
        device,
    }
}

fn fixture() -> Fixture {
    Fixture::watched(Plan::default(), PATIENCE)
}

fn sums(driver: &ExecutorDriver, fixture: &Fixture) -> Result<Vec<CardSum>, driver::Error> {
    let cards = fixture.kernel.sim().cards().to_vec();
    let granted = cards.iter().take(1);
    let requested: Vec<RequestedCard<'_>> = granted
        .map(|card| RequestedCard {
            uuid: &card.uuid,
            minor: card.minor,
        })
        .collect();
    driver.sums(&requested).map(Option::unwrap)
}

fn counted(driver: &ExecutorDriver, fixture: &Fixture) -> (u64, u64) {
    let sums = sums(driver, fixture).unwrap();
    assert_eq!(sums.len(), 1);
    (sums[0].memory_bytes, sums[0].further_bytes)
}

fn reconcile(fixture: &Fixture) {
    fixture.container.health.reconcile(&fixture.container);
}

fn events(fixture: &Fixture) -> Vec<Event> {
    fixture.container.health.events.last()
}

fn kinds(fixture: &Fixture) -> Vec<EventKind> {
    events(fixture).iter().map(|event| event.kind).collect()
}

fn watching(fixture: &Fixture) -> Watching {
    fixture.container.health.watching()
}

/// Entry 0 of the answer.
fn entry(params: &mut [u8]) -> &mut [u8] {
    &mut params[pid_info::LIST..]
}

fn add_private(params: &mut [u8], bytes: u64) {
    let entry = entry(params);
    let held = u64_at(entry, pid_memory::PRIVATE).unwrap();
    put_u64(entry, pid_memory::PRIVATE, held + bytes);
}

fn the_driver_counts_what_the_ledger_has() {
    let fixture = fixture();
    assert_eq!(counted(fixture.executor(), &fixture), (0, 0));
    let holding = holding(&fixture, 6 * MIB);
    assert_eq!(counted(fixture.executor(), &fixture), (6 * MIB, 0));
    let health = &fixture.container.health;
    let comparison = health.reconcile_now(&fixture.container).unwrap();
    let [drift] = comparison.drift.as_slice() else {
        panic!("{comparison:?}");
    };
    assert_eq!((drift.driver_bytes, drift.ledger_bytes), (6 * MIB, 6 * MIB));
    assert_eq!((comparison.violations, kinds(&fixture)), (vec![], vec![]));
    assert_eq!(watching(&fixture).sums, Some(true));
    // About the executor itself, by the number that it has for itself.
    let requested = fixture.kernel.controls(PID_INFO);
    let pids: Vec<Option<u32>> = requested
        .iter()
        .map(|blocks| u32_at(&blocks[1], pid_info::LIST + pid_memory::PID))
        .collect();
    let executor = u32::try_from(fixture.executor().process().unwrap()).unwrap();
    assert!(pids.len() >= 4 && pids.iter().all(|pid| *pid == Some(executor)));
    assert_eq!(u32_at(&requested[0][0], nvos54::PARAMS_SIZE), Some(14408));
    let Holding {
        tenant,
        fd,
        client,
        device,
    } = holding;
    assert_eq!(tenant.0.free(fd, client, device, 7), rm::OK);
    assert_eq!(counted(fixture.executor(), &fixture), (0, 0));
    fixture.assert_exact(0);
}

fn the_asker_has_the_cards_node_open_while_it_asks() {
    let fixture = fixture();
    let _holding = holding(&fixture, MIB);
    // Only the tenant's control file is open with the executor.
    assert_eq!(fixture.kernel.open_files(), [FileKind::Ctl]);
    for _ in 0..3 {
        assert_eq!(counted(fixture.executor(), &fixture), (MIB, 0));
    }
    assert_eq!(
        fixture.kernel.open_files(),
        [FileKind::Ctl],
        "and not after it"
    );
    assert_eq!(fixture.executor().held().unwrap().len(), 1);
    fixture.assert_exact(MIB);
}

/// Calls of another container, made by its executor.
pub(crate) fn allocate_by(driver: &ExecutorDriver, fixture: &Fixture, bytes: u64) -> std::fs::File {
    let file = std::fs::File::open(fixture.nodes().join("nvidiactl")).unwrap();
    let beside = || FdSlot {
        segment: FdSlot::BESIDE,
        at: 0,
        number: -1,
        file: None,
        fd: std::fs::File::open(fixture.nodes().join("nvidia0"))
            .unwrap()
            .into(),
    };
    let make = |arg: Vec<u8>, params: &[u8]| {
        let block = (!params.is_empty()).then(|| (nvos21::P_PARAMS, params.to_vec()));
        let mut call = Call {
            fds: vec![beside()],
            ..Call::own(rm::ALLOC, arg, block)
        };
        let target = FileRef {
            id: FileId(1),
            kind: FileKind::Ctl,
            fd: file.as_fd(),
        };
        let caller = Caller { tgid: 1, tid: 1 };
        let ticket = Ticket::UNREMEMBERED;
        assert_eq!(
            driver
                .execute(target, caller, ticket, &mut call)
                .unwrap()
                .ret,
            0
        );
        let answer = &call.segments[0].bytes;
        assert_eq!(rm::status(answer), rm::OK);
        rm::new_handle(answer)
    };
    let root = make(rm::alloc(0, 0, 0, rm::ROOT, 0), &[]);
    let device = make(rm::alloc(root, root, 5, rm::DEVICE, 0), &[0; 56]);
    make(
        rm::alloc(root, device, 6, rm::VIDMEM, 0),
        &rm::memory_params(bytes),
    );
    file
}

fn two_executors_on_one_card_are_counted_apart() {
    let fixture = fixture();
    let _holding = holding(&fixture, 6 * MIB);
    let (other_kernel, other) = fixture.another();
    let _file = allocate_by(&other, &fixture, 10 * MIB);
    assert_ne!(other.process(), fixture.executor().process());
    assert_eq!(fixture.kernel.held_bytes(), 16 * MIB, "one card");
    assert_eq!(counted(fixture.executor(), &fixture), (6 * MIB, 0));
    assert_eq!(counted(&other, &fixture), (10 * MIB, 0));
    assert_eq!(other_kernel.controls(PID_INFO).len(), 1);
    reconcile(&fixture);
    reconcile(&fixture);
    assert_eq!(kinds(&fixture), []);
}

fn memory_with_several_handles_is_counted_once() {
    let fixture = fixture();
    let _holding = holding(&fixture, 4 * MIB);
    // As RM says it of memory that UVM has mapped, and of a second handle in the same process.
    fixture.kernel.play_sums(|_, params| {
        let entry = entry(params);
        let held = u64_at(entry, pid_memory::PRIVATE).unwrap();
        put_u64(entry, pid_memory::PRIVATE, 0);
        put_u64(entry, pid_memory::SHARED_OWNED, held);
        put_u64(entry, pid_memory::SHARED_DUPED, held);
    });
    assert_eq!(counted(fixture.executor(), &fixture), (4 * MIB, 4 * MIB));
    let health = &fixture.container.health;
    let comparison = health.reconcile_now(&fixture.container).unwrap();
    assert_eq!(comparison.violations, []);
    assert_eq!(comparison.drift[0].driver_bytes, 4 * MIB);
}

fn a_driver_that_counts_more_is_reported() {
    let fixture = fixture();
    let _holding = holding(&fixture, 4 * MIB);
    reconcile(&fixture);
    fixture
        .kernel
        .play_sums(|_, params| add_private(params, 2 * MIB));
    until("the difference to stand", || {
        reconcile(&fixture);
        !kinds(&fixture).is_empty()
    });
    reconcile(&fixture);
    assert_eq!(kinds(&fixture), [EventKind::Violation], "told once");
    let text = events(&fixture).remove(0).text;
    assert!(text.contains(&(6 * MIB).to_string()), "{text}");
    assert!(
        text.contains(&fixture.kernel.sim().cards()[0].uuid),
        "{text}"
    );
    let status = fixture.container.health.status();
    assert!(status.violations >= 1);
    assert_eq!(status.drift[0].driver_bytes, 6 * MIB);
    assert_eq!(status.drift[0].ledger_bytes, 4 * MIB);
}

fn and_kills_where_it_shall() {
    let plan = Plan {
        on_violation: OnViolation::Kill,
        ..Plan::default()
    };
    let fixture = Fixture::watched(plan, PATIENCE);
    let mut holding = holding(&fixture, 4 * MIB);
    fixture
        .kernel
        .play_sums(|_, params| add_private(params, MIB));
    // In threads of their own: who has killed gives CAP_KILL up, and this one ends the executor.
    until("the violation to be told", || {
        std::thread::scope(|scope| scope.spawn(|| reconcile(&fixture)).join().unwrap());
        !kinds(&fixture).is_empty()
    });
    let ended = holding.tenant.1.0.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
    assert_eq!(signal, Some(nix::sys::signal::Signal::SIGKILL as i32));
    // The executor is no process of the tenant's.
    fixture.executor().held().unwrap();
    until("the memory is given back", || {
        fixture.reconcile();
        fixture.used_bytes() == 0
    });
}

fn a_refusal_is_reported_once_and_so_is_its_end() {
    const INVALID_PARAM_STRUCT: u32 = 0x3a;
    let fixture = fixture();
    let holding = holding(&fixture, MIB);
    assert_eq!(watching(&fixture).sums, None);
    // What a driver answers whose parameters have another size.
    fixture.kernel.play_sums(|arg, _| {
        put_u32(arg, nvos54::STATUS, INVALID_PARAM_STRUCT);
    });
    for _ in 0..3 {
        reconcile(&fixture);
    }
    assert_eq!(kinds(&fixture), [EventKind::NotReconciled]);
    let reported = watching(&fixture);
    assert_eq!(reported.sums, Some(false));
    let reason = reported.sums_reason.unwrap();
    assert!(
        reason.contains("GPU_GET_PID_INFO") && reason.contains("0x3a"),
        "{reason}"
    );
    let problem = fixture.container.health.reconcile_now(&fixture.container);
    assert_eq!(problem, Err(reason));
    // A refusal of another kind: of the one process, in the list.
    fixture.kernel.play_sums(|_, params| {
        let denied = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
        put_u32(entry(params), pid_memory::RESULT, denied);
    });
    reconcile(&fixture);
    reconcile(&fixture);
    assert_eq!(kinds(&fixture), [EventKind::NotReconciled; 2]);
    // The tenant has felt nothing of it, and nothing of the asker's is left.
    let called = holding
        .tenant
        .0
        .memory(holding.fd, holding.client, holding.device, 8, MIB);
    assert_eq!(called.status(), rm::OK);
    fixture.assert_exact(2 * MIB);
    assert_eq!(fixture.kernel.open_files(), [FileKind::Ctl]);
    let counted = fixture.container.health.status().reconciled;
    assert_eq!(counted, 0);
    fixture.kernel.play_sums(|_, _| {});
    reconcile(&fixture);
    assert_eq!(kinds(&fixture).last(), Some(&EventKind::Reconciled));
    assert_eq!(watching(&fixture).sums, Some(true));
    assert_eq!(watching(&fixture).sums_reason, None);
}

fn a_driver_that_knows_the_process_by_another_number_is_reported() {
    let fixture = fixture();
    let holding = holding(&fixture, MIB);
    let nothing = |_: &mut [u8], params: &mut [u8]| {
        put_u64(entry(params), pid_memory::PRIVATE, 0);
    };
    fixture.kernel.play_sums(nothing);
    until("it to be told", || {
        reconcile(&fixture);
        !kinds(&fixture).is_empty()
    });
    assert_eq!(kinds(&fixture), [EventKind::NotReconciled]);
    assert_eq!(watching(&fixture).sums, Some(false));
    // Without memory there is nothing to see, and it is not taken for better.
    let Holding {
        tenant,
        fd,
        client,
        device,
    } = holding;
    assert_eq!(tenant.0.free(fd, client, device, 7), rm::OK);
    reconcile(&fixture);
    reconcile(&fixture);
    assert_eq!(watching(&fixture).sums, Some(false));
    assert_eq!(tenant.0.memory(fd, client, device, 9, MIB).status(), rm::OK);
    fixture.kernel.play_sums(|_, _| {});
    reconcile(&fixture);
    assert_eq!(
        kinds(&fixture),
        [EventKind::NotReconciled, EventKind::Reconciled]
    );
}

fn an_answer_that_does_not_come_holds_up_nothing() {
    let fixture = Fixture::watched(Plan::default(), Duration::from_secs(1));
    let holding = holding(&fixture, MIB);
    fixture.kernel.hold_back(rm::CONTROL);
    reconcile(&fixture);
    fixture.kernel.wait_for_held(1);
    assert_eq!(kinds(&fixture), [EventKind::NotReconciled]);
    let reason = watching(&fixture).sums_reason.unwrap();
    assert!(reason.contains("1000 ms"), "{reason}");
    // It is asked no more, and everybody else is served.
    let requested = fixture.kernel.count(rm::CONTROL);
    for _ in 0..5 {
        reconcile(&fixture);
    }
    assert_eq!(fixture.kernel.count(rm::CONTROL), requested);
    let Holding {
        tenant,
        fd,
        client,
        device,
    } = holding;
    assert_eq!(tenant.0.memory(fd, client, device, 8, MIB).status(), rm::OK);
    fixture.assert_exact(2 * MIB);
    assert_eq!(kinds(&fixture), [EventKind::NotReconciled]);
    fixture.kernel.let_go();
    until("it is compared again", || {
        reconcile(&fixture);
        watching(&fixture).sums == Some(true)
    });
    assert_eq!(kinds(&fixture).last(), Some(&EventKind::Reconciled));
    until("the file of the call that hung is gone too", || {
        let sums = sums(fixture.executor(), &fixture);
        sums.is_ok_and(|sums| sums[0].memory_bytes == 2 * MIB)
            && fixture.kernel.open_files() == [FileKind::Ctl]
    });
}

fn a_node_that_is_another_file_answers_no_sums() {
    let fixture = fixture();
    let folder = tempfile::tempdir().unwrap();
    let connect = || {
        let nodes = driver::nodes::Nodes::below(&fixture.nodes()).unwrap();
        let driver =
            ExecutorDriver::connect(&fixture.socket(), crate::alone::facts(nodes)).unwrap();
        driver.asking_by(folder.path().to_owned(), PATIENCE)
    };
    let absent = sums(&connect(), &fixture).unwrap_err();
    assert!(absent.to_string().contains("nvidiactl"), "{absent}");
    std::fs::write(folder.path().join("nvidiactl"), "").unwrap();
    let other = sums(&connect(), &fixture).unwrap_err();
    assert!(other.to_string().contains("is not the driver's"), "{other}");
    assert_eq!(fixture.kernel.count(rm::ALLOC), 0);
    assert_eq!(fixture.container.driver.binding(), Binding::Executor);
}
