//! How a call ends, and how its caller learns it.

use std::fmt::Display;
use std::os::fd::AsFd;

use driver::Segment;
use journal::counters::Counter;
use journal::shared_state::Phase;
use journal::state::ChangesAccount;
use journal::state::Finished;
use nvabi::Release;
use nvabi::bytes::put_u32;
use nvabi::errno::{EBADF, EFAULT, EINVAL};
use nvabi::status::NV_OK;
use verdict::{Op, Refusal};

use super::NotifiedCall;
use crate::account::{Denied, Why};
use crate::fetch::Blocks;
use crate::health::Health;
use crate::memories::Target;
use crate::replay::ThreadTurn;

/// How a call ends.
#[derive(Debug)]
pub(super) enum Reply {
    /// Its blocks are written back and the ioctl returns a value.
    Finished(Finished),
    /// The ioctl fails, nothing is written.
    Errno(i32),
    /// The struct gets a status, and the ioctl returns 0.
    Status {
        argument: Segment,
        status: u32,
        at: usize,
    },
    /// The struct gets the status of success, and the ioctl returns 0: no driver was asked.
    Answered { argument: Segment, at: usize },
    /// The kernel executes it in the caller.
    Proceed,
    /// The caller waits no more.
    GivenUp,
}

impl Reply {
    /// Success, without a driver.
    pub(super) fn answered(op: &Op, release: Release, argument: Option<Segment>) -> Self {
        match (argument, op.status_at(release)) {
            (Some(argument), Some(at)) => Self::Answered { argument, at },
            _ => Self::Errno(EINVAL),
        }
    }

    pub(super) fn refused(refusal: Refusal, argument: Option<Segment>) -> Self {
        match (refusal, argument) {
            (Refusal::Errno(errno), _) => Self::Errno(errno),
            (Refusal::Status { status, at }, Some(argument)) => Self::Status {
                argument,
                status,
                at,
            },
            (Refusal::Status { .. }, None) => Self::Errno(EINVAL),
        }
    }
}

impl NotifiedCall<'_> {
    /// Gives the caller its reply. Of a refusal nothing is kept.
    pub(super) fn reply(self, turn: ThreadTurn<'_>, reply: Reply) {
        let container = self.container;
        match reply {
            Reply::Finished(finished) => self.deliver(turn, &finished),
            Reply::Errno(errno) => {
                self.hold_up();
                self.call_slot.set_phase(Phase::Refusing);
                // A caller that waits no more has not seen the refusal, and will ask again.
                if self.listener.fail(self.notification.id, errno).is_ok() {
                    container.looked.forget(self.key());
                    turn.refused();
                }
            }
            Reply::Status {
                argument,
                status,
                at,
            } => {
                self.hold_up();
                self.give_status(turn, argument, (at, status));
            }
            Reply::Answered { argument, at } => {
                container.counters.count(Counter::Answered);
                self.give_status(turn, argument, (at, NV_OK));
            }
            Reply::Proceed => {
                container.counters.count(Counter::Continued);
                self.call_slot.set_phase(Phase::Refusing);
                if self.listener.proceed(self.notification.id).is_ok() {
                    container.looked.forget(self.key());
                    turn.refused();
                }
            }
            Reply::GivenUp => {}
        }
    }

    /// Counts a refusal, and lets a container wait whose refusals are too many.
    fn hold_up(&self) {
        self.container.counters.count(Counter::Refused);
        self.container.health.hold_up();
    }

    /// Gives a call its status; nothing of it is kept.
    fn give_status(&self, turn: ThreadTurn<'_>, argument: Segment, (at, status): (usize, u32)) {
        let container = self.container;
        let mut answered = argument.clone();
        put_u32(&mut answered.bytes, at, status);
        let target = container.memories.of(self.notification.tid);
        if self.still_waits() {
            let blocks = Blocks {
                before: &[argument],
                after: &[answered],
            };
            let written = self.write_back(target, &blocks);
            self.call_slot.set_phase(Phase::Refusing);
            let answered = match written {
                Ok(()) => self.listener.answer(self.notification.id, 0),
                Err(_unwritable) => self.listener.fail(self.notification.id, EFAULT),
            };
            if answered.is_ok() {
                container.looked.forget(self.key());
                turn.refused();
            }
        }
    }

    /// Gives a finished call its answer, if it still waits.
    pub(crate) fn deliver(&self, turn: ThreadTurn<'_>, finished: &Finished) {
        let container = self.container;
        // Before the look whether it waits: then it is this caller's.
        let target = container.memories.of(self.notification.tid);
        if !self.still_waits() {
            return turn.keep_undelivered();
        }
        if let Some(replaces) = finished.replaces
            && let Err(errno) = self.give_file(finished.number, replaces)
        {
            return self.fail_without_file(turn, errno);
        }
        let blocks = Blocks {
            before: &finished.before,
            after: &finished.after,
        };
        let written = self.write_back(target, &blocks);
        self.call_slot.set_phase(Phase::Answering);
        let (listener, id) = (self.listener, self.notification.id);
        let answered = match written {
            Ok(()) if finished.ret < 0 => listener.fail(id, finished.ret.saturating_neg()),
            Ok(()) => listener.answer(id, i64::from(finished.ret)),
            Err(_unwritable) => listener.fail(id, EFAULT),
        };
        match answered {
            Ok(()) => {
                container.looked.forget(self.key());
                turn.delivered(finished);
                if finished.replaces.is_some() && finished.changes_account == ChangesAccount::No {
                    container.answers.give_up(finished.number);
                }
            }
            Err(_gone) => turn.keep_undelivered(),
        }
    }

    /// Puts the file of an answer under the caller's number.
    ///
    /// # Errors
    /// The errno of a call whose file cannot be given.
    fn give_file(&self, answer: u64, replaces: i32) -> Result<(), i32> {
        let container = self.container;
        let Some(file) = container.answers.of(answer) else {
            tracing::error!("the file of an answer is gone");
            return Err(EBADF);
        };
        let errno = |error: &std::io::Error| error.raw_os_error().unwrap_or(EBADF);
        self.listener
            .replace_descriptor(self.notification.id, replaces, file.as_fd())
            .map_err(|error| {
                tracing::debug!(error = %error, "a file could not be handed to the caller");
                errno(&error)
            })?;
        // Not before: the tenant holds it now, so that nobody takes it for one that is given up.
        container.files.take_in(file.as_fd()).map_err(|error| {
            tracing::debug!(error = %error, "a file of an answer could not be taken in");
            errno(&error)
        })?;
        Ok(())
    }

    /// A caller that waits must not wait for ever because its file cannot be given to it: its call fails. One that waits no more has
    /// not seen that, and asks again.
    fn fail_without_file(&self, turn: ThreadTurn<'_>, errno: i32) {
        self.call_slot.set_phase(Phase::Answering);
        match self.listener.fail(self.notification.id, errno) {
            Ok(()) => turn.failed(),
            Err(_gone) => turn.keep_undelivered(),
        }
    }

    fn write_back(&self, target: Target, blocks: &Blocks<'_>) -> Result<(), Refusal> {
        let (memories, tid) = (&self.container.memories, self.notification.tid);
        blocks.write_back(memories, tid, target, &|| self.still_waits())
    }
}

/// Counts a refusal of the account's and says why.
pub(super) fn record(health: &Health, call: &str, denied: Denied) -> Refusal {
    let Denied { refusal, why } = denied;
    if let Why::Ledger(why @ ledger::Refusal::OverQuota { card, .. }) = &why {
        health.counters.count(Counter::OverQuota(*card));
        health.over_quota(why);
    }
    health.refused(&call, &why);
    refusal
}

/// What the tenant gets, for the log.
pub(super) struct Replied(pub(super) Refusal);

impl Display for Replied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Refusal::Errno(errno) => write!(f, "errno {errno}"),
            Refusal::Status { status, .. } => write!(f, "status {status:#x}"),
        }
    }
}
