//! Managed memory: what is mapped of `nvidia-uvm` itself.

use broker::managed::Occasion;
use ledger::{FileId, Operation, Span};
use nix::sys::signal::Signal;
use verdict::policy::Managed;

use crate::Test;
use crate::agent::Ask;
use crate::kept::Kept;
use crate::quota::with_device;
use crate::rm;
use crate::stage::{Stage, until};
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    ("managed::is_charged_by_its_length", is_charged),
    (
        "managed::room_is_there_at_once_when_it_is_unmapped",
        room_is_there_at_once,
    ),
    ("managed::policies", policies),
    (
        "managed::what_is_mapped_uncharged_is_found",
        uncharged_is_found,
    ),
    (
        "managed::a_mapping_keeps_its_file",
        a_mapping_keeps_its_file,
    ),
    ("managed::outlives_a_broker", outlives_a_broker),
];

const MIB: u64 = 1 << 20;
const NO_MEMORY: Result<i64, i32> = Err(12);

fn map(tenant: &Tenant, fd: i32, mib: u64) -> Result<i64, i32> {
    let bytes = usize::try_from(mib * MIB).unwrap();
    tenant.ask(&Ask::MapManaged { fd, bytes })
}

fn unmap(tenant: &Tenant, address: i64) {
    let address = address.cast_unsigned();
    tenant.ok(&Ask::UnmapManaged { address });
}

fn look(stage: &Stage, occasion: Occasion) -> bool {
    stage.container.managed.look(&stage.container, occasion)
}

fn is_charged() {
    let stage = Stage::with_managed(4 * MIB, Managed::Charge);
    let tenant = stage.tenant();
    let uvm = tenant.open(&stage.path("nvidia-uvm"));
    let three = map(&tenant, uvm, 3).unwrap();
    assert_eq!(stage.used_bytes(), 3 * MIB);
    assert_eq!(map(&tenant, uvm, 2), NO_MEMORY);
    let one = map(&tenant, uvm, 1).unwrap();
    assert_eq!(stage.used_bytes(), 4 * MIB);
    assert!(!look(&stage, Occasion::Beat), "all of it is mapped");
    assert_eq!(stage.used_bytes(), 4 * MIB);

    unmap(&tenant, three);
    // The mapping of the last call may not have been made yet, for all that can be seen; the thread's next call shows it.
    assert!(look(&stage, Occasion::Beat));
    assert_eq!(stage.used_bytes(), MIB);
    unmap(&tenant, one);
    until("two beats have passed", || {
        look(&stage, Occasion::Beat);
        stage.used_bytes() == 0
    });
    let state = stage.container.journal.change();
    assert_eq!(state.ledger.check_invariants(), Ok(()));
}

fn room_is_there_at_once() {
    let stage = Stage::with_managed(4 * MIB, Managed::Charge);
    let (tenant, fd, client, device) = with_device(&stage);
    let uvm = tenant.open(&stage.path("nvidia-uvm"));
    for _ in 0..3 {
        let all = map(&tenant, uvm, 4).unwrap();
        let over = tenant.memory(fd, client, device, 7, MIB);
        assert_eq!(over.status(), rm::NO_MEMORY);
        unmap(&tenant, all);
        let fits = tenant.memory(fd, client, device, 7, 4 * MIB);
        assert_eq!(fits.status(), rm::OK);
        assert_eq!(map(&tenant, uvm, 1), NO_MEMORY);
        assert_eq!(tenant.free(fd, client, device, 7), rm::OK);
        let again = map(&tenant, uvm, 4).unwrap();
        unmap(&tenant, again);
    }
}

fn policies() {
    for (managed, expected) in [(Managed::Deny, Err(22)), (Managed::Allow, Ok(()))] {
        let stage = Stage::with_managed(MIB, managed);
        let tenant = stage.tenant();
        let uvm = tenant.open(&stage.path("nvidia-uvm"));
        assert_eq!(map(&tenant, uvm, 64).map(|_address| ()), expected);
        look(&stage, Occasion::Beat);
        assert_eq!(stage.used_bytes(), 0);
    }
}

/// As a mapping would be that was made on another file than the one that was looked at.
fn uncharged_is_found() {
    let stage = Stage::with_managed(4 * MIB, Managed::Charge);
    let tenant = stage.tenant();
    let uvm = tenant.open(&stage.path("nvidia-uvm"));
    let address = map(&tenant, uvm, 3).unwrap().cast_unsigned();
    let forget = || {
        let uvm_file = {
            let state = stage.container.journal.change();
            state.ledger.managed().next().unwrap().uvm_file
        };
        let span = Span::new(address, 3 * MIB).unwrap();
        let operation = Operation::UnmapManaged { uvm_file, span };
        stage.container.journal.change().record(operation);
        assert_eq!(stage.used_bytes(), 0);
    };
    forget();
    look(&stage, Occasion::Refusal);
    assert_eq!(stage.used_bytes(), 3 * MIB);

    // A look that nobody was suspected in does not see it; the process is suspected again with its next mapping of any file.
    forget();
    for _ in 0..4 {
        look(&stage, Occasion::Beat);
    }
    stage.container.managed.suspect(tenant.pid());
    look(&stage, Occasion::Beat);
    assert_eq!(stage.used_bytes(), 3 * MIB);
}

/// One uvm file is closed while it is mapped and another one is open: both have one inode.
fn a_mapping_keeps_its_file() {
    let stage = Stage::with_managed(4 * MIB, Managed::Charge);
    let tenant = stage.tenant();
    let (uvm, other) = (
        tenant.open(&stage.path("nvidia-uvm")),
        tenant.open(&stage.path("nvidia-uvm")),
    );
    let address = map(&tenant, uvm, 3).unwrap();
    let second = map(&tenant, other, 1).unwrap();
    unmap(&tenant, second);
    tenant.close(uvm);
    for _ in 0..4 {
        stage.reaper.beat(&stage.container);
    }
    assert_eq!(stage.used_bytes(), 3 * MIB);
    let files = |stage: &Stage| {
        let state = stage.container.journal.change();
        let files: Vec<FileId> = state.ledger.managed().map(|it| it.uvm_file).collect();
        files
    };
    assert_eq!(files(&stage).len(), 1);
    unmap(&tenant, address);
    drop(tenant);
    until("the process's files are given up", || {
        stage.reaper.beat(&stage.container);
        stage.used_bytes() == 0
    });
}

fn outlives_a_broker() {
    let kept = Kept::new(4 * MIB);
    let (tenant, _process) = kept.tenant();
    let uvm = tenant.open(&kept.node("nvidia-uvm"));
    let address = map(&tenant, uvm, 3).unwrap();
    let first = kept.broker_pid().unwrap();
    kept.signal(first, Signal::SIGKILL);
    until("another broker serves", || {
        kept.broker_pid().is_some_and(|pid| pid != first)
    });
    assert_eq!(kept.used_bytes(), 3 * MIB);
    assert_eq!(map(&tenant, uvm, 2), NO_MEMORY);
    unmap(&tenant, address);
    map(&tenant, uvm, 4).unwrap();
    assert_eq!(kept.used_bytes(), 4 * MIB);
}
