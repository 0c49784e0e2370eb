//! To which file the driver binds what a call makes, and what it keeps of one that is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::account::uuid_bytes;
use broker::container::Container;
use broker::reaper::Reaper;
use driver::{FileId, FileKind};
use journal::limits::OBJECT_BYTES;
use journal::state::{Closing, Op};
use ledger::{CardSlot, ClientHandle, Counted, Operation, ProcessId};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::os_event;
use nvabi::{Release, escape, status, uvm};

use crate::Test;
use crate::fake::{Seen, UUID};
use crate::files::{REGISTER_FD, reconcile_until, register};
use crate::fixture::{Fixture, Watch, until};
use crate::named::map_externally;
use crate::rm;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    (
        "closed::a_client_is_of_the_control_file_that_its_own_is_registered_with",
        a_client_is_of_the_registered_control_file,
    ),
    (
        "closed::a_file_is_registered_while_no_call_is_made_on_it",
        a_file_is_registered_alone,
    ),
    (
        "closed::semaphore_pools_are_freed_with_their_file_or_stay_charged",
        semaphore_pools_are_freed_with_their_file,
    ),
    (
        "closed::external_ranges_are_charged_and_freed_with_their_file",
        external_ranges_are_charged_and_freed_with_their_file,
    ),
    (
        "closed::what_the_driver_holds_is_listed_where_that_may_have_changed",
        what_the_driver_holds_is_listed_seldom,
    ),
    (
        "closed::a_file_that_was_not_handed_over_keeps_what_its_clients_have_charged",
        a_file_that_was_not_handed_over_keeps_its_clients,
    ),
    (
        "closed::what_a_killed_broker_was_freeing_is_freed_by_its_successor",
        what_was_being_freed_is_freed,
    ),
    (
        "closed::what_somebody_else_has_open_stays_charged_with_every_successor",
        what_is_open_elsewhere_stays_charged,
    ),
    (
        "closed::what_somebody_else_closes_is_charged_until_the_driver_has_cleaned_up",
        what_somebody_else_closes_is_charged_for_a_while,
    ),
    (
        "closed::what_is_mapped_on_a_card_ends_with_its_registration",
        what_is_mapped_ends_with_the_card,
    ),
    (
        "closed::a_call_gets_what_a_file_has_given_back_that_another_one_keeps",
        a_call_gets_what_a_kept_file_has_given_back,
    ),
    (
        "closed::of_too_many_kept_files_the_one_kept_longest_is_given_up",
        the_one_kept_longest_is_given_up,
    ),
];

const MIB: u64 = 1 << 20;

/// A control file can be registered with another one, and the driver keeps what is made on it as long as the other is open.
fn a_client_is_of_the_registered_control_file() {
    for is_compat in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        let fake = &fixture.fake;
        fake.is_compat.store(is_compat, Ordering::Relaxed);
        let tenant = fixture.tenant();
        let [first, second] = [(); 2].map(|()| tenant.open(&fixture.path("nvidiactl")));
        register(&tenant, first, second);
        let client = match is_compat {
            // Nobody sees it made.
            true => fake.client_of_the_kernel(fake.seen().last().unwrap().file),
            false => tenant.client(first),
        };
        let device = tenant.device(first, client);
        let memory = tenant.memory(first, client, device, 0, 3 * MIB);
        assert_eq!(memory.status(), rm::OK);
        tenant.close(first);
        reconcile_until(&fixture, "the first is given up", || {
            fake.closed.load(Ordering::SeqCst) == 1
        });
        fixture.assert_exact(3 * MIB);
        tenant.close(second);
        reconcile_until(&fixture, "both are given up", || fixture.used_bytes() == 0);
        fixture.assert_exact(0);
    }
}

/// To which of the two files the driver has bound a client that comes meanwhile, nobody could tell.
fn a_file_is_registered_alone() {
    let fixture = Fixture::new(4 * MIB);
    let fake = &fixture.fake;
    fake.is_compat.store(true, Ordering::Relaxed);
    let tenant = fixture.tenant();
    let other = tenant.thread();
    let [first, second] = [(); 2].map(|()| tenant.open(&fixture.path("nvidiactl")));
    fake.hold_back(REGISTER_FD, None);
    std::thread::scope(|scope| {
        let registered = scope.spawn(|| register(&tenant, first, second));
        fake.wait_for_held(1);
        let client = fake.client_of_the_kernel(fake.seen().last().unwrap().file);
        let arg = rm::alloc(client, client, 0, rm::DEVICE, other.params_address());
        let device = || other.call(first, rm::ALLOC, &arg, &[0; 56]).status();
        assert_eq!(device(), status::NV_ERR_IN_USE);
        fake.let_go();
        registered.join().unwrap();
        assert_eq!(device(), rm::OK);
    });
}

/// What a former broker recorded and a successor does not have: the tenant may have it open all the same.
fn a_file_that_was_not_handed_over_keeps_its_clients() {
    let fixture = Fixture::new(4 * MIB);
    let container = &fixture.container;
    let files = [(); 4].map(|()| {
        let mut change = container.journal.change();
        let file = change.next_file();
        change.record_op(Op::FileSeen(file, FileKind::Ctl));
        file
    });
    let [_unused, used, closing, freed] = files;
    let clients = [0xc1d0_0001, 0xc1d0_0002, 0xc1d0_0003];
    for (file, client) in [used, closing, freed].into_iter().zip(clients) {
        container.journal.change().record(Operation::SeeClient {
            file: ledger::FileId(file.0),
            client: ClientHandle(client),
            process: ProcessId(0),
        });
    }
    for (file, closing) in [(closing, Closing::Begun), (freed, Closing::Freed)] {
        let op = Op::FileClosing(file, closing);
        container.journal.change().record_op(op);
    }
    fixture.reaper.finish_closing(container);
    let state = container.journal.change();
    let known = files.map(|file| state.file(file).is_some());
    assert_eq!(known, [false, true, true, false]);
    let left: Vec<_> = state.ledger.clients().map(|(it, ..)| it).collect();
    assert_eq!(left, [0xc1d0_0001, 0xc1d0_0002].map(ClientHandle));
}

/// A broker is killed between the note that nobody of the container has a file and the calls that free what it holds, for which a tenant can have
/// as much time as it likes. Somebody else has the file open: its last descriptor here frees nothing.
fn what_was_being_freed_is_freed() {
    let pool = uvm::UVM_ALLOC_SEMAPHORE_POOL;
    for is_handed_over in [true, false] {
        let fixture = Fixture::new(4 * MIB);
        let fake = &fixture.fake;
        fake.is_bound.store(true, Ordering::Relaxed);
        let tenant = fixture.tenant();
        let control = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(control);
        let device = tenant.device(control, client);
        let memory = tenant.memory(control, client, device, 0, 3 * MIB);
        assert_eq!(memory.status(), rm::OK);
        let uvm_file = tenant.open(&fixture.path("nvidia-uvm"));
        let mut arg = vec![0; pool.size.of(Release::R570) as usize];
        put_u64(&mut arg, uvm::map_external::BASE, 1 << 36);
        put_u64(&mut arg, uvm::map_external::LENGTH, 2 * MIB);
        assert_eq!(tenant.call(uvm_file, pool.cmd, &arg, &[]).ret, Ok(0));
        let charged = (fixture.used_bytes(), fixture.used_bytes_of_the_host());
        assert!(charged.0 == 3 * MIB && charged.1 >= 2 * MIB, "{charged:?}");
        let elsewhere = [control, uvm_file].map(|file| fixture.elsewhere(&tenant, file));
        for file in [control, uvm_file] {
            tenant.close(file);
        }
        let files = &fixture.container.files;
        let held = files.held().into_iter();
        let closing: Vec<_> = held.map(|file| files.take_idle(file.id).unwrap()).collect();
        let handed = if is_handed_over { &closing[..] } else { &[] };
        let successor = fixture.successor_handed(handed, Watch::HandedOver);
        Reaper::new().unwrap().finish_closing(&successor);
        let freed = freed(&fake.seen());
        let state = successor.journal.change();
        let objects = state.ledger.count(Counted::Objects) * OBJECT_BYTES;
        let used = [CardSlot(0), CardSlot::HOST].map(|card| state.ledger.used(card));
        let used = [used[0], used[1] - objects];
        if is_handed_over {
            assert_eq!(freed, [(1 << 36, 2 * MIB)]);
            assert_eq!((used, fake.held_bytes()), ([0, 0], 0));
            assert_eq!(state.files().count(), 0);
        } else {
            assert_eq!((freed.len(), used), (0, [charged.0, charged.1]));
        }
        drop(elsewhere);
    }
}

/// In compat mode nobody but its maker can free a client: another reference to its file keeps all that it has, whoever serves then.
fn what_is_open_elsewhere_stays_charged() {
    for watch in [Watch::HandedOver, Watch::Lost] {
        let fixture = Fixture::new(4 * MIB);
        let fake = &fixture.fake;
        fake.is_compat.store(true, Ordering::Relaxed);
        let tenant = fixture.tenant();
        let [closed, other] = [(); 2].map(|()| tenant.open(&fixture.path("nvidiactl")));
        register(&tenant, other, closed);
        let client = fake.client_of_the_kernel(fake.seen().last().unwrap().file);
        let device = tenant.device(other, client);
        let memory = tenant.memory(other, client, device, 0, 3 * MIB);
        assert_eq!(memory.status(), rm::OK);
        let elsewhere = [closed, other].map(|file| fixture.elsewhere(&tenant, file));
        for file in [closed, other] {
            tenant.close(file);
        }
        reconcile_until(&fixture, "both are given up", || {
            fake.closed.load(Ordering::SeqCst) == 2
        });
        assert_eq!(fixture.used_bytes(), 3 * MIB);
        let mut successor = Arc::clone(&fixture.container);
        let used = |of: &Container| of.journal.change().ledger.used(CardSlot(0));
        let reaper = Reaper::new().unwrap();
        for _ in 0..2 {
            successor = fixture.successor_handed(&[], watch);
            reaper.finish_closing(&successor);
            reaper.reconcile(&successor);
            assert_eq!(used(&successor), 3 * MIB);
        }
        drop(elsewhere);
        match watch {
            Watch::HandedOver => until("it is given back", || {
                reaper.reconcile(&successor);
                used(&successor) == 0
            }),
            Watch::Lost => {
                reaper.reconcile(&successor);
                assert_eq!(used(&successor), 3 * MIB, "nobody knows when it ends");
            }
        }
    }
}

/// The kernel forgets a file before the driver cleans up after it, which whoever closes last waits for: here nobody of ours, while another file is
/// given up in the same look.
fn what_somebody_else_closes_is_charged_for_a_while() {
    let of_release = |row: escape::Escape| row.cmd(Release::R570);
    let fixture = Fixture::new(4 * MIB);
    let fake = &fixture.fake;
    let tenant = fixture.tenant();
    let mut elsewhere = BTreeMap::new();
    for number in 0..2 {
        let file = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(file);
        let device = tenant.device(file, client);
        let memory = tenant.memory(file, client, device, 0, MIB);
        assert_eq!(memory.status(), rm::OK);
        let mut arg = vec![0; 16];
        put_u32(&mut arg, os_event::H_CLIENT, client);
        put_u32(&mut arg, os_event::FD, number);
        let alloc = of_release(escape::NV_ESC_ALLOC_OS_EVENT);
        assert_eq!(tenant.call(file, alloc, &arg, &[]).ret, Ok(0));
        let id = fake.seen().pop().unwrap().file;
        elsewhere.insert(id, fixture.elsewhere(&tenant, file));
        tenant.close(file);
    }
    fake.is_compat.store(true, Ordering::Relaxed);
    fake.hold_back(of_release(escape::NV_ESC_FREE_OS_EVENT), None);
    std::thread::scope(|scope| {
        let looked = scope.spawn(|| fixture.reaper.reconcile(&fixture.container));
        fake.wait_for_held(1);
        let first = fake.seen().pop().unwrap().file;
        let second = *elsewhere.keys().find(|id| **id != first).unwrap();
        fake.hold_back_only(second);
        until("the second is being given up", || {
            fake.seen().pop().unwrap().file == second
        });
        assert_eq!(fake.closed.load(Ordering::SeqCst), 1);
        drop(elsewhere.remove(&first));
        fake.let_go();
        looked.join().unwrap();
    });
    assert_eq!(fixture.used_bytes(), 2 * MIB);
    reconcile_until(&fixture, "it is given back", || fixture.used_bytes() == MIB);
}

/// A second file of nvidia-uvm keeps the first one open.
fn semaphore_pools_are_freed_with_their_file() {
    let (pool, free) = (uvm::UVM_ALLOC_SEMAPHORE_POOL, uvm::UVM_FREE);
    for refusal in [None, Some(status::NV_ERR_INVALID_ARGUMENT)] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(true, Ordering::Relaxed);
        let tenant = fixture.tenant();
        let uvm_file = tenant.open(&fixture.path("nvidia-uvm"));
        let mut arg = vec![0; pool.size.of(Release::R570) as usize];
        put_u64(&mut arg, uvm::map_external::BASE, 1 << 36);
        put_u64(&mut arg, uvm::map_external::LENGTH, 2 * MIB);
        let made = tenant.call(uvm_file, pool.cmd, &arg, &[]);
        let status_at = pool.status.of(Release::R570) as usize;
        assert_eq!((made.ret, u32_at(&made.arg, status_at)), (Ok(0), Some(0)));
        let charged = fixture.used_bytes_of_the_host();
        assert!(charged >= 2 * MIB);
        fixture
            .fake
            .refused
            .lock()
            .unwrap()
            .extend(refusal.map(|it| (free.cmd, it)));
        let _elsewhere = fixture.elsewhere(&tenant, uvm_file);
        tenant.close(uvm_file);
        reconcile_until(&fixture, "the file is given up", || {
            fixture.fake.closed.load(Ordering::SeqCst) == 1
        });
        let seen = fixture.fake.seen();
        assert_eq!(freed(&seen), [(1 << 36, 2 * MIB)]);
        let stays = if refusal.is_some() { charged } else { 0 };
        assert_eq!(fixture.used_bytes_of_the_host(), stays);
    }
}

/// The driver keeps a range in the kernel's memory, which no control group counts, as long as a second file keeps the first one open.
fn external_ranges_are_charged_and_freed_with_their_file() {
    const BYTES: u64 = uvm::EXTERNAL_RANGE_BYTES.of(Release::R570) as u64;
    const MOST: u64 = 3;
    for refusal in [None, Some(status::NV_ERR_INVALID_ARGUMENT)] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(true, Ordering::Relaxed);
        fixture.limit_host(MOST * BYTES, 1);
        let tenant = fixture.tenant();
        let [first, second] = [(); 2].map(|()| tenant.open(&fixture.path("nvidia-uvm")));
        let make = |file, number: u64| {
            let row = uvm::UVM_CREATE_EXTERNAL_RANGE;
            let mut arg = vec![0; row.size.of(Release::R570) as usize];
            put_u64(&mut arg, uvm::map_external::BASE, number * MIB);
            put_u64(&mut arg, uvm::map_external::LENGTH, number * 4096);
            let made = tenant.call(file, row.cmd, &arg, &[]);
            assert_eq!(made.ret, Ok(0));
            u32_at(&made.arg, row.status.of(Release::R570) as usize).unwrap()
        };
        for number in 1..=MOST {
            assert_eq!(make(first, number), rm::OK);
            assert_eq!(fixture.used_bytes_of_the_host(), number * BYTES);
        }
        let heard = fixture.fake.seen().len();
        assert_eq!(make(second, 1), rm::NO_MEMORY);
        assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");
        tenant.free_range(first, 2 * MIB);
        assert_eq!(fixture.used_bytes_of_the_host(), 2 * BYTES);
        assert_eq!(make(second, 1), rm::OK);
        let heard = fixture.fake.seen().len();
        let refused = refusal.map(|it| (uvm::UVM_FREE.cmd, it));
        fixture.fake.refused.lock().unwrap().extend(refused);
        tenant.close(first);
        reconcile_until(&fixture, "the file is given up", || {
            fixture.fake.closed.load(Ordering::SeqCst) == 1
        });
        let expected = [(MIB, 4096), (3 * MIB, 3 * 4096)];
        assert_eq!(freed(&fixture.fake.seen()[heard..]), expected);
        let stay = if refusal.is_some() { 2 } else { 0 };
        assert_eq!(fixture.used_bytes_of_the_host(), (1 + stay) * BYTES);
        let state = fixture.container.journal.change();
        assert_eq!(state.ledger.count(Counted::Ranges), 1 + stay);
        assert_eq!(state.ledger.check_invariants(), Ok(()));
    }
}

/// An address space has no memory of a card that it has taken out: its program may end long after that.
fn what_is_mapped_ends_with_the_card() {
    let fixture = Fixture::new(4 * MIB);
    let tenant = fixture.tenant();
    let uvm_file = map_without_a_name(&fixture, &tenant, MIB);
    for (row, left) in [
        (uvm::UVM_UNREGISTER_GPU_VASPACE, MIB),
        (uvm::UVM_UNREGISTER_GPU, 0),
    ] {
        let mut arg = vec![0; row.size.of(Release::R570) as usize];
        put(&mut arg, 0, &uuid_bytes(UUID).unwrap());
        let called = tenant.call(uvm_file, row.cmd, &arg, &[]);
        assert_eq!((called.ret, fixture.used_bytes()), (Ok(0), left));
    }
}

/// The address space goes later, and with it what is charged for the file itself: its card's memory is there by then.
fn a_call_gets_what_a_kept_file_has_given_back() {
    let fixture = Fixture::new(4 * MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let tenant = fixture.tenant();
    let uvm_file = map_without_a_name(&fixture, &tenant, 3 * MIB);
    let file = initialised(&fixture, &tenant, uvm_file);
    let control = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(control);
    let device = tenant.device(control, client);
    let memory = |bytes| tenant.memory(control, client, device, 0, bytes).status();
    assert_eq!(memory(2 * MIB), rm::NO_MEMORY);
    tenant.close(uvm_file);
    assert_eq!(memory(2 * MIB), rm::OK);
    let state = fixture.container.journal.change();
    assert!(state.file(file).is_some());
}

/// A second file may go within a moment. Of the first that is not waited for, the address space stays charged to the container's end.
fn the_one_kept_longest_is_given_up() {
    const MOST: usize = 32;
    let fixture = Fixture::new(4 * MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let tenant = fixture.tenant();
    let closed = |how_many| {
        let numbers: Vec<i32> = (0..how_many)
            .map(|_| tenant.open(&fixture.path("nvidia-uvm")))
            .collect();
        let files: Vec<FileId> = numbers
            .iter()
            .map(|number| initialised(&fixture, &tenant, *number))
            .collect();
        for number in numbers {
            tenant.close(number);
        }
        reconcile_until(&fixture, "the files are being given up", || {
            let state = fixture.container.journal.change();
            let entry = |file: &FileId| state.file(*file);
            let mut entries = files.iter().map(entry);
            entries.all(|it| it.is_none_or(|it| it.closing.is_some()))
        });
        files
    };
    let (first, others) = (closed(1), closed(MOST));
    let state = fixture.container.journal.change();
    let is_kept = |file: &FileId| state.file(*file).is_some();
    assert!(others.iter().all(is_kept));
    assert!(!first.iter().any(is_kept));
}

/// A file of nvidia-uvm that maps 1 MiB of memory of so many bytes, which has no other reference.
fn map_without_a_name(fixture: &Fixture, tenant: &Tenant, bytes: u64) -> i32 {
    let control = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(control);
    let device = tenant.device(control, client);
    let memory = tenant.memory(control, client, device, 5, bytes);
    assert_eq!(memory.status(), rm::OK);
    let uvm_file = tenant.open(&fixture.path("nvidia-uvm"));
    assert_eq!(map_externally(tenant, uvm_file, (client, 5)), rm::OK);
    assert_eq!(tenant.free(control, client, device, 5), rm::OK);
    assert_eq!(fixture.used_bytes(), bytes);
    uvm_file
}

/// Has a file of nvidia-uvm an address space by the account: its call goes back to the caller, to a file that knows no such call.
fn initialised(fixture: &Fixture, tenant: &Tenant, uvm_file: i32) -> FileId {
    let before = files_of_uvm(fixture);
    let row = uvm::UVM_INITIALIZE;
    let arg = vec![0; row.size.of(Release::R570) as usize];
    let _not_a_driver_s = tenant.call(uvm_file, row.cmd, &arg, &[]);
    let now = files_of_uvm(fixture);
    let new = now.iter().find(|file| !before.contains(file));
    *new.unwrap()
}

fn files_of_uvm(fixture: &Fixture) -> Vec<FileId> {
    let state = fixture.container.journal.change();
    let files = state.files().map(|(file, _)| file);
    let has_space = |file: &FileId| state.ledger.has_uvm_file(ledger::FileId(file.0));
    files.filter(has_space).collect()
}

/// What was freed by UVM_FREE: first address, bytes.
fn freed(seen: &[Seen]) -> Vec<(u64, u64)> {
    let freed = seen.iter().filter(|call| call.cmd == uvm::UVM_FREE.cmd);
    let word = |call: &Seen, at| u64_at(&call.segments[0], at).unwrap();
    freed
        .map(|call| {
            let base = word(call, uvm::map_external::BASE);
            (base, word(call, uvm::map_external::LENGTH))
        })
        .collect()
}

/// The answer has every file: at each interval, it would be the cost of a container that does nothing. A file that nobody knows is closed all the
/// same.
fn what_the_driver_holds_is_listed_seldom() {
    let fixture = Fixture::new(4 * MIB);
    let fake = &fixture.fake;
    let requests = || fake.held_requests.load(Ordering::SeqCst);
    let intervals = |count| (0..count).for_each(|_| fixture.reaper.reconcile(&fixture.container));
    let stray = |id| fake.kept_files.lock().unwrap().insert(FileId(id));
    let is_closed = || fake.kept_files.lock().unwrap().is_empty();
    // What a former broker has left.
    stray(1 << 40);
    intervals(1);
    assert!(is_closed());
    // It has closed one.
    intervals(1);
    assert_eq!(requests(), 2);
    intervals(59);
    assert_eq!(requests(), 2);
    intervals(1);
    assert_eq!(requests(), 3);
    // A call that was late brings one.
    stray(1 << 40);
    fake.held_changes.fetch_add(1, Ordering::SeqCst);
    intervals(1);
    assert!(is_closed());
    // And should it not be seen.
    intervals(1);
    stray(1 << 40);
    intervals(60);
    assert!(is_closed());
}
