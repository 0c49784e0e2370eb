//! What the card's account says that the container has had, and what follows from it.

use plan::{DriftCorrection, Least, Priority, Promise, ShareRecord};

use super::Card;
use super::ahead::Ahead;
use crate::carry_over::CarryOver;
use crate::usage::{Capped, Usage};
use crate::world::Environment;

/// What a container was kept from is made up for in this time, as far as there is room then.
const MADE_UP_NS: u64 = 300_000_000;

/// How many changes of what neighbours add to the ends of segments may interrupt a measurement at once, and one more after how long.
///
/// What is measured across one is a little off, and a neighbour can bring them about as often as it likes: without a bound nothing would be measured.
const INTERRUPTIONS: u64 = 40;
const INTERRUPTION_NS: u64 = 10_000_000_000;

/// Interruptions that are left, as the time that it takes to have them again.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    used_ns: u64,
    seen_ns: u64,
}

impl Interruptions {
    /// Whether one more may be.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = now_ns;
        self.used_ns = self.used_ns.saturating_sub(passed_ns);
        let is_left = self.used_ns <= (INTERRUPTIONS - 1) * INTERRUPTION_NS;
        if is_left {
            self.used_ns += INTERRUPTION_NS;
        }
        is_left
    }
}

/// What the container has had, and what it is corrected by.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) usage: Usage,
    pub(super) interruptions: Interruptions,
    /// The card keeps an account of the container.
    pub(super) metered: bool,
    pub(super) drift: DriftCorrection,
    pub(super) ahead: Ahead,
    pub(super) carry_over: CarryOver,
    pub(super) capped: Capped,
    /// Whether the container had work when that was looked at last; `None`: it cannot be told.
    pub(super) busy: Option<bool>,
    /// How long its gate was closed while it had work, nanoseconds.
    pub(super) throttled_ns: u64,
}

impl Account {
    /// That of a container whose former governor left these.
    pub(super) fn resumed(carry_over: CarryOver, drift: DriftCorrection) -> Self {
        Self {
            usage: Usage::default(),
            interruptions: Interruptions::default(),
            metered: false,
            drift,
            ahead: Ahead::default(),
            carry_over,
            capped: Capped::No,
            busy: None,
            throttled_ns: 0,
        }
    }

    /// Whatever segments that are still ahead were to pay is owed again: they will be asked for again.
    pub(super) fn hand_back(&mut self, now_ns: u64) {
        self.ahead.hand_back(&mut self.drift, now_ns);
    }

    /// How long segments are to be, each asked for once. None that begins after `needed_ns` is left out.
    pub(super) fn lengths(&mut self, needed_ns: u64) -> impl FnMut(u64, u64) -> u64 {
        move |start_ns, length_ns| {
            let at_least = match start_ns > needed_ns {
                true => Least::Opened,
                false => Least::Nothing,
            };
            self.ahead
                .ask(&mut self.drift, start_ns, length_ns, at_least)
        }
    }
}

impl Card {
    pub(super) fn read_usage(&mut self, now_ns: u64, world: &mut dyn Environment) {
        let used = world.used(self.index);
        self.account.metered = used.is_some();
        if let Some(used) = used {
            self.account.usage.sample(used, world.busy(self.index));
        }
        let online = self.terms.priority == Priority::High;
        self.account.capped = if online && self.account.metered {
            let bound_ppm = self.bound_ppm(now_ns, world.table(self.index).peers());
            self.account.usage.capped(bound_ppm)
        } else {
            Capped::No
        };
    }

    /// What all of high priority may have of a second is divided among those that are not known to be idle.
    fn bound_ppm(&self, now_ns: u64, peers: &[ShareRecord]) -> u32 {
        let ratio_ppm = self.rules.prio_ratio_percent * 10_000;
        let is_idle = |key: &str| {
            let record = peers.iter().find(|record| record.key == key);
            record.is_some_and(|record| record.busy_at(now_ns) == Some(false))
        };
        let own_ppm = self
            .view
            .share
            .as_ref()
            .map_or(0, |share| share.entitlement_ppm);
        let shares = self.view.layout.shares.iter();
        let others_ppm: u64 = shares
            .filter(|share| share.promise == Promise::UpTo && share.key != self.own.record.key)
            .filter(|share| !is_idle(&share.key))
            .map(|share| u64::from(share.entitlement_ppm))
            .sum();
        let part =
            u64::from(ratio_ppm) * u64::from(own_ppm) / (u64::from(own_ppm) + others_ppm).max(1);
        match own_ppm {
            0 => ratio_ppm,
            _ => u32::try_from(part).unwrap_or(ratio_ppm),
        }
    }

    /// After a close. The account's times need not lie between segments: what is compared is the time that the gate was meant to be open.
    pub(crate) fn after_close(&mut self, world: &mut dyn Environment) {
        if !self.view.is_corrected() || !self.account.metered {
            return;
        }
        if let Some(used) = world.used(self.index) {
            self.account.usage.sample(used, world.busy(self.index));
        }
        let Some(measured) = self.account.usage.measured() else {
            return;
        };
        let Some(share) = &self.view.share else {
            return;
        };
        let window_ns = self.view.layout.window_ns;
        let target_ppm = self.view.target_ppm(share, &self.rules);
        let (windows_ns, entitled_ns) =
            self.view
                .entitled_ns(&self.rules, measured.from_ns, measured.to_ns);
        let full = self.view.is_full();
        if full && measured.used_ns.abs_diff(entitled_ns).saturating_mul(100) < entitled_ns {
            return;
        }
        self.account.drift.measure(
            measured.used_ns,
            windows_ns,
            target_ppm,
            window_ns,
            measured.demand,
        );
        if full {
            // What one adds there, another loses, and adds in turn.
            self.account.drift.add_nothing();
        }
    }

    /// What the container is ahead by from now on; negative: behind, of which no more is added than there is room for.
    pub(super) fn carry(&mut self, ahead_ns: i64) {
        let free_ns = self.view.free_ns();
        let windows = (MADE_UP_NS / self.view.layout.window_ns.max(1)).max(1);
        let most = i64::try_from(free_ns.saturating_mul(windows)).unwrap_or(i64::MAX);
        self.account.drift.carry(ahead_ns.max(-most), free_ns);
    }

    /// After the container's former broker has died: what it had too much meanwhile is taken off its next segments, what it was kept from is
    /// added where there is room. Until that is done the slow drift correction learns nothing.
    pub(super) fn make_even(&mut self, now_ns: u64) {
        if self.own.published.is_none() {
            // The segment under way, if one is, runs to its end: most of it may be over.
            return;
        }
        let last = self.account.usage.last();
        let (true, Some(share), Some(used)) = (
            self.view.is_corrected() && self.account.metered,
            &self.view.share,
            last,
        ) else {
            self.account.carry_over.forget(last);
            return;
        };
        let (view, rules) = (&self.view, &self.rules);
        let window_ns = view.layout.window_ns;
        let entitled = |from_ns, to_ns| view.entitled_ns(rules, from_ns, to_ns).1;
        if let Some(carried) =
            self.account
                .carry_over
                .settle(used, share.entitlement_ppm, &entitled)
        {
            tracing::debug!(card = self.index, ?carried, "while there was no governor");
            self.carry(carried.ahead_ns);
        }
        if self.account.drift.carried_ns() != 0 || self.account.ahead.carries() {
            // A segment that was made shorter may be one of the next window.
            self.account.carry_over.not_before(now_ns + 2 * window_ns);
        }
        if self.account.carry_over.is_uneven(now_ns) {
            self.account.usage.restart(now_ns + 2 * window_ns);
        }
        self.account.carry_over.follow(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_comes_and_goes_interrupts_few_measurements() {
        let mut interruptions = Interruptions::default();
        let (start_ns, step_ns) = (1_000_000_000_000, 100_000_000);
        let mut times = (0..6_000).map(|step| start_ns + step * step_ns);
        let all = times.by_ref().filter(|at_ns| interruptions.take(*at_ns));
        // Ten minutes: what there is at once, and one in ten seconds.
        assert_eq!(all.count(), 40 + 59);
        assert!(interruptions.take(start_ns + 1_000_000_000_000));
    }
}
