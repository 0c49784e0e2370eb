use std::fs::File;
use std::os::fd::AsFd;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::nodes::Nodes;
use crate::{Attempt, Segment};

/// What an executor does with a connection.
#[derive(Debug, Clone, Copy)]
enum Plays {
    /// It ends it, with the greeting unread.
    AcceptsAlone,
    /// It ends it, and has read the greeting.
    ReadsTheGreeting,
    /// It refuses the greeting.
    RefusesTheGreeting,
    /// It ends it, with the call unread.
    Greets,
    /// It ends it, and has read the call.
    ReadsTheCall,
    /// It answers the call so.
    Answers(&'static str),
    /// It never has a file.
    LosesFiles,
}

/// The driver of an executor that listens at a path, or has.
fn driver_of(path: &Path) -> ExecutorDriver {
    let facts = Facts {
        version: "570.195.03".to_owned(),
        release: Release::R570,
        nodes: Nodes::of_kernel(),
        implicit: ImplicitBytes::default(),
    };
    ExecutorDriver::away(path, facts)
}

/// The error of a call by such an executor.
fn error_of(plays: Plays) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.sock");
    let listener = sys::fd_passing::listen_seqpacket(&path).unwrap();
    let driver = driver_of(&path);
    let executor = thread::spawn(move || play(&listener, plays));
    let null = File::open("/dev/null").unwrap();
    let file = FileRef {
        id: FileId(1),
        kind: FileKind::Uvm,
        fd: null.as_fd(),
    };
    let mut call = Call {
        cmd: 1,
        segments: vec![Segment {
            address: 0,
            link: None,
            bytes: vec![0; 4],
        }],
        fds: Vec::new(),
    };
    let caller = Caller { tgid: 1, tid: 1 };
    let ticket = Ticket {
        call_slot: 1,
        call: 1,
    };
    let error = driver.execute(file, caller, ticket, &mut call).unwrap_err();
    drop(driver);
    executor.join().unwrap();
    error
}

fn play(listener: &OwnedFd, plays: Plays) {
    let connection = sys::fd_passing::accept(listener.as_fd()).unwrap();
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let arrives = || {
        let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).unwrap();
    };
    let mut read = || {
        sys::fd_passing::receive(connection.as_fd(), &mut buffer)
            .unwrap()
            .0
    };
    let answer = |answer: &Answer| {
        let bytes = postcard::to_stdvec(answer).unwrap();
        sys::fd_passing::send(connection.as_fd(), &bytes, &[]).unwrap();
    };
    let refused = |reason: &str| Answer::Refused {
        reason: reason.to_owned(),
    };
    arrives();
    if matches!(plays, Plays::AcceptsAlone) {
        return;
    }
    read();
    match plays {
        Plays::AcceptsAlone | Plays::ReadsTheGreeting => return,
        Plays::RefusesTheGreeting => return answer(&refused("another build")),
        Plays::Greets | Plays::ReadsTheCall | Plays::Answers(_) | Plays::LosesFiles => {}
    }
    answer(&Answer::Welcome { pid: 1 });
    arrives();
    match plays {
        Plays::Answers(reason) => {
            read();
            match reason {
                "" => answer(&Answer::Ok),
                reason => answer(&refused(reason)),
            }
        }
        Plays::ReadsTheCall => {
            read();
        }
        Plays::LosesFiles => {
            while read() > 0 {
                answer(&Answer::NotHeld { file: FileId(1) });
            }
        }
        Plays::Greets
        | Plays::AcceptsAlone
        | Plays::ReadsTheGreeting
        | Plays::RefusesTheGreeting => {}
    }
}

#[test]
fn a_call_that_no_executor_has_begun_is_not_in_doubt() {
    for plays in [
        Plays::AcceptsAlone,
        Plays::ReadsTheGreeting,
        Plays::RefusesTheGreeting,
        Plays::Greets,
        Plays::Answers("too many call slots"),
        Plays::LosesFiles,
    ] {
        let error = error_of(plays);
        assert!(!error.is_in_doubt(Attempt::First), "{plays:?}: {error:?}");
        assert!(error.is_unreachable(), "{plays:?}: {error:?}");
        // What a former broker sent may have been made, whatever becomes of the repetition.
        assert!(error.is_in_doubt(Attempt::Again), "{plays:?}: {error:?}");
    }
}

#[test]
fn a_call_that_an_executor_has_taken_is_in_doubt_until_it_answers() {
    for plays in [Plays::ReadsTheCall, Plays::Answers("")] {
        let error = error_of(plays);
        assert!(error.is_in_doubt(Attempt::First), "{plays:?}: {error:?}");
    }
}

#[test]
fn a_file_of_an_executor_that_has_ended_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.sock");
    drop(sys::fd_passing::listen_seqpacket(&path).unwrap());
    let driver = driver_of(&path);
    driver.closed(FileId(1)).unwrap();
    assert!(driver.held().unwrap_err().is_unreachable());
}

#[test]
fn what_an_executor_holds_changes_where_a_file_is_sent_or_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.sock");
    let listener = sys::fd_passing::listen_seqpacket(&path).unwrap();
    let executor = thread::spawn(move || {
        let connection = sys::fd_passing::accept(listener.as_fd()).unwrap();
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        for answer in [
            Answer::Welcome { pid: 1 },
            Answer::Held(vec![FileId(9)]),
            Answer::Done { ret: 0 },
            Answer::Done { ret: 0 },
            Answer::Ok,
        ] {
            sys::fd_passing::receive(connection.as_fd(), &mut buffer).unwrap();
            let mut bytes = postcard::to_stdvec(&answer).unwrap();
            if matches!(answer, Answer::Done { .. }) {
                bytes.extend([0; 4]);
            }
            sys::fd_passing::send(connection.as_fd(), &bytes, &[]).unwrap();
        }
    });
    let driver = driver_of(&path);
    let changes = || driver.held_changes().unwrap();
    let first = changes();
    assert_eq!(driver.held().unwrap(), [FileId(9)]);
    assert_eq!(changes(), first);
    let call = || {
        let null = File::open("/dev/null").unwrap();
        let file = FileRef {
            id: FileId(1),
            kind: FileKind::Uvm,
            fd: null.as_fd(),
        };
        let block = Segment {
            address: 0,
            link: None,
            bytes: vec![0; 4],
        };
        let mut call = Call {
            cmd: 1,
            segments: vec![block],
            fds: Vec::new(),
        };
        let caller = Caller { tgid: 1, tid: 1 };
        let ticket = Ticket {
            call_slot: 1,
            call: 1,
        };
        driver.execute(file, caller, ticket, &mut call).unwrap();
    };
    call();
    let sent = changes();
    assert!(sent > first);
    // It has the file already.
    call();
    assert_eq!(changes(), sent);
    driver.closed(FileId(1)).unwrap();
    assert!(changes() > sent);
    executor.join().unwrap();
}
