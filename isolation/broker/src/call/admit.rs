//! Which call it is, its blocks, and the verdict: what is admitted goes to the driver.

use std::fmt::Display;

use driver::{Caller, Segment};
use journal::counters::Counter;
use nvabi::errno::ENOMEM;
use nvabi::uvm;
use share::{Disposition, Passage};
use verdict::{Effect, Op, Refusal, Unknown, Verdict, page_tables};

use super::reply::{Replied, Reply, record};
use super::{NotifiedCall, ReceivedCall};
use crate::account::{Denied, JudgedCall, Origin, TransferFile};
use crate::fetch;
use crate::files::OpenFile;
use crate::files::surface;

/// What a call is, and what it does: for the first time, or after a former broker has sent it.
pub(crate) struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) effect: Effect,
    pub(crate) cmd: u32,
    pub(crate) caller: Caller,
    pub(crate) file: &'a OpenFile,
}

impl Request<'_> {
    /// The call with these blocks, as the account sees it.
    pub(crate) fn judged<'s>(
        &'s self,
        segments: &'s [Segment],
        transfer_file: TransferFile,
    ) -> JudgedCall<'s> {
        JudgedCall {
            op: &self.op,
            effect: &self.effect,
            segments,
            origin: Origin {
                file: self.file.id,
                process: self.caller.tgid,
                transfer_file,
            },
        }
    }
}

/// A call that the driver is to execute.
pub(crate) struct AdmittedCall<'a> {
    pub(super) request: Request<'a>,
    pub(super) segments: Vec<Segment>,
    /// The gates that it has passed.
    pub(super) passage: Passage<'a>,
}

impl<'c> ReceivedCall<'c> {
    /// Copies the call's blocks, judges it, and has it pass the gates of the container's share.
    ///
    /// # Errors
    /// The reply of a call that does not go to the driver, or that it has executed already.
    pub(super) fn admit<'a>(&mut self, file: &'a OpenFile) -> Result<AdmittedCall<'a>, Reply>
    where
        'c: 'a,
    {
        let call = self.call;
        let (container, args) = (call.container, call.notification.args);
        let release = container.driver.release;
        let cmd = u32::try_from(args[1] & 0xffff_ffff).unwrap_or_default();
        let op = verdict::op(surface(file.kind), cmd, release)
            .map_err(|refusal| call.report(&format_args!("ioctl {cmd:#x}"), refusal, None))?;
        let mut argument = fetch::argument(call.notification.tid, &op, args[2], release)
            .map_err(|refusal| call.report(&op.name(), refusal, None))?;
        // Before it is compared with what was sent for it before.
        page_tables::defer_in_argument(&op, &mut argument.bytes);
        if self.turn.is_repetition() && !call.still_waits() {
            return Err(Reply::GivenUp);
        }
        if let Some(finished) = self.turn.undelivered(&argument.bytes) {
            container.counters.count(Counter::Replayed);
            return Err(Reply::Finished(finished));
        }
        let mut segments = vec![argument];
        let effect = match call.judge(&op, &mut segments) {
            Ok(effect) => effect,
            Err(refusal) => {
                return Err(call.report(&op.name(), refusal, segments.into_iter().next()));
            }
        };
        if !call.still_waits() {
            // The thread number may be another's by now, and so the memory that was read.
            return Err(Reply::GivenUp);
        }
        let request = Request {
            op,
            effect,
            cmd,
            caller: self.caller,
            file,
        };
        if let Some(reply) = call.without_the_driver(&request, &segments) {
            return Err(reply);
        }
        let argument = |segments: Vec<Segment>| segments.into_iter().next();
        match container
            .share
            .disposition(&request.effect, &segments, &|| call.still_waits())
        {
            Disposition::Goes(passage) => Ok(AdmittedCall {
                request,
                segments,
                passage,
            }),
            Disposition::Answered => Err(Reply::answered(&op, release, argument(segments))),
            Disposition::Refused(status) => {
                let refusal = op.refuse(status, release);
                Err(call.report(&op.name(), refusal, argument(segments)))
            }
            Disposition::GivenUp => Err(Reply::GivenUp),
        }
    }
}

impl NotifiedCall<'_> {
    /// Copies what the struct points to, and asks for the verdict.
    fn judge(&self, op: &Op, segments: &mut Vec<Segment>) -> Result<Effect, Refusal> {
        let container = self.container;
        let release = container.driver.release;
        if let Err(refusal) = fetch::parameters(self.notification.tid, op, segments, release) {
            let argument = segments.first();
            let unknown = argument.and_then(|arg| Unknown::named(op, &arg.bytes));
            if let Some(call) = unknown {
                container.health.unknown(call);
            }
            return Err(refusal);
        }
        if let [argument, parameters, ..] = segments.as_mut_slice() {
            page_tables::defer_in_parameters(op, &argument.bytes, &mut parameters.bytes);
        }
        let views: Vec<&[u8]> = segments
            .iter()
            .map(|segment| segment.bytes.as_slice())
            .collect();
        match verdict::decide_under(op, &views, release, &container.call_rules.policy) {
            Verdict::Execute(effect) => Ok(effect),
            Verdict::Refuse(refusal) => Err(refusal),
        }
    }

    /// The reply of a call that the broker answers by itself, or that the caller executes.
    fn without_the_driver(&self, request: &Request<'_>, segments: &[Segment]) -> Option<Reply> {
        let container = self.container;
        let judged = request.judged(segments, None);
        if let Effect::Answered { .. } = request.effect {
            let found = {
                let state = container.journal.change();
                container.account.answer(&state, &judged)
            };
            let argument = segments.first().cloned();
            return Some(match found {
                Ok(()) => Reply::answered(&request.op, container.driver.release, argument),
                Err(denied) => self.deny(&request.op, denied, argument),
            });
        }
        while let Err(denied) = container.account.open_uvm_file(&container.journal, &judged) {
            if !denied.may_be_given_up() || !self.give_up_what_is_gone() {
                return Some(self.deny(&request.op, denied, segments.first().cloned()));
            }
        }
        if request.op == Op::Uvm(&uvm::UVM_INITIALIZE)
            && let Err(reply) = self.keep_memory(request)
        {
            return Some(reply);
        }
        super::hand_back::stays_in_the_caller(container.driver.binding(), &judged)
            .then(|| self.hand_back(&judged, request.file))
    }

    /// Keeps the memory that a file is initialised in: what is mapped there stays, whatever its process becomes.
    fn keep_memory(&self, request: &Request<'_>) -> Result<(), Reply> {
        let by = (self.notification.tid, request.caller.tgid);
        let files = &self.container.files;
        let kept = files.keep_memory(request.file.id, by, &|| self.still_waits());
        if !self.still_waits() {
            return Err(Reply::GivenUp);
        }
        kept.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(ENOMEM);
            self.report(&"UVM_INITIALIZE", Refusal::Errno(errno), None)
        })
    }

    /// Logs a refusal, which is the call's reply.
    fn report(&self, call: &dyn Display, refusal: Refusal, argument: Option<Segment>) -> Reply {
        self.container.health.refused(call, &Replied(refusal));
        Reply::refused(refusal, argument)
    }

    /// Counts and logs a refusal of the account's, which is the call's reply.
    pub(super) fn deny(&self, op: &Op, denied: Denied, argument: Option<Segment>) -> Reply {
        Reply::refused(record(&self.container.health, op.name(), denied), argument)
    }
}
