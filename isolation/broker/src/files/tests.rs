use std::fs::File;

use driver::{Binding, Call, Caller, Error, Executed, ImplicitBytes, Ticket};
use journal::state::{Numbering, State};
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

#[test]
fn what_the_supervisor_holds_and_the_journal_does_not_know_is_released() {
    let (here, supervisor) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
    )
    .unwrap();
    let state = || State::new(Ledger::new(&[]), Numbering::default());
    let journal = Arc::new(Journal::open(Journal::memfd().unwrap(), state).unwrap());
    let kind = FileKind::Uvm;
    for id in 1..=2 {
        journal.change().record_op(Op::FileSeen(FileId(id), kind));
    }
    journal.change().record_op(Op::FileClosing(FileId(2)));
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
