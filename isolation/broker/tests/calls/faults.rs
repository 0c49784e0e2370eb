//! A disk that is full or read-only, and a process without descriptors: calls are answered or wait, nobody ends, the state is
//! reported, and all of it is over when its cause is.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use supervisor::scarce::PASSES_DESCRIPTORS;

use crate::Test;
use crate::fake::GRANULE;
use crate::fixture::until;
use crate::kept::Kept;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    ("faults::a_full_disk_ends_nobody", full_disk),
    ("faults::a_read_only_folder_ends_nobody", read_only),
    (
        "faults::a_broker_without_descriptors_recovers",
        no_descriptors,
    ),
    (
        "faults::a_supervisor_without_descriptors_recovers",
        supervisor_without_descriptors,
    ),
    (
        "faults::descriptors_in_flight_keep_no_file_out",
        descriptors_in_flight,
    ),
    (
        "faults::a_lone_broker_names_itself_when_it_can",
        lone_on_a_full_disk,
    ),
    (
        "faults::the_next_broker_says_how_the_former_one_ended",
        ways_to_end,
    ),
];

const DISK_BYTES: u64 = 1 << 20;

fn unwritten(kept: &Kept) -> Option<String> {
    let status = kept.status();
    status["health"]["unwritten"].as_str().map(str::to_owned)
}

/// The broker that serves: one that still takes over has not its own way with signals yet, and more time to move.
fn serving(kept: &Kept) -> i32 {
    let mut serving = 0;
    until("a broker serves", || {
        let Some(pid) = kept.broker_pid() else {
            return false;
        };
        serving = pid;
        kept.ask(&json!({"op": "status"}))
            .is_ok_and(|status| status["broker"]["pid"] == pid)
    });
    serving
}

/// Something to be logged and an event: another broker serves.
fn replace(kept: &Kept) {
    let before = serving(kept);
    kept.signal(before, Signal::SIGKILL);
    until("another broker answers", || {
        kept.ask(&json!({"op": "status"}))
            .is_ok_and(|status| status["broker"]["pid"] != before)
    });
}

fn kinds(kept: &Kept) -> Vec<String> {
    let text = std::fs::read_to_string(kept.log_dir().join("events.jsonl")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|event| event["kind"].as_str().unwrap().to_owned())
        .collect()
}

/// What the last broker that came into the place of another has said of that one.
fn last_reason(kept: &Kept) -> String {
    let text = std::fs::read_to_string(kept.log_dir().join("events.jsonl")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["kind"] == "broker_replaced")
        .filter_map(|event| event["text"].as_str().map(str::to_owned))
        .next_back()
        .unwrap_or_default()
}

fn ways_to_end() {
    let kept = Kept::new(GRANULE);
    for (signal, how) in [
        (Signal::SIGKILL, "it was ended by signal 9, SIGKILL"),
        (Signal::SIGABRT, "it was ended by signal 6, SIGABRT"),
        (Signal::SIGTERM, "it ended with exit code 0"),
        (Signal::SIGSTOP, "it did not move for 2 s, and was killed"),
    ] {
        kept.signal(serving(&kept), signal);
        until(how, || last_reason(&kept).ends_with(how));
        assert!(
            kept.log()
                .contains(&format!("the broker has ended ({how})"))
        );
    }
    let upgraded = kept.ask(&json!({"op": "upgrade", "program": super::kept::program()}));
    assert!(upgraded.unwrap()["error"].is_null());
    let reason = last_reason(&kept);
    assert!(reason.ends_with("(5 so far): an upgrade"), "{reason}");
    // The reason is of one replacement alone.
    replace(&kept);
    until("the next one says its own", || {
        last_reason(&kept).ends_with("SIGKILL")
    });
}

fn full_disk() {
    let kept = Kept::on_a_disk_of(DISK_BYTES);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocates = |handle| {
        let status = tenant.memory(fd, client, device, handle, GRANULE).status();
        assert_eq!(status, 0, "allocation {handle}");
    };
    allocates(1);
    assert_eq!(unwritten(&kept), None);
    let supervisor = kept.supervisor_pid();
    kept.disk().fill();
    // What is left of its last page the log would still have.
    let log = kept.dir().join("broker.log");
    let left = (4096 - std::fs::metadata(&log).unwrap().len() % 4096) % 4096;
    let mut log = OpenOptions::new().append(true).open(log).unwrap();
    log.write_all(&vec![b'\n'; usize::try_from(left).unwrap()])
        .unwrap();
    for round in 0..3 {
        replace(&kept);
        allocates(10 + round);
        let why = unwritten(&kept).unwrap();
        assert!(why.contains("No space left on device"), "{why}");
    }
    assert_eq!(kept.status()["broker"]["supervisor_pid"], supervisor);
    kept.disk().empty();
    until("the state folder is written again", || {
        unwritten(&kept).is_none()
    });
    allocates(20);
    replace(&kept);
    allocates(21);
    let kinds = kinds(&kept);
    assert!(kinds.contains(&"state_written".to_owned()), "{kinds:?}");
    assert!(kinds.contains(&"broker_replaced".to_owned()), "{kinds:?}");
    let log = kept.log();
    assert!(
        log.contains("log lines were left out: No space left"),
        "{log}"
    );
    assert_eq!(kept.status()["broker"]["supervisor_pid"], supervisor);
    assert_eq!(kept.used_bytes(), 6 * GRANULE);
}

fn read_only() {
    let kept = Kept::on_a_disk_of(DISK_BYTES);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocates = |handle| {
        let status = tenant.memory(fd, client, device, handle, GRANULE).status();
        assert_eq!(status, 0, "allocation {handle}");
    };
    kept.disk().make_read_only();
    replace(&kept);
    allocates(1);
    until("it is reported", || unwritten(&kept).is_some());
    let why = unwritten(&kept).unwrap();
    assert!(why.contains("Read-only file system"), "{why}");
    replace(&kept);
    allocates(2);
    kept.disk().make_writable();
    until("the state folder is written again", || {
        unwritten(&kept).is_none()
    });
    replace(&kept);
    allocates(3);
    let kinds = kinds(&kept);
    assert!(kinds.contains(&"state_written".to_owned()), "{kinds:?}");
    assert_eq!(
        kept.status()["broker"]["supervisor_pid"],
        kept.supervisor_pid()
    );
}

/// No further descriptor for a process, until it is dropped.
struct Starved {
    pid: Option<Pid>,
    before: Rlimit,
}

impl Starved {
    /// It has what it holds, and its reserve.
    fn of(pid: i32) -> Self {
        Self::at(pid, lowest_free(pid))
    }

    /// Every number is above this one.
    fn at(pid: i32, most: u64) -> Self {
        let limit = Rlimit {
            current: Some(most),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        let pid = Pid::from_raw(pid);
        let before = prlimit(pid, Resource::Nofile, limit).unwrap();
        Self { pid, before }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        // It may have ended.
        let _gone = prlimit(self.pid, Resource::Nofile, self.before);
    }
}

/// The number that the next descriptor of a process gets, as several looks find it: it opens some for a moment.
fn lowest_free(pid: i32) -> u64 {
    let look = || {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open: BTreeSet<u64> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        (0..).find(|number| !open.contains(number)).unwrap()
    };
    (0..200).map(|_| look()).min().unwrap()
}

fn short_of(kept: &Kept) -> Option<String> {
    let status = kept.status();
    status["health"]["short_of"].as_str().map(str::to_owned)
}

/// Processor time that a process has taken, in ticks of 10 ms.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<u64> = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    fields.iter().sum()
}

fn no_descriptors() {
    let kept = Kept::new(1 << 30);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocates = |handle| tenant.memory(fd, client, device, handle, GRANULE).status();
    assert_eq!(allocates(1), 0);
    let broker = kept.broker_pid().unwrap();
    let starved = Starved::of(broker);
    // A file that is known needs no further descriptor.
    assert_eq!(allocates(2), 0);
    until("the status says what is lacking", || {
        short_of(&kept).is_some_and(|what| what.contains("no descriptor"))
    });
    drop(starved);
    // Without the reserve nobody can ask. A file that is not known waits for a moment, and fails as an open would.
    let starved = Starved::at(broker, 3);
    let other = tenant.open(&kept.node("nvidiactl"));
    let refused = tenant.call(other, rm::ALLOC, &rm::alloc(0, 0, 0, rm::ROOT, 0), &[]);
    assert_eq!(refused.ret, Err(Errno::EMFILE as i32));
    assert_eq!(allocates(3), 0);
    drop(starved);
    until("nothing is lacking", || short_of(&kept).is_none());
    let client = tenant.client(other);
    assert_ne!(client, 0);
    assert_eq!(allocates(4), 0);
    assert_eq!(kept.broker_pid(), Some(broker));
    assert_eq!(kept.used_bytes(), 4 * GRANULE);
    until("both are told", || {
        let kinds = kinds(&kept);
        ["shortage", "shortage_over"]
            .iter()
            .all(|kind| kinds.contains(&(*kind).to_owned()))
    });
}

fn supervisor_without_descriptors() {
    let kept = Kept::new(1 << 30);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocates = |handle| tenant.memory(fd, client, device, handle, GRANULE).status();
    assert_eq!(allocates(1), 0);
    let supervisor = kept.supervisor_pid();
    let starved = Starved::of(supervisor);
    // Nobody can be started, and nothing is accepted.
    let broker = kept.broker_pid().unwrap();
    kept.signal(broker, Signal::SIGKILL);
    until("the broker has ended", || kept.broker_pid() != Some(broker));
    let waiting = UnixStream::connect(kept.dir().join("notify.sock")).unwrap();
    let before = ticks(supervisor);
    let tried = |log: &str| log.matches("no broker could be started").count();
    until("it has been tried for a while", || tried(&kept.log()) >= 8);
    let spent = ticks(supervisor) - before;
    assert!(spent < 50, "the supervisor spins: {spent} ticks");
    drop(starved);
    drop(waiting);
    assert_eq!(allocates(2), 0);
    let (second, _process) = kept.tenant();
    let fd = second.open(&kept.node("nvidiactl"));
    assert_ne!(second.client(fd), 0);
    assert_eq!(kept.supervisor_pid(), supervisor);
    assert_eq!(kept.used_bytes(), 2 * GRANULE);
}

/// More of the user's descriptors are in unread messages than a broker and its supervisor may have open.
fn descriptors_in_flight() {
    const MOST: u64 = 128;
    let can = caps::has_cap(None, caps::CapSet::Permitted, PASSES_DESCRIPTORS);
    if !can.unwrap() {
        println!("SKIP: no {PASSES_DESCRIPTORS}");
        return;
    }
    let kept = Kept::new(1 << 30);
    let (tenant, _process) = kept.tenant();
    let allocates = || {
        let fd = tenant.open(&kept.node("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        tenant.memory(fd, client, device, 0, GRANULE).status()
    };
    assert_eq!(allocates(), 0);
    let (one, _unread) = UnixStream::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    for _ in 0..2 {
        sys::fd_passing::send(one.as_fd(), b"x", &[null.as_fd(); 100]).unwrap();
    }
    let _starved =
        [kept.broker_pid().unwrap(), kept.supervisor_pid()].map(|pid| Starved::at(pid, MOST));
    assert_eq!(allocates(), 0);
    // What the next one needs is passed as well.
    replace(&kept);
    assert_eq!(allocates(), 0);
    assert_eq!(kept.used_bytes(), 3 * GRANULE);
}

fn lone_on_a_full_disk() {
    let kept = Kept::on_a_disk_of(DISK_BYTES);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocates = |handle| tenant.memory(fd, client, device, handle, GRANULE).status();
    assert_eq!(allocates(1), 0);
    let broker = kept.broker_pid().unwrap();
    let supervisor = kept.supervisor_pid();
    kept.disk().fill();
    kept.signal(supervisor, Signal::SIGKILL);
    let failed = |log: &str| log.matches("naming this process").count();
    until("none can be named, and so none watches", || {
        failed(&kept.log()) > 2 || kept.status()["broker"]["supervisor_pid"] == 0
    });
    assert_eq!(allocates(2), 0);
    kept.disk().empty();
    let next = kept.next_supervisor(supervisor);
    assert_eq!(kept.named_pid(), Some(next));
    assert_eq!(kept.status()["broker"]["pid"], broker);
    assert_eq!(allocates(3), 0);
    // The place is there by now: the next one is named on a full disk too.
    kept.disk().fill();
    kept.signal(next, Signal::SIGKILL);
    let third = kept.next_supervisor(next);
    assert_eq!(kept.named_pid(), Some(third));
    kept.signal(broker, Signal::SIGKILL);
    assert_eq!(allocates(4), 0);
    assert_eq!(kept.used_bytes(), 4 * GRANULE);
}
