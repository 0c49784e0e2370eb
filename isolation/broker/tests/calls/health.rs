//! What goes wrong around a container is told, counted, and felt by nobody else.

use std::sync::atomic::Ordering;

use broker::health::Plan;
use cards::{OnViolation, Watch};
use control::{Event, EventKind, HealthStatus};
use driver::{Incident, IncidentKind};
use journal::counters::Counter;

use crate::Test;
use crate::fake::UUID;
use crate::fixture::{Fixture, until};
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "health::a_hung_call_is_reported_once_and_so_is_its_end",
        a_hung_call_is_reported_once_and_so_is_its_end,
    ),
    (
        "health::a_driver_that_counts_more_is_reported",
        a_driver_that_counts_more_is_reported,
    ),
    (
        "health::a_busy_container_is_no_violation",
        a_busy_container_is_no_violation,
    ),
    (
        "health::a_violation_kills_where_it_shall",
        a_violation_kills_where_it_shall,
    ),
    (
        "health::incidents_are_reported_to_whom_they_concern",
        incidents_are_reported_to_whom_they_concern,
    ),
    (
        "health::refusals_beyond_a_rate_wait_and_other_calls_do_not",
        refusals_beyond_a_rate_wait_and_other_calls_do_not,
    ),
    (
        "health::a_call_without_a_row_is_named_once_and_counted",
        a_call_without_a_row_is_named_once_and_counted,
    ),
];

const MIB: u64 = 1 << 20;

fn status(fixture: &Fixture) -> HealthStatus {
    fixture.container.health.status()
}

fn kinds(fixture: &Fixture) -> Vec<EventKind> {
    let events = fixture.container.health.events.last();
    events.iter().map(|event| event.kind).collect()
}

fn last(fixture: &Fixture) -> Event {
    fixture.container.health.events.last().pop().unwrap()
}

fn hung_after(hung_call_ms: u64) -> Plan {
    Plan {
        watch: Watch {
            hung_call_ms,
            ..Watch::default()
        },
        ..Plan::default()
    }
}

fn a_hung_call_is_reported_once_and_so_is_its_end() {
    let fixture = Fixture::watched(4 * MIB, hung_after(50));
    let (tenant, fd, client, device) = with_device(&fixture);
    let look = || fixture.container.health.look(&fixture.container);
    look();
    assert_eq!(kinds(&fixture), []);
    fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| tenant.memory(fd, client, device, 0, MIB));
        fixture.fake.wait_for_held(1);
        until("the call to be told of", || {
            look();
            status(&fixture).hung_calls == 1
        });
        for _ in 0..3 {
            look();
        }
        assert_eq!(kinds(&fixture), [EventKind::HungCall]);
        let text = last(&fixture).text;
        assert!(text.contains(&tenant.pid().to_string()), "{text}");
        assert_eq!(status(&fixture).incidents.hung_call, 1);
        fixture.fake.let_go();
        assert_eq!(hung.join().unwrap().status(), rm::OK);
    });
    look();
    assert_eq!(
        kinds(&fixture),
        [EventKind::HungCall, EventKind::HungCallOver]
    );
    let after = status(&fixture);
    assert_eq!((after.hung_calls, after.incidents.hung_call), (0, 1));
    fixture.assert_exact(MIB);
}

fn a_driver_that_counts_more_is_reported() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let now = || {
        let health = &fixture.container.health;
        health.reconcile_now(&fixture.container).unwrap()
    };
    let exact = now();
    assert_eq!(exact.violations, []);
    assert_eq!(
        (exact.drift[0].driver_bytes, exact.drift[0].ledger_bytes),
        (MIB, MIB)
    );
    fixture.fake.leaked_bytes.store(4096, Ordering::SeqCst);
    // One look alone says nothing.
    fixture.container.health.reconcile(&fixture.container);
    assert_eq!(status(&fixture).violations, 0);
    // A call that has just been answered may still be settled: then the next comparison says it.
    let mut found = now();
    until("the difference to stand", || {
        found = now();
        !found.violations.is_empty()
    });
    assert_eq!(found.violations[0].driver_bytes, MIB + 4096);
    now();
    assert_eq!(kinds(&fixture), [EventKind::Violation], "told once");
    assert_eq!(status(&fixture).drift, found.drift);
    // It goes on with the calls: the policy is to log.
    assert_eq!(tenant.memory(fd, client, device, 6, MIB).status(), rm::OK);
    fixture.fake.leaked_bytes.store(8192, Ordering::SeqCst);
    until("the growth to be told", || {
        now();
        kinds(&fixture).len() == 2
    });
    fixture.fake.leaked_bytes.store(0, Ordering::SeqCst);
    assert_eq!(now().violations, []);
}

fn a_busy_container_is_no_violation() {
    let fixture = Fixture::new(8 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    fixture.fake.slow_micros.store(300, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for _ in 0..400 {
                assert_eq!(tenant.memory(fd, client, device, 7, MIB).status(), rm::OK);
                assert_eq!(tenant.free(fd, client, device, 7), rm::OK);
            }
        });
        while !busy.is_finished() {
            fixture.container.health.reconcile(&fixture.container);
        }
        busy.join().unwrap();
    });
    assert!(status(&fixture).reconciled > 0);
    assert_eq!((status(&fixture).violations, kinds(&fixture)), (0, vec![]));
}

fn a_violation_kills_where_it_shall() {
    let plan = Plan {
        on_violation: OnViolation::Kill,
        ..Plan::default()
    };
    let fixture = Fixture::watched(4 * MIB, plan);
    let (mut tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let neighbour = Fixture::new(4 * MIB);
    let (other, other_fd, other_client, other_device) = with_device(&neighbour);
    fixture.fake.leaked_bytes.store(4096, Ordering::SeqCst);
    until("the violation to be told", || {
        let health = &fixture.container.health;
        health.reconcile_now(&fixture.container).unwrap();
        !kinds(&fixture).is_empty()
    });
    let ended = tenant.process.0.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
    assert_eq!(signal, Some(nix::sys::signal::Signal::SIGKILL as i32));
    assert_eq!(kinds(&fixture), [EventKind::Violation]);
    assert!(
        last(&fixture).text.contains("killed"),
        "{:?}",
        last(&fixture)
    );
    let called = other.memory(other_fd, other_client, other_device, 5, MIB);
    assert_eq!(called.status(), rm::OK);
}

fn incidents_are_reported_to_whom_they_concern() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        log_dir: Some(folder.path().to_owned()),
        state_dir: Some(folder.path().to_owned()),
        ..Plan::default()
    };
    let fixture = Fixture::watched(4 * MIB, plan);
    let add = |uuid: &str, kind: IncidentKind, own: Option<bool>| {
        let mut incidents = fixture.fake.incidents.lock().unwrap();
        let sequence = incidents.len() as u64 + 1;
        incidents.push(Incident {
            sequence,
            uuid: uuid.to_owned(),
            pci: String::new(),
            kind,
            own,
        });
    };
    let xid = |number| IncidentKind::Xid {
        number,
        detail: "MMU fault".to_owned(),
    };
    let ask = || fixture.container.health.ask_the_driver(&fixture.container);
    add(UUID, xid(31), Some(false));
    add("GPU-another", IncidentKind::CardLost, None);
    ask();
    assert_eq!(kinds(&fixture), []);
    add(UUID, xid(31), Some(true));
    ask();
    ask();
    assert_eq!(kinds(&fixture), [EventKind::Xid]);
    assert_eq!(status(&fixture).incidents.xid, 1);
    let uuid = cards::GpuUuid::new(UUID).unwrap();
    let health = || cards::health::of(folder.path(), &uuid).unwrap();
    assert_eq!(health(), None, "a program's fault is not the card's");
    add(UUID, IncidentKind::CardLost, None);
    ask();
    assert_eq!(kinds(&fixture), [EventKind::Xid, EventKind::CardLost]);
    assert_eq!(status(&fixture).incidents.card_lost, 1);
    assert_eq!(health().unwrap().reason, "the card was lost");
    let text = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 2);
}

fn flood_is_over(fixture: &Fixture, calls: u32) -> bool {
    // The one before the flood, and the flood.
    fixture.container.counters.value(Counter::Refused) > u64::from(calls)
}

fn refusals_beyond_a_rate_wait_and_other_calls_do_not() {
    const CALLS: u32 = 300;
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let thread = tenant.thread();
    let refuse = |thread: &crate::tenant::Tenant| {
        let control = rm::control(client, device, 0xdead_beef, thread.params_address(), 4);
        let called = thread.call(fd, rm::CONTROL, &control, &[0; 4]);
        assert_eq!(called.status(), nvabi::status::NV_ERR_NOT_SUPPORTED);
    };
    refuse(&tenant);
    assert_eq!(status(&fixture).throttled, 0, "the first ones are free");
    let throttle = &fixture.container.health.throttle;
    while !throttle.hold_up() {}
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| (0..CALLS).for_each(|_| refuse(&thread)));
        // The rest of the flood: it leaves no token, however slow this machine is.
        scope.spawn(|| {
            while !flood_is_over(&fixture, CALLS) {
                throttle.hold_up();
            }
        });
        let mut handles = Vec::new();
        while !flood.is_finished() {
            let called = tenant.memory(fd, client, device, 0, MIB);
            assert_eq!(called.status(), rm::OK);
            handles.push(rm::new_handle(&called.arg));
            if let Some(handle) = handles.pop() {
                assert_eq!(tenant.free(fd, client, device, handle), rm::OK);
            }
        }
    });
    assert!(status(&fixture).throttled >= u64::from(CALLS) / 2);
    // All were refused for one reason, which was said once.
    assert!(status(&fixture).suppressed_logs >= u64::from(CALLS));
    fixture.assert_exact(0);
}

/// What a newer library asks for is refused; a person learns which row is lacking.
fn a_call_without_a_row_is_named_once_and_counted() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let control = |cmd| {
        let arg = rm::control(client, device, cmd, tenant.params_address(), 4);
        tenant.call(fd, rm::CONTROL, &arg, &[0; 4]).status()
    };
    for _ in 0..3 {
        assert_eq!(
            control(0x80_fff1),
            nvabi::status::NV_ERR_NOT_SUPPORTED,
            "as the driver answers what it lacks"
        );
    }
    let class = rm::alloc(client, device, 0, 0xbeef, tenant.params_address());
    let called = tenant.call(fd, rm::ALLOC, &class, &[0; 8]);
    assert_eq!(called.status(), nvabi::status::NV_ERR_INVALID_CLASS);
    // It has a row, by which no tenant makes it.
    let known = nvabi::control::NV2080_CTRL_CMD_GPU_EXEC_REG_OPS;
    assert_eq!(control(known), nvabi::status::NV_ERR_NOT_SUPPORTED);
    let events = fixture.container.health.events.last();
    let named = events.iter().map(|event| {
        assert_eq!(event.kind, EventKind::UnknownCall, "{}", event.text);
        event.text.split(" has no row").next().unwrap()
    });
    assert_eq!(
        named.collect::<Vec<_>>(),
        ["control 0x80fff1", "class 0xbeef"]
    );
    assert_eq!(status(&fixture).unknown_calls, 4);
}
