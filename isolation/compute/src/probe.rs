//! Which knobs a driver accepts, tried on the first channel group that is seen, before it has work.
//!
//! ```text
//! GET_TIMESLICE ─▶ SET the same ─▶ DISABLE after its slice ─▶ enable ─────────────────────────▶ Done (enforcement level 3)
//!      └ refused: SET what the layout says    └ refused: GPFIFO_SCHEDULE off ─▶ on ───────────▶ Done (enforcement level 2)
//!                                                              └ refused ─────────────────────▶ Done (enforcement level 1, or 0)
//! ```
//! A group that goes away meanwhile ends nothing: the step is made on the next one.

use plan::EnforcementLevel;

use crate::channel_states::{ChannelStates, GateCall, Moved, Toward};
use crate::knob::{Group, Knob, KnobError, Objects};
use crate::reason::Reason;

/// What a driver was found to let be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which knobs work.
    pub enforcement_level: EnforcementLevel,
    /// Why not all of them.
    pub reason: Option<Reason>,
    /// The status with which SET_TIMESLICE was refused, if it was.
    pub slices_refused: Option<u32>,
    /// The last knob of the gate that was refused, and the status.
    pub gate_refused: Option<(&'static str, u32)>,
}

/// No driver is asked more than that: each question is put once, to the gate's two knobs.
const QUESTIONS_MAX: usize = 16;

/// Puts all the questions to one group that nobody else uses, on the card of number 0, as a governor puts them to its container's.
///
/// # Errors
/// The first call that did not reach the driver, or whose object it does not know: then nothing was found out.
pub fn try_knobs(
    group: &Group,
    pull: &mut dyn FnMut(&Knob) -> Result<Option<u64>, KnobError>,
) -> Result<Found, KnobError> {
    let objects = Objects {
        generation: 1,
        groups: vec![group.clone()],
    };
    let (mut probe, mut channel_states) = (Probe::new(), ChannelStates::default());
    for _question in 0..QUESTIONS_MAX {
        channel_states.follow(&objects, probe.learnt().gate_call);
        if probe.is_done() {
            break;
        }
        let Some(knob) = probe.pull(0, group, plan::slice::DEFAULT_US, &mut channel_states) else {
            break;
        };
        let answer = pull(&knob);
        channel_states.moved(&knob, Moved::by(&answer));
        if let Err(error @ (KnobError::Lost(_) | KnobError::Gone)) = answer {
            return Err(error);
        }
        probe.answered(&answer);
    }
    if !probe.is_done() || channel_states.any_closed() {
        return Err(KnobError::Lost("the questions have no end".to_owned()));
    }
    let learnt = probe.learnt();
    Ok(Found {
        enforcement_level: learnt.enforcement_level(),
        reason: learnt.reason(),
        slices_refused: learnt.slices_refused,
        gate_refused: learnt.gate_refused,
    })
}

/// What has been learnt of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learnt {
    /// The status with which SET_TIMESLICE was refused.
    pub(crate) slices_refused: Option<u32>,
    /// By what the gate moves.
    pub(crate) gate_call: GateCall,
    /// The last knob of the gate that was refused, and the status.
    pub(crate) gate_refused: Option<(&'static str, u32)>,
}

impl Learnt {
    /// Which knobs work.
    pub(crate) fn enforcement_level(&self) -> EnforcementLevel {
        match (self.gate_call, self.slices_refused) {
            (GateCall::Channels, _) => EnforcementLevel::Gate,
            (GateCall::Groups, _) => EnforcementLevel::Schedule,
            (GateCall::None, None) => EnforcementLevel::Slices,
            (GateCall::None, Some(_)) => EnforcementLevel::Freezer,
        }
    }

    /// Which one was refused, if any was.
    pub(crate) fn reason(&self) -> Option<Reason> {
        let refused = |knob: &str, status| Reason::Refused {
            knob: knob.to_owned(),
            status,
        };
        let gate = self.gate_refused;
        gate.map(|(knob, status)| refused(knob, status))
            .or_else(|| {
                self.slices_refused
                    .map(|status| refused("SET_TIMESLICE", status))
            })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Write { slice_us: Option<u64> },
    Close,
    Reopen,
    Done,
}

/// The questions, and how far they have got.
#[derive(Debug)]
pub(crate) struct Probe {
    step: Step,
    learnt: Learnt,
}

impl Probe {
    pub(crate) fn new() -> Self {
        Self {
            step: Step::Read,
            learnt: Learnt {
                slices_refused: None,
                gate_call: GateCall::Channels,
                gate_refused: None,
            },
        }
    }

    /// What a predecessor learnt needs no asking.
    pub(crate) fn resume(&mut self, enforcement_level: Option<EnforcementLevel>) {
        let Some(enforcement_level) = enforcement_level else {
            return;
        };
        self.step = Step::Done;
        self.learnt.gate_call = match enforcement_level {
            EnforcementLevel::Gate => GateCall::Channels,
            EnforcementLevel::Schedule => GateCall::Groups,
            EnforcementLevel::Slices => GateCall::None,
            // Too little to go on without asking.
            EnforcementLevel::Doorbell | EnforcementLevel::Freezer => {
                self.step = Step::Read;
                GateCall::Channels
            }
        };
    }

    /// What was found out on a group that the container cannot touch is before whatever its own have answered.
    pub(crate) fn take(&mut self, found: &Found) {
        self.resume(Some(found.enforcement_level));
        self.step = Step::Done;
        self.learnt.slices_refused = found.slices_refused;
        self.learnt.gate_refused = found.gate_refused;
        if matches!(
            found.enforcement_level,
            EnforcementLevel::Doorbell | EnforcementLevel::Freezer
        ) {
            self.learnt.gate_call = GateCall::None;
        }
    }

    /// SET_TIMESLICE was refused in later life.
    pub(crate) fn refuse_slices(&mut self, status: u32) {
        self.learnt.slices_refused = Some(status);
    }

    /// What is known by now.
    pub(crate) fn learnt(&self) -> Learnt {
        self.learnt
    }

    /// Whether a refusal of the last question would make a knob a weaker one.
    pub(crate) fn would_weaken(&self) -> bool {
        !matches!(self.step, Step::Read | Step::Done)
    }

    /// Whether nothing is left to ask.
    pub(crate) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// A knob of the gate was refused in later life: the next weaker one is tried.
    pub(crate) fn demote(&mut self, knob: &'static str, status: u32) {
        self.learnt.gate_refused = Some((knob, status));
        (self.learnt.gate_call, self.step) = match self.learnt.gate_call {
            GateCall::Channels => (GateCall::Groups, Step::Close),
            GateCall::Groups | GateCall::None => (GateCall::None, Step::Done),
        };
    }

    /// The next question to this group. The gate's own are asked through `channel_states`, so that what a question closes is known to be closed.
    pub(crate) fn pull(
        &mut self,
        card: usize,
        group: &Group,
        slice_us: u64,
        channel_states: &mut ChannelStates,
    ) -> Option<Knob> {
        let (client, handle) = (group.client, group.handle);
        match self.step {
            Step::Read => Some(Knob::GetTimeslice {
                card,
                client,
                group: handle,
            }),
            Step::Write { slice_us: found } => Some(Knob::SetTimeslice {
                card,
                client,
                group: handle,
                slice_us: found.unwrap_or(slice_us),
            }),
            Step::Close => channel_states.pull(card, Toward::Closed, true),
            Step::Reopen => {
                let knob = channel_states.pull(card, Toward::Open, false);
                if knob.is_none() {
                    // What was closed has gone meanwhile.
                    self.step = Step::Done;
                }
                knob
            }
            Step::Done => None,
        }
    }

    /// Takes in an answer to the last question.
    pub(crate) fn answered(&mut self, answer: &Result<Option<u64>, KnobError>) {
        match (self.step, answer) {
            (_, Err(KnobError::Lost(_) | KnobError::Gone)) | (Step::Done, _) => {}
            (Step::Read, Ok(found)) => {
                // A driver that answers nothing sensible is asked with a slice of ours.
                let slice_us = found.filter(|slice_us| (1..=10_000_000).contains(slice_us));
                self.step = Step::Write { slice_us };
            }
            (Step::Read, Err(KnobError::Status(_))) => {
                self.step = Step::Write { slice_us: None };
            }
            (Step::Write { .. }, Ok(_)) => self.step = Step::Close,
            (Step::Write { .. }, Err(KnobError::Status(status))) => {
                self.learnt.slices_refused = Some(*status);
                self.step = Step::Close;
            }
            (Step::Close, Ok(_)) => self.step = Step::Reopen,
            (Step::Reopen, Ok(_)) => self.step = Step::Done,
            (Step::Close | Step::Reopen, Err(KnobError::Status(status))) => {
                let knob = self.learnt.gate_call.knob();
                self.demote(knob, *status);
            }
        }
    }
}

impl GateCall {
    /// The driver's name of the call.
    pub(crate) fn knob(self) -> &'static str {
        match self {
            Self::Channels => "FIFO_DISABLE_CHANNELS",
            Self::Groups => "GPFIFO_SCHEDULE",
            Self::None => "no gate",
        }
    }
}
