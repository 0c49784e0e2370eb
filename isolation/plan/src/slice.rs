//! Timeslices as the hardware can hold them.

/// What the driver gives a channel group that no one has set a slice for (1.024 ms).
pub const DEFAULT_US: u64 = 1_024;
/// The slice of a container of high priority that is alone in its class.
pub const ONLINE_US: u64 = 1_000_000;
/// The slice of one that owns its segment alone: short, so that the make-before-break overlap costs one slice at most. A lone
/// runnable group renews its slice without a switch, so it costs nothing else.
pub const SEGMENT_US: u64 = 200;
/// The slice of one that uses a segment that its owner does not need.
pub const BORROWED_US: u64 = 500;
/// Below this a slice loses more to switches than a policy may cost.
pub const LEAST_US: u64 = 500;
/// Down to this a container's slices go where it has many groups: it pays its switches itself.
pub const FLOOR_US: u64 = 200;
/// Above this neighbours wait too long for their turn.
pub const MOST_US: u64 = 50_000;

/// The longest slice that the hardware holds: mantissa 255, scale 15.
pub const HARDWARE_MOST_US: u64 = 255 << 15;
/// The shortest: mantissa 128, scale 0.
pub const HARDWARE_LEAST_US: u64 = 128;

/// The longest slice that the hardware can hold and that is not longer: an 8-bit mantissa of 128 to 255, shifted by 0 to 15.
/// What is below [`HARDWARE_LEAST_US`] becomes that.
#[must_use]
pub fn quantise_us(slice_us: u64) -> u64 {
    let slice_us = slice_us.clamp(HARDWARE_LEAST_US, HARDWARE_MOST_US);
    // 128 = 2^7: the scale is what brings the leading bit to position 7.
    let scale = slice_us.ilog2() - 7;
    (slice_us >> scale) << scale
}
