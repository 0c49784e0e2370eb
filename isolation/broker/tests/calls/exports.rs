//! Objects put into control files, and taken out again.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvabi::bytes::{put, put_u32, u32_at};
use nvabi::layout::{export_file, export_object, export_objects, import_object};
use nvabi::{control, status};
use serde_json::json;
use sys::pidfd::PidFd;

use crate::Test;
use crate::fixture::{Fixture, until};
use crate::kept::Kept;
use crate::quota::with_device;
use crate::rm;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    (
        "exports::memory_is_counted_once_and_until_its_file_is_closed",
        is_counted_once,
    ),
    (
        "exports::a_file_that_nobody_exported_by_is_refused",
        foreign_files,
    ),
    (
        "exports::what_a_closed_file_has_exported_is_taken_back",
        what_a_closed_file_has_exported_is_taken_back,
    ),
    (
        "exports::what_is_not_taken_back_stays_charged_as_long_as_its_file",
        what_is_not_taken_back_stays_charged_as_long_as_its_file,
    ),
    (
        "exports::what_is_imported_is_what_was_charged",
        what_is_imported_is_what_was_charged,
    ),
    (
        "exports::a_file_is_this_containers_before_its_first_export",
        a_file_is_this_containers_before_its_first_export,
    ),
    (
        "exports::nothing_is_exported_into_what_another_container_has_exported_into",
        nothing_is_exported_into_another_containers,
    ),
    (
        "exports::a_successor_knows_which_files_are_its_containers",
        a_successor_knows_which_files_are_its_containers,
    ),
    (
        "exports::a_file_is_claimed_once_whatever_becomes_of_the_broker",
        a_file_is_claimed_once,
    ),
    (
        "exports::what_was_reported_to_another_container_is_not_replaced",
        what_was_reported_to_another_container_is_not_replaced,
    ),
    ("exports::what_is_not_ours_is_not_exported", not_ours),
    (
        "exports::an_address_space_is_not_exported",
        an_address_space_is_not_exported,
    ),
    ("exports::outlive_a_broker", outlive_a_broker),
];

const MIB: u64 = 1 << 20;
const EXPORT: u32 = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
const IMPORT: u32 = control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD;
const EXPORT_MANY: u32 = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD;
/// With handle 0 at the first place.
const TAKE_BACK: u32 = EXPORT_MANY;
const CLAIM: u32 = control::NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD;
const INFO: u32 = control::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO;

struct Device {
    fd: i32,
    client: u32,
    device: u32,
}

fn control(tenant: &Tenant, on: &Device, cmd: u32, params: &[u8]) -> u32 {
    let bytes = u32::try_from(params.len()).unwrap();
    let arg = rm::control(on.client, on.client, cmd, tenant.params_address(), bytes);
    tenant.call(on.fd, rm::CONTROL, &arg, params).status()
}

fn export(tenant: &Tenant, on: &Device, object: u32, transfer_file: i32) -> u32 {
    let mut params = vec![0; 24];
    put_u32(&mut params, export_object::TYPE, export_object::TYPE_RM);
    put_u32(&mut params, export_object::H_DEVICE, on.device);
    put_u32(&mut params, export_object::H_OBJECT, object);
    put(&mut params, export_object::FD, &transfer_file.to_le_bytes());
    control(tenant, on, EXPORT, &params)
}

/// The objects go to the first of four places.
fn export_many(tenant: &Tenant, on: &Device, objects: &[u32], transfer_file: i32) -> u32 {
    let mut params = vec![0; 2128];
    put(
        &mut params,
        export_objects::FD,
        &transfer_file.to_le_bytes(),
    );
    put_u32(&mut params, export_objects::H_DEVICE, on.device);
    put(&mut params, export_objects::MAX_OBJECTS, b"\x04\0metadata");
    for (object, at) in objects.iter().zip((export_objects::OBJECTS..).step_by(4)) {
        put_u32(&mut params, at, *object);
    }
    let count = u16::try_from(objects.len()).unwrap().to_le_bytes();
    put(&mut params, export_objects::COUNT, &count);
    control(tenant, on, EXPORT_MANY, &params)
}

fn import(tenant: &Tenant, on: &Device, handle: u32, transfer_file: i32) -> u32 {
    let mut params = vec![0; 20];
    put(&mut params, import_object::FD, &transfer_file.to_le_bytes());
    put_u32(&mut params, import_object::TYPE, export_object::TYPE_RM);
    put_u32(&mut params, import_object::H_PARENT, on.device);
    put_u32(&mut params, import_object::H_OBJECT, handle);
    control(tenant, on, IMPORT, &params)
}

/// Memory of 3 MiB, in a file of which nothing else is known: its descriptor.
fn exported(tenant: &Tenant, on: &Device, path: &Path) -> i32 {
    let memory = tenant.memory(on.fd, on.client, on.device, 5, 3 * MIB);
    assert_eq!(memory.status(), rm::OK);
    let transfer_file = tenant.open(path);
    assert_eq!(export(tenant, on, 5, transfer_file), rm::OK);
    transfer_file
}

fn info(tenant: &Tenant, on: &Device, transfer_file: i32) -> u32 {
    let mut params = vec![0; 80];
    put(&mut params, 0, &transfer_file.to_le_bytes());
    control(tenant, on, INFO, &params)
}

fn is_counted_once() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let transfer_file = exported(&tenant, &ours, &fixture.path("nvidiactl"));
    assert_eq!(info(&tenant, &ours, transfer_file), rm::OK);
    assert_eq!(tenant.free(fd, client, device, 5), rm::OK);
    assert_eq!(fixture.used_bytes(), 3 * MIB, "the file holds it");

    let (other, _pid) = tenant.process(&[transfer_file]);
    let own = other.open(&fixture.path("nvidiactl"));
    let theirs = Device {
        fd: own,
        client: other.client(own),
        device: 0,
    };
    let theirs = Device {
        device: other.device(own, theirs.client),
        ..theirs
    };
    assert_eq!(import(&other, &theirs, 6, transfer_file), rm::OK);
    assert_eq!(import(&other, &theirs, 8, transfer_file), rm::OK);
    assert_eq!(fixture.used_bytes(), 3 * MIB, "it is one piece of memory");
    // What the driver refuses leaves nothing pinned.
    let taken = import(&other, &theirs, 6, transfer_file);
    assert_eq!(taken, status::NV_ERR_INSERT_DUPLICATE_NAME);
    assert_eq!(fixture.container.journal.change().ledger.snapshot().pins, 0);

    tenant.close(transfer_file);
    for handle in [6, 8] {
        let freed = other.free(own, theirs.client, theirs.device, handle);
        assert_eq!(freed, rm::OK);
    }
    assert_eq!(
        fixture.used_bytes(),
        3 * MIB,
        "the other process has the file"
    );
    drop(other);
    until("the file is given up", || fixture.used_bytes() == 0);
    fixture.assert_exact(0);
}

/// A `poll` that never ends has the file open in no table: the driver would keep what is in it, and nobody would be charged for it.
fn what_a_closed_file_has_exported_is_taken_back() {
    let fixture = Fixture::new(4 * MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let transfer_file = exported(&tenant, &ours, &fixture.path("nvidiactl"));
    let without = tenant.open(&fixture.path("nvidiactl"));
    tenant.client(without);
    let of = fixture.fake.controls(EXPORT).len();
    assert_eq!(of, 1);
    assert_eq!(tenant.free(fd, client, device, 5), rm::OK);
    tenant.close(transfer_file);
    tenant.close(without);
    until("both files are given up", || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.fake.closed.load(Ordering::SeqCst) == 2
    });
    let taken = fixture.fake.controls(TAKE_BACK);
    assert_eq!(taken.len(), 1, "{taken:?}");
    let params = &taken[0].segments[1];
    let short = |at| u16::from_le_bytes([params[at], params[at + 1]]);
    assert_eq!(u32_at(params, export_objects::OBJECTS), Some(0));
    assert_eq!(short(export_objects::COUNT), 1);
    assert_eq!(short(export_objects::INDEX), 0);
    assert_eq!(
        taken[0].caller.tgid,
        std::process::id().cast_signed(),
        "the broker's own client"
    );
    assert_eq!(fixture.fake.client_count(), 1, "it has ended");
    assert_eq!(fixture.used_bytes(), 0);
}

/// As in compat mode what a control file has made.
fn what_is_not_taken_back_stays_charged_as_long_as_its_file() {
    let fixture = Fixture::new(4 * MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let refused = status::NV_ERR_INVALID_STATE;
    fixture
        .fake
        .refused
        .lock()
        .unwrap()
        .insert(TAKE_BACK, refused);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let transfer_file = exported(&tenant, &ours, &fixture.path("nvidiactl"));
    assert_eq!(tenant.free(fd, client, device, 5), rm::OK);
    let elsewhere = fixture.elsewhere(&tenant, transfer_file);
    tenant.close(transfer_file);
    let used = || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes()
    };
    until("the file is given up", || {
        used();
        fixture.fake.closed.load(Ordering::SeqCst) == 1
    });
    for _ in 0..3 {
        assert_eq!(used(), 3 * MIB, "somebody has the file");
    }
    assert_eq!(
        tenant.memory(fd, client, device, 6, 2 * MIB).status(),
        rm::NO_MEMORY
    );
    drop(elsewhere);
    // The driver may still be at it when the kernel has forgotten the file.
    assert_eq!(used(), 3 * MIB);
    until("the driver has had its time", || used() == 0);
    assert_eq!(fixture.container.journal.change().files().count(), 1);
}

/// What is exported anew at an index on the way would be other memory to the driver than to the ledger.
fn what_is_imported_is_what_was_charged() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let client = tenant.client(fd);
    let theirs = Device {
        fd,
        client,
        device: tenant.device(fd, client),
    };
    for (handle, bytes) in [(5, MIB), (6, 2 * MIB)] {
        let memory = tenant.memory(fd, ours.client, device, handle, bytes);
        assert_eq!(memory.status(), rm::OK);
    }
    let transfer_file = tenant.open(&fixture.path("nvidiactl"));
    assert_eq!(export(&tenant, &ours, 5, transfer_file), rm::OK);
    let (importer, exporter) = (tenant.thread(), tenant.thread());
    fixture.fake.hold_back(rm::CONTROL, None);
    std::thread::scope(|scope| {
        let imported = scope.spawn(|| import(&importer, &theirs, 9, transfer_file));
        fixture.fake.wait_for_held(1);
        let heard = fixture.fake.seen().len();
        let anew = scope.spawn(|| export(&exporter, &ours, 6, transfer_file));
        // Long enough for an export that nobody holds up.
        std::thread::sleep(Duration::from_millis(300));
        let heard_meanwhile = fixture.fake.seen().len() - heard;
        fixture.fake.let_go();
        assert_eq!(heard_meanwhile, 0);
        assert_eq!(imported.join().unwrap(), rm::OK);
        assert_eq!(anew.join().unwrap(), rm::OK);
    });
    fixture.assert_exact(3 * MIB);
}

/// The driver frees what anybody has in a place, and puts anybody's object there.
fn a_file_is_this_containers_before_its_first_export() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    // An export of one object makes the file one for exports itself, once.
    let single = exported(&tenant, &ours, &fixture.path("nvidiactl"));
    assert_eq!(export_many(&tenant, &ours, &[5], single), rm::OK);
    assert_eq!(fixture.fake.controls(CLAIM).len(), 0);

    let several = tenant.open(&fixture.path("nvidiactl"));
    for objects in [&[][..], &[5], &[0, 5]] {
        assert_eq!(export_many(&tenant, &ours, objects, several), rm::OK);
    }
    let claims = fixture.fake.controls(CLAIM);
    let [claim] = claims.as_slice() else {
        panic!("{claims:?}");
    };
    let params = &claim.segments[1];
    assert_eq!(params.len(), 76);
    assert_eq!(u32_at(params, export_file::H_DEVICE), Some(device));
    assert_eq!(&params[export_file::MAX_OBJECTS..][..10], b"\x04\0metadata");
    let exports = fixture.fake.controls(EXPORT_MANY);
    assert_eq!(
        (claim.caller, claim.file),
        (exports[0].caller, exports[0].file)
    );
    let own = control(&tenant, &ours, CLAIM, &[0; 76]);
    assert_eq!(own, status::NV_ERR_NOT_SUPPORTED, "no tenant's");
    fixture.assert_exact(3 * MIB);
}

fn nothing_is_exported_into_another_containers() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let theirs = tenant.open(&fixture.path("nvidiactl"));
    let in_use = status::NV_ERR_STATE_IN_USE;
    fixture.fake.refused.lock().unwrap().insert(CLAIM, in_use);
    for _ in 0..2 {
        assert_eq!(export_many(&tenant, &ours, &[5], theirs), in_use);
    }
    assert_eq!(fixture.fake.controls(EXPORT_MANY).len(), 0);
    assert_eq!(
        import(&tenant, &ours, 6, theirs),
        status::NV_ERR_INSUFFICIENT_PERMISSIONS
    );
    fixture.assert_exact(MIB);
}

/// A device with memory 5, and a file that it can be exported into.
fn exporting(kept: &Kept, tenant: &Tenant) -> (Device, i32) {
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    (
        Device { fd, client, device },
        tenant.open(&kept.node("nvidiactl")),
    )
}

fn a_successor_knows_which_files_are_its_containers() {
    let kept = Kept::new(4 * MIB);
    let (tenant, _process) = kept.tenant();
    let (ours, transfer_file) = exporting(&kept, &tenant);
    assert_eq!(export_many(&tenant, &ours, &[], transfer_file), rm::OK);
    let first = kept.broker_pid().unwrap();
    kept.signal(first, Signal::SIGKILL);
    // Now anybody has exported into it.
    let in_use = status::NV_ERR_STATE_IN_USE;
    kept.fake.refused.lock().unwrap().insert(CLAIM, in_use);
    assert_eq!(export_many(&tenant, &ours, &[5], transfer_file), rm::OK);
    assert_eq!(kept.fake.controls(CLAIM).len(), 1);
}

/// The driver makes a file one for exports once only: a second try is refused, and so is every export into the file from then on.
fn a_file_is_claimed_once() {
    let kept = Kept::new(4 * MIB);
    let (tenant, _process) = kept.tenant();
    let (ours, transfer_file) = exporting(&kept, &tenant);
    kept.fake.hold_back(rm::CONTROL, None);
    std::thread::scope(|scope| {
        let exported = scope.spawn(|| export_many(&tenant, &ours, &[5], transfer_file));
        kept.fake.wait_for_held(1);
        assert_eq!(kept.fake.controls(CLAIM).len(), 1, "it is the claim");
        let first = kept.broker_pid().unwrap();
        kept.signal(first, Signal::SIGKILL);
        kept.fake.let_go();
        assert_eq!(exported.join().unwrap(), rm::OK);
    });
    assert_eq!(kept.fake.controls(CLAIM).len(), 1);
    assert_eq!(kept.fake.controls(EXPORT_MANY).len(), 1);
}

/// The other one is charged for what it was told of, and imports what is there.
fn what_was_reported_to_another_container_is_not_replaced() {
    const GROUP: &str = "tests/group";
    let kept = Kept::in_group(4 * MIB, GROUP);
    let (tenant, process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let ours = Device { fd, client, device };
    for (handle, bytes) in [(5, MIB), (6, 2 * MIB)] {
        let memory = tenant.memory(fd, client, device, handle, bytes);
        assert_eq!(memory.status(), rm::OK);
    }
    let transfer_file = tenant.open(&kept.node("nvidiactl"));
    for object in [6, 5] {
        let exported = export_many(&tenant, &ours, &[object], transfer_file);
        assert_eq!(exported, rm::OK, "nobody was told of it");
    }
    // As a broker beside this one asks, by a number of its own.
    let pid = process.0.id().cast_signed();
    let as_ours = PidFd::open(pid).unwrap().duplicate(transfer_file).unwrap();
    let reported = || {
        let fd = as_ours.as_raw_fd();
        let answer = kept.ask(&json!({"op": "exports_of", "fd": fd, "group": GROUP}));
        answer.ok()?["exports"][0]["memory"]["bytes"].as_u64()
    };
    kept.fake.hold_back(rm::CONTROL, None);
    std::thread::scope(|scope| {
        let exported = scope.spawn(|| export_many(&tenant, &ours, &[5], transfer_file));
        kept.fake.wait_for_held(1);
        assert_eq!(reported(), None, "nobody knows what is there");
        kept.fake.let_go();
        assert_eq!(exported.join().unwrap(), rm::OK);
    });
    until("it is reported", || reported() == Some(MIB));
    for _ in 0..2 {
        // Nor taken back, after which another could be put there.
        for object in [6, 0] {
            let anew = export_many(&tenant, &ours, &[object], transfer_file);
            assert_eq!(anew, status::NV_ERR_STATE_IN_USE);
        }
        let first = kept.broker_pid().unwrap();
        kept.signal(first, Signal::SIGKILL);
    }
    until("the next one tells it", || reported() == Some(MIB));
}

fn foreign_files() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let before = fixture.fake.seen().len();
    for name in ["nvidiactl", "nvidia0", "plain"] {
        let file = tenant.open(&fixture.path(name));
        for refused in [import(&tenant, &ours, 6, file), info(&tenant, &ours, file)] {
            assert_eq!(refused, status::NV_ERR_INSUFFICIENT_PERMISSIONS, "{name}");
        }
    }
    assert_eq!(fixture.fake.seen().len(), before, "no driver heard of it");
    fixture.assert_exact(0);
}

fn not_ours() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let transfer_file = tenant.open(&fixture.path("nvidiactl"));
    let unknown = export(&tenant, &ours, 0x99, transfer_file);
    assert_eq!(unknown, status::NV_ERR_INVALID_OBJECT_HANDLE);
    let foreign = Device {
        client: 0xc1d0_ffff,
        ..ours
    };
    let refused = export(&tenant, &foreign, 5, transfer_file);
    assert_eq!(refused, status::NV_ERR_INVALID_CLIENT);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let card = tenant.open(&fixture.path("nvidia0"));
    let onto_a_card = export(&tenant, &ours, 5, card);
    assert_eq!(onto_a_card, status::NV_ERR_INVALID_PARAMETER);
    fixture.assert_exact(MIB);
}

fn an_address_space_is_not_exported() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let ours = Device { fd, client, device };
    let transfer_file = tenant.open(&fixture.path("nvidiactl"));
    let arg = rm::alloc(client, device, 0, 0x90f1, tenant.params_address());
    let space = tenant.call(fd, rm::ALLOC, &arg, &[0; 48]);
    assert_eq!(space.status(), rm::OK);
    let before = fixture.fake.seen().len();
    for object in [rm::new_handle(&space.arg), device] {
        let refused = export(&tenant, &ours, object, transfer_file);
        assert_eq!(refused, status::NV_ERR_INVALID_ARGUMENT, "{object:#x}");
    }
    assert_eq!(fixture.fake.seen().len(), before, "no driver heard of it");
    assert_eq!(fixture.container.journal.change().ledger.snapshot().pins, 0);
}

fn outlive_a_broker() {
    let kept = Kept::new(4 * MIB);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let ours = Device { fd, client, device };
    let memory = tenant.memory(fd, client, device, 5, 2 * MIB);
    assert_eq!(memory.status(), rm::OK);
    let transfer_file = tenant.open(&kept.node("nvidiactl"));
    assert_eq!(export(&tenant, &ours, 5, transfer_file), rm::OK);
    let first = kept.broker_pid().unwrap();
    kept.signal(first, Signal::SIGKILL);
    assert_eq!(tenant.free(fd, client, device, 5), rm::OK);
    assert_eq!(import(&tenant, &ours, 6, transfer_file), rm::OK);
    assert_eq!(kept.used_bytes(), 2 * MIB);
    tenant.close(transfer_file);
    assert_eq!(tenant.free(fd, client, device, 6), rm::OK);
    until("the file is given up", || kept.used_bytes() == 0);
}
