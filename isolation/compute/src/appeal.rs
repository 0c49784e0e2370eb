//! A refusal on the container's own objects, until the driver has been asked on a group that the container cannot touch.
//!
//! ```text
//!            raise                    Found: what it holds stands, whatever the container's groups answered
//!   quiet ──────────▶ asking ───────▶ Failed: asked again after a while; nothing has been decided
//!     ▲                    │          Impossible: what the container's groups answered is all that there is
//!     └────────────────────┘
//! ```
//! A tenant can make its own objects answer what it likes: they end under the call, or are made so that the driver refuses them. What its card
//! can do is therefore never taken from them.

use crate::knob::KnobError;
use crate::world::Confirmed;

/// Between two questions; twice as long each time, up to [`PAUSE_MAX_NS`]. Each takes some dozen calls of the driver.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;

/// A driver that has refused a gate may have done so on a bad day: it is asked again, as long as the gate is a weaker one or none.
const AGAIN_NS: u64 = 300_000_000_000;

/// After so long without a refusal the pause is as at first.
const QUIET_NS: u64 = 600_000_000_000;

/// What was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A question of the probe, with this answer.
    Probe(Result<Option<u64>, KnobError>),
    /// The gate's call.
    Gate {
        /// The driver's name of it.
        knob: &'static str,
        /// nvstatuscodes.h.
        status: u32,
    },
    /// SET_TIMESLICE.
    Slices {
        /// nvstatuscodes.h.
        status: u32,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Appeal {
    refused: Option<Refused>,
    /// Not to be asked before.
    next_ns: u64,
    pause_ns: u64,
    raised_ns: u64,
    /// When a driver that has refused a gate is asked again.
    again_ns: Option<u64>,
}

impl Default for Appeal {
    fn default() -> Self {
        Self {
            refused: None,
            next_ns: 0,
            pause_ns: PAUSE_NS,
            raised_ns: 0,
            again_ns: None,
        }
    }
}

impl Appeal {
    /// Something was refused. The first refusal stands for those that follow until it is settled.
    pub(crate) fn raise(&mut self, now_ns: u64, refused: Refused) {
        if now_ns.saturating_sub(self.raised_ns) >= QUIET_NS {
            self.pause_ns = PAUSE_NS;
        }
        self.raised_ns = now_ns;
        self.refused.get_or_insert(refused);
    }

    /// Whether a refusal waits to be settled.
    pub(crate) fn is_open(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether the driver is to be asked now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.is_open() && now_ns >= self.next_ns
    }

    /// Whether a driver that holds less than it could is to be asked again now, though nothing more was refused.
    pub(crate) fn is_due_again(&mut self, now_ns: u64) -> bool {
        let again_ns = *self
            .again_ns
            .get_or_insert_with(|| now_ns.saturating_add(AGAIN_NS));
        !self.is_open() && now_ns >= again_ns
    }

    /// It was asked again, or holds all that it could.
    pub(crate) fn rest(&mut self) {
        self.again_ns = None;
    }

    /// Takes in what was confirmed; what is settled by it, with the refusal that it was about.
    pub(crate) fn settle(&mut self, now_ns: u64, confirmed: &Confirmed) -> Option<Refused> {
        match confirmed {
            Confirmed::Asking => return None,
            Confirmed::Found(_) | Confirmed::Failed => {
                self.next_ns = now_ns.saturating_add(self.pause_ns);
                self.pause_ns = self.pause_ns.saturating_mul(2).min(PAUSE_MAX_NS);
            }
            Confirmed::Impossible => {}
        }
        match confirmed {
            Confirmed::Found(_) | Confirmed::Impossible => self.refused.take(),
            Confirmed::Asking | Confirmed::Failed => None,
        }
    }
}
