//! When a call to the driver is made again after one that was lost or refused.

use crate::channel_states::Moved;

/// A lost call is made again after this, and after twice as long each time, up to [`MAX_NS`].
const FIRST_NS: u64 = 10_000_000;
const MAX_NS: u64 = 160_000_000;

/// So many refusals of the gate in a row make it a doubtful one: the driver is asked on a group of the broker's own.
const REFUSALS: u32 = 3;

/// NV_ERR_NOT_SUPPORTED (nvstatuscodes.h): asking again is no use.
const NOT_SUPPORTED: u32 = 0x56;

/// The waits of one card.
#[derive(Debug)]
pub(super) struct Retries {
    /// Nothing is called before.
    at_ns: u64,
    /// How long the next wait is.
    wait_ns: u64,
    /// When what the driver refused alone is tried again.
    parked_until_ns: u64,
    /// Refusals of the gate in a row.
    refusals: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            at_ns: 0,
            wait_ns: FIRST_NS,
            parked_until_ns: u64::MAX,
            refusals: 0,
        }
    }
}

impl Retries {
    /// Whether the driver may be called.
    pub(super) fn are_over(&self, now_ns: u64) -> bool {
        now_ns >= self.at_ns
    }

    /// When it may be called again.
    pub(super) fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// When what was refused alone is tried again.
    pub(super) fn parked_until_ns(&self) -> u64 {
        self.parked_until_ns
    }

    /// Whether what was refused alone is to be tried again, from now on.
    pub(super) fn unpark(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.parked_until_ns;
        if is_due {
            self.parked_until_ns = u64::MAX;
        }
        is_due
    }

    /// Something is refused alone: it waits, if nothing of the kind waits already.
    pub(super) fn park(&mut self, now_ns: u64) {
        if self.parked_until_ns == u64::MAX {
            self.parked_until_ns = now_ns.saturating_add(self.wait_ns);
            self.lengthen();
        }
    }

    /// The next call waits, and the one after it for twice as long.
    pub(super) fn back_off(&mut self, now_ns: u64) {
        self.at_ns = now_ns.saturating_add(self.wait_ns);
        self.lengthen();
    }

    fn lengthen(&mut self) {
        self.wait_ns = (self.wait_ns * 2).min(MAX_NS);
    }

    /// A call did what it should; `any_parked`: others are still refused alone.
    pub(super) fn succeeded(&mut self, any_parked: bool) {
        self.at_ns = 0;
        if !any_parked {
            self.wait_ns = FIRST_NS;
        }
    }

    /// It is known what the driver permits: everything begins anew.
    pub(super) fn settled(&mut self) {
        self.refusals = 0;
        self.succeeded(false);
    }

    /// Takes in what a call of the gate was answered. Whether it is refused so often that the driver is to be asked elsewhere.
    pub(super) fn gate_refused(&mut self, status: Option<u32>) -> bool {
        let Some(status) = status else {
            self.refusals = 0;
            return false;
        };
        self.refusals = self.refusals.saturating_add(1);
        // One that is refused alone is left alone, and must not keep the others from being closed.
        self.refusals >= REFUSALS || status == NOT_SUPPORTED
    }

    /// A call was lost, or it worked; what a refusal means is decided by whoever knows the card.
    pub(super) fn moved(&mut self, moved: Moved, any_parked: bool, now_ns: u64) {
        match moved {
            Moved::Yes => self.succeeded(any_parked),
            Moved::Lost => self.back_off(now_ns),
            Moved::Gone | Moved::Refused => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_begin_anew_after_a_success() {
        let mut retries = Retries::default();
        let mut now_ns = 0;
        let mut waits = Vec::new();
        for _ in 0..6 {
            retries.moved(Moved::Lost, false, now_ns);
            assert!(!retries.are_over(now_ns));
            waits.push((retries.at_ns() - now_ns) / 1_000_000);
            now_ns = retries.at_ns();
            assert!(retries.are_over(now_ns));
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 160]);
        // While others are refused alone the wait stays as long as it was.
        retries.moved(Moved::Yes, true, now_ns);
        assert!(retries.are_over(0));
        retries.back_off(now_ns);
        assert_eq!(retries.at_ns() - now_ns, MAX_NS);
        retries.moved(Moved::Yes, false, now_ns);
        retries.back_off(now_ns);
        assert_eq!(retries.at_ns() - now_ns, FIRST_NS);
    }

    #[test]
    fn what_is_refused_alone_waits_once_and_is_tried_again_once() {
        let mut retries = Retries::default();
        assert!(!retries.unpark(1), "nothing waits");
        retries.park(1);
        retries.park(5_000_000);
        assert_eq!(retries.parked_until_ns(), 1 + FIRST_NS);
        assert!(!retries.unpark(FIRST_NS));
        assert!(retries.unpark(1 + FIRST_NS));
        assert!(!retries.unpark(1 + FIRST_NS));
    }

    #[test]
    fn three_refusals_in_a_row_or_one_for_good_make_a_gate_doubtful() {
        let mut retries = Retries::default();
        assert!(!retries.gate_refused(Some(0x40)));
        assert!(!retries.gate_refused(Some(0x40)));
        assert!(!retries.gate_refused(None));
        assert!(!retries.gate_refused(Some(0x40)));
        assert!(!retries.gate_refused(Some(0x40)));
        assert!(retries.gate_refused(Some(0x40)));
        assert!(Retries::default().gate_refused(Some(NOT_SUPPORTED)));
    }
}
