//! The executor by itself: what it is, what it keeps, and when it ends.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Child;

use driver::executor::{ExecutorDriver, NumaNode, Started, spawn};
use driver::kernel::Facts;
use driver::nodes::Nodes;
use driver::{
    Attempt, Call, Caller, Driver, Executed, FdSlot, FileId, FileKind, FileRef, ImplicitBytes,
    Ticket,
};
use nvabi::Release;

use crate::{Test, until};

pub(crate) const TESTS: &[Test] = &[
    ("it_has_no_rights_of_its_own", it_has_no_rights_of_its_own),
    (
        "a_call_is_made_on_a_duplicate",
        a_call_is_made_on_a_duplicate,
    ),
    (
        "closed_files_are_closed_here_too",
        closed_files_are_closed_here_too,
    ),
    (
        "it_ends_with_its_supervisor_and_its_brokers",
        it_ends_with_its_supervisor_and_its_brokers,
    ),
    ("it_is_near_its_card", it_is_near_its_card),
    ("two_executors_are_two_users", two_executors_are_two_users),
    (
        "without_an_executor_the_error_names_the_socket",
        without_an_executor_the_error_names_the_socket,
    ),
    (
        "what_is_no_request_is_refused",
        what_is_no_request_is_refused,
    ),
    (
        "a_call_of_the_past_brings_no_file_back",
        a_call_of_the_past_brings_no_file_back,
    ),
    (
        "without_descriptors_it_waits_and_goes_on",
        without_descriptors_it_waits_and_goes_on,
    ),
];

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_cgpu-executor");
const CALLER: Caller = Caller { tgid: 1, tid: 1 };

/// An executor on its own; killed at the end.
pub(crate) struct Executor {
    pub(crate) started: Started,
    folder: tempfile::TempDir,
}

impl Executor {
    fn new() -> Self {
        Self::near(None)
    }

    fn near(near: Option<&NumaNode>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let started = spawn(Path::new(PROGRAM), &folder.path().join("e.sock"), near).unwrap();
        Self { started, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("e.sock")
    }

    fn connect(&self) -> ExecutorDriver {
        ExecutorDriver::connect(&self.socket(), facts(Nodes::of_kernel())).unwrap()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        end(&mut self.started.child);
    }
}

pub(crate) fn end(child: &mut Child) {
    let _ended = child.kill();
    child.wait().unwrap();
}

pub(crate) fn facts(nodes: Nodes) -> Facts {
    Facts {
        version: "570.195.03".to_owned(),
        release: Release::R570,
        nodes,
        implicit: ImplicitBytes::default(),
    }
}

/// FIONREAD on a pipe: an ioctl with an answer that needs no card.
fn waiting_bytes(
    driver: &ExecutorDriver,
    id: u64,
    file: &impl AsFd,
) -> Result<(Executed, u32), driver::Error> {
    waiting_bytes_by(driver, (id, Ticket::UNREMEMBERED), file)
}

fn waiting_bytes_by(
    driver: &ExecutorDriver,
    (id, ticket): (u64, Ticket),
    file: &impl AsFd,
) -> Result<(Executed, u32), driver::Error> {
    const FIONREAD: u32 = 0x541b;
    let mut call = Call::own(FIONREAD, vec![0xff; 4], None);
    let file = FileRef {
        id: FileId(id),
        kind: FileKind::Uvm,
        fd: file.as_fd(),
    };
    let done = driver.execute(file, CALLER, ticket, &mut call)?;
    let count = nvabi::bytes::u32_at(&call.segments[0].bytes, 0).unwrap();
    Ok((done, count))
}

/// The fields of `/proc/<pid>/status` that say what a process may do.
pub(crate) fn assert_powerless(pid: i32) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut threads = 0;
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_else(|| panic!("no {name} in {status}"))
                .trim()
                .to_owned()
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!(field("NoNewPrivs"), "1");
        assert_eq!(field("Seccomp"), "2");
        assert_eq!(field("Groups"), "");
        let own = (executor::confine::UID_BASE + pid.unsigned_abs()).to_string();
        for ids in ["Uid", "Gid"] {
            assert!(field(ids).split_whitespace().all(|id| id == own), "{ids}");
        }
        threads += 1;
    }
    assert!(threads > 1, "the main thread and one for each connection");
}

fn it_has_no_rights_of_its_own() {
    let executor = Executor::new();
    let driver = executor.connect();
    assert_eq!(
        driver.process().unwrap(),
        executor.started.child.id().cast_signed()
    );
    assert_powerless(driver.process().unwrap());
    let limits =
        std::fs::read_to_string(format!("/proc/{}/limits", driver.process().unwrap())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    assert_eq!(core.unwrap().split_whitespace().nth(4), Some("0"));
    // The listener, the lifeline, standard error, both ends of the waking pipe and one connection.
    let open = std::fs::read_dir(format!("/proc/{}/fd", driver.process().unwrap())).unwrap();
    assert_eq!(open.count(), 6);
}

fn a_call_is_made_on_a_duplicate() {
    let executor = Executor::new();
    let driver = executor.connect();
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, b"seven..").unwrap();
    // The first call brings the file, the second names it.
    for _ in 0..2 {
        let (done, count) = waiting_bytes(&driver, 5, &reader).unwrap();
        assert_eq!((done.ret, count), (0, 7));
    }
    assert_eq!(driver.held().unwrap(), [FileId(5)]);
    let null = File::open("/dev/null").unwrap();
    let (done, count) = waiting_bytes(&driver, 6, &null).unwrap();
    assert_eq!((done.ret, count), (-25, u32::MAX), "ENOTTY, and untouched");
    // A broker that took over knows nothing of what the executor holds.
    let successor = executor.connect();
    let (done, count) = waiting_bytes(&successor, 5, &reader).unwrap();
    assert_eq!((done.ret, count), (0, 7));
}

fn closed_files_are_closed_here_too() {
    let executor = Executor::new();
    let driver = executor.connect();
    let (reader, writer) = std::io::pipe().unwrap();
    let slot = FdSlot {
        segment: 0,
        at: 0,
        number: 99,
        file: None,
        fd: reader.as_fd().try_clone_to_owned().unwrap(),
    };
    // The file, and a foreign one in a slot, which is only lent.
    let mut call = Call {
        fds: vec![slot],
        ..Call::own(0x541b, vec![0; 4], None)
    };
    let file = FileRef {
        id: FileId(1),
        kind: FileKind::Uvm,
        fd: reader.as_fd(),
    };
    driver
        .execute(file, CALLER, Ticket::UNREMEMBERED, &mut call)
        .unwrap();
    assert_eq!(call.segments[0].bytes, 99_u32.to_le_bytes(), "its number");
    drop((call, reader));
    // The executor's is the last reader.
    std::io::Write::write_all(&mut &writer, b"x").unwrap();
    driver.closed(FileId(1)).unwrap();
    assert_eq!(driver.held().unwrap(), []);
    until("the pipe has no reader", || {
        std::io::Write::write(&mut &writer, b"x")
            .is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    });
}

/// A killed broker's request may be read after its successor has closed the file.
fn a_call_of_the_past_brings_no_file_back() {
    let executor = Executor::new();
    let (reader, _writer) = std::io::pipe().unwrap();
    let ticket = |call| Ticket { call_slot: 1, call };
    let (killed, successor) = (executor.connect(), executor.connect());
    waiting_bytes_by(&successor, (1, ticket(8)), &reader).unwrap();
    successor.closed(FileId(1)).unwrap();
    for (call, is_answered) in [(7, false), (8, true)] {
        let answered = waiting_bytes_by(&killed, (1, ticket(call)), &reader);
        assert_eq!(answered.is_ok(), is_answered, "{answered:?}");
        assert_eq!(successor.held().unwrap(), [], "call {call}");
    }
}

fn it_ends_with_its_supervisor_and_its_brokers() {
    let mut executor = Executor::new();
    let driver = executor.connect();
    let pidfd = sys::pidfd::PidFd::open(driver.process().unwrap()).unwrap();
    // The broker goes, the supervisor stays.
    drop(driver);
    let driver = executor.connect();
    // The supervisor goes, the broker stays.
    let (reader, _writer) = std::io::pipe().unwrap();
    let (null, _unused) = std::io::pipe().unwrap();
    drop(std::mem::replace(
        &mut executor.started.lifeline,
        null.into(),
    ));
    waiting_bytes(&driver, 1, &reader).unwrap();
    assert!(!pidfd.wait_exit(20).unwrap());
    drop(driver);
    assert!(pidfd.wait_exit(10_000).unwrap());
    assert!(executor.started.child.wait().unwrap().success());
}

/// Every thread is on the node's processors and takes its memory there first; where a node says what cannot be, it serves all the same.
fn it_is_near_its_card() {
    let node = |number, cpus: &str| NumaNode {
        number,
        cpus: cpus.to_owned(),
    };
    let allowed = |pid: i32, task: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    let everywhere = allowed(
        std::process::id().cast_signed(),
        &std::process::id().to_string(),
    );
    let last = everywhere.rsplit([',', '-']).next().unwrap().to_owned();
    for (near, cpus) in [
        (node(0, &last), &last),
        (node(1000, &last), &last),
        (node(0, "none"), &everywhere),
    ] {
        let executor = Executor::near(Some(&near));
        let driver = executor.connect();
        driver.held().unwrap();
        let pid = driver.process().unwrap();
        let mut threads = 0;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let task = task.unwrap().file_name().into_string().unwrap();
            assert_eq!(allowed(pid, &task), *cpus, "{near:?}");
            let maps = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/numa_maps"));
            // A kernel without nodes has no such file.
            let policy = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
            let prefers = maps.ok().map(|maps| {
                let mut policies = maps.lines().map(policy);
                policies.all(|it| it.as_deref() == Some("prefer:0"))
            });
            assert!(
                prefers.is_none_or(|it| it == (near.number == 0)),
                "{near:?}"
            );
            threads += 1;
        }
        assert!(threads > 1);
        assert_powerless(pid);
    }
}

fn two_executors_are_two_users() {
    let (one, other) = (Executor::new(), Executor::new());
    let (one_driver, other_driver) = (one.connect(), other.connect());
    assert_powerless(one_driver.process().unwrap());
    assert_powerless(other_driver.process().unwrap());
    let owner = |driver: &ExecutorDriver| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", driver.process().unwrap())).unwrap();
        let uid = status
            .lines()
            .find(|line| line.starts_with("Uid:"))
            .unwrap();
        uid.to_owned()
    };
    assert_ne!(owner(&one_driver), owner(&other_driver));
}

fn without_an_executor_the_error_names_the_socket() {
    let facts = facts(Nodes::of_kernel());
    let error =
        ExecutorDriver::connect(Path::new("/nonexistent/executor.sock"), facts).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/executor.sock"));
    assert_eq!(error.errno(), 5);
    let executor = Executor::new();
    let driver = executor.connect();
    let (reader, _writer) = std::io::pipe().unwrap();
    drop(executor);
    assert_eq!(waiting_bytes(&driver, 1, &reader).unwrap_err().errno(), 5);
}

fn what_is_no_request_is_refused() {
    use driver::executor::wire::{Answer, BlockHead, Execute, Given, Request};
    let executor = Executor::new();
    let hello = |protocol| postcard::to_stdvec(&Request::Hello { protocol }).unwrap();
    let greeting = hello(driver::executor::wire::PROTOCOL);
    let execute = |file, bytes| {
        let head = Execute {
            file,
            ticket: Ticket::UNREMEMBERED,
            cmd: 0x541b,
            blocks: vec![BlockHead { link: None, bytes }],
            slots: Vec::new(),
        };
        let mut message = postcard::to_stdvec(&Request::Execute(head)).unwrap();
        message.extend([0; 4]);
        message
    };
    let send = |messages: &[&[u8]]| -> Answer {
        let socket = sys::fd_passing::connect_seqpacket(&executor.socket()).unwrap();
        let mut answers = Vec::new();
        for message in messages {
            sys::fd_passing::send(socket.as_fd(), message, &[]).unwrap();
            let mut buffer = [0; 512];
            let (length, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
            answers.push(postcard::from_bytes(&buffer[..length]).unwrap());
        }
        answers.pop().unwrap()
    };
    let is_refused = |answer| matches!(answer, Answer::Refused { .. });
    assert!(is_refused(send(&[b"\xff\xff\xff"])), "no message");
    assert!(is_refused(send(&[&hello(0)])), "another protocol");
    let closed = postcard::to_stdvec(&Request::Held).unwrap();
    assert!(is_refused(send(&[&closed])), "no greeting");
    let (kept, held) = (Given::Kept(FileId(1)), Given::Held(FileId(1)));
    assert!(is_refused(send(&[&greeting, &execute(kept, 4)])), "no file");
    assert!(is_refused(send(&[&greeting, &execute(held, 8)])), "short");
    let answer = send(&[&greeting, &execute(held, 4)]);
    assert_eq!(answer, Answer::NotHeld { file: FileId(1) });
    // It serves on.
    assert_eq!(executor.connect().held().unwrap(), []);
}

/// Processor time that the first thread of a process has taken, and all others, those that have ended too, nanoseconds.
fn spent_ns(pid: i32) -> (u64, u64) {
    let first = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
    let first: u64 = first.split_whitespace().next().unwrap().parse().unwrap();
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid)).unwrap();
    let all = std::time::Duration::from(clock.now().unwrap());
    let all = u64::try_from(all.as_nanos()).unwrap();
    (first, all.saturating_sub(first))
}

fn without_descriptors_it_waits_and_goes_on() {
    let executor = Executor::new();
    let driver = executor.connect();
    let pid = driver.process().unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    // It keeps a duplicate of each file, until it has no descriptor for another one.
    let refused = (1..20_000).find_map(|id| {
        let error = waiting_bytes(&driver, id, &reader).err()?;
        Some((id, error))
    });
    let (id, error) = refused.unwrap();
    assert!(id > 16_000, "{id}");
    // It has not begun what it could not take.
    assert!(!error.is_in_doubt(Attempt::First), "{error:?}");
    // Connected again after the refusal; the next one is accepted when there is a descriptor for it.
    waiting_bytes(&driver, 1, &reader).unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| sys::fd_passing::connect_seqpacket(&executor.socket()).unwrap())
        .collect();
    let before = spent_ns(pid);
    for _ in 0..3000 {
        waiting_bytes(&driver, 1, &reader).unwrap();
    }
    let after = spent_ns(pid);
    let (first, others) = (after.0 - before.0, after.1 - before.1);
    assert!(
        first < others / 2,
        "the thread that accepts nobody took {first} ns, those that worked {others} ns"
    );
    drop(waiting);
    (100..120).for_each(|id| driver.closed(FileId(id)).unwrap());
    let (done, _) = waiting_bytes(&executor.connect(), 20_000, &reader).unwrap();
    assert_eq!(done.ret, 0);
}
