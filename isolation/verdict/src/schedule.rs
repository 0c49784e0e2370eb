//! What a tenant may have of a card's scheduler, whatever its policy: bounds that are put into the copy that is executed.

use nvabi::bytes::{u8_at, u32_at, u64_at};
use nvabi::control::Decision;
use nvabi::layout::{engine_type, preempt, preemption_mode, timeslice};

use crate::Op;
use crate::share::{Narrowing, Replacement};

/// The longest slice that a tenant's own call gets: the driver's default. A longer one takes its neighbours' time.
pub const LONGEST_SLICE_US: u64 = timeslice::DEFAULT_US;

/// The most channel groups of the graphics and compute engine that a container may have on a card; those that name no engine are of that
/// engine. 25 CUDA processes of 3 to 5 groups each (gpu_ext) have room. It is no count by process: a tenant makes processes for nothing.
///
/// Each group has slices of its own, of 0.2 ms at least and a switch: with more of them a neighbour's slices could not be made long enough to leave
/// it its part.
pub const MOST_GROUPS: usize = 128;

/// The most channels of that engine on a card. A gate takes one call of the driver for each 64 of a client, and turns twice in each window: the more there
/// are, the longer it takes.
pub const MOST_CHANNELS: usize = 512;

/// The most channels of other engines that a container may have on a card, and the most groups of theirs: a context has one or a few of each
/// copy engine, and 25 CUDA processes have room.
///
/// A card has 2048 numbers for the channels of all its engines together from Ampere on (gsp_fw_heap.h; the firmware's heap has no memory for more
/// on any card), and as many for groups (`kfifoGetMaxChannelGroupsInSystem_IMPL`). With [`MOST_CHANNELS`] a container leaves half of them to others.
pub const MOST_OTHER_CHANNELS: usize = 512;

/// The most clients that have groups of that engine on a card, for the same reason: at least one call for each.
pub const MOST_CLIENTS: usize = 32;

/// The most channel groups and channels of all engines that a container may have. All of them are walked whenever one of them changes.
pub const MOST_SCHEDULED: usize = 4096;

/// What is bounded of a call to the scheduler:
/// - a timeslice is no longer than [`LONGEST_SLICE_US`];
/// - a compute context that chooses how it is preempted chooses the middle of an instruction (CILP): one that waits for the end of
///   its kernel holds the engine for as long as that takes, past its slice and past a closed gate;
/// - a preempt that waits does so for the driver's own time, and not for one that the tenant chooses, of up to a second (ctrla06c.h): the firmware
///   waits, and the driver's locks are held meanwhile.
#[must_use]
pub fn bounds(op: &Op, segments: &[&[u8]]) -> Vec<Narrowing> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied().unwrap_or_default();
    let bounded = |at, bytes| {
        vec![Narrowing {
            segment: 1,
            at,
            bytes,
        }]
    };
    let decision = op.decision(arg);
    let is_long = || u64_at(params, timeslice::MICROS).is_some_and(|us| us > LONGEST_SLICE_US);
    let chooses = || {
        u32_at(params, preemption_mode::FLAGS)
            .is_some_and(|flags| flags & preemption_mode::FLAG_COMPUTE != 0)
    };
    // `bWait` as it is, and no `bManualTimeout` behind it.
    let waits = || u8_at(params, preempt::WAIT).map_or(0, u16::from);
    let times = || u8_at(params, preempt::MANUAL_TIMEOUT).is_some_and(|given| given != 0);
    if decision == Some(Decision::SetTimeslice) && is_long() {
        bounded(timeslice::MICROS, Replacement::U64(LONGEST_SLICE_US))
    } else if decision == Some(Decision::PreemptionMode) && chooses() {
        let mode = Replacement::U32(preemption_mode::COMPUTE_CILP);
        bounded(preemption_mode::COMPUTE, mode)
    } else if decision == Some(Decision::Preempt) && times() {
        bounded(preempt::WAIT, Replacement::U16(waits()))
    } else {
        Vec::new()
    }
}

/// The copy engines of a card that are on the runlist of graphics and compute (GRCEs): a bit for each.
///
/// A group of one of them takes turns with those that compute, without end and without a slice of its own, as long as nobody gates it. Which they are differs
/// from card to card: the first two from Turing to Hopper, the first four on GB202 (`NV_CE_GRCE_ALLOWED_LCE_MASK`, kernel_ce_*.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphicsCopies(u32);

impl GraphicsCopies {
    /// What is assumed of a card that has not answered.
    pub const ASSUMED: Self = Self(0b11);

    /// By the answer of CE_GET_ALL_CAPS: two bytes for each engine, and `NV2080_CTRL_CE_CAPS_CE_GRCE` is the first bit of the first (ctrl2080ce.h).
    #[must_use]
    pub fn by_caps(params: &[u8]) -> Self {
        let is_one = |engine: &u32| {
            let first = usize::try_from(*engine)
                .ok()
                .and_then(|at| at.checked_mul(2));
            first
                .and_then(|at| u8_at(params, at))
                .is_some_and(|caps| caps & 1 != 0)
        };
        let engines = (0..=engine_type::COPY9 - engine_type::COPY0).filter(is_one);
        Self(engines.fold(0, |mask, engine| mask | 1 << engine))
    }

    fn has(self, engine: u32) -> bool {
        engine_type::copy_of(engine).is_some_and(|copy| self.0 & 1 << copy != 0)
    }
}

/// Whether an engine type is on the runlist of graphics and compute. A group that does not say gets that engine.
#[must_use]
pub fn is_graphics(engine: u32, copies: GraphicsCopies) -> bool {
    engine == engine_type::NULL
        || (engine_type::GR0..=engine_type::GR7).contains(&engine)
        || copies.has(engine)
}
