use std::fs::File;
use std::os::fd::AsRawFd;

use driver::{Binding, Call, Caller, Error, Executed, ImplicitBytes, Ticket};
use journal::state::{Closing, Numbering, State};
use ledger::Ledger;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use supervisor::link::{self, FromBroker};

use super::*;

#[test]
fn a_container_has_no_more_files_than_each_of_our_processes_can_hold() {
    assert_eq!(most_files(1024), 512);
    assert_eq!(most_files(1 << 20), MOST_FILES);
    assert_eq!(most_files(u64::MAX), MOST_FILES);
}

/// A driver of which nothing is asked.
#[derive(Debug)]
struct Unasked;

impl Driver for Unasked {
    fn version(&self) -> &str {
        "570.195.03"
    }

    fn cards(&self) -> &[driver::CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        ImplicitBytes::default()
    }

    fn classify(&self, _fd: BorrowedFd<'_>) -> Option<FileKind> {
        None
    }

    fn execute(
        &self,
        _file: FileRef<'_>,
        _caller: Caller,
        _ticket: Ticket,
        _call: &mut Call,
    ) -> Result<Executed, Error> {
        Err(Error::Unsupported("a call"))
    }

    fn binding(&self) -> Binding {
        Binding::None
    }

    fn closed(&self, _file: FileId) -> Result<(), Error> {
        Ok(())
    }
}

/// A broker's end of the connection to its supervisor, and the other one.
fn connected() -> (OwnedFd, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
}

/// Before Linux 6.9 nobody can duplicate what a process has whose first thread has ended: it stands for one that cannot be opened.
#[test]
fn a_file_that_is_held_is_found_where_nothing_can_be_duplicated() {
    let (here, _supervisor) = connected();
    let state = || State::new(Ledger::new(&[]), Numbering::default());
    let journal = Arc::new(Journal::open(Journal::memfd().unwrap(), state).unwrap());
    let id = FileId(1);
    journal.change().record_op(Op::FileSeen(id, FileKind::Ctl));
    let [held, other] = [(); 2].map(|()| File::open("/dev/null").unwrap());
    let stored = vec![(id, held.try_clone().unwrap().into())];
    let link = Arc::new(SupervisorLink::new(here, 1));
    let files = FileTable::restore(link, journal, Arc::new(Unasked), stored);
    let by = (nix::unistd::gettid().as_raw(), i32::MAX);
    let found = files.look_up(by, held.as_raw_fd());
    assert!(matches!(found, Lookup::Ours(file) if file.id == id));
    let found = files.look_up(by, other.as_raw_fd());
    assert!(matches!(found, Lookup::Failed(_)), "{found:?}");
}

#[test]
fn what_the_supervisor_holds_and_the_journal_does_not_know_is_released() {
    let (here, supervisor) = connected();
    let state = || State::new(Ledger::new(&[]), Numbering::default());
    let journal = Arc::new(Journal::open(Journal::memfd().unwrap(), state).unwrap());
    let kind = FileKind::Uvm;
    for id in 1..=2 {
        journal.change().record_op(Op::FileSeen(FileId(id), kind));
    }
    journal
        .change()
        .record_op(Op::FileClosing(FileId(2), Closing::Begun));
    let stored = (1..=1000)
        .map(|id| (FileId(id), File::open("/dev/null").unwrap().into()))
        .collect();
    let link = Arc::new(SupervisorLink::new(here, 1));
    let files = FileTable::restore(link, journal, Arc::new(Unasked), stored);
    let held: Vec<u64> = files.held().iter().map(|file| file.id.0).collect();
    assert_eq!(held, [1]);
    let mut released = Vec::new();
    while let Ok(Some((FromBroker::Release(some), _))) = link::receive(supervisor.as_fd()) {
        released.extend(some.iter().map(|stored| match stored {
            Stored::File(id, _) => id.0,
            other => panic!("{other:?}"),
        }));
    }
    released.sort_unstable();
    let unknown: Vec<u64> = (3..=1000).collect();
    assert_eq!(released, unknown);
}
