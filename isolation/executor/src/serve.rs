//! The loop: connections, requests, calls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use driver::Segment;
use driver::executor::wire::{
    Answer, BlockHead, Execute, Given, MAX_MESSAGE_BYTES, PROTOCOL, Request,
};
use driver::issue::{Slot, issue};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::call_slots::{Begun, CallSlots};
use crate::error::{Error, failed};
use crate::files::Files;

/// Stack of a connection's thread; its buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;
/// For so long no connection is accepted after one that could not be.
const PAUSE_MS: u16 = 100;
/// As many calls at once as a broker has threads, and those of one that was killed.
const MOST_CONNECTIONS: usize = 1024;

/// What the threads share.
#[derive(Debug)]
struct Shared {
    files: Files,
    call_slots: CallSlots,
    connections: AtomicUsize,
    /// Written to when a connection has ended.
    ended: io::PipeWriter,
}

/// Serves connections until `lifeline` has hung up and the last of them has gone.
///
/// # Errors
/// [`Error`]
pub fn serve(listener: &impl AsFd, lifeline: &impl AsFd) -> Result<(), Error> {
    let (wake, ended) = io::pipe().map_err(failed("making a pipe"))?;
    let shared = Arc::new(Shared {
        files: Files::default(),
        call_slots: CallSlots::default(),
        connections: AtomicUsize::new(0),
        ended,
    });
    let mut watched = true;
    let mut pauses = false;
    loop {
        // A connection that cannot be accepted would be reported again at once.
        let (needed, patience) = if pauses {
            (PollFlags::empty(), PollTimeout::from(PAUSE_MS))
        } else {
            (PollFlags::POLLIN, PollTimeout::NONE)
        };
        let mut fds = vec![
            PollFd::new(listener.as_fd(), needed),
            PollFd::new(wake.as_fd(), PollFlags::POLLIN),
        ];
        if watched {
            // Only the end is of interest: the reader of a pipe that is written to by nobody, or its writer, whichever it is.
            fds.push(PollFd::new(lifeline.as_fd(), PollFlags::empty()));
        }
        match poll(&mut fds, patience) {
            Ok(_some) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(failed("waiting")(errno)),
        }
        let happened = |at: usize| {
            fds.get(at)
                .and_then(PollFd::revents)
                .is_some_and(|events| !events.is_empty())
        };
        let (connects, has_ended, hung_up) = (happened(0), happened(1), happened(2));
        if has_ended {
            io::Read::read(&mut &wake, &mut [0; 64]).map_err(failed("reading a pipe"))?;
        }
        pauses = connects && accept(listener, &shared).is_err();
        watched &= !hung_up;
        if !watched && !connects && shared.connections.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
    }
}

/// An error says that a connection waits and cannot be accepted now.
fn accept(listener: &impl AsFd, shared: &Arc<Shared>) -> io::Result<()> {
    let connection = sys::fd_passing::accept(listener.as_fd())?;
    // The socket's folder is root's alone; whoever else has got hold of it gets nothing.
    let is_root = getsockopt(&connection, PeerCredentials).is_ok_and(|peer| peer.uid() == 0);
    if !is_root || shared.connections.load(Ordering::SeqCst) >= MOST_CONNECTIONS {
        return Ok(());
    }
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let theirs = Arc::clone(shared);
    let thread = thread::Builder::new()
        .name("calls".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _broken = converse(&connection, &theirs);
            drop(connection);
            theirs.connections.fetch_sub(1, Ordering::SeqCst);
            // Full means that the main thread will look anyway.
            let _full = io::Write::write(&mut &theirs.ended, &[0]);
        });
    if thread.is_err() {
        shared.connections.fetch_sub(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Serves one connection until it ends.
fn converse(connection: &OwnedFd, shared: &Shared) -> io::Result<()> {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let mut out = Vec::new();
    let mut greeted = false;
    loop {
        let (length, fds) = match sys::fd_passing::receive(connection.as_fd(), &mut buffer) {
            // There may be no descriptor for what came beside it. Whoever sent it must not take the call for one that was begun.
            Err(error) => {
                let reason = format!("a message that could not be received: {error}");
                return refuse(connection, &mut out, reason);
            }
            Ok(received) => received,
        };
        if length == 0 {
            return Ok(());
        }
        let message = buffer.get(..length).unwrap_or_default();
        let Ok((request, bytes)) = postcard::take_from_bytes::<Request>(message) else {
            return refuse(connection, &mut out, "a message that is none".to_owned());
        };
        match request {
            Request::Hello { protocol } if protocol == PROTOCOL => {
                greeted = true;
                let pid = std::process::id().cast_signed();
                send(connection, &mut out, &Answer::Welcome { pid })?;
            }
            Request::Hello { protocol } => {
                let reason = format!("protocol {protocol}, this is {PROTOCOL}");
                return refuse(connection, &mut out, reason);
            }
            _ if !greeted => return refuse(connection, &mut out, "no greeting".to_owned()),
            Request::Closed { file } => {
                shared.files.close(file);
                send(connection, &mut out, &Answer::Ok)?;
            }
            Request::Held => {
                send(connection, &mut out, &Answer::Held(shared.files.held()))?;
            }
            Request::Execute(head) => match execute(shared, &head, bytes, fds) {
                Ok(answer) => sys::fd_passing::send(connection.as_fd(), &answer, &[])?,
                Err(answer) => send(connection, &mut out, &answer)?,
            },
        }
    }
}

fn send(connection: &OwnedFd, out: &mut Vec<u8>, answer: &Answer) -> io::Result<()> {
    out.clear();
    *out = encode(answer, std::mem::take(out))?;
    sys::fd_passing::send(connection.as_fd(), out, &[])
}

fn refuse(connection: &OwnedFd, out: &mut Vec<u8>, reason: String) -> io::Result<()> {
    send(connection, out, &Answer::Refused { reason })
}

fn encode(answer: &Answer, into: Vec<u8>) -> io::Result<Vec<u8>> {
    postcard::to_extend(answer, into).map_err(|_too_long| io::ErrorKind::InvalidData.into())
}

/// Makes a call, or finds its answer; an `Err` says that nothing was made.
fn execute(
    shared: &Shared,
    head: &Execute,
    bytes: &[u8],
    fds: Vec<OwnedFd>,
) -> Result<Arc<[u8]>, Answer> {
    let refused = |reason: &str| Answer::Refused {
        reason: reason.to_owned(),
    };
    let mut segments =
        blocks(&head.blocks, bytes).ok_or_else(|| refused("blocks of another length"))?;
    // Before anything is kept: what a broker of the past has sent brings back no file that its successor has closed.
    let turn = match shared.call_slots.begin(head.ticket) {
        Begun::Turn(turn) => turn,
        Begun::Answered(answer) => return Ok(answer),
        Begun::Past => return Err(refused("a ticket of the past")),
        Begun::TooMany => return Err(refused("too many call slots")),
    };
    let mut fds = fds.into_iter();
    let mut file_of = |given| match given {
        Given::Held(id) => shared.files.of(id).ok_or(Answer::NotHeld { file: id }),
        Given::Kept(id) => {
            let fd = fds
                .next()
                .ok_or_else(|| refused("a file that did not come"))?;
            Ok(shared.files.keep(id, fd))
        }
        Given::Lent => {
            let fd = fds
                .next()
                .ok_or_else(|| refused("a file that did not come"))?;
            Ok(Arc::new(fd))
        }
    };
    // All that came are kept before one that is not held is asked for.
    let target = file_of(head.file);
    let named: Vec<_> = head.slots.iter().map(|slot| file_of(slot.file)).collect();
    let target = target?;
    let named: Vec<Arc<OwnedFd>> = named.into_iter().collect::<Result<_, _>>()?;

    let slots: Vec<Slot<'_>> = head
        .slots
        .iter()
        .zip(&named)
        .map(|(slot, file)| Slot {
            segment: usize::from(slot.segment),
            at: slot.at as usize,
            fd: file.as_fd(),
        })
        .collect();
    let executed = issue(target.as_fd(), head.cmd, &mut segments, &slots);
    let total: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
    let answer = encode(
        &Answer::Done { ret: executed.ret },
        Vec::with_capacity(total.saturating_add(8)),
    );
    // It can always be written. If it could not, what is no answer would leave the call in doubt, and a refusal would not.
    let mut answer = answer.unwrap_or_default();
    for segment in &segments {
        answer.extend_from_slice(&segment.bytes);
    }
    let answer: Arc<[u8]> = answer.into();
    turn.finish(&answer);
    Ok(answer)
}

/// The blocks of a call; `None` unless the bytes are exactly theirs.
fn blocks(heads: &[BlockHead], mut bytes: &[u8]) -> Option<Vec<Segment>> {
    let mut segments = Vec::with_capacity(heads.len());
    for head in heads {
        let (own, rest) = bytes.split_at_checked(head.bytes as usize)?;
        bytes = rest;
        segments.push(Segment {
            address: 0,
            link: head.link,
            bytes: own.to_vec(),
        });
    }
    bytes.is_empty().then_some(segments)
}
