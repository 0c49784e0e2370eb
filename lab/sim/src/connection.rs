//! One connection of a broker: requests in, answers out, one at a time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use driver::Ticket;
use driver::wire::{Answer, MAX_MESSAGE_BYTES, PROTOCOL, Request};

use crate::call_slots::Begun;
use crate::machine::{Machine, SessionHandle};
use crate::sealed::Sealed;
use crate::session::Called;

/// Serves a connection until its other side closes it.
///
/// # Errors
/// The socket's; a request that cannot be served is answered, which is no error.
pub(crate) fn serve(machine: &Arc<Machine>, connection: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let Some(session) = greeted(machine, connection, &mut buffer)? else {
        return Ok(());
    };
    while let Some((request, files)) = next(connection, &mut buffer)? {
        let answer = match request {
            None => unreadable(),
            Some(Request::Hello { .. }) => refused("the connection has joined a session already"),
            Some(Request::Ioctl {
                file,
                kind,
                private,
                caller,
                ticket,
                cmd,
                segments,
                fds,
            }) => {
                let called = Called {
                    file,
                    kind,
                    private,
                    caller,
                    cmd,
                    fds: &fds,
                    files,
                };
                let requested = Requested { called, segments };
                match requested.answer_once(&session, ticket, connection)? {
                    Some(sealed) => sealed.send(connection)?,
                    None => return Ok(()),
                }
                continue;
            }
            Some(Request::SameFile { file, known_as }) => {
                session.is_same_file(file, known_as);
                Answer::Ok
            }
            Some(Request::Closed { file }) => {
                session.closed(file);
                Answer::Ok
            }
            Some(Request::Account) => Answer::Account(machine.account()),
            Some(Request::Sums) => Answer::Sums(session.sums()),
            Some(Request::EngineTimes) => Answer::EngineTimes(session.engine_times()),
            Some(Request::Incidents { after }) => Answer::Incidents(session.incidents(after)),
            Some(Request::Fault(fault)) => match machine.fault(&fault) {
                Ok(()) => Answer::Ok,
                Err(reason) => Answer::Refused { reason },
            },
        };
        Sealed::new(&answer, None)?.send(connection)?;
    }
    Ok(())
}

/// The session that a connection joins with its first request; `None` where it ends before.
fn greeted(
    machine: &Arc<Machine>,
    connection: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<SessionHandle>> {
    while let Some((request, _no_files)) = next(connection, buffer)? {
        let (answer, session) = match request {
            None => (unreadable(), None),
            Some(Request::Hello { protocol, .. }) if protocol != PROTOCOL => {
                let reason = format!(
                    "protocol {protocol} is not {PROTOCOL}: broker and simulator are of different builds"
                );
                (Answer::Refused { reason }, None)
            }
            Some(Request::Hello { session, .. }) => {
                let welcome = Answer::Welcome(machine.greeting());
                (welcome, Some(machine.join(&session)))
            }
            Some(_other) => (refused("the first request must be a greeting"), None),
        };
        Sealed::new(&answer, None)?.send(connection)?;
        if session.is_some() {
            return Ok(session);
        }
    }
    Ok(None)
}

/// A request, `None` for bytes that are none, and the files beside it.
type Received = (Option<Request>, Vec<OwnedFd>);

/// The next request; `None` at the end of the connection.
fn next(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let (length, files) = sys::fd_passing::receive(connection, buffer)?;
    if length == 0 {
        return Ok(None);
    }
    let request = buffer
        .get(..length)
        .and_then(|bytes| postcard::from_bytes(bytes).ok());
    Ok(Some((request, files)))
}

/// An ioctl that was asked for.
struct Requested<'a> {
    called: Called<'a>,
    segments: Vec<Vec<u8>>,
}

impl Requested<'_> {
    /// Executes it, or finds the answer that its ticket has got before; `None` where the broker went meanwhile.
    fn answer_once(
        self,
        session: &SessionHandle,
        ticket: Ticket,
        connection: BorrowedFd<'_>,
    ) -> io::Result<Option<Arc<Sealed>>> {
        if ticket.call == Ticket::UNREMEMBERED.call {
            return Ok(Some(Arc::new(self.execute(session, connection)?)));
        }
        match session.call_slots().begin(ticket, Some(connection)) {
            Begun::Execute(under_way) => {
                let sealed = Arc::new(self.execute(session, connection)?);
                under_way.finish(sealed.clone());
                Ok(Some(sealed))
            }
            Begun::Answered(sealed) => Ok(Some(sealed)),
            Begun::Refused(reason) => {
                tracing::warn!(session = session.name(), %reason, "not executed");
                Ok(Some(Arc::new(Sealed::new(
                    &refused(&reason.to_string()),
                    None,
                )?)))
            }
            Begun::PeerGone => Ok(None),
        }
    }

    fn execute(
        mut self,
        session: &SessionHandle,
        connection: BorrowedFd<'_>,
    ) -> io::Result<Sealed> {
        let outcome = session.ioctl_for(Some(connection), &self.called, &mut self.segments);
        let (replaces, file) = outcome.replaces.unzip();
        let done = Answer::Done {
            ret: outcome.ret,
            segments: self.segments,
            replaces,
        };
        Sealed::new(&done, file)
    }
}

fn unreadable() -> Answer {
    refused("not a request of this protocol")
}

fn refused(reason: &str) -> Answer {
    Answer::Refused {
        reason: reason.to_owned(),
    }
}
