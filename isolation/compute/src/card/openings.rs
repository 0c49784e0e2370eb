//! When a gate is open though the layout says otherwise: in a neighbour's segment, and before it was closed for too long.

use crate::CLOSED_MAX_NS;

/// How long a gate that was closed for too long is open: it is a neighbour's time.
const RESCUED_NS: u64 = 5_000_000;

/// How long before [`CLOSED_MAX_NS`] a gate is opened in spite of the layout: a call has to be made by then.
const RESCUE_NS: u64 = 200_000_000;

/// Times on the governor's clock; 0: not.
#[derive(Debug)]
pub(super) struct Openings {
    closed_since_ns: Option<u64>,
    rescued_until_ns: u64,
    /// What such openings have given it, and nobody has charged yet.
    rescued_ns: u64,
    /// A neighbour that has no work lends its segment until then.
    pub(super) borrowed_until_ns: u64,
    /// When the next segment begins that may be lent; `u64::MAX`: none does.
    pub(super) look_at_lenders_ns: u64,
}

impl Default for Openings {
    fn default() -> Self {
        Self {
            closed_since_ns: None,
            rescued_until_ns: 0,
            rescued_ns: 0,
            borrowed_until_ns: 0,
            look_at_lenders_ns: u64::MAX,
        }
    }
}

impl Openings {
    /// Whether the gate is to be open for one of these reasons; what is borrowed ends before by the time that a close takes.
    pub(super) fn is_open(&self, now_ns: u64, closing_ns: u64) -> bool {
        now_ns < self.rescued_until_ns || now_ns < self.borrowed_until_ns.saturating_sub(closing_ns)
    }

    /// When one of them changes.
    pub(super) fn next_ns(&self, closing_ns: u64) -> [u64; 3] {
        [
            self.rescued_until_ns,
            self.borrowed_until_ns.saturating_sub(closing_ns),
            self.look_at_lenders_ns,
        ]
    }

    /// When a gate that stays closed is opened all the same.
    pub(super) fn rescue_ns(&self) -> Option<u64> {
        let since_ns = self.closed_since_ns?;
        Some(since_ns.saturating_add(CLOSED_MAX_NS - RESCUE_NS))
    }

    /// The last start of a segment that may be left out: the one after it comes before the gate has been closed for too long.
    pub(super) fn needed_ns(&self, now_ns: u64, window_ns: u64) -> u64 {
        let since_ns = self.closed_since_ns.unwrap_or(now_ns);
        let most_ns = (CLOSED_MAX_NS - RESCUE_NS).saturating_sub(window_ns);
        since_ns.saturating_add(most_ns)
    }

    /// What it had in spite of the layout since that was taken in last.
    pub(super) fn take_rescued(&mut self) -> i64 {
        i64::try_from(std::mem::take(&mut self.rescued_ns)).unwrap_or(i64::MAX)
    }

    /// Follows whether the gate is to be open. Whether it was closed for too long, and is opened now.
    pub(super) fn rescued(&mut self, wants_open: bool, now_ns: u64) -> bool {
        if wants_open {
            self.closed_since_ns = None;
            return false;
        }
        self.closed_since_ns.get_or_insert(now_ns);
        let is_due = self
            .rescue_ns()
            .is_some_and(|rescue_ns| now_ns >= rescue_ns);
        if is_due {
            self.closed_since_ns = None;
            self.rescued_until_ns = now_ns.saturating_add(RESCUED_NS);
            self.rescued_ns = self.rescued_ns.saturating_add(RESCUED_NS);
        }
        is_due
    }
}
