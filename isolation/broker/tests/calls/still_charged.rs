//! Managed memory that stays charged, whatever a container does to have it uncharged.

use std::path::PathBuf;

use broker::managed::Reason;
use driver::{FileId, FileKind};
use journal::state::Op;
use ledger::{ObjectKind, Operation, ProcessId, Span};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nvabi::errno::{ENODEV, ENOMEM};
use verdict::policy::Managed;

use crate::Test;
use crate::agent::Ask;
use crate::fixture::{Fixture, until};

pub(crate) const TESTS: &[Test] = &[
    (
        "managed::uvm_free_uncharges_nothing",
        uvm_free_uncharges_nothing,
    ),
    (
        "managed::a_pool_explains_no_mapping",
        a_pool_explains_no_mapping,
    ),
    (
        "managed::a_page_of_a_block_keeps_the_block_charged",
        a_page_of_a_block_keeps_the_block_charged,
    ),
    (
        "managed::a_node_on_an_overlay_is_refused",
        a_node_on_an_overlay_is_refused,
    ),
    (
        "managed::a_process_of_two_programs_maps_no_stretch_twice",
        a_process_of_two_programs_maps_no_stretch_twice,
    ),
    (
        "managed::what_is_unmapped_stays_charged_while_a_thread_may_unmap",
        what_is_unmapped_stays_charged,
    ),
    (
        "managed::what_is_found_is_charged_in_linear_time",
        what_is_found_is_charged_in_linear_time,
    ),
    (
        "managed::a_long_table_is_looked_at_in_pieces",
        a_long_table_is_looked_at_in_pieces,
    ),
];

const MIB: u64 = 1 << 20;

/// A process has unmapped the beginning of what it mapped, and has ended before a look: another range can be where the ledger has managed
/// memory, and the driver frees that one.
fn uvm_free_uncharges_nothing() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let base = 1 << 36;
    let free_range = || tenant.free_range(uvm, base);
    // A call, by which the file is known.
    free_range();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let process = ProcessId(ended.id().cast_signed());
    ended.wait().unwrap();
    let span = Span::new(base, 3 * MIB).unwrap();
    {
        let mut change = fixture.container.journal.change();
        let FileId(file) = change.files().next().unwrap().0;
        change.record(Operation::MapManaged {
            uvm_file: ledger::FileId(file),
            span,
            process,
            cards: fixture.container.account.card_slots(),
        });
    }
    assert_eq!(fixture.used_bytes(), 3 * MIB);
    free_range();
    assert_eq!(fixture.used_bytes(), 3 * MIB);
}

/// A pool was freed after its mapping was let through, and before that was made: what is mapped is managed memory then. Another file has a pool
/// at the same address.
fn a_pool_explains_no_mapping() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let (uvm, other) = (
        tenant.open(&fixture.path("nvidia-uvm")),
        tenant.open(&fixture.path("nvidia-uvm")),
    );
    tenant.free_range(other, 1 << 36);
    let bytes = usize::try_from(3 * MIB).unwrap();
    let address = tenant.ok(&Ask::MapManaged { fd: uvm, bytes });
    let span = Span::new(address.cast_unsigned(), 3 * MIB).unwrap();
    {
        let mut change = fixture.container.journal.change();
        let files: Vec<FileId> = change.files().map(|(file, _)| file).collect();
        let mapped = change.ledger.managed().next().unwrap().uvm_file;
        let [other] = files
            .into_iter()
            .filter(|file| file.0 != mapped.0)
            .collect::<Vec<_>>()[..]
        else {
            panic!("two files");
        };
        change.record(Operation::UnmapManaged {
            uvm_file: mapped,
            span,
        });
        let kind = ObjectKind::Other;
        let reserved = change.ledger(Operation::Reserve { kind, demand: None });
        let Ok(ledger::Applied::Reserved(reservation)) = reserved else {
            panic!("{reserved:?}");
        };
        change.record_op(Op::Pool(other, (span.base(), 3 * MIB), reservation));
    }
    assert_eq!(fixture.used_bytes(), 0);
    until("it is charged", || {
        broker::watch::managed::look(&fixture.container, Reason::Interval);
        fixture.used_bytes() == 3 * MIB
    });
}

/// Of two whole blocks all but a page of the second is left: the driver keeps both for it. So it is where nobody knew of the mapping when it was cut.
fn a_page_of_a_block_keeps_the_block_charged() {
    const PAGE: u64 = 4096;
    for is_known in [true, false] {
        let fixture = Fixture::with_managed(8 * MIB, Managed::Charge);
        let tenant = fixture.tenant();
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        let map = |mib: u64| {
            let bytes = usize::try_from(mib * MIB).unwrap();
            tenant.ask(&Ask::MapManaged { fd: uvm, bytes })
        };
        let address = map(6).unwrap().cast_unsigned();
        let before = address.next_multiple_of(2 * MIB) - address;
        let bytes = usize::try_from(before + 2 * MIB + PAGE).unwrap();
        tenant.ok(&Ask::ShortenManaged { address, bytes });
        if !is_known {
            let mut change = fixture.container.journal.change();
            let uvm_file = change.ledger.managed().next().unwrap().uvm_file;
            let span = Span::new(address, 6 * MIB).unwrap();
            change.record(Operation::UnmapManaged { uvm_file, span });
        }
        let look = || broker::watch::managed::look(&fixture.container, Reason::Interval);
        let looks = || fixture.container.managed.work().looks;
        let whole = before + 4 * MIB;
        until("what is behind the blocks is given back", || {
            look();
            fixture.used_bytes() == whole
        });
        let begun = looks();
        until("three whole looks", || {
            look();
            assert_eq!(fixture.used_bytes(), whole);
            looks() >= begun + 3
        });
        // Also where it is mapped at what is charged already.
        assert_eq!(map(7), Err(ENOMEM));
        tenant.ok(&Ask::UnmapManaged { address });
        until("the blocks are given back", || {
            look();
            fixture.used_bytes() == 0
        });
    }
}

/// A node that a tenant has made, or that an image has, where a table of mappings has another device number than `fstat`. It is `/dev/zero`, whose
/// mappings the kernel makes.
fn a_node_on_an_overlay_is_refused() {
    // The mounts go with this thread.
    let on_an_overlay = std::thread::spawn(|| {
        let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
        let node = match overlaid_node(&fixture) {
            Ok(node) => node,
            Err(error) => {
                println!("SKIP: no overlay in a namespace of mounts: {error}");
                return;
            }
        };
        fixture.fake.add_node(&node, FileKind::Uvm);
        let tenant = fixture.tenant();
        let uvm = tenant.open(&node);
        let continued = fixture.continued();
        let bytes = usize::try_from(MIB).unwrap();
        let mapped = tenant.ask(&Ask::MapManaged { fd: uvm, bytes });
        assert_eq!(mapped, Err(ENODEV));
        assert_eq!(fixture.continued(), continued);
        let row = nvabi::uvm::UVM_FREE;
        let arg = vec![0; row.size.of(nvabi::Release::R570) as usize];
        assert_eq!(tenant.call(uvm, row.cmd, &arg, &[]).ret, Err(ENODEV));
        assert!(fixture.fake.seen().is_empty(), "no driver hears of it");
    });
    on_an_overlay.join().unwrap();
}

fn overlaid_node(fixture: &Fixture) -> nix::Result<PathBuf> {
    let nothing = None::<&str>;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(nothing, "/", nothing, private, nothing)?;
    let [lower, other, merged] = ["lower", "other", "merged"].map(|name| fixture.path(name));
    for folder in [&lower, &other, &merged] {
        std::fs::create_dir(folder).unwrap();
    }
    let zero = makedev(1, 5);
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    mknod(&lower.join("node"), SFlag::S_IFCHR, mode, zero)?;
    let layers = format!("lowerdir={}:{}", lower.display(), other.display());
    let (overlay, layers) = (Some("overlay"), Some(layers.as_str()));
    mount(overlay, &merged, overlay, MsFlags::empty(), layers)?;
    Ok(merged.join("node"))
}

/// Many pieces that were not charged: what has been charged of them is not read again for each few.
fn what_is_found_is_charged_in_linear_time() {
    const PIECES: u64 = 4096;
    const PAGE: u64 = 4096;
    let fixture = Fixture::with_managed(1 << 30, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let bytes = usize::try_from(PAGE).unwrap();
    let map = |_| tenant.ok(&Ask::MapManaged { fd: uvm, bytes });
    let mut pages: Vec<i64> = (0..2 * PIECES).map(map).collect();
    pages.sort_unstable();
    // Those between them, so that none touches another.
    for address in pages.iter().skip(1).step_by(2) {
        let address = address.cast_unsigned();
        tenant.ok(&Ask::UnmapManaged { address });
    }
    {
        let mut change = fixture.container.journal.change();
        let uvm_file = change.ledger.managed().next().unwrap().uvm_file;
        let span = Span::new(PAGE, 1 << 47).unwrap();
        change.record(Operation::UnmapManaged { uvm_file, span });
    }
    assert_eq!(fixture.used_bytes(), 0);
    let managed = &fixture.container.managed;
    let before = managed.work();
    until("all is charged", || {
        broker::watch::managed::look(&fixture.container, Reason::Interval);
        fixture.used_bytes() == PIECES * PAGE
    });
    let after = managed.work();
    let looks = after.looks - before.looks + 1;
    let steps = after.steps - before.steps;
    // Some four for each piece and look, also of one that was broken off, which is not counted; each with each other would be 4096.
    assert!(steps < looks * 32 * PIECES, "{steps} steps, {looks} looks");
}

/// As a program would that has executed itself again at the same addresses, while a second file keeps what it had mapped: it tries to initialise
/// a file once more.
fn a_process_of_two_programs_maps_no_stretch_twice() {
    const PAGE: usize = 4096;
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let (uvm, other) = (
        tenant.open(&fixture.path("nvidia-uvm")),
        tenant.open(&fixture.path("nvidia-uvm")),
    );
    let initialise = |fd| {
        let row = nvabi::uvm::UVM_INITIALIZE;
        let arg = vec![0; row.size.of(nvabi::Release::R570) as usize];
        let _not_a_driver_s = tenant.call(fd, row.cmd, &arg, &[]);
    };
    initialise(uvm);
    let address = tenant.ok(&Ask::MapManaged {
        fd: uvm,
        bytes: 2 * PAGE,
    });
    let offset = address.cast_unsigned();
    let again = || tenant.ask(&Ask::Map { fd: other, offset });
    assert_eq!(again(), Ok(0), "one program has one memory");
    initialise(other);
    let continued = fixture.continued();
    for _ in 0..2 {
        assert_eq!(again(), Err(ENOMEM));
    }
    assert_eq!(fixture.continued(), continued);
    // What is mapped no more may be mapped again.
    tenant.ok(&Ask::UnmapManaged { address: offset });
    until("it is mapped no more", || again() == Ok(0));
}

/// A thread gets no processor in the middle of `munmap`: the table has the mapping no more, and the card's pages are held until it goes on. That
/// it is there cannot be seen; what can is that it runs, or waits to, and was not seen elsewhere since.
fn what_is_unmapped_stays_charged() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let bytes = usize::try_from(3 * MIB).unwrap();
    let address = tenant.ok(&Ask::MapManaged { fd: uvm, bytes });
    let (other_process, _pid) = tenant.process(&[]);
    let (thread, other) = (tenant.thread(), other_process.thread());
    // Another process's threads have other memory.
    other.ask_only(&Ask::Spin);
    thread.ask_only(&Ask::Spin);
    let address = address.cast_unsigned();
    tenant.ok(&Ask::UnmapManaged { address });
    let looks = || fixture.container.managed.work().looks;
    let before = looks();
    until("three whole looks", || {
        broker::watch::managed::look(&fixture.container, Reason::Interval);
        assert_eq!(fixture.used_bytes(), 3 * MIB);
        looks() >= before + 3
    });
    let bytes = usize::try_from(2 * MIB).unwrap();
    let refused = tenant.ask(&Ask::MapManaged { fd: uvm, bytes });
    assert_eq!(refused, Err(ENOMEM));
    assert_eq!(fixture.used_bytes(), 3 * MIB);
    tenant.ok(&Ask::StopFlipping);
    thread.answer().unwrap();
    until("it is given up", || {
        broker::watch::managed::look(&fixture.container, Reason::Interval);
        fixture.used_bytes() == 0
    });
    other_process.ok(&Ask::StopFlipping);
    other.answer().unwrap();
}

/// A look's steps are as long as a tenant's table of mappings, unless they go through so many lines at a time. What is mapped is where the last of
/// them comes to, or the first.
fn a_long_table_is_looked_at_in_pieces() {
    const MAPPINGS: u64 = 60_000;
    const PAGE: u64 = 4096;
    let fixture = Fixture::with_managed(1 << 30, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let bytes = usize::try_from(PAGE).unwrap();
    let mut addresses = Vec::new();
    let mut map = || addresses.push(tenant.ok(&Ask::MapManaged { fd: uvm, bytes }));
    (0..10).for_each(|_| map());
    let count = usize::try_from(MAPPINGS).unwrap();
    tenant.ok(&Ask::ManyMappings { count });
    (0..10).for_each(|_| map());
    let work = || fixture.container.managed.work();
    let look = || broker::watch::managed::look(&fixture.container, Reason::Interval);
    let before = work();
    until("three whole looks", || {
        look();
        assert_eq!(fixture.used_bytes(), 20 * PAGE);
        work().looks >= before.looks + 3
    });
    let (looks, pieces) = (work().looks - before.looks, work().pieces - before.pieces);
    assert!(
        pieces >= looks * MAPPINGS / 8192,
        "{pieces} in {looks} looks"
    );
    for address in addresses {
        let address = address.cast_unsigned();
        tenant.ok(&Ask::UnmapManaged { address });
    }
    until("all is given back", || {
        look();
        fixture.used_bytes() == 0
    });
}
