//! Whose file a call is made on, and when it is gone.

use std::sync::atomic::Ordering;

use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::{Release, uvm};

use crate::Test;
use crate::agent::Ask;
use crate::fixture::{Fixture, MAPPABLE_CTL, until};
use crate::quota::with_device;
use crate::rm;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    ("files::close_releases", close_releases),
    ("files::exit_releases", exit_releases),
    (
        "files::a_close_that_the_driver_does_not_hear_of_is_reported_again",
        a_close_is_reported_again,
    ),
    (
        "files::what_a_closed_file_held_is_freed_though_another_has_it_open",
        what_a_closed_file_held_is_freed,
    ),
    (
        "files::range_groups_are_limited_and_end_with_their_file",
        range_groups_are_limited_and_end_with_their_file,
    ),
    (
        "files::a_duplicate_is_the_same_file",
        a_duplicate_is_the_same_file,
    ),
    (
        "files::a_passed_file_is_the_same_file",
        a_passed_file_is_the_same_file,
    ),
    (
        "files::a_file_in_a_socket_is_not_given_up",
        a_file_in_a_socket_is_not_given_up,
    ),
    (
        "files::an_inherited_file_is_the_same_file",
        an_inherited_file_is_the_same_file,
    ),
    (
        "files::a_private_table_is_looked_into",
        a_private_table_is_looked_into,
    ),
    (
        "files::a_closed_file_ends_though_another_of_its_node_is_mapped",
        a_closed_file_ends,
    ),
    (
        "files::a_registered_control_file_stays",
        a_registered_control_file_stays,
    ),
    (
        "files::a_client_stays_with_its_control_file",
        a_client_stays_with_its_control_file,
    ),
    (
        "files::memory_over_quota_looks_for_exits_first",
        memory_over_quota_looks_for_exits_first,
    ),
    (
        "files::foreign_files_answer_for_themselves",
        foreign_files_answer_for_themselves,
    ),
    ("files::numbers_are_used_again", numbers_are_used_again),
];

const MIB: u64 = 1 << 20;
pub(crate) const REGISTER_FD: u32 = 0xc004_46c9;

/// Reconciles until it has looked.
pub(crate) fn reconcile_until(fixture: &Fixture, what: &str, is_so: impl Fn() -> bool) {
    until(what, || {
        fixture.reaper.reconcile(&fixture.container);
        is_so()
    });
}

fn close_releases() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let copy = tenant.dup(fd);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    tenant.close(fd);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(MIB);
    tenant.close(copy);
    reconcile_until(&fixture, "the closed file is given up", || {
        fixture.used_bytes() == 0
    });
    fixture.assert_exact(0);
    assert_eq!(fixture.fake.closed.load(Ordering::SeqCst), 1);
}

/// What the driver has of the file is charged until it says that it has closed it.
fn a_close_is_reported_again() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let deaf = &fixture.fake.hears_of_no_close;
    deaf.store(true, Ordering::SeqCst);
    tenant.close(fd);
    reconcile_until(&fixture, "the closed file is given up", || {
        fixture.container.files.held().is_empty()
    });
    for _ in 0..3 {
        fixture.reaper.reconcile(&fixture.container);
        fixture.assert_exact(MIB);
    }
    deaf.store(false, Ordering::SeqCst);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(0);
    fixture.reaper.reconcile(&fixture.container);
    assert_eq!(fixture.fake.closed.load(Ordering::SeqCst), 1);
}

/// A real driver would keep it for whoever else has the file open, and nobody would be charged for it.
fn what_a_closed_file_held_is_freed() {
    const FREE: u32 = 0xc010_4629;
    const UVM_INITIALIZE: u32 = 0x3000_0001;
    const UVM_UNREGISTER_GPU: u32 = 38;
    for is_bound in [true, false] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        fixture.fake.second_files.store(0, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&fixture);
        assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
        let uvm_file = tenant.open(&fixture.path("nvidia-uvm"));
        // A file is known from its first call on, whatever becomes of that.
        let _known = tenant.call(uvm_file, UVM_INITIALIZE, &[0; 16], &[]);
        let before = fixture.fake.seen().len();
        tenant.close(uvm_file);
        tenant.close(fd);
        reconcile_until(&fixture, "both files are given up", || {
            fixture.fake.closed.load(Ordering::SeqCst) == 2
        });
        fixture.assert_exact(0);
        let seen = fixture.fake.seen();
        let mut freed: Vec<_> = seen[before..]
            .iter()
            // The driver is asked whether a second file keeps the first one.
            .filter(|call| call.cmd != uvm::UVM_MM_INITIALIZE.cmd)
            .map(|call| (call.cmd, call.segments[0].clone()))
            .collect();
        freed.sort_unstable();
        let mut whole_client = vec![0; 16];
        put_u32(&mut whole_client, 0, client);
        put_u32(&mut whole_client, 8, client);
        let mut card = fixture.container.account.slots()[0].uuid_bytes.to_vec();
        card.resize(20, 0);
        let expected = [(UVM_UNREGISTER_GPU, card), (FREE, whole_client)];
        assert_eq!(freed, if is_bound { &expected[..] } else { &[] });
    }
}

/// A group of managed ranges is an object of the kernel's that no control group counts: it goes with its file, or by a call.
fn range_groups_are_limited_and_end_with_their_file() {
    const MOST: u64 = 4096;
    let fixture = Fixture::new(4 * MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let tenant = fixture.tenant();
    let open = || tenant.open(&fixture.path("nvidia-uvm"));
    let (first, second) = (open(), open());
    let (create, destroy) = (uvm::UVM_CREATE_RANGE_GROUP, uvm::UVM_DESTROY_RANGE_GROUP);
    // The fake leaves the number as it is: it stands for the driver's.
    let call = |fd, row: uvm::Uvm, group: u64| {
        let mut arg = vec![0; 16];
        put_u64(&mut arg, uvm::RANGE_GROUP_ID, group);
        let called = tenant.call(fd, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(Release::R570) as usize).unwrap()
    };
    for group in 1..MOST {
        assert_eq!(call(first, create, group), rm::OK, "{group}");
    }
    assert_eq!(call(second, create, 1), rm::OK);
    let heard = fixture.fake.seen().len();
    assert_eq!(call(first, create, MOST), rm::NO_MEMORY);
    assert_eq!(call(second, create, 2), rm::NO_MEMORY);
    assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");
    // What is no group of this file's gives none back.
    assert_eq!(call(second, destroy, 2), rm::OK);
    assert_eq!(call(second, create, 2), rm::NO_MEMORY);
    assert_eq!(call(first, destroy, 1), rm::OK);
    assert_eq!(call(second, create, 2), rm::OK);
    assert_eq!(call(second, create, 3), rm::NO_MEMORY);

    let before = fixture.fake.seen().len();
    tenant.close(first);
    reconcile_until(&fixture, "the file is given up", || {
        fixture.fake.closed.load(Ordering::SeqCst) == 1
    });
    let seen = fixture.fake.seen();
    let destroyed = seen[before..].iter().filter(|call| call.cmd == destroy.cmd);
    let groups: Vec<u64> = destroyed
        .map(|call| u64_at(&call.segments[0], uvm::RANGE_GROUP_ID).unwrap())
        .collect();
    let expected: Vec<u64> = (2..MOST).collect();
    assert_eq!(groups, expected, "another file may keep it open");
    assert_eq!(call(second, create, 3), rm::OK);
}

fn exit_releases() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    fixture.assert_exact(MIB);
    drop(tenant);
    // No interval has passed: the exit itself is seen.
    until("the exit is seen", || fixture.used_bytes() == 0);
    fixture.assert_exact(0);
    assert_eq!(fixture.fake.client_count(), 0);
}

fn a_duplicate_is_the_same_file() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let copy = tenant.dup(fd);
    assert_eq!(tenant.memory(copy, client, device, 0, MIB).status(), rm::OK);
    let files: Vec<_> = fixture.fake.seen().iter().map(|seen| seen.file).collect();
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "{files:?}");
    let second = tenant.open(&fixture.path("nvidiactl"));
    tenant.client(second);
    assert_ne!(fixture.fake.seen().last().unwrap().file, files[0]);
}

/// Every CUDA program maps the control node as long as it lives.
fn a_closed_file_ends() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, other) = (fixture.tenant(), fixture.tenant());
    let [mapped, fd] = [&tenant, &other].map(|it| it.open(&fixture.path(MAPPABLE_CTL)));
    tenant.client(mapped);
    tenant.ok(&Ask::MapManaged {
        fd: mapped,
        bytes: 4096,
    });
    let client = other.client(fd);
    let device = other.device(fd, client);
    assert_eq!(other.memory(fd, client, device, 0, MIB).status(), rm::OK);
    other.close(fd);
    reconcile_until(&fixture, "the closed file is given up", || {
        fixture.used_bytes() == 0
    });
    assert_eq!(fixture.fake.closed.load(Ordering::SeqCst), 1);
    // The mapping alone keeps the other one.
    tenant.close(mapped);
    fixture.reaper.reconcile(&fixture.container);
    fixture.reaper.reconcile(&fixture.container);
    assert_eq!(fixture.fake.closed.load(Ordering::SeqCst), 1);
}

fn a_passed_file_is_the_same_file() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let pair = tenant.bytes(&Ask::Pair);
    let (ours, theirs) = (i32::from(pair[0]), i32::from(pair[1]));
    let (other, _) = tenant.process(&[theirs]);
    tenant.ok(&Ask::SendFd { socket: ours, fd });
    let passed = other.receive_fd(theirs);
    assert_eq!(
        other.memory(passed, client, device, 0, MIB).status(),
        rm::OK
    );
    let seen = fixture.fake.seen();
    assert_eq!(seen[0].file, seen.last().unwrap().file);
    assert_ne!(seen[0].caller.tgid, seen.last().unwrap().caller.tgid);
    // The first process closes it; the other still holds it.
    tenant.close(fd);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(MIB);
    drop(other);
    until("the last holder's exit is seen", || {
        fixture.used_bytes() == 0
    });
}

fn a_file_in_a_socket_is_not_given_up() {
    let Some(cgroup) = Cgroup::new() else {
        println!("SKIP: no cgroup can be made here");
        return;
    };
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    cgroup.add(tenant.pid());
    fixture
        .reaper
        .set_cgroup_of(&fixture.container.journal, tenant.pid());
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let pair = tenant.bytes(&Ask::Pair);
    let socket = i32::from(pair[0]);
    tenant.ok(&Ask::SendFd { socket, fd });
    tenant.close(fd);
    for _ in 0..3 {
        fixture.reaper.reconcile(&fixture.container);
        fixture.assert_exact(MIB);
    }
    let back = tenant.receive_fd(i32::from(pair[1]));
    assert_eq!(tenant.memory(back, client, device, 0, MIB).status(), rm::OK);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(2 * MIB);
    tenant.close(back);
    reconcile_until(&fixture, "the closed file is given up", || {
        fixture.used_bytes() == 0
    });
}

fn an_inherited_file_is_the_same_file() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let (child, pid) = tenant.process(&[fd]);
    assert_eq!(child.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let last = fixture.fake.seen().pop().unwrap();
    assert_eq!(
        (last.file, last.caller.tgid),
        (fixture.fake.seen()[0].file, pid)
    );
    tenant.close(fd);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(2 * MIB);
    drop(child);
    until("the child's exit is seen", || fixture.used_bytes() == 0);
}

fn a_private_table_is_looked_into() {
    let own = std::process::id().cast_signed();
    if let Err(error) = sys::pidfd::PidFd::open_thread(own) {
        return println!("SKIP: this kernel opens no single thread: {error}");
    }
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, _, _) = with_device(&fixture);
    let hermit = tenant.thread();
    hermit.ok(&Ask::Unshare);
    // The same number, but in the process's table it is a plain file.
    let mut own = hermit.open(&fixture.path("nvidiactl"));
    let mut plain = tenant.open(&fixture.path("plain"));
    // What the process had open for a moment when the table was made is in one of them.
    while own != plain {
        if own < plain {
            own = hermit.open(&fixture.path("nvidiactl"));
        } else {
            plain = tenant.open(&fixture.path("plain"));
        }
    }
    let client = hermit.client(own);
    let device = hermit.device(own, client);
    assert_eq!(hermit.memory(own, client, device, 0, MIB).status(), rm::OK);
    assert_eq!(
        tenant.ioctl(plain, rm::ALLOC, tenant.arg_address()),
        Err(25)
    );
    assert_eq!(hermit.free(own, client, client, device), rm::OK);
    assert_eq!(hermit.memory(own, client, client, 0, MIB).ret, Ok(0));
    let device = hermit.device(own, client);
    assert_eq!(hermit.memory(own, client, device, 0, MIB).status(), rm::OK);
    // Only the hermit's table has it, and it is found there.
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(MIB);
    hermit.close(own);
    reconcile_until(&fixture, "the hermit's file is given up", || {
        fixture.used_bytes() == 0
    });
    tenant.client(fd);
}

/// Registers a file with a control file.
pub(crate) fn register(tenant: &Tenant, file: i32, control: i32) {
    let arg = control.to_le_bytes();
    assert_eq!(tenant.call(file, REGISTER_FD, &arg, &[]).ret, Ok(0));
}

fn a_registered_control_file_stays() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, control, client, device) = with_device(&fixture);
    let card = tenant.open(&fixture.path("nvidia0"));
    register(&tenant, card, control);
    assert_eq!(
        tenant.memory(control, client, device, 0, MIB).status(),
        rm::OK
    );
    tenant.close(control);
    fixture.reaper.reconcile(&fixture.container);
    fixture.assert_exact(MIB);
    tenant.close(card);
    reconcile_until(&fixture, "both are given up", || fixture.used_bytes() == 0);
    assert_eq!(fixture.fake.closed.load(Ordering::SeqCst), 2);
}

fn a_client_stays_with_its_control_file() {
    const ALLOC_MEMORY: u32 = 0xc038_4627;
    let fixture = Fixture::new(4 * MIB);
    let (tenant, control, client, device) = with_device(&fixture);
    assert_eq!(
        tenant.memory(control, client, device, 0, MIB).status(),
        rm::OK
    );
    // System memory is allocated on the card's file; the client is still the control file's.
    let card = tenant.open(&fixture.path("nvidia0"));
    let mut arg = vec![0; 56];
    for (at, word) in [(0, client), (4, device), (8, 0x99), (12, 0x3e)] {
        put_u32(&mut arg, at, word);
    }
    put_u32(&mut arg, 48, u32::MAX);
    assert_eq!(tenant.call(card, ALLOC_MEMORY, &arg, &[]).ret, Ok(0));
    fixture.assert_exact(MIB);
    tenant.close(card);
    reconcile_until(&fixture, "the card's file is given up", || {
        fixture.fake.closed.load(Ordering::SeqCst) == 1
    });
    fixture.assert_exact(MIB);
}

fn memory_over_quota_looks_for_exits_first() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, _, _) = with_device(&fixture);
    tenant.close(fd);
    let fd = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let second = tenant.open(&fixture.path("nvidiactl"));
    let other = tenant.client(second);
    let on_second = tenant.device(second, other);
    assert_eq!(
        tenant.memory(second, other, on_second, 0, MIB).status(),
        rm::OK
    );
    tenant.close(second);
    // Nobody has looked since; the allocation itself does, and finds room.
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    fixture.assert_exact(MIB);
}

fn foreign_files_answer_for_themselves() {
    let fixture = Fixture::new(MIB);
    let tenant = fixture.tenant();
    let plain = tenant.open(&fixture.path("plain"));
    for cmd in [rm::ALLOC, rm::FREE, rm::CONTROL, 33, 0x3000_0001] {
        assert_eq!(
            tenant.ioctl(plain, cmd, tenant.arg_address()),
            Err(25),
            "{cmd:#x}"
        );
    }
    assert_eq!(fixture.continued(), 0, "none was handed to the kernel");
    assert_eq!(tenant.ioctl(99, rm::ALLOC, tenant.arg_address()), Err(9));
    assert_eq!(tenant.ioctl(-1, rm::ALLOC, tenant.arg_address()), Err(9));
    assert!(fixture.fake.seen().is_empty());

    // A large shared file may be mapped at any offset, UVM's managed memory may not.
    let far = 1 << 20;
    assert_eq!(
        tenant.ask(&Ask::Map {
            fd: plain,
            offset: far
        }),
        Ok(0)
    );
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    assert_eq!(
        tenant.ask(&Ask::Map {
            fd: uvm,
            offset: far
        }),
        Err(22)
    );
    assert_eq!(fixture.continued(), 1);
}

fn numbers_are_used_again() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, _, _) = with_device(&fixture);
    tenant.close(fd);
    let again = tenant.open(&fixture.path("plain"));
    assert_eq!(again, fd);
    assert_eq!(
        tenant.ioctl(again, rm::ALLOC, tenant.arg_address()),
        Err(25)
    );
    tenant.close(again);
    let third = tenant.open(&fixture.path("nvidiactl"));
    assert_eq!(third, fd);
    let first = fixture.fake.seen()[0].file;
    tenant.client(third);
    assert_ne!(fixture.fake.seen().last().unwrap().file, first);
}

/// A cgroup of the `pids` controller, or of the unified hierarchy.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let name = format!("cgpu-broker-test-{}", std::process::id());
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .into_iter()
            .map(|mount| std::path::Path::new(mount).join(&name))
            .find(|folder| {
                std::fs::create_dir(folder).is_ok() && folder.join("cgroup.procs").exists()
            })
            .map(Self)
    }

    fn add(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Empty once the tenant, which is dropped before, has been waited for.
        std::fs::remove_dir(&self.0).unwrap();
    }
}
