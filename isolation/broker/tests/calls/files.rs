//! Whose file a call is made on, and when it is gone.

use std::sync::atomic::Ordering;

use nvabi::bytes::put_u32;

use crate::Test;
use crate::agent::Ask;
use crate::quota::with_device;
use crate::rm;
use crate::stage::{Stage, until};

pub(crate) const TESTS: &[Test] = &[
    ("files::close_releases", close_releases),
    ("files::exit_releases", exit_releases),
    (
        "files::what_a_closed_file_held_is_freed_though_another_has_it_open",
        what_a_closed_file_held_is_freed,
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

/// Reconciles until it has looked.
fn reconcile_until(stage: &Stage, what: &str, is_so: impl Fn() -> bool) {
    until(what, || {
        stage.reaper.reconcile(&stage.container);
        is_so()
    });
}

fn close_releases() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    let copy = tenant.dup(fd);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    tenant.close(fd);
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(MIB);
    tenant.close(copy);
    reconcile_until(&stage, "the closed file is given up", || {
        stage.used_bytes() == 0
    });
    stage.assert_exact(0);
    assert_eq!(stage.fake.closed.load(Ordering::SeqCst), 1);
}

/// A real driver would keep it for whoever else has the file open, and nobody would be charged for it.
fn what_a_closed_file_held_is_freed() {
    const FREE: u32 = 0xc010_4629;
    const UVM_INITIALIZE: u32 = 0x3000_0001;
    const UVM_UNREGISTER_GPU: u32 = 38;
    for is_bound in [true, false] {
        let stage = Stage::new(4 * MIB);
        stage.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&stage);
        assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
        let uvm = tenant.open(&stage.path("nvidia-uvm"));
        // A file is known from its first call on, whatever becomes of that.
        let _known = tenant.call(uvm, UVM_INITIALIZE, &[0; 16], &[]);
        let before = stage.fake.seen().len();
        tenant.close(uvm);
        tenant.close(fd);
        reconcile_until(&stage, "both files are given up", || {
            stage.fake.closed.load(Ordering::SeqCst) == 2
        });
        stage.assert_exact(0);
        let seen = stage.fake.seen();
        let mut freed: Vec<_> = seen[before..]
            .iter()
            .map(|call| (call.cmd, call.segments[0].clone()))
            .collect();
        freed.sort_unstable();
        let mut whole_client = vec![0; 16];
        put_u32(&mut whole_client, 0, client);
        put_u32(&mut whole_client, 8, client);
        let mut card = stage.container.account.slots()[0].uuid_bytes.to_vec();
        card.resize(20, 0);
        let expected = [(UVM_UNREGISTER_GPU, card), (FREE, whole_client)];
        assert_eq!(freed, if is_bound { &expected[..] } else { &[] });
    }
}

fn exit_releases() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    stage.assert_exact(MIB);
    drop(tenant);
    // No interval has passed: the exit itself is seen.
    until("the exit is seen", || stage.used_bytes() == 0);
    stage.assert_exact(0);
    assert_eq!(stage.fake.client_count(), 0);
}

fn a_duplicate_is_the_same_file() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    let copy = tenant.dup(fd);
    assert_eq!(tenant.memory(copy, client, device, 0, MIB).status(), rm::OK);
    let files: Vec<_> = stage.fake.seen().iter().map(|seen| seen.file).collect();
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "{files:?}");
    let second = tenant.open(&stage.path("nvidiactl"));
    tenant.client(second);
    assert_ne!(stage.fake.seen().last().unwrap().file, files[0]);
}

fn a_passed_file_is_the_same_file() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    let pair = tenant.bytes(&Ask::Pair);
    let (ours, theirs) = (i32::from(pair[0]), i32::from(pair[1]));
    let (other, _) = tenant.process(&[theirs]);
    tenant.ok(&Ask::SendFd { socket: ours, fd });
    let passed = other.receive_fd(theirs);
    assert_eq!(
        other.memory(passed, client, device, 0, MIB).status(),
        rm::OK
    );
    let seen = stage.fake.seen();
    assert_eq!(seen[0].file, seen.last().unwrap().file);
    assert_ne!(seen[0].caller.tgid, seen.last().unwrap().caller.tgid);
    // The first process closes it; the other still holds it.
    tenant.close(fd);
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(MIB);
    drop(other);
    until("the last holder's exit is seen", || stage.used_bytes() == 0);
}

fn a_file_in_a_socket_is_not_given_up() {
    let Some(cgroup) = Cgroup::new() else {
        println!("SKIP: no cgroup can be made here");
        return;
    };
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    cgroup.add(tenant.pid());
    stage.reaper.set_cgroup_of(&stage.container, tenant.pid());
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let pair = tenant.bytes(&Ask::Pair);
    let socket = i32::from(pair[0]);
    tenant.ok(&Ask::SendFd { socket, fd });
    tenant.close(fd);
    for _ in 0..3 {
        stage.reaper.reconcile(&stage.container);
        stage.assert_exact(MIB);
    }
    let back = tenant.receive_fd(i32::from(pair[1]));
    assert_eq!(tenant.memory(back, client, device, 0, MIB).status(), rm::OK);
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(2 * MIB);
    tenant.close(back);
    reconcile_until(&stage, "the closed file is given up", || {
        stage.used_bytes() == 0
    });
}

fn an_inherited_file_is_the_same_file() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&stage);
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let (child, pid) = tenant.process(&[fd]);
    assert_eq!(child.memory(fd, client, device, 0, MIB).status(), rm::OK);
    let last = stage.fake.seen().pop().unwrap();
    assert_eq!(
        (last.file, last.caller.tgid),
        (stage.fake.seen()[0].file, pid)
    );
    tenant.close(fd);
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(2 * MIB);
    drop(child);
    until("the child's exit is seen", || stage.used_bytes() == 0);
}

fn a_private_table_is_looked_into() {
    let stage = Stage::new(4 * MIB);
    let (tenant, fd, _, _) = with_device(&stage);
    let hermit = tenant.thread();
    hermit.ok(&Ask::Unshare);
    // The same number, but in the process's table it is a plain file.
    let mut own = hermit.open(&stage.path("nvidiactl"));
    let mut plain = tenant.open(&stage.path("plain"));
    // What the process had open for a moment when the table was made is in one of them.
    while own != plain {
        if own < plain {
            own = hermit.open(&stage.path("nvidiactl"));
        } else {
            plain = tenant.open(&stage.path("plain"));
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
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(MIB);
    hermit.close(own);
    reconcile_until(&stage, "the hermit's file is given up", || {
        stage.used_bytes() == 0
    });
    tenant.client(fd);
}

fn a_registered_control_file_stays() {
    const REGISTER_FD: u32 = 0xc004_46c9;
    let stage = Stage::new(4 * MIB);
    let (tenant, control, client, device) = with_device(&stage);
    let card = tenant.open(&stage.path("nvidia0"));
    let mut arg = vec![0; 4];
    put_u32(&mut arg, 0, control.cast_unsigned());
    assert_eq!(tenant.call(card, REGISTER_FD, &arg, &[]).ret, Ok(0));
    assert_eq!(
        tenant.memory(control, client, device, 0, MIB).status(),
        rm::OK
    );
    tenant.close(control);
    stage.reaper.reconcile(&stage.container);
    stage.assert_exact(MIB);
    tenant.close(card);
    reconcile_until(&stage, "both are given up", || stage.used_bytes() == 0);
    assert_eq!(stage.fake.closed.load(Ordering::SeqCst), 2);
}

fn a_client_stays_with_its_control_file() {
    const ALLOC_MEMORY: u32 = 0xc038_4627;
    let stage = Stage::new(4 * MIB);
    let (tenant, control, client, device) = with_device(&stage);
    assert_eq!(
        tenant.memory(control, client, device, 0, MIB).status(),
        rm::OK
    );
    // System memory is allocated on the card's file; the client is still the control file's.
    let card = tenant.open(&stage.path("nvidia0"));
    let mut arg = vec![0; 56];
    for (at, word) in [(0, client), (4, device), (8, 0x99), (12, 0x3e)] {
        put_u32(&mut arg, at, word);
    }
    put_u32(&mut arg, 48, u32::MAX);
    assert_eq!(tenant.call(card, ALLOC_MEMORY, &arg, &[]).ret, Ok(0));
    stage.assert_exact(MIB);
    tenant.close(card);
    reconcile_until(&stage, "the card's file is given up", || {
        stage.fake.closed.load(Ordering::SeqCst) == 1
    });
    stage.assert_exact(MIB);
}

fn memory_over_quota_looks_for_exits_first() {
    let stage = Stage::new(MIB);
    let (tenant, fd, _, _) = with_device(&stage);
    tenant.close(fd);
    let fd = tenant.open(&stage.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let second = tenant.open(&stage.path("nvidiactl"));
    let other = tenant.client(second);
    let on_second = tenant.device(second, other);
    assert_eq!(
        tenant.memory(second, other, on_second, 0, MIB).status(),
        rm::OK
    );
    tenant.close(second);
    // Nobody has looked since; the allocation itself does, and finds room.
    assert_eq!(tenant.memory(fd, client, device, 0, MIB).status(), rm::OK);
    stage.assert_exact(MIB);
}

fn foreign_files_answer_for_themselves() {
    let stage = Stage::new(MIB);
    let tenant = stage.tenant();
    let plain = tenant.open(&stage.path("plain"));
    for cmd in [rm::ALLOC, rm::FREE, rm::CONTROL, 33, 0x3000_0001] {
        assert_eq!(
            tenant.ioctl(plain, cmd, tenant.arg_address()),
            Err(25),
            "{cmd:#x}"
        );
    }
    assert_eq!(stage.continued(), 0, "none was handed to the kernel");
    assert_eq!(tenant.ioctl(99, rm::ALLOC, tenant.arg_address()), Err(9));
    assert_eq!(tenant.ioctl(-1, rm::ALLOC, tenant.arg_address()), Err(9));
    assert!(stage.fake.seen().is_empty());

    // A large shared file may be mapped at any offset, UVM's managed memory may not.
    let far = 1 << 20;
    assert_eq!(
        tenant.ask(&Ask::Map {
            fd: plain,
            offset: far
        }),
        Ok(0)
    );
    let uvm = tenant.open(&stage.path("nvidia-uvm"));
    assert_eq!(
        tenant.ask(&Ask::Map {
            fd: uvm,
            offset: far
        }),
        Err(22)
    );
    assert_eq!(stage.continued(), 1);
}

fn numbers_are_used_again() {
    let stage = Stage::new(MIB);
    let (tenant, fd, _, _) = with_device(&stage);
    tenant.close(fd);
    let again = tenant.open(&stage.path("plain"));
    assert_eq!(again, fd);
    assert_eq!(
        tenant.ioctl(again, rm::ALLOC, tenant.arg_address()),
        Err(25)
    );
    tenant.close(again);
    let third = tenant.open(&stage.path("nvidiactl"));
    assert_eq!(third, fd);
    let first = stage.fake.seen()[0].file;
    tenant.client(third);
    assert_ne!(stage.fake.seen().last().unwrap().file, first);
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
