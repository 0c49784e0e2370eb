//! The copy engine (clc6b5.h and its successors): pitch-linear copies, fills by remap, semaphores.

use runlist::Work;

use super::execution::{Execution, Method, Release, Subchannel, Words};
use super::{Channel, Failure};

const SET_SEMAPHORE_A: u32 = 0x240;
const SET_SEMAPHORE_PAYLOAD: u32 = 0x248;
const LAUNCH_DMA: u32 = 0x300;
const OFFSET_IN_UPPER: u32 = 0x400;
const OFFSET_OUT_UPPER: u32 = 0x408;
const PITCH_IN: u32 = 0x410;
const PITCH_OUT: u32 = 0x414;
const LINE_LENGTH_IN: u32 = 0x418;
const LINE_COUNT: u32 = 0x41c;
const SET_REMAP_CONST_A: u32 = 0x700;
const SET_REMAP_CONST_B: u32 = 0x704;
const SET_REMAP_COMPONENTS: u32 = 0x708;

/// Bits of LAUNCH_DMA.
const TRANSFER_MASK: u32 = 3;
const SRC_PITCH: u32 = 1 << 7;
const DST_PITCH: u32 = 1 << 8;
const MULTI_LINE: u32 = 1 << 9;
const REMAP: u32 = 1 << 10;
const SRC_PHYSICAL: u32 = 1 << 12;
const DST_PHYSICAL: u32 = 1 << 13;
const SEMAPHORE_REDUCTION: u32 = 1 << 19;
/// Most bytes of a fill held at once.
const FILL_BYTES: usize = 1 << 20;

impl Channel {
    /// The data are moved at once, after all that was before; what the copy releases waits until it has had its time.
    pub(super) fn copy_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        method: u32,
        value: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        if method != LAUNCH_DMA {
            return Ok(Method::Done);
        }
        let moves = value & TRANSFER_MASK != 0;
        if moves && !execution.due.is_empty() {
            return Ok(Method::Waits);
        }
        let Some(state) = execution.subchannels.get(subchannel) else {
            return Ok(Method::Done);
        };
        let unknown = Failure::Method {
            class: state.class,
            method,
            value,
        };
        let mut moved_bytes = 0;
        if moves {
            if value & (SRC_PITCH | DST_PITCH) != SRC_PITCH | DST_PITCH
                || value & (SRC_PHYSICAL | DST_PHYSICAL) != 0
            {
                return Err(unknown);
            }
            moved_bytes = self.transfer(state, value)?;
        }
        if value & SEMAPHORE_REDUCTION != 0 {
            return Err(unknown);
        }
        let words = match value >> 3 & 3 {
            0 => None,
            1 => Some(Words::One),
            2 => Some(Words::Four),
            _conditional_interrupt => return Err(unknown),
        };
        let release = words.map(|words| Release {
            address: state.address(SET_SEMAPHORE_A),
            payload: u64::from(state.register(SET_SEMAPHORE_PAYLOAD)),
            words,
        });
        let duration_ns = self.copy_ns(moved_bytes);
        if duration_ns > 0 {
            self.submit(execution, Work::kernel(duration_ns), Vec::new());
        }
        if let Some(release) = release {
            self.release(execution, release, now)?;
        }
        Ok(if duration_ns > 0 {
            Method::Launched
        } else {
            Method::Done
        })
    }

    /// How long the engine takes to move this much.
    fn copy_ns(&self, bytes: u64) -> u64 {
        let a_second = u128::from(self.spec.card.profile.copy_mib_per_s) << 20;
        (u128::from(bytes) * 1_000_000_000)
            .checked_div(a_second)
            .map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Bytes that were written.
    fn transfer(&self, state: &Subchannel, launch: u32) -> Result<u64, Failure> {
        let (from, to) = (
            state.address(OFFSET_IN_UPPER),
            state.address(OFFSET_OUT_UPPER),
        );
        let lines = if launch & MULTI_LINE == 0 {
            1
        } else {
            u64::from(state.register(LINE_COUNT))
        };
        let (pitch_in, pitch_out) = (
            u64::from(state.register(PITCH_IN)),
            u64::from(state.register(PITCH_OUT)),
        );
        let length = u64::from(state.register(LINE_LENGTH_IN));
        let remap = (launch & REMAP != 0).then(|| Remap::of(state));
        // An empty line is no work, however many there are.
        let lines = if length == 0 { 0 } else { lines };
        for line in 0..lines {
            let from = from.wrapping_add(line.wrapping_mul(pitch_in));
            let to = to.wrapping_add(line.wrapping_mul(pitch_out));
            match &remap {
                None => self.copy(from, to, length)?,
                Some(remap) => self.remap(remap, from, to, length)?,
            }
        }
        let element_bytes = remap.map_or(1, |remap| remap.size * remap.components.len());
        let line_bytes = length.saturating_mul(u64::try_from(element_bytes).unwrap_or(1));
        Ok(lines.saturating_mul(line_bytes))
    }

    /// Copies elements, each component from the source or a constant.
    fn remap(
        &self,
        remap: &Remap,
        mut from: u64,
        mut to: u64,
        mut elements: u64,
    ) -> Result<(), Failure> {
        let (size_in, size_out) = (
            remap.size * remap.components_in,
            remap.size * remap.components.len(),
        );
        let at_once = u64::try_from(FILL_BYTES / size_out.max(size_in)).unwrap_or(1);
        while elements > 0 {
            let count = usize::try_from(elements.min(at_once)).unwrap_or(0);
            let mut source = vec![
                0;
                if remap.reads_source() {
                    size_in * count
                } else {
                    0
                }
            ];
            self.read(from, &mut source)?;
            // Components that are not written keep what is there.
            let mut target = vec![0; size_out * count];
            if remap.components.contains(&Component::Keep) {
                self.read(to, &mut target)?;
            }
            for (at, element) in target.chunks_exact_mut(size_out).enumerate() {
                for (component, place) in remap
                    .components
                    .iter()
                    .zip(element.chunks_exact_mut(remap.size))
                {
                    let bytes = match component {
                        Component::Source(which) => {
                            let start = at * size_in + which * remap.size;
                            source.get(start..start + remap.size)
                        }
                        Component::Constant(value) => value.get(..remap.size),
                        Component::Keep => None,
                    };
                    if let Some(bytes) = bytes {
                        place.copy_from_slice(bytes);
                    }
                }
            }
            self.write(to, &target)?;
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            from = from.wrapping_add(count.wrapping_mul(u64::try_from(size_in).unwrap_or(0)));
            to = to.wrapping_add(count.wrapping_mul(u64::try_from(size_out).unwrap_or(0)));
            elements -= count;
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Component {
    Source(usize),
    Constant([u8; 4]),
    Keep,
}

/// SET_REMAP_COMPONENTS: DST_X 2:0, Y 6:4, Z 10:8, W 14:12; COMPONENT_SIZE 17:16, NUM_SRC 21:20, NUM_DST 25:24, each less 1.
struct Remap {
    size: usize,
    components_in: usize,
    components: Vec<Component>,
}

impl Remap {
    fn of(state: &Subchannel) -> Self {
        let word = state.register(SET_REMAP_COMPONENTS);
        let field = |shift: u32| usize::try_from(word >> shift & 3).unwrap_or(0) + 1;
        let constant = |method| Component::Constant(state.register(method).to_le_bytes());
        let components = (0..field(24))
            .zip([0, 4, 8, 12])
            .map(|(_component, shift)| match word >> shift & 7 {
                source @ 0..=3 => Component::Source(usize::try_from(source).unwrap_or(0)),
                4 => constant(SET_REMAP_CONST_A),
                5 => constant(SET_REMAP_CONST_B),
                _no_write => Component::Keep,
            })
            .collect();
        Self {
            size: field(16),
            components_in: field(20),
            components,
        }
    }

    fn reads_source(&self) -> bool {
        self.components
            .iter()
            .any(|component| matches!(component, Component::Source(_)))
    }
}
