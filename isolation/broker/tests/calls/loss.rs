//! Calls that take long, callers that die, and a broker that is gone.

use broker::workers::Session;
use ledger::CardSlot;

use crate::Test;
use crate::agent::Ask;
use crate::fixture::{Fixture, until};
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "loss::a_blocked_call_keeps_no_other_waiting",
        a_blocked_call_keeps_no_other_waiting,
    ),
    (
        "loss::a_caller_killed_in_mid_call_leaves_nothing",
        killed_in_mid_call,
    ),
    ("loss::a_caller_killed_over_and_over", killed_over_and_over),
    (
        "loss::without_a_broker_calls_fail",
        without_a_broker_calls_fail,
    ),
    (
        "loss::threads_end_with_their_processes",
        threads_end_with_their_processes,
    ),
    ("loss::many_calls_at_once", many_calls_at_once),
];

const MIB: u64 = 1 << 20;

fn a_blocked_call_keeps_no_other_waiting() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let thread = tenant.thread();
    let (other, other_fd, other_client, other_device) = with_device(&fixture);
    let second = thread.client(fd);
    let on_second = thread.device(fd, second);
    fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| tenant.memory(fd, client, device, 0x11, MIB));
        fixture.fake.wait_for_held(1);
        // The same process: a control, a free of another client, an allocation on another client (which is held too).
        let control = rm::control(client, device, 0xdead_beef, thread.params_address(), 4);
        let called = thread.call(fd, rm::CONTROL, &control, &[0; 4]);
        assert_eq!(called.status(), nvabi::status::NV_ERR_NOT_SUPPORTED);
        assert_eq!(thread.free(fd, second, second, on_second), rm::OK);
        // Another listener.
        let freed = other.free(other_fd, other_client, other_client, other_device);
        assert_eq!(freed, rm::OK);
        assert!(!blocked.is_finished());
        let reserved = fixture
            .container
            .journal
            .change()
            .ledger
            .reserved(CardSlot(0));
        assert_eq!(reserved, MIB, "reserved while the driver works");
        fixture.fake.let_go();
        assert_eq!(blocked.join().unwrap().status(), rm::OK);
    });
    fixture.assert_exact(MIB);
}

fn killed_in_mid_call() {
    for killable in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        let tenant = if killable {
            fixture.killable_tenant()
        } else {
            fixture.tenant()
        };
        let fd = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
        fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
        let arg = rm::alloc(client, device, 0, rm::VIDMEM, tenant.params_address());
        tenant.write(tenant.params_address(), &rm::memory_params(MIB));
        tenant.write(tenant.arg_address(), &arg);
        tenant.ask_only(&Ask::Ioctl {
            fd,
            cmd: rm::ALLOC.into(),
            address: tenant.arg_address(),
        });
        fixture.fake.wait_for_held(1);
        drop(tenant);
        // The call is under way on the file: it must not be given up yet.
        fixture.reaper.reconcile(&fixture.container);
        assert!(fixture.used_bytes() > MIB);
        fixture.fake.let_go();
        until("the file is given up after the call", || {
            fixture.reaper.reconcile(&fixture.container);
            fixture.used_bytes() == 0
        });
        fixture.assert_exact(0);
        assert_eq!(fixture.fake.client_count(), 0);
    }
}

fn killed_over_and_over() {
    let fixture = Fixture::new(64 * MIB);
    fixture
        .fake
        .slow_micros
        .store(300, std::sync::atomic::Ordering::SeqCst);
    for round in 0..12_u64 {
        let (tenant, fd, client, device) = with_device(&fixture);
        let storm = crate::agent::Storm {
            fd,
            client,
            device,
            bytes: MIB,
            millis: 60_000,
            timer_micros: 0,
            kernel_repeats: true,
            own_handles: round % 2 == 0,
        };
        let before = fixture.fake.seen().len();
        tenant.ask_only(&Ask::Storm(storm));
        until("it is in the midst of it", || {
            fixture.fake.seen().len() > before + 20
        });
        drop(tenant);
    }
    until("all is given up", || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes() == 0
    });
    fixture.assert_exact(0);
    assert_eq!(fixture.fake.client_count(), 0);
}

fn without_a_broker_calls_fail() {
    const ENOSYS: i32 = 38;
    const EBUSY: i32 = 16;
    let (child, socket) = crate::launch::start(crate::launch::WITH_FILTER).unwrap();
    let listener = crate::launch::listener(&socket).unwrap();
    let _process = crate::tenant::Process(child);
    let tenant = crate::tenant::Tenant::new(socket);
    let fixture = Fixture::new(MIB);
    let fd = tenant.open(&fixture.path("nvidiactl"));
    // A call that waits when the broker goes.
    let waiting = tenant.thread();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| waiting.ioctl(fd, rm::ALLOC, waiting.arg_address()));
        let mut fds = [nix::poll::PollFd::new(
            std::os::fd::AsFd::as_fd(&listener),
            nix::poll::PollFlags::POLLIN,
        )];
        assert_eq!(nix::poll::poll(&mut fds, 10_000_u16), Ok(1));
        drop(listener);
        assert_eq!(call.join().unwrap(), Err(ENOSYS));
    });
    assert_eq!(
        tenant.ioctl(fd, rm::ALLOC, tenant.arg_address()),
        Err(ENOSYS)
    );
    assert_eq!(tenant.ask(&Ask::NewListener), Err(EBUSY));
}

fn threads_end_with_their_processes() {
    let fixture = Fixture::new(MIB);
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    tenant.client(fd);
    let session = std::sync::Arc::clone(&tenant.session);
    assert!(!session.is_over());
    drop(tenant);
    session.end();
    until("the threads have ended", || Session::is_over(&session));
}

/// More calls block than there are threads at first; each gets one.
fn many_calls_at_once() {
    const THREADS: u64 = 24;
    let fixture = Fixture::new(THREADS * 2 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let others: Vec<_> = (1..THREADS).map(|_| tenant.thread()).collect();
    let own: Vec<(u32, u32)> = others
        .iter()
        .map(|thread| {
            let client = thread.client(fd);
            (client, thread.device(fd, client))
        })
        .collect();
    fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
    std::thread::scope(|scope| {
        let mut calls = vec![scope.spawn(|| tenant.memory(fd, client, device, 0, MIB).status())];
        for (thread, (client, device)) in others.iter().zip(own) {
            calls.push(scope.spawn(move || thread.memory(fd, client, device, 0, MIB).status()));
        }
        fixture
            .fake
            .wait_for_held(usize::try_from(THREADS).unwrap());
        fixture.fake.let_go();
        for call in calls {
            assert_eq!(call.join().unwrap(), rm::OK);
        }
    });
    fixture.assert_exact(THREADS * MIB);
}
