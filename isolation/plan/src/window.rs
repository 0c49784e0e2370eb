//! How long a window is.

use crate::WHOLE_PPM;
use crate::rules::Costs;

/// The windows that a card may have. Each is half of the next, so that every start of a longer window is one of all shorter
/// ones: layouts of different windows meet at common starts, and cards of one gang stay in phase. Each divides a second, so
/// that a second holds whole windows wherever it begins, and a share's error over it does not depend on where.
pub(crate) const LADDER_NS: [u64; 5] = [
    62_500_000,
    125_000_000,
    250_000_000,
    500_000_000,
    LONGEST_NS,
];
const LONGEST_NS: u64 = 1_000_000_000;

/// The longest that is chosen for accuracy; longer ones only where the calls of shorter ones would exceed the budget.
pub(crate) const LONGEST_BY_CHOICE_NS: u64 = 250_000_000;

/// The window of cards that have a gated gang. One for all such cards: brokers of one card cannot read what the gang's other
/// cards need, and this way do not have to.
pub(crate) const GANG_NS: u64 = LONGEST_BY_CHOICE_NS;

/// The least length of a segment.
pub(crate) const SEGMENT_NS: u64 = 2_000_000;

/// What a window is chosen for.
pub(crate) struct Need {
    /// How many containers are gated.
    pub(crate) gated: u32,
    /// How many of these have channels now: those that cost calls.
    pub(crate) calling: u32,
    /// The least share of a segment, ppm; 0 where there is none.
    pub(crate) least_ppm: u32,
    /// The length that each segment should have, if the window need not be longer than [`LONGEST_BY_CHOICE_NS`] for that.
    pub(crate) each_ns: u64,
    /// Whether a gated gang is among them.
    pub(crate) gang: bool,
}

pub(crate) fn choose(need: &Need, costs: &Costs) -> u64 {
    if need.gang {
        return GANG_NS;
    }
    // What one switch and one late knob cost is the larger a part of a segment the shorter that is: 10 ms keep it below two
    // percent. No segment is shorter than SEGMENT_NS, since no share is below one percent.
    let for_least = match need.least_ppm {
        0 => 0,
        ppm => (need.each_ns * u64::from(WHOLE_PPM)).div_ceil(u64::from(ppm)),
    };
    let needed = (need.each_ns * u64::from(need.gated))
        .max(for_least)
        .min(LONGEST_BY_CHOICE_NS);
    LADDER_NS
        .into_iter()
        .find(|window| *window >= needed && fits_budget(need.calling, *window, costs))
        .unwrap_or(LONGEST_NS)
}

/// Calls per second of this many gates: each opens and closes once a window.
pub(crate) fn calls_per_s(calling: u32, window_ns: u64) -> u64 {
    (2 * u64::from(calling) * 1_000_000_000).div_ceil(window_ns.max(1))
}

pub(crate) fn fits_budget(calling: u32, window_ns: u64, costs: &Costs) -> bool {
    calls_per_s(calling, window_ns) <= u64::from(costs.calls_per_s)
}
