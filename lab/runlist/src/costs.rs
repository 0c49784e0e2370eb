//! What the hardware takes for itself, and how it reads a slice.

use serde::{Deserialize, Serialize};

/// Times that the card spends on nobody's work, in nanoseconds.
///
/// The defaults are the published or estimated values that the project's model works with: a full switch in the middle of a
/// kernel costs 100 us (60 save, 40 restore), as `nos` measured on an A100 (about 110 us).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Saving a group that is stopped in the middle of a kernel.
    pub save_ns: u64,
    /// Loading another group's context.
    pub restore_ns: u64,
    /// Leaving a group that has no kernel half done.
    pub boundary_ns: u64,
    /// The first work after an idle time.
    pub wake_ns: u64,
    /// Between two kernels of one channel; it counts as the group's time.
    pub gap_ns: u64,
    /// Entries that a channel's queue holds.
    pub queue_entries: u32,
    /// A new group's slice.
    pub default_slice_ns: u64,
    /// How a slice is kept.
    pub slices: Slices,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            save_ns: 60_000,
            restore_ns: 40_000,
            boundary_ns: 15_000,
            wake_ns: 4_000,
            gap_ns: 1_500,
            queue_entries: 1024,
            default_slice_ns: 1_024_000,
            slices: Slices::Exact,
        }
    }
}

impl Costs {
    /// A card that switches for nothing: what is measured on it is the order alone.
    #[must_use]
    pub fn free() -> Self {
        Self {
            save_ns: 0,
            restore_ns: 0,
            boundary_ns: 0,
            wake_ns: 0,
            gap_ns: 0,
            ..Self::default()
        }
    }

    /// A slice of `requested_ns` as the hardware keeps it; never 0.
    #[must_use]
    pub fn slice_ns(&self, requested_ns: u64) -> u64 {
        match self.slices {
            Slices::Exact => requested_ns.max(1),
            Slices::Quantised => quantise_us(requested_ns / 1000).saturating_mul(1000),
        }
    }
}

/// How a slice is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slices {
    /// To the nanosecond.
    Exact,
    /// As a runlist entry: microseconds with a mantissa of 8 bits and a scale of 4, rounded down.
    Quantised,
}

/// The greatest slice that a runlist entry can say, in microseconds: 255 << 15.
pub const LONGEST_SLICE_US: u64 = 255 << 15;

/// `requested_us` as a runlist entry says it: an 8-bit mantissa and a 4-bit scale, rounded down, at least 1.
#[must_use]
pub fn quantise_us(requested_us: u64) -> u64 {
    let requested_us = requested_us.clamp(1, LONGEST_SLICE_US);
    let scale = (64 - requested_us.leading_zeros()).saturating_sub(8);
    (requested_us >> scale) << scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_keeps_eight_bits() {
        assert_eq!(quantise_us(0), 1);
        assert_eq!(quantise_us(255), 255);
        assert_eq!(quantise_us(257), 256);
        assert_eq!(quantise_us(1024), 1024);
        assert_eq!(quantise_us(1031), 1024);
        assert_eq!(quantise_us(u64::MAX), LONGEST_SLICE_US);
        for us in [130_u64, 999, 5_003, 77_777, 1_000_001] {
            let kept = quantise_us(us);
            assert!(kept <= us && (us - kept) * 128 <= us, "{us} kept as {kept}");
        }
    }
}
