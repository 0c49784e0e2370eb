//! Tenants in front of the executor.

use std::os::fd::AsFd;

use control::EventKind;
use driver::executor::ExecutorDriver;
use driver::nodes::Nodes;
use driver::{Binding, Call, Caller, Driver, FileId, FileKind, FileRef, Link, Segment, Ticket};
use journal::counters::Counter;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::{nvos21, nvos33, nvos34, nvos56};
use nvabi::uvm::{self, map_external};
use nvabi::{Release, escape, status};

use crate::agent::Ask;
use crate::alone::{assert_powerless, facts};
use crate::fixture::{Fixture, MIB};
use crate::native::{AddressSpace, range};
use crate::{Test, rm, until};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_whole_client_runs_in_the_executor",
        a_whole_client_runs_in_the_executor,
    ),
    (
        "a_tenants_addresses_stay_with_it",
        a_tenants_addresses_stay_with_it,
    ),
    (
        "a_clients_parameters_are_its_handle_and_no_more",
        a_clients_parameters_are_its_handle_and_no_more,
    ),
    (
        "mappings_for_the_cpu_are_the_executors_from_first_to_last",
        mappings_for_the_cpu_are_the_executors_from_first_to_last,
    ),
    (
        "a_device_is_for_who_has_the_cards_node_open",
        a_device_is_for_who_has_the_cards_node_open,
    ),
    (
        "it_is_powerless_while_a_call_is_under_way",
        it_is_powerless_while_a_call_is_under_way,
    ),
    (
        "a_second_thread_that_rewrites_the_struct_gains_nothing",
        flipping,
    ),
    (
        "a_second_thread_that_rewrites_a_mapping_gains_nothing",
        flipping_references,
    ),
    ("a_call_that_a_killed_broker_left_is_made_once", once),
    (
        "a_file_that_nobody_knows_any_more_is_closed",
        a_file_that_nobody_knows_any_more_is_closed,
    ),
    (
        "a_tenant_that_ends_leaves_nothing",
        a_tenant_that_ends_leaves_nothing,
    ),
    (
        "a_killed_executor_is_reported_and_costs_no_quota",
        a_killed_executor_is_reported_and_costs_no_quota,
    ),
];

/// `NV0000_CTRL_CMD_SET_SUB_PROCESS_ID`
const SET_SUB_PROCESS_ID: u32 = 0x901;

fn a_whole_client_runs_in_the_executor() {
    let fixture = Fixture::new(64 * MIB, Binding::None);
    let (mut child, socket) = fixture.client();
    let wait_for = |word: &str| {
        let mut buffer = [0; 64];
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
        assert_eq!(std::str::from_utf8(&buffer[..count]), Ok(word));
    };
    let go_on = || sys::fd_passing::send(socket.as_fd(), b"go on", &[]).unwrap();
    wait_for("allocated");
    fixture.assert_exact(48 * MIB);
    assert!(fixture.kernel.count(rm::CONTROL) > 0);
    // A client that names a process of its own has a virtual machine's channels (kernel_fifo.c: GUEST_USER).
    assert_eq!(fixture.kernel.controls(SET_SUB_PROCESS_ID).len(), 0);
    go_on();
    wait_for("mapped and freed");
    fixture.assert_exact(48 * MIB);
    go_on();
    wait_for("unmapped");
    fixture.assert_exact(0);
    go_on();
    assert!(child.wait().unwrap().success());
    until("its files are given up", || {
        fixture.reconcile();
        fixture.executor().held().unwrap().is_empty()
    });
}

fn a_tenants_addresses_stay_with_it() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let called = tenant.memory(fd, client, device, 0, 2 * MIB);
    assert_eq!(called.status(), rm::OK);
    assert_eq!(
        u64_at(&called.arg, nvos21::P_PARAMS),
        Some(tenant.params_address()),
        "the tenant's own pointer is as it was"
    );
    fixture.assert_exact(2 * MIB);
    // A control with a pointer for a text that the driver never fills, which is not carried.
    let mut params = [0; 40];
    put_u32(&mut params, 0, fixture.kernel.sim().cards()[0].gpu_id);
    put_u64(&mut params, 16, tenant.arg_address());
    let arg = rm::control(client, client, 0x202, tenant.params_address(), 40);
    let called = tenant.call(fd, rm::CONTROL, &arg, &params);
    assert_eq!(called.ret, Ok(0));
    assert_eq!(u64_at(&called.params, 16), Some(tenant.arg_address()));
    assert!(fixture.kernel.count(rm::CONTROL) > 0);
    for address in [tenant.arg_address(), tenant.params_address()] {
        assert!(!fixture.kernel.has_seen(address));
    }
}

/// Behind the handle there may be no memory.
fn a_clients_parameters_are_its_handle_and_no_more() {
    const PAGE: u64 = 4096;
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let at = tenant.pages(1, false) + PAGE - 4;
    for class in [0x0, 0x1, rm::ROOT] {
        tenant.write(at, &[0; 4]);
        let called = tenant.call(fd, rm::ALLOC, &rm::alloc(0, 0, 0, class, at), &[]);
        assert_eq!(called.status(), rm::OK, "{class:#x}");
        let client = rm::new_handle(&called.arg);
        assert_eq!(tenant.read(at, 4), client.to_le_bytes());
        assert_eq!(tenant.free(fd, client, client, client), rm::OK);
        // One byte less is none.
        let called = tenant.call(fd, rm::ALLOC, &rm::alloc(0, 0, 0, class, at + 1), &[]);
        assert_eq!(called.ret, Err(nix::libc::EFAULT), "{class:#x}");
    }
}

/// RM finds a mapping for the process alone that has made it: what a tenant asked for itself was not found.
fn mappings_for_the_cpu_are_the_executors_from_first_to_last() {
    const NEW: u64 = 0x7f00_1234_0000;
    let [map, unmap, update] = [
        escape::NV_ESC_RM_MAP_MEMORY,
        escape::NV_ESC_RM_UNMAP_MEMORY,
        escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO,
    ]
    .map(|row| row.cmd(Release::R570));
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let called = tenant.memory(fd, client, device, 0, MIB);
    assert_eq!(called.status(), rm::OK);
    let memory = rm::new_handle(&called.arg);
    let names = |client: u32, bytes: usize| {
        let mut arg = vec![0; bytes];
        for (at, handle) in [(0, client), (4, device), (8, memory)] {
            put_u32(&mut arg, at, handle);
        }
        arg
    };
    let mut arg = names(client, 56);
    put_u64(&mut arg, nvos33::LENGTH, MIB);
    let card = tenant.open(&fixture.nodes().join("nvidia0"));
    put(&mut arg, nvos33::FD, &card.to_le_bytes());
    let called = tenant.call(fd, map, &arg, &[]);
    assert_eq!(
        (called.ret, u32_at(&called.arg, nvos33::STATUS)),
        (Ok(0), Some(rm::OK))
    );
    let address = u64_at(&called.arg, nvos33::P_LINEAR).unwrap();
    let moved = |from: u64| {
        let mut arg = names(client, 40);
        put_u64(&mut arg, nvos56::P_OLD, from);
        put_u64(&mut arg, nvos56::P_NEW, NEW);
        let called = tenant.call(fd, update, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos56::STATUS).unwrap()
    };
    let ended = |client: u32, at: u64| {
        let mut arg = names(client, 32);
        put_u64(&mut arg, nvos34::P_LINEAR, at);
        let called = tenant.call(fd, unmap, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos34::STATUS).unwrap()
    };
    assert_eq!(moved(address), rm::OK);
    assert_eq!(moved(address), status::NV_ERR_OBJECT_NOT_FOUND);
    assert_eq!(ended(client, address), status::NV_ERR_OBJECT_NOT_FOUND);
    assert_eq!(ended(client, NEW), rm::OK);
    assert_eq!(ended(client, NEW), status::NV_ERR_OBJECT_NOT_FOUND);
    assert_eq!(
        (fixture.kernel.count(update), fixture.kernel.count(unmap)),
        (2, 3)
    );
    // Another's client never comes to the driver.
    assert_eq!(ended(client + 1, NEW), status::NV_ERR_INVALID_CLIENT);
    assert_eq!(fixture.kernel.count(unmap), 3);
}

/// No call is made on the node: natively it is enough that the program has it open, under whatever number.
fn a_device_is_for_who_has_the_cards_node_open() {
    const OTHERS: usize = 300;
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant_without_card();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let arg = rm::alloc(client, client, 0, rm::DEVICE, tenant.params_address());
    let ask = || tenant.call(fd, rm::ALLOC, &arg, &[0; 56]).status();
    let denied = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
    assert_eq!(ask(), denied, "none");
    let other = tenant.open(&fixture.nodes().join("nvidia1"));
    assert_eq!(ask(), denied, "another card's");
    let cards = || {
        let mut files = fixture.kernel.open_files();
        files.retain(|kind| matches!(kind, FileKind::Card { .. }));
        files
    };
    assert_eq!(cards(), [], "nothing of a card that is not granted");
    tenant.close(other);
    let others: Vec<i32> = (0..OTHERS).map(|_| tenant.dup(fd)).collect();
    let node = tenant.open(&fixture.nodes().join("nvidia0"));
    assert_eq!(ask(), rm::OK);
    assert_eq!(cards(), [FileKind::Card { minor: 0 }]);
    // The file is lent again, not a second one.
    assert_eq!(
        tenant.thread().call(fd, rm::ALLOC, &arg, &[0; 56]).status(),
        rm::OK
    );
    assert_eq!(cards(), [FileKind::Card { minor: 0 }]);
    tenant.close(node);
    until("the executor has closed its duplicate", || {
        fixture.reconcile();
        cards().is_empty()
    });
    assert_eq!(ask(), denied, "closed");
    for number in others {
        tenant.close(number);
    }
}

fn it_is_powerless_while_a_call_is_under_way() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    fixture.kernel.hold_back(rm::ALLOC);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| tenant.device(fd, client));
        fixture.kernel.wait_for_held(1);
        assert_powerless(fixture.executor().process().unwrap());
        fixture.kernel.let_go();
        call.join().unwrap();
    });
}

/// The class, the size and the handles change under the broker's and the executor's eyes the whole time.
fn flipping() {
    const FLIPS: u32 = 150;
    const CLASS: u64 = 12;
    for (binding, at, one, other) in [
        (Binding::Executor, CLASS, 0x40_u32, 0x71_u32),
        (Binding::Executor, CLASS, 0x40, 0x41),
        (Binding::Executor, CLASS, 0x41, 0xc2),
        (Binding::Executor, CLASS, 0x3e, 0x40),
    ] {
        let fixture = Fixture::new(64 * MIB, binding);
        let (tenant, _process) = fixture.tenant();
        let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        let arg = rm::alloc(client, device, 0, one, tenant.params_address());
        tenant.write(tenant.arg_address(), &arg);
        let flipper = tenant.thread();
        flipper.ok(&Ask::Flip {
            address: tenant.arg_address() + at,
            one: one.to_le_bytes().to_vec(),
            other: other.to_le_bytes().to_vec(),
        });
        let mut allocated = 0_u32;
        for _ in 0..FLIPS {
            // The driver chooses the handle; the parameters are one block that every class here can read.
            tenant.write(tenant.params_address(), &rm::memory_params(MIB));
            tenant.write(tenant.arg_address() + 8, &[0; 4]);
            if tenant.ioctl(fd, rm::ALLOC, tenant.arg_address()) == Ok(0) {
                allocated += 1;
            }
        }
        flipper.ok(&Ask::StopFlipping);
        assert!(allocated > 0, "{one:#x}/{other:#x}");
        // What the cards hold is what the ledger holds, and no more than the quota.
        let held = fixture.kernel.held_bytes();
        fixture.assert_exact(held);
        assert!(held <= 64 * MIB);
        let card_memory = [one, other].contains(&0x40);
        assert_eq!(held > 0, card_memory, "{one:#x}/{other:#x}");
    }
}

/// The handle that UVM takes its reference by changes the whole time: what is referenced is what is committed.
fn flipping_references() {
    const RANGES: u64 = 40;
    let fixture = Fixture::new(64 * MIB, Binding::None);
    let (tenant, _process) = fixture.tenant();
    let space = AddressSpace::new(&fixture, &tenant);
    let (ctl, client, device) = (space.ctl, space.client, space.device);
    let memory = [2, 4].map(|mib| {
        let called = tenant.memory(ctl, client, device, 0, mib * MIB);
        assert_eq!(called.status(), rm::OK);
        rm::new_handle(&called.arg)
    });

    let flipper = tenant.thread();
    flipper.ok(&Ask::Flip {
        address: tenant.arg_address() + u64::from(map_external::H_MEMORY.of(Release::R570)),
        one: memory[0].to_le_bytes().to_vec(),
        other: memory[1].to_le_bytes().to_vec(),
    });
    for number in 0..RANGES {
        let at = number * 8 * MIB;
        space.call(&uvm::UVM_CREATE_EXTERNAL_RANGE, &range(at, 2 * MIB, 24));
        space.map(at, 2 * MIB, memory[0]);
    }
    flipper.ok(&Ask::StopFlipping);
    for handle in memory {
        assert_eq!(tenant.free(ctl, client, device, handle), rm::OK);
    }
    // Only what was mapped at least once is left, and nobody but the cards knows which it was.
    let held = fixture.kernel.held_bytes();
    assert!([2 * MIB, 4 * MIB, 6 * MIB].contains(&held), "{held}");
    fixture.assert_exact(held);
    for number in 0..RANGES {
        space.call(&uvm::UVM_FREE, &range(number * 8 * MIB, 2 * MIB, 24));
    }
    fixture.assert_exact(0);
}

/// A former broker's call named it while it was being closed.
fn a_file_that_nobody_knows_any_more_is_closed() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let known = fixture.executor().held().unwrap();
    let file = std::fs::File::open(fixture.nodes().join("nvidiactl")).unwrap();
    let unknown = FileRef {
        id: FileId(77),
        kind: FileKind::Ctl,
        fd: file.as_fd(),
    };
    let mut call = Call::own(rm::ALLOC, rm::alloc(0, 0, 0, rm::ROOT, 0), None);
    let caller = Caller { tgid: 1, tid: 1 };
    let ticket = Ticket::UNREMEMBERED;
    let executor = fixture.executor();
    executor
        .execute(unknown, caller, ticket, &mut call)
        .unwrap();
    assert_eq!(executor.held().unwrap().len(), known.len() + 1);
    fixture.reconcile();
    assert_eq!(executor.held().unwrap(), known);
    assert_eq!(tenant.free(fd, client, client, client), rm::OK);
}

fn once() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let file = std::fs::File::open(fixture.nodes().join("nvidiactl")).unwrap();
    let root = |driver: &ExecutorDriver, ticket| {
        let mut call = Call {
            cmd: rm::ALLOC,
            segments: vec![Segment {
                address: 0,
                link: None::<Link>,
                bytes: rm::alloc(0, 0, 0, rm::ROOT, 0),
            }],
            fds: Vec::new(),
        };
        let file = FileRef {
            id: FileId(77),
            kind: FileKind::Ctl,
            fd: file.as_fd(),
        };
        let caller = Caller { tgid: 1, tid: 1 };
        let done = driver.execute(file, caller, ticket, &mut call).unwrap();
        assert_eq!(done.ret, 0);
        u32_at(&call.segments[0].bytes, nvos21::H_NEW).unwrap()
    };
    let connect = || {
        let nodes = Nodes::below(&fixture.nodes()).unwrap();
        ExecutorDriver::connect(&fixture.socket(), facts(nodes)).unwrap()
    };
    let ticket = |call| Ticket { call_slot: 3, call };
    fixture.kernel.hold_back(rm::ALLOC);
    let handles: Vec<u32> = std::thread::scope(|scope| {
        // The first broker's call is in the driver when the second asks for it.
        let first = scope.spawn(|| root(&connect(), ticket(9)));
        fixture.kernel.wait_for_held(1);
        let second = scope.spawn(|| root(&connect(), ticket(9)));
        fixture.kernel.let_go();
        vec![first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(handles[0], handles[1]);
    assert_eq!(fixture.kernel.count(rm::ALLOC), 1);
    // And long after it was answered.
    assert_eq!(root(&connect(), ticket(9)), handles[0]);
    assert_eq!(fixture.kernel.count(rm::ALLOC), 1);
    assert_ne!(root(&connect(), ticket(10)), handles[0]);
    assert_eq!(fixture.kernel.count(rm::ALLOC), 2);
}

fn a_tenant_that_ends_leaves_nothing() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    assert_eq!(fixture.executor().held().unwrap().len(), 2);
    drop((tenant, process));
    until("the executor has closed its duplicate", || {
        fixture.reconcile();
        fixture.executor().held().unwrap().is_empty()
    });
    assert_eq!(fixture.used_bytes(), 0);
}

/// One call was answered, and one is in the driver, which carries it out: the ledger has both.
fn a_killed_executor_is_reported_and_costs_no_quota() {
    let fixture = Fixture::new(64 * MIB, Binding::Executor);
    let (tenant, process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let called = tenant.memory(fd, client, device, 0, 16 * MIB);
    assert_eq!(called.status(), rm::OK);
    let status = || fixture.container.health.status();
    assert_eq!(status().unreachable, None);
    fixture.kernel.hold_back(rm::ALLOC);
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| tenant.memory(fd, client, device, 0, 8 * MIB));
        fixture.kernel.wait_for_held(1);
        let executor = Pid::from_raw(fixture.executor().process().unwrap());
        kill(executor, Signal::SIGKILL).unwrap();
        assert_eq!(lost.join().unwrap().ret, Err(Errno::EIO as i32));
    });
    fixture.kernel.let_go();
    until("the driver has carried it out", || {
        fixture.kernel.held_bytes() == 24 * MIB
    });
    assert_eq!(fixture.used_bytes(), 24 * MIB);
    let called = tenant.memory(fd, client, device, 0, MIB);
    assert_eq!(called.ret, Err(Errno::EIO as i32));
    assert_eq!(fixture.used_bytes(), 24 * MIB, "it was never sent");
    fixture.container.health.ask_the_driver(&fixture.container);

    let counted = fixture.container.counters.value(Counter::Unreached);
    assert_eq!(counted, 2);
    let why = status().unreachable.unwrap();
    assert!(why.contains("executor at "), "{why}");
    let events = fixture.container.health.events.last();
    let [event] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(event.kind, EventKind::DriverUnreachable);
    assert!(
        event.text.contains("until the container is started again"),
        "{event:?}"
    );
    // What the files held goes with them, also without whoever would have freed it.
    drop((tenant, process));
    until("the files are given up, and what is in doubt stays", || {
        fixture.reconcile();
        fixture.used_bytes() == 8 * MIB
    });
}
