//! The fake driver behind a socket that speaks `cgpu-sim`'s language, and remembers each call slot's last answer as it does: so it
//! outlives brokers, and knows how often it has done what.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use driver::wire::{Answer, Greeting, MAX_MESSAGE_BYTES, Request};
use driver::{Call, Driver, FileRef, ImplicitBytes, Link, Segment, Ticket};

use crate::fake::{Fake, Handle};

/// Listens at a path and serves until the process ends.
pub(crate) fn start(fake: Arc<Fake>, socket: &Path) {
    let listener = sys::fd_passing::listen_seqpacket(socket).unwrap();
    let call_slots = Arc::new(CallSlots::default());
    std::thread::spawn(move || {
        while let Ok(connection) = sys::fd_passing::accept(listener.as_fd()) {
            let (handle, call_slots) = (Handle(Arc::clone(&fake)), Arc::clone(&call_slots));
            std::thread::spawn(move || serve(&handle, &call_slots, &connection));
        }
    });
}

/// By call slot: the last call, and its answer once there is one.
#[derive(Default)]
struct CallSlots {
    last: Mutex<HashMap<u32, (u64, Option<Answer>)>>,
    changed: Condvar,
}

impl CallSlots {
    /// `None`: a killed broker has sent it, and its successor went on meanwhile.
    fn once(&self, ticket: Ticket, execute: impl FnOnce() -> Answer) -> Option<Answer> {
        if ticket == Ticket::UNREMEMBERED {
            return Some(execute());
        }
        let mut last = self.last.lock().unwrap();
        loop {
            match last.get(&ticket.call_slot) {
                Some((call, Some(answer))) if *call == ticket.call => {
                    return Some(answer.clone());
                }
                // Also a former call whose broker is dead: a call slot carries one at a time.
                Some((_, None)) => last = self.changed.wait(last).unwrap(),
                Some((call, Some(_))) if *call > ticket.call => return None,
                Some((_, Some(_))) | None => break,
            }
        }
        last.insert(ticket.call_slot, (ticket.call, None));
        drop(last);
        let answer = execute();
        let mut last = self.last.lock().unwrap();
        last.insert(ticket.call_slot, (ticket.call, Some(answer.clone())));
        self.changed.notify_all();
        Some(answer)
    }
}

fn serve(handle: &Handle, call_slots: &CallSlots, connection: &OwnedFd) -> io::Result<()> {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let null = std::fs::File::open("/dev/null")?;
    loop {
        let (length, _) = sys::fd_passing::receive(connection.as_fd(), &mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let request: Request = postcard::from_bytes(&buffer[..length]).map_err(io::Error::other)?;
        let answer = match request {
            Request::Hello { .. } => Answer::Welcome(Greeting {
                driver_version: handle.version().to_owned(),
                cards: handle.cards().to_vec(),
                implicit: ImplicitBytes::default(),
                started_unix_ns: 0,
            }),
            Request::Ioctl {
                file,
                kind,
                caller,
                ticket,
                cmd,
                segments,
                ..
            } => {
                let answer = call_slots.once(ticket, || {
                    let mut call = Call {
                        cmd,
                        segments: segments.into_iter().map(segment).collect(),
                        fds: Vec::new(),
                    };
                    let target = FileRef {
                        id: file,
                        kind,
                        fd: null.as_fd(),
                    };
                    let done = handle.execute(target, caller, ticket, &mut call).unwrap();
                    Answer::Done {
                        ret: done.ret,
                        segments: call.segments.into_iter().map(|it| it.bytes).collect(),
                        replaces: None,
                    }
                });
                match answer {
                    Some(answer) => answer,
                    None => return Ok(()),
                }
            }
            Request::Closed { file } => {
                handle.closed(file).unwrap();
                Answer::Ok
            }
            Request::Sums => Answer::Sums(handle.sums(&[]).unwrap().unwrap()),
            Request::EngineTimes => {
                Answer::EngineTimes(handle.engine_times().unwrap().unwrap_or_default())
            }
            Request::Incidents { after } => Answer::Incidents(handle.incidents(after).unwrap()),
            other => panic!("{other:?}"),
        };
        let bytes = postcard::to_stdvec(&answer).map_err(io::Error::other)?;
        let none: [BorrowedFd<'_>; 0] = [];
        sys::fd_passing::send(connection.as_fd(), &bytes, &none)?;
    }
}

/// The fake looks at the bytes only.
fn segment(bytes: Vec<u8>) -> Segment {
    Segment {
        address: 0,
        link: None::<Link>,
        bytes,
    }
}
