//! One notified call, from the kernel's question to our answer.
//!
//! ```text
//! NotifiedCall ─▶ ReceivedCall ─▶ AdmittedCall ─▶ BegunCall ─▶ ExecutedCall ─▶ Finished ─▶ answered
//!    receive         admit           begin         execute         commit        deliver
//! ```
//!
//! Each step consumes what the one before it has made, and owns what the next one needs:
//!
//! - *receive*: who calls, and in whose turn (one call of a thread at a time);
//! - *admit*: whose file, which call, a copy of its blocks, the verdict, and the gates of the container's share;
//! - *begin*: what the call needs is reserved, and the journal knows that it goes to the driver;
//! - *execute*: the driver executes the copy;
//! - *commit*: the reservation is committed or rolled back, and the journal knows the answer;
//! - *deliver*: the answer is written back and given.
//!
//! A step that ends the call before its time returns a [`Reply`] instead.
//!
//! Each of *begun*, *finished* and *settled* is one frame of the journal: whichever was the last when the broker was killed says
//! what a successor has to do ([`crate::resume`]). Calls that are refused before they are begun leave nothing behind, and are
//! served afresh.
//!
//! The tenant's memory is read once, before the verdict, and what the driver executes is that copy.

pub(crate) mod admit;
mod again;
pub(crate) mod begin;
mod claim;
pub(crate) mod commit;
mod device;
pub(crate) mod execute;
mod hand_back;
pub(crate) mod lookup;
mod map;
mod mm;
pub(crate) mod reply;

use std::time::Instant;

use driver::Caller;
use journal::counters::Counter;
use journal::shared_state::CallSlot;
use journal::state::{CallKey, Finished};
use supervisor::scarce;
use sys::seccomp::{Listener, Notification};

use crate::container::Container;
use crate::files::{InUse, Lookup};
use crate::native::{self, NativeCalls};
use crate::processes::FirstSeen;
use crate::reaper::Reaper;
use crate::replay::ThreadTurn;
use crate::syscall::{AUDIT_ARCH, SYS_IOCTL, SYS_MMAP};
use reply::Reply;

use nvabi::errno::{EBADF, EMFILE, ENODEV, ENOSYS, ENOTTY, ESRCH};

/// A call that the kernel has handed over, and whoever serves it.
#[derive(Clone, Copy)]
pub struct NotifiedCall<'a> {
    /// Whose call it is.
    pub container: &'a Container,
    /// Who looks after the container's exits.
    pub reaper: &'a Reaper,
    /// Where it came from, and where its answer goes.
    pub listener: &'a Listener,
    /// Where the shared state has it.
    pub call_slot: &'a CallSlot,
    /// The kernel's words.
    pub notification: &'a Notification,
}

/// A call of a known process, in its thread's turn.
pub(crate) struct ReceivedCall<'a> {
    call: NotifiedCall<'a>,
    caller: Caller,
    turn: ThreadTurn<'a>,
}

impl<'a> NotifiedCall<'a> {
    /// Answers the call. An answer that cannot be delivered is kept for the call's repetition.
    pub fn serve(self) {
        let native = self.container.driver.native.as_ref();
        if let Some(native) = native.filter(|native| native.has(self.notification)) {
            return self.serve_native(native);
        }
        let (container, began) = (self.container, Instant::now());
        container.counters.count(Counter::Total);
        if let Some(received) = self.receive() {
            received.serve();
        }
        container.counters.took(began.elapsed());
    }

    /// Whether the caller waits for this call's answer. As long as it does, its thread number is its own.
    pub(crate) fn still_waits(&self) -> bool {
        self.listener.is_waiting(self.notification.id)
    }

    pub(crate) fn key(&self) -> CallKey {
        CallKey::of(self.notification)
    }

    fn serve_native(self, native: &NativeCalls) {
        let container = self.container;
        let requested = native::Requested {
            driver: &*container.driver,
            listener: self.listener,
            call_slot: self.call_slot.number(),
            known: &|tid, number| container.files.of_process(tid, number),
            at_driver: &|| {
                container
                    .shared_state
                    .goes_to_driver(self.call_slot.number())
            },
            is_back: &|| container.health.is_back(self.call_slot.number()),
            failed: &|error| {
                if error.is_unreachable() {
                    container.counters.count(Counter::Unreached);
                }
                let failed = Err::<(), _>(error);
                container.health.take_reach(&*container.driver, &failed);
            },
        };
        native.serve(&requested, self.notification);
    }

    /// Waits for the thread's turn; `None` when the caller waits no more, or was answered that it is not known.
    fn receive(self) -> Option<ReceivedCall<'a>> {
        let (container, tid) = (self.container, self.notification.tid);
        let process = || container.processes.of(tid);
        let (tgid, first_seen) = match scarce::wait_out(|| self.still_waits(), process) {
            Ok(known) => known,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(ESRCH);
                let _gone = self.listener.fail(self.notification.id, errno);
                return None;
            }
        };
        if first_seen == FirstSeen::Yes {
            self.reaper.watch(tgid);
        }
        container.managed.called(tid, || self.still_waits());
        let turn =
            container
                .replay
                .enter(&container.journal, self.call_slot, self.key(), || {
                    self.still_waits()
                })?;
        Some(ReceivedCall {
            call: self,
            caller: Caller { tgid, tid },
            turn,
        })
    }
}

impl ReceivedCall<'_> {
    fn serve(mut self) {
        let reply = match self.outcome() {
            Ok(finished) => Reply::Finished(finished),
            Err(reply) => reply,
        };
        self.call.reply(self.turn, reply);
    }

    fn outcome(&mut self) -> Result<Finished, Reply> {
        let notification = self.call.notification;
        if notification.arch != AUDIT_ARCH {
            return Err(Reply::Errno(ENOSYS));
        }
        // The kernel takes a descriptor as 32 bits, and none above `i32::MAX` exists.
        let low = |register: u64| u32::try_from(register & 0xffff_ffff).unwrap_or_default();
        let number = match notification.nr {
            SYS_IOCTL => low(notification.args[0]).cast_signed(),
            SYS_MMAP => low(notification.args[4]).cast_signed(),
            _ => return Err(Reply::Errno(ENOSYS)),
        };
        if number < 0 {
            return Err(Reply::Errno(EBADF));
        }
        let mut lookup = self.look_up(number);
        // Files that are closed, and were not looked for yet, take their place.
        if matches!(lookup, Lookup::TooMany) && self.call.give_up_what_is_gone() {
            lookup = self.look_up(number);
        }
        if notification.nr == SYS_MMAP {
            return Err(self.map(&lookup));
        }
        match lookup {
            Lookup::Ours(file) => self.ioctl(&file),
            // Never handed to the kernel: another thread could put a file of the driver under this number meanwhile.
            Lookup::Foreign(_) => Err(Reply::Errno(ENOTTY)),
            Lookup::TooMany => Err(Reply::Errno(EMFILE)),
            Lookup::Untraceable => Err(Reply::Errno(ENODEV)),
            Lookup::Failed(error) => Err(Reply::Errno(error.raw_os_error().unwrap_or(EBADF))),
        }
    }

    fn ioctl(&mut self, file: &InUse) -> Result<Finished, Reply> {
        let admitted = self.admit(file)?;
        let begun = self.begin(admitted)?;
        let executed = begun.execute(self.call.container);
        Ok(executed.commit(self.call.container, &self.turn))
    }
}
