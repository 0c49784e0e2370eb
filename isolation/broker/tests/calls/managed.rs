//! Managed memory: what is mapped of `nvidia-uvm` itself.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use broker::managed::{Mapper, Reason};
use ledger::{CardSlot, FileId, Operation, Span};
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use verdict::policy::Managed;

use crate::Test;
use crate::agent::Ask;
use crate::fixture::{Confined, Fixture, until};
use crate::kept::Kept;
use crate::quota::with_device;
use crate::rm;
use crate::tenant::{Process, Tenant};

pub(crate) const TESTS: &[Test] = &[
    ("managed::is_charged_by_its_length", is_charged),
    (
        "managed::memory_is_free_at_once_when_it_is_unmapped",
        memory_is_free_at_once,
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
    (
        "managed::whoever_gets_a_dead_process_s_number_gives_nothing_of_it_back",
        a_number_given_again_gives_nothing_back,
    ),
    (
        "managed::a_starved_thread_s_mapping_stays_charged",
        a_starved_threads_mapping_stays_charged,
    ),
    (
        "managed::a_name_that_is_no_text_hides_no_mapping",
        a_name_that_is_no_text_hides_no_mapping,
    ),
    (
        "managed::low_and_fixed_mappings_are_denied",
        low_and_fixed_mappings_are_denied,
    ),
    (
        "managed::pages_far_from_each_other_take_their_tables",
        pages_far_from_each_other_take_their_tables,
    ),
    (
        "managed::what_a_process_has_mapped_outlives_its_program",
        what_a_process_has_mapped_outlives_its_program,
    ),
    (
        "managed::what_another_file_has_outlives_its_program",
        what_another_file_has_outlives_its_program,
    ),
    (
        "managed::uncharged_memory_of_a_former_program_is_found",
        uncharged_memory_of_a_former_program_is_found,
    ),
    (
        "managed::what_was_let_map_in_memory_out_of_sight_is_charged",
        what_was_let_map_in_memory_out_of_sight_is_charged,
    ),
    (
        "managed::a_closed_file_takes_nothing_out_of_sight_along",
        a_closed_file_takes_nothing_out_of_sight_along,
    ),
    (
        "managed::refusals_share_their_looks",
        refusals_share_their_looks,
    ),
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

fn look(fixture: &Fixture, reason: Reason) -> bool {
    broker::watch::managed::look(&fixture.container, reason)
}

/// What of a stretch is in a block of the driver's, 2 MiB or 64 KiB, of which another stretch, with which it touches, has the rest.
fn shared(of: (i64, u64), with: (i64, u64)) -> u64 {
    let ends = |(base, bytes): (i64, u64)| (base.cast_unsigned(), base.cast_unsigned() + bytes);
    let (of, with) = (ends(of), ends(with));
    let (low, high) = (of.0.min(with.0), of.1.max(with.1));
    let middle = of.0.max(with.0);
    let in_block = |bytes: u64| {
        let from = middle - middle % bytes;
        let is_whole = middle == of.1.min(with.1) && low <= from && from + bytes <= high;
        let part = match of.0 < with.0 {
            true => middle - from,
            false => from + bytes - middle,
        };
        // One that begins in the middle has nothing before it.
        if is_whole && from < middle { part } else { 0 }
    };
    in_block(2 * MIB).max(in_block(MIB / 16))
}

fn is_charged() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let three = map(&tenant, uvm, 3).unwrap();
    assert_eq!(fixture.used_bytes(), 3 * MIB);
    assert_eq!(map(&tenant, uvm, 2), NO_MEMORY);
    let one = map(&tenant, uvm, 1).unwrap();
    assert_eq!(fixture.used_bytes(), 4 * MIB);
    assert!(!look(&fixture, Reason::Interval), "all of it is mapped");
    assert_eq!(fixture.used_bytes(), 4 * MIB);

    unmap(&tenant, three);
    let left = MIB + shared((three, 3 * MIB), (one, MIB));
    // Neither need the mapping of the last call have been made, for all that can be seen, nor the driver have given up what was unmapped; that the
    // thread waits for its next request shows both.
    until("the thread sleeps", || {
        look(&fixture, Reason::Interval);
        fixture.used_bytes() == left
    });
    unmap(&tenant, one);
    until("two intervals have passed", || {
        look(&fixture, Reason::Interval);
        fixture.used_bytes() == 0
    });
    let state = fixture.container.journal.change();
    assert_eq!(state.ledger.check_invariants(), Ok(()));
}

fn memory_is_free_at_once() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let (tenant, fd, client, device) = with_device(&fixture);
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
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
        let fixture = Fixture::with_managed(MIB, managed);
        let tenant = fixture.tenant();
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        assert_eq!(map(&tenant, uvm, 64).map(|_address| ()), expected);
        look(&fixture, Reason::Interval);
        assert_eq!(fixture.used_bytes(), 0);
    }
}

/// Takes 3 MiB at an address out of the ledger, in which nothing else is.
fn forget(fixture: &Fixture, address: i64) {
    let uvm_file = {
        let state = fixture.container.journal.change();
        state.ledger.managed().next().unwrap().uvm_file
    };
    let span = Span::new(address.cast_unsigned(), 3 * MIB).unwrap();
    let operation = Operation::UnmapManaged { uvm_file, span };
    fixture.container.journal.change().record(operation);
    assert_eq!(fixture.used_bytes(), 0);
}

/// As a mapping would be that was made on another file than the one that was looked at.
fn uncharged_is_found() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let address = map(&tenant, uvm, 3).unwrap();
    forget(&fixture, address);
    until("a heartbeat", || {
        look(&fixture, Reason::Interval);
        fixture.used_bytes() == 3 * MIB
    });

    // On a slow heartbeat as well, though nothing is charged and nothing on its way.
    forget(&fixture, address);
    until("a slow heartbeat", || {
        look(&fixture, Reason::Interval);
        fixture.used_bytes() == 3 * MIB
    });
}

/// One uvm file is closed while it is mapped and another one is open: both have one inode.
fn a_mapping_keeps_its_file() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let (uvm, other) = (
        tenant.open(&fixture.path("nvidia-uvm")),
        tenant.open(&fixture.path("nvidia-uvm")),
    );
    let address = map(&tenant, uvm, 3).unwrap();
    let second = map(&tenant, other, 1).unwrap();
    unmap(&tenant, second);
    tenant.close(uvm);
    for _ in 0..4 {
        fixture.reaper.reconcile(&fixture.container);
    }
    assert_eq!(fixture.used_bytes(), 3 * MIB);
    let files = |fixture: &Fixture| {
        let state = fixture.container.journal.change();
        let files: Vec<FileId> = state.ledger.managed().map(|it| it.uvm_file).collect();
        files
    };
    assert_eq!(files(&fixture).len(), 1);
    unmap(&tenant, address);
    drop(tenant);
    until("the process's files are given up", || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes() == 0
    });
}

/// The child that waits for this pipe.
struct Holder(PathBuf);

impl Drop for Holder {
    fn drop(&mut self) {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::File::options();
        options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        // It opens its end, and ends.
        let _opened = options.open(&self.0);
    }
}

/// A tenant that has tried to initialise a file, and whose process is another program then. Its memory is had by another process, which no look
/// sees, as a second file of nvidia-uvm keeps it.
struct Left {
    fixture: Fixture,
    tenant: Confined,
    initialised: i32,
}

impl Left {
    fn new() -> Self {
        let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
        let tenant = fixture.tenant();
        let initialised = tenant.open(&fixture.path("nvidia-uvm"));
        let row = nvabi::uvm::UVM_INITIALIZE;
        let arg = vec![0; row.size.of(nvabi::Release::R570) as usize];
        let _not_a_driver_s = tenant.call(initialised, row.cmd, &arg, &[]);
        Self {
            fixture,
            tenant,
            initialised,
        }
    }

    /// The process that has the memory; the process itself is alone in its group.
    fn become_another(&self) -> Holder {
        let pipe = self.fixture.path("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let holder = Holder(pipe.clone());
        self.tenant.ask_only(&Ask::BecomeAnother { pipe });
        let pid = self.tenant.pid();
        until("another program", || {
            let program = std::fs::read_link(format!("/proc/{pid}/exe"));
            program
                .is_ok_and(|it| it.to_string_lossy().contains("sleep") || it.ends_with("busybox"))
        });
        let group = self.fixture.path("group");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), format!("{pid}\n")).unwrap();
        let op = journal::state::Op::Cgroup(group);
        self.fixture.container.journal.change().record_op(op);
        holder
    }

    /// After a look, and what is given up where it is done.
    fn used_bytes(&self) -> u64 {
        look(&self.fixture, Reason::Interval);
        self.fixture.reaper.reconcile(&self.fixture.container);
        self.fixture.used_bytes()
    }

    /// What was mapped at an address is found though it is not charged, and its process has ended.
    fn ends_uncharged(&mut self, address: i64) {
        forget(&self.fixture, address);
        let holder = self.become_another();
        self.tenant.process.0.kill().unwrap();
        self.tenant.process.0.wait().unwrap();
        until("a look", || self.used_bytes() == 3 * MIB);
        self.stays_until_its_memory_is_gone(holder);
    }

    /// A look at an interval does nothing while others have used up what looks may take.
    fn stays_until_its_memory_is_gone(&self, holder: Holder) {
        let looks = || self.fixture.container.managed.work().looks;
        let before = looks();
        until("three whole looks", || {
            assert_eq!(self.used_bytes(), 3 * MIB);
            looks() >= before + 3
        });
        drop(holder);
        until("nobody has the memory", || self.used_bytes() == 0);
    }
}

fn what_a_process_has_mapped_outlives_its_program() {
    let left = Left::new();
    map(&left.tenant, left.initialised, 3).unwrap();
    let holder = left.become_another();
    left.stays_until_its_memory_is_gone(holder);
}

/// As where a thread puts another file in the place of the one that the broker saw.
fn what_another_file_has_outlives_its_program() {
    let left = Left::new();
    let other = left.tenant.open(&left.fixture.path("nvidia-uvm"));
    map(&left.tenant, other, 3).unwrap();
    let holder = left.become_another();
    left.stays_until_its_memory_is_gone(holder);
}

/// The mapping was made on another file than the one that was looked at, and nobody has looked at the process before it was another program.
fn uncharged_memory_of_a_former_program_is_found() {
    let left = Left::new();
    let address = map(&left.tenant, left.initialised, 3).unwrap();
    forget(&left.fixture, address);
    let holder = left.become_another();
    until("a look", || left.used_bytes() == 3 * MIB);
    left.stays_until_its_memory_is_gone(holder);
}

/// Its process has ended, so that no table says any more what is mapped there; of one file, while another one is open that nobody holds.
fn what_was_let_map_in_memory_out_of_sight_is_charged() {
    let mut left = Left::new();
    let _other = left.tenant.open(&left.fixture.path("nvidia-uvm"));
    let address = map(&left.tenant, left.initialised, 3).unwrap();
    left.ends_uncharged(address);
}

/// The file that the broker saw is closed by then.
fn a_closed_file_takes_nothing_out_of_sight_along() {
    let mut left = Left::new();
    let other = left.tenant.open(&left.fixture.path("nvidia-uvm"));
    left.tenant.close(left.initialised);
    let address = map(&left.tenant, other, 3).unwrap();
    left.ends_uncharged(address);
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

/// A process that has mapped managed memory ends, another one has its file and keeps what it mapped, and a third one gets its number, by which a
/// successor knows whose that is.
fn a_number_given_again_gives_nothing_back() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let mapper = fixture.tenant();
    let uvm = mapper.open(&fixture.path("nvidia-uvm"));
    let (helper, _pid) = mapper.process(&[uvm]);
    helper.free_range(uvm, 1 << 36);
    map(&mapper, uvm, 3).unwrap();
    let pid = mapper.pid();
    drop(mapper);
    // Other programs take numbers meanwhile.
    for _ in 0..200 {
        if let Err(error) = std::fs::write(LAST, (pid - 1).to_string()) {
            println!("SKIP: {LAST}: {error}");
            return;
        }
        let other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let other = Process(other);
        if other.0.id().cast_signed() == pid {
            let successor = fixture.successor();
            let looks = || successor.managed.work().looks;
            let before = looks();
            until("three whole looks", || {
                broker::watch::managed::look(&successor, Reason::Interval);
                let used = successor.journal.change().ledger.used(CardSlot(0));
                assert_eq!(used, 3 * MIB);
                looks() >= before + 3
            });
            return;
        }
    }
    println!("SKIP: the number was not to be had again");
}

/// A thread gets no processor between the answer and its mapping, for longer than any number of heartbeats.
fn a_starved_threads_mapping_stays_charged() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let (starved, busy) = (tenant.thread(), tenant.thread());
    let schedule = |program: &str, arguments: &[&str]| {
        let status = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "{program} {arguments:?}");
    };
    for thread in [&starved, &busy] {
        let tid = thread.ok(&Ask::Tid).to_string();
        schedule("taskset", &["-pc", "0", &tid]);
    }
    let tid = starved.ok(&Ask::Tid).to_string();
    schedule("chrt", &["--idle", "-p", "0", &tid]);
    busy.ask_only(&Ask::Spin);
    let before = fixture.continued();
    let bytes = usize::try_from(3 * MIB).unwrap();
    starved.ask_only(&Ask::MapManaged { fd: uvm, bytes });
    until("the mapping is let through", || {
        fixture.continued() > before && fixture.used_bytes() > 0
    });
    for _ in 0..20 {
        look(&fixture, Reason::Interval);
        assert_eq!(fixture.used_bytes(), 3 * MIB);
        assert_eq!(map(&tenant, uvm, 2), NO_MEMORY);
    }
    tenant.ok(&Ask::StopFlipping);
    let address = starved.answer().unwrap();
    for _ in 0..4 {
        look(&fixture, Reason::Interval);
        assert_eq!(fixture.used_bytes(), 3 * MIB);
    }
    unmap(&tenant, address);
    until("a heartbeat", || {
        look(&fixture, Reason::Interval);
        fixture.used_bytes() == 0
    });
}

fn a_name_that_is_no_text_hides_no_mapping() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    let folder = fixture.path("").to_str().unwrap().to_owned();
    tenant.ok(&Ask::MapNameless { folder });
    let address = map(&tenant, uvm, 3).unwrap();
    tenant.close(uvm);
    for _ in 0..4 {
        fixture.reaper.reconcile(&fixture.container);
        assert_eq!(fixture.used_bytes(), 3 * MIB);
    }
    unmap(&tenant, address);
    until("it is given up", || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes() == 0
    });
}

/// No offset is too low, and a mapping at another address than its offset is refused as the driver would.
fn low_and_fixed_mappings_are_denied() {
    let fixture = Fixture::with_managed(4 * MIB, Managed::Deny);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    for offset in [0x1000, 0x2000, 0xf000, 0x1_0000, 1 << 40] {
        let denied = tenant.ask(&Ask::Map { fd: uvm, offset });
        assert_eq!(denied, Err(22), "{offset:#x}");
    }
    assert_eq!(fixture.continued(), 0);
    // From its beginning, where no address can be.
    assert_eq!(tenant.ask(&Ask::Map { fd: uvm, offset: 0 }), Ok(0));
    assert_eq!(fixture.continued(), 0);
}

/// A page takes a table and directories of each card where there is nothing else. What is asked is what a program's `mmap` leads to.
fn pages_far_from_each_other_take_their_tables() {
    const PAGE: u64 = 4096;
    for (step, expected) in [(29, 340..=347), (38, 254..=261)] {
        let fixture = Fixture::with_managed(4 * MIB, Managed::Charge);
        let (tenant, fd, client, device) = with_device(&fixture);
        let container = &fixture.container;
        let mapper = Mapper {
            tgid: 7,
            tid: 7,
            may_have_former_memory: false,
            is_waiting: &|| true,
        };
        let map = |base: u64| {
            let file = driver::FileId(77);
            let parties = (&container.account, &*container.journal);
            let charged = container
                .managed
                .charge(parties, file, (base, PAGE), mapper);
            charged.is_ok()
        };
        let dense = (0..4).filter(|page| map(page * PAGE));
        assert_eq!(dense.count(), 4);
        let far = (1_u64..1200).take_while(|number| map(number << step));
        let far = far.count();
        // The quota, 1/128 of it and 64 KiB, at 12 KiB each and at 16 KiB, beside what is dense.
        assert!(expected.contains(&far), "{step}: {far}");
        let memory = |bytes| tenant.memory(fd, client, device, 7, bytes).status();
        assert_eq!(memory(MIB), rm::NO_MEMORY, "{step}");
        // What is mapped no more has no tables.
        container.journal.change().record(Operation::UnmapManaged {
            uvm_file: FileId(77),
            span: Span::new(1 << step, u64::MAX - (1 << step)).unwrap(),
        });
        assert_eq!(memory(2 * MIB), rm::OK, "{step}");
    }
}

/// Many mappings, many stretches and many refusals: what a refusal costs grows with neither times the other.
fn refusals_share_their_looks() {
    const THREADS: usize = 8;
    const EACH: usize = 3;
    const STRETCHES: u64 = 1000;
    const PAGE: u64 = 4096;
    let fixture = Fixture::with_managed(STRETCHES * PAGE, Managed::Charge);
    let tenant = fixture.tenant();
    let uvm = tenant.open(&fixture.path("nvidia-uvm"));
    tenant.ok(&Ask::ManyMappings { count: 60_000 });
    for _ in 0..STRETCHES {
        let bytes = usize::try_from(PAGE).unwrap();
        tenant.ok(&Ask::MapManaged { fd: uvm, bytes });
    }
    assert_eq!(fixture.used_bytes(), STRETCHES * PAGE);
    let table = std::fs::read(format!("/proc/{}/maps", tenant.pid())).unwrap();
    let table = u64::try_from(table.len()).unwrap();
    assert!(table > 60_000 * 40, "{table}");
    let before = fixture.container.managed.work();
    let threads: Vec<Tenant> = (0..THREADS).map(|_| tenant.thread()).collect();
    std::thread::scope(|scope| {
        for thread in threads {
            scope.spawn(move || {
                for _ in 0..EACH {
                    assert_eq!(map(&thread, uvm, 1), NO_MEMORY);
                }
            });
        }
    });
    let after = fixture.container.managed.work();
    let looks = after.looks - before.looks;
    let calls = u64::try_from(THREADS * EACH).unwrap();
    assert!(looks <= calls / 2, "{looks} looks for {calls} refusals");
    let begun = looks + 1;
    assert!(after.bytes - before.bytes < begun * (table + (8 << 20)));
    let linear = begun * 8 * (STRETCHES + 100);
    let steps = after.steps - before.steps;
    assert!(steps < linear, "{steps} of {linear} steps");
    assert_eq!(fixture.used_bytes(), STRETCHES * PAGE);
}
