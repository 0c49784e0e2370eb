//! The driver executes a begun call on the broker's copy.

use std::sync::Arc;

use driver::{Binding, Call, Executed, FdSlot, NewFile, Segment, Ticket};
use journal::counters::Counter;
use journal::reservation::Reservation;
use ledger::{ClientHandle, ObjectHandle};
use nvabi::Release;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::errno::{EBADF, EIO};
use verdict::share::PutBack;
use verdict::{Effect, Mapping, Refusal};

use super::admit::Request;
use super::again::{has_no_handle, is_made_again};
use super::begin::{BegunCall, Held};
use super::claim::claim;
use crate::answer_files::AnswerFiles;
use crate::container::Container;

/// A call that the driver has answered, or was asked in vain.
pub(crate) struct ExecutedCall<'a> {
    pub(super) request: Request<'a>,
    pub(super) ticket: Ticket,
    pub(super) before: Arc<Vec<Segment>>,
    pub(super) fds: Vec<FdSlot>,
    pub(super) reservation: Reservation,
    pub(super) result: CallResult,
    /// The descriptor that a file of the answer's is to replace.
    pub(super) replaces: Option<i32>,
    /// Nobody knows whether the driver has executed it.
    pub(super) is_in_doubt: bool,
    pub(super) held: Held<'a>,
}

impl<'a> BegunCall<'a> {
    /// Has the driver execute the call. A file that the answer brings is kept for the caller.
    pub(crate) fn execute(self, container: &Container) -> ExecutedCall<'a> {
        let Self {
            request,
            ticket,
            attempt,
            before,
            fds,
            reservation,
            held,
        } = self;
        let mut call = Call {
            cmd: request.cmd,
            segments: before.as_ref().clone(),
            fds,
        };
        let driver = &container.driver;
        let mapping = mapping(container, &request.effect);
        let put_back = narrow(driver.binding(), (&request, mapping), &mut call.segments);
        container.shared_state.goes_to_driver(ticket.call_slot);
        let shown = driver.show(request.file, &call.fds);
        let is_again = is_made_again(attempt, driver.binding());
        let claimed = match &shown {
            Ok(()) if is_again && has_no_handle(&request, &before) => Err(Refusal::Errno(EIO)),
            Ok(()) => claim(container, &request, ticket, (&before, &call.fds)),
            Err(_) => Ok(()),
        };
        let done = shown.and_then(|()| match &claimed {
            Ok(()) => {
                let target = request.file.for_driver();
                driver.execute(target, request.caller, ticket, &mut call)
            }
            Err(_) => Ok(Executed::default()),
        });
        container.health.is_back(ticket.call_slot);
        container.health.take_reach(&**driver, &done);
        for own in &put_back {
            if let Some(block) = call.segments.get_mut(own.segment()) {
                own.apply(&mut block.bytes);
            }
        }
        let mut executed = ExecutedCall {
            is_in_doubt: matches!(&done, Err(error) if error.is_in_doubt(attempt)),
            result: CallResult::errno(0, &before),
            request,
            ticket,
            before,
            fds: call.fds,
            reservation,
            replaces: None,
            held,
        };
        match done {
            Ok(done) => {
                container.counters.count(Counter::Executed);
                executed.result = match claimed {
                    Ok(()) => CallResult {
                        ret: done.ret,
                        after: call.segments,
                    },
                    Err(refusal) => CallResult::refused(refusal, &executed.before),
                };
                if let Some(file) = done.new_file {
                    executed.keep(&container.answers, file);
                }
            }
            Err(error) => {
                if error.is_unreachable() {
                    container.counters.count(Counter::Unreached);
                }
                let name = executed.request.op.name();
                container.health.refused(&name, &error);
                executed.result = CallResult::errno(error.errno(), &executed.before);
            }
        }
        if is_again {
            executed.judge_repetition(driver.release);
        }
        executed
    }
}

impl ExecutedCall<'_> {
    /// Whether the driver has done what was asked.
    pub(super) fn has_succeeded(&self, release: Release) -> bool {
        let status = self
            .request
            .op
            .status_at(release)
            .and_then(|at| u32_at(&self.result.after.first()?.bytes, at))
            .unwrap_or_default();
        self.result.ret >= 0 && status == 0
    }

    /// Keeps a file of the answer's; a call whose file cannot be kept has failed.
    fn keep(&mut self, answers: &AnswerFiles, file: NewFile) {
        match answers.keep(self.ticket.call, file.fd) {
            Ok(()) => self.replaces = Some(file.replaces),
            Err(error) => {
                tracing::error!(error = %error, "a file of an answer could not be kept");
                let errno = error.raw_os_error().unwrap_or(EBADF);
                self.result = CallResult::errno(errno, &self.before);
            }
        }
    }
}

/// Replaces what would take more of a card's time than a tenant may have, what would make a real driver reach beyond the container,
/// and what it would answer about others; what was there is returned.
fn narrow(
    binding: Binding,
    (request, mapping): (&Request<'_>, Option<Mapping>),
    segments: &mut [Segment],
) -> Vec<PutBack> {
    let op = &request.op;
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let mut narrowings = verdict::schedule::bounds(op, &views);
    narrowings.extend(verdict::cleared(op, &views, mapping));
    narrowings.extend(verdict::own_space(op, &views));
    if let Effect::View(view) = &request.effect {
        narrowings.extend(verdict::view::narrowings(view, &views));
    }
    // A simulated driver has nobody beyond its sessions.
    if binding != Binding::None {
        narrowings.extend(verdict::narrow(op, &views));
    }
    narrowings
        .iter()
        .filter_map(|narrowing| {
            let block = segments.get_mut(usize::from(narrowing.segment))?;
            narrowing.apply(&mut block.bytes)
        })
        .collect()
}

/// The classes of what a MAP_MEMORY_DMA maps, and of what it maps into; `None` of other calls. Both have been found.
fn mapping(container: &Container, effect: &Effect) -> Option<Mapping> {
    let Effect::MapDma {
        client,
        dma,
        memory,
        ..
    } = *effect
    else {
        return None;
    };
    let state = container.journal.change();
    let class = |object| {
        let found = state
            .ledger
            .object(ClientHandle(client), ObjectHandle(object));
        found.map(|object| object.class)
    };
    Some(Mapping {
        mapper: class(dma)?,
        mapped: class(memory)?,
    })
}

/// What the tenant is to see.
pub(super) struct CallResult {
    /// What the ioctl returns; a negative one is an errno.
    pub(super) ret: i32,
    /// The blocks as they are to be written back.
    pub(super) after: Vec<Segment>,
}

impl CallResult {
    pub(super) fn errno(errno: i32, before: &[Segment]) -> Self {
        Self {
            ret: errno.saturating_neg(),
            after: before.to_vec(),
        }
    }

    pub(super) fn refused(refusal: Refusal, before: &[Segment]) -> Self {
        match refusal {
            Refusal::Errno(errno) => Self::errno(errno, before),
            Refusal::Status { status, at } => {
                let mut after = before.to_vec();
                if let Some(first) = after.first_mut() {
                    put_u32(&mut first.bytes, at, status);
                }
                Self { ret: 0, after }
            }
        }
    }
}
