//! The slow correction of a segment's length: what opening and closing late adds or takes shows in its usage.

use crate::WHOLE_PPM;
use crate::window;

/// By how much calls may make a segment shorter, beyond a part of it.
const LATE_NS: i64 = 300_000;

/// What the container wanted in the time that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Always had work.
    Backlogged,
    /// Had no work for some of the time: what it did not use says nothing.
    Idle,
    /// Not known: only too much is corrected, and too little up to a bound that is worth less than what it may cost.
    Unknown,
}

/// What a segment is to be at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Least {
    /// It may be left out.
    Nothing,
    /// Its container would be kept from its card for too long without it: what it owes is paid with segments that are shorter.
    Opened,
}

/// What one segment has taken off what is carried, and what it has added to what is saved up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paid {
    /// By how much it is shorter for that; negative: longer.
    pub carried_ns: i64,
    /// What it has saved up, because it was too short to be opened.
    pub earned_ns: i64,
    /// What earlier ones had saved up, and it uses.
    pub spent_ns: i64,
}

/// An integral controller, once a second: a quarter of the error of the last second is taken off, spread over its windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriftCorrection {
    /// Taken off each window's segment; negative: added.
    bias_ns: i64,
    /// What segments too short to be opened have saved up.
    credit_ns: i64,
    /// What the container is ahead by once, and its next segments are shorter by; negative: behind, and longer.
    carried_ns: i64,
    /// By how much one segment may be longer for it.
    added_most_ns: u64,
}

impl DriftCorrection {
    /// Takes one measurement into account: `used_ns` of the last `elapsed_ns`, where `entitlement_ppm` was promised in windows
    /// of `window_ns`. Measurements over less than half a second or more than four are left out.
    pub fn measure(
        &mut self,
        used_ns: u64,
        elapsed_ns: u64,
        entitlement_ppm: u32,
        window_ns: u64,
        demand: Demand,
    ) {
        if !(500_000_000..=4_000_000_000).contains(&elapsed_ns) || window_ns == 0 {
            return;
        }
        let scale = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let entitled = scale(portion(elapsed_ns, entitlement_ppm));
        let error = scale(used_ns.min(elapsed_ns)) - entitled;
        if error < 0 && demand == Demand::Idle {
            return;
        }
        // So much less is nothing that calls do: another runs in its segments, because its broker is dead. It will not for long.
        let windows = scale(elapsed_ns / window_ns).max(1);
        if demand == Demand::Backlogged && error < -(entitled / 8 + windows.saturating_mul(LATE_NS))
        {
            return;
        }
        // A quarter of the error of one window.
        let per_window = i128::from(error) * i128::from(window_ns) / i128::from(elapsed_ns) / 4;
        let length = scale(portion(window_ns, entitlement_ppm));
        let least = match demand {
            // What late calls take, and no more: one who runs in others' segments because its broker is dead takes more, and what
            // they added for that would be theirs when it no longer does.
            Demand::Backlogged | Demand::Idle => -(length / 4).min(length / 50 + LATE_NS),
            Demand::Unknown => -(length / 50),
        };
        // A container that can never be held (it does not let itself be preempted) is opened every so many windows only, and
        // still often enough that no gate stays closed for two seconds.
        let windows = scale((1_500_000_000 / window_ns).max(1));
        let segment = scale(window::SEGMENT_NS).min(length);
        let most = length - segment / windows;
        let moved = self
            .bias_ns
            .saturating_add(i64::try_from(per_window).unwrap_or(0));
        // A bias beyond a bound that has come nearer stays until errors move it back, but does not grow.
        self.bias_ns = moved.clamp(least.min(self.bias_ns), most.max(0));
    }

    /// How long a segment should be open in the next window; 0: leave it closed this time. Advances what such windows save up, so
    /// once per segment. And what the segment pays: [`DriftCorrection::hand_back`] takes that again if the segment does not come.
    pub fn next(&mut self, length_ns: u64, at_least: Least) -> (u64, Paid) {
        let length = i64::try_from(length_ns).unwrap_or(i64::MAX);
        let corrected = length.saturating_sub(self.bias_ns).max(0);
        let longest = i64::try_from(self.added_most_ns).unwrap_or(i64::MAX);
        let shortest = i64::try_from(window::SEGMENT_NS).unwrap_or(i64::MAX);
        // A segment is left out as a whole or stays long enough to be worth its calls.
        let is_paid_with = at_least == Least::Nothing && self.carried_ns >= corrected;
        let most = match is_paid_with {
            true => corrected,
            false => corrected.saturating_sub(shortest).max(0),
        };
        let paid = self.carried_ns.clamp(longest.saturating_neg(), most);
        self.carried_ns -= paid;
        let needed = u64::try_from(corrected.saturating_sub(paid)).unwrap_or(0);
        let least = window::SEGMENT_NS.min(length_ns);
        let scale = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let (length_ns, earned_ns, spent_ns) = if needed >= least {
            (needed, 0, self.credit_ns)
        } else if at_least == Least::Nothing
            && self.credit_ns.saturating_add(scale(needed)) < scale(least)
        {
            (0, scale(needed), 0)
        } else {
            (least, scale(needed), scale(least))
        };
        self.credit_ns = self.credit_ns + earned_ns - spent_ns;
        let paid = Paid {
            carried_ns: paid,
            earned_ns,
            spent_ns,
        };
        (length_ns, paid)
    }

    /// A segment that was asked for does not come, or not all of it: what is left of its payment is owed again.
    pub fn hand_back(&mut self, left: Paid) {
        self.carried_ns = self.carried_ns.saturating_add(left.carried_ns);
        // What cannot be added is not owed.
        if self.added_most_ns == 0 {
            self.carried_ns = self.carried_ns.max(0);
        }
        self.credit_ns = self
            .credit_ns
            .saturating_add(left.spent_ns)
            .saturating_sub(left.earned_ns);
    }

    /// From now on segments are no longer than their layout says: another's begins where they end.
    pub fn add_nothing(&mut self) {
        self.bias_ns = self.bias_ns.max(0);
    }

    /// Goes on where a predecessor was, with segments of `length_ns`.
    #[must_use]
    pub fn resumed(bias_ns: i64, length_ns: u64) -> Self {
        let length = i64::try_from(length_ns).unwrap_or(i64::MAX);
        Self {
            // No more than what calls alone can have taken, or added.
            bias_ns: bias_ns.clamp(-(length / 4).min(length / 50 + LATE_NS), length / 2),
            ..Self::default()
        }
    }

    /// What the container has had too much while nobody turned its gate, and gives back with its next segments as a whole; negative:
    /// what it was kept from, and gets with segments that are each longer by `added_most_ns` at most.
    pub fn carry(&mut self, ahead_ns: i64, added_most_ns: u64) {
        self.carried_ns = match added_most_ns {
            0 => ahead_ns.max(0),
            _ => ahead_ns,
        };
        self.added_most_ns = added_most_ns;
    }

    /// What is left of that.
    #[must_use]
    pub fn carried_ns(&self) -> i64 {
        self.carried_ns
    }

    /// What is taken off every segment now; negative: added.
    #[must_use]
    pub fn bias_ns(&self) -> i64 {
        self.bias_ns
    }

    /// Forgets everything: with new terms, or a new layout.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

fn portion(ns: u64, ppm: u32) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(ppm) / u128::from(WHOLE_PPM)).unwrap_or(u64::MAX)
}
