//! Going on where a killed broker was.
//!
//! Every call slot in which a call was left is taken up by a thread of its own, before any new call is taken:
//!
//! | journal            | the call waits        | it waits no more |
//! |--------------------|-----------------------|------------------|
//! | not begun          | served afresh         | nothing; if it was being answered, what is kept for its thread is settled, before any call is served |
//! | begun (in doubt)   | asked of the driver again under the same ticket, committed, answered | the same, kept as undelivered |
//! | finished           | answered              | kept as undelivered; if it was being answered, as answered |
//!
//! A call in doubt that cannot be asked again fails with EIO, and what it holds of the account stays held as long as the container: the driver
//! may have executed it.
//!
//! What is in doubt is asked again as the journal has it, never from another look at the tenant's memory; an executor that
//! remembers tickets does it once. Calls in doubt hold their places in [`crate::order`] before a new call can take one, as they
//! did before.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Barrier};

use driver::{Attempt, Caller, FdSlot, Ticket};
use journal::Journal;
use journal::shared_state::{CallSlot, Phase};
use journal::state::{self, Answer, Begun, Finished, OpenCall};
use journal::state::{CallKey, ChangesAccount, End};
use supervisor::scarce;
use sys::seccomp::Notification;
use verdict::Verdict;

use crate::account::InDriver;
use crate::call::admit::Request;
use crate::call::begin::{BegunCall, Held};
use crate::call::commit::end;
use crate::container::Container;
use crate::files::{FileTable, Lookup, surface};
use crate::replay::ThreadTurn;
use crate::workers::Session;

/// Takes up what was left behind, then lets all sessions take new calls.
///
/// # Errors
/// A thread cannot be started. Calls that were not taken up stay in the shared state, for the next broker.
pub fn resume(container: &Arc<Container>, sessions: &[Arc<Session>]) -> io::Result<()> {
    container.journal.change().unpin_all_but_of_open_calls();
    let is_open = |call_slot| container.journal.change().open_in(call_slot).is_some();
    let (mut begun, mut others) = (Vec::new(), Vec::new());
    for call_slot in container.shared_state.left_behind(is_open) {
        let session = sessions
            .iter()
            .find(|session| session.token() == call_slot.listener());
        let open = container
            .journal
            .change()
            .open_in(call_slot.number())
            .cloned();
        match (session.cloned(), open) {
            (session, Some(open)) => begun.push((call_slot, session, open)),
            (Some(session), None) => others.push((call_slot, session)),
            (None, None) => {}
        }
    }
    let all_in_place = Arc::new(Barrier::new(begun.len().saturating_add(1)));
    for (call_slot, session, open) in begun {
        let in_place = Arc::clone(&all_in_place);
        let in_place = move || {
            in_place.wait();
        };
        match session {
            Some(session) => session.serve_after(call_slot, move |session, call_slot| {
                finish(
                    session.container(),
                    Some(session),
                    call_slot,
                    open,
                    &in_place,
                );
            })?,
            // Its listener is gone, and so is its caller; the call is committed all the same.
            None => {
                let container = Arc::clone(container);
                let thread = std::thread::Builder::new().name("calls".to_owned());
                thread.spawn(move || finish(&container, None, &call_slot, open, &in_place))?;
            }
        }
    }
    all_in_place.wait();
    // Before any call is served: what is kept for a thread would be another call's then.
    others.retain(|(call_slot, session)| match call_slot.call() {
        Some(call) if session.listener().is_waiting(call.id) => true,
        Some(call) => {
            settle(&container.journal, call_slot, &call);
            // A native call may have hung, and has nobody any more who has it back.
            container.health.is_back(call_slot.number());
            false
        }
        None => false,
    });
    for (call_slot, session) in others {
        session.serve_after(call_slot, |session, call_slot| {
            if let Some(call) = call_slot.call() {
                session.call(call_slot, &call).serve();
            }
        })?;
    }
    for session in sessions {
        session.serve()?;
    }
    Ok(())
}

/// A call that the journal does not know as begun, and that waits no more.
fn settle(journal: &Journal, call_slot: &CallSlot, call: &Notification) {
    let mut change = journal.change();
    let key = CallKey::of(call);
    let kept = change
        .kept(call.tid)
        .map(|kept| (kept.key, kept.finished.changes_account));
    let settled = match (call_slot.phase(), kept) {
        (Phase::Answering, Some((of, ChangesAccount::Yes))) if of == key => Some(End::Answered),
        (Phase::Answering, Some((of, ChangesAccount::No))) if of == key => None,
        (Phase::Refusing, Some(_)) => None,
        (Phase::Serving | Phase::Answering | Phase::Refusing, _) => return,
    };
    change.record_op(state::Op::Keep(call.tid, settled));
}

/// A call that the journal knows as begun. `in_place` is told when later calls may come.
fn finish(
    container: &Container,
    session: Option<&Session>,
    call_slot: &CallSlot,
    open: OpenCall,
    in_place: &dyn Fn(),
) {
    let OpenCall { begun, finished } = open;
    let mut turn = container
        .replay
        .resume(&container.journal, call_slot, begun.key);
    let finished = match finished {
        Some(finished) => {
            in_place();
            finished
        }
        None => {
            if let Some(first) = begun.before.first() {
                // As its first broker did: what is kept of another call is dropped.
                let _executed_already = turn.undelivered(&first.bytes);
            }
            ask_again(container, call_slot, begun, &turn, in_place)
        }
    };
    let was_answered = call_slot.phase() == Phase::Answering;
    match call_slot.call().zip(session) {
        Some((call, session)) if session.call(call_slot, &call).still_waits() => {
            session.call(call_slot, &call).deliver(turn, &finished);
        }
        _ if was_answered => turn.delivered(&finished),
        _ => turn.keep_undelivered(),
    }
}

fn ask_again(
    container: &Container,
    call_slot: &CallSlot,
    begun: Begun,
    turn: &ThreadTurn<'_>,
    in_place: &dyn Fn(),
) -> Finished {
    let release = container.driver.release;
    let views: Vec<&[u8]> = begun
        .before
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let policy = &container.call_rules.policy;
    let decoded = verdict::op(surface(begun.kind), begun.cmd, release)
        .ok()
        .and_then(
            |op| match verdict::decide_under(&op, &views, release, policy) {
                Verdict::Execute(effect) => Some((op, effect)),
                Verdict::Refuse(_) => None,
            },
        );
    let file = container.files.in_use(begun.file);
    let (Some((op, effect)), Some(file)) = (decoded, file) else {
        in_place();
        return give_up(&container.name, &container.journal, call_slot, begun);
    };
    let request = Request {
        op,
        effect,
        cmd: begun.cmd,
        caller: begun.caller,
        file: &file,
    };
    let in_order = container.orders.take_again(&request.effect, &file);
    in_place();
    // It was let through before; gates that have closed since are not passed by it.
    let passage = container.share.pass_again(&request.effect, &begun.before);
    // A call that is given up here may have been executed: descriptors that are lacking are waited for.
    let fds = match scarce::wait_out(|| true, || descriptors(&container.files, &begun)) {
        Ok(fds) => fds,
        Err(error) => {
            tracing::error!(error = %error, "a descriptor of a call in doubt");
            return give_up(&container.name, &container.journal, call_slot, begun);
        }
    };
    let again = BegunCall {
        request,
        ticket: Ticket {
            call_slot: call_slot.number(),
            call: begun.number,
        },
        attempt: Attempt::Again,
        before: begun.before,
        fds,
        reservation: begun.reservation,
        held: Held {
            _in_order: in_order,
            _card_file: None,
            _passage: passage,
            in_driver: InDriver::default(),
        },
    };
    again.execute(container).commit(container, turn)
}

/// The descriptors that the struct names. The tenant may have closed one that is none of the driver's: a driver that has
/// executed the call already does not look at it, one that has not finds `/dev/null`.
fn descriptors(files: &FileTable, begun: &Begun) -> io::Result<Vec<FdSlot>> {
    let mut slots = Vec::new();
    for named in &begun.fds {
        let fd: OwnedFd = match named.file {
            Some((id, _)) => match files.in_use(id) {
                Some(file) => file.fd.try_clone()?,
                None => File::open("/dev/null")?.into(),
            },
            None => foreign(files, begun.caller, named.number)
                .map_or_else(|| File::open("/dev/null").map(OwnedFd::from), Ok)?,
        };
        slots.push(FdSlot {
            segment: named.segment,
            at: named.at,
            number: named.number,
            file: named.file,
            fd,
        });
    }
    Ok(slots)
}

fn foreign(files: &FileTable, caller: Caller, number: i32) -> Option<OwnedFd> {
    match files.look_up((caller.tid, caller.tgid), number) {
        Lookup::Foreign(fd) => Some(fd),
        Lookup::Ours(_) | Lookup::TooMany | Lookup::Untraceable | Lookup::Failed(_) => None,
    }
}

/// A call that this broker cannot ask again: another version's verdict, or a file that nobody has. The driver may have executed it, and nobody
/// can name what it has made to have it freed: that stays charged.
fn give_up(name: &str, journal: &Journal, call_slot: &CallSlot, begun: Begun) -> Finished {
    tracing::error!(
        container = name,
        cmd = begun.cmd,
        "a call that a former broker began cannot be asked again"
    );
    let mut change = journal.change();
    change.leave_in_doubt(&begun.reservation);
    let answer = Answer {
        ret: -nvabi::errno::EIO,
        after: Arc::clone(&begun.before),
        replaces: None,
        changes_account: ChangesAccount::No,
    };
    let ticket = Ticket {
        call_slot: call_slot.number(),
        call: begun.number,
    };
    end(&mut change, ticket, begun.before, answer)
}
