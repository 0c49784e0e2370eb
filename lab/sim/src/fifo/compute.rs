//! The compute engine (clc6c0.h and its successors): launches that take time and do nothing, and their releases.

use runlist::Work;

use super::execution::{Due, Execution, Method, Release, Words};
use super::{Channel, Failure};
use crate::architecture::QmdVersion;
use crate::profile::KernelTime;

const SEND_PCAS_A: u32 = 0x2b4;
const SEND_SIGNALING_PCAS_B: u32 = 0x2bc;
const SEND_SIGNALING_PCAS2_B: u32 = 0x2c0;

/// A launch's descriptor, as far as it is carried out.
#[derive(Debug)]
struct Qmd {
    blocks: u64,
    releases: Vec<Release>,
    /// Address of the launch that follows this one.
    dependent: Option<u64>,
}

/// How long a launch has the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Length {
    duration_ns: u64,
    /// Of one thread block; 0: as long as the kernel.
    block_ns: u64,
}

impl Channel {
    pub(super) fn compute_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        method: u32,
        value: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        match method {
            SEND_SIGNALING_PCAS_B | SEND_SIGNALING_PCAS2_B => {
                let Some(state) = execution.subchannels.get(subchannel) else {
                    return Ok(Method::Done);
                };
                let address = u64::from(state.register(SEND_PCAS_A)) << 8;
                self.launch(execution, address, now)?;
                Ok(Method::Launched)
            }
            _no_launch => self.graphics_method(execution, subchannel, (method, value), now),
        }
    }

    /// Gives the engine the kernel of a descriptor. One that takes no time is done at once, or right after what is under way.
    pub(super) fn launch(
        &self,
        execution: &mut Execution,
        address: u64,
        now: &dyn Fn() -> u64,
    ) -> Result<(), Failure> {
        let version = self.spec.card.profile.architecture.qmd();
        let mut bytes = match version {
            QmdVersion::V2 | QmdVersion::V3 => vec![0; 64 * 4],
            QmdVersion::V5 => vec![0; 96 * 4],
        };
        self.read(address, &mut bytes)?;
        let qmd = Qmd::read(&bytes, version);
        let length = Length::of(
            self.spec.card.profile.kernels,
            self.spec.card.profile.multiprocessors,
            qmd.blocks,
        );
        if length.duration_ns == 0 {
            for release in qmd.releases {
                self.release(execution, release, now)?;
            }
        } else {
            let work = Work::kernel(length.duration_ns).blocks(length.block_ns);
            self.submit(execution, work, qmd.releases);
        }
        execution.dependent = qmd.dependent;
        Ok(())
    }

    /// Gives an engine work.
    pub(super) fn submit(&self, execution: &mut Execution, work: Work, releases: Vec<Release>) {
        let tag = self.next_tag();
        execution.due.push_back(Due::Work { tag, releases });
        execution.under_way += 1;
        // Refused only when the channel is gone, and then nobody waits for it.
        if !self.spec.card.engine.submit(self.key, work.tag(tag)) {
            tracing::debug!(channel = self.id, "work for a channel that is gone");
        }
    }
}

impl Length {
    fn of(kernels: KernelTime, multiprocessors: u32, blocks: u64) -> Self {
        match kernels {
            KernelTime::Fixed { us } => Self {
                duration_ns: u64::from(us) * 1000,
                block_ns: 0,
            },
            KernelTime::OfBlocks { us } => {
                let block_ns = u64::from(us) * 1000;
                let waves = blocks.max(1).div_ceil(u64::from(multiprocessors.max(1)));
                Self {
                    duration_ns: waves.saturating_mul(block_ns),
                    block_ns,
                }
            }
        }
    }
}

/// Bit positions of one release, from its first field's.
struct ReleaseBits {
    enable: usize,
    size: usize,
    payload_64: usize,
    address_low: usize,
    address_high: usize,
    address_high_bits: usize,
    payload: usize,
}

impl Qmd {
    /// Layouts: NVC6C0_QMDV03_00 and NVCEC0_QMDV05_00 (clc6c0qmd.h, clcec0qmd.h). Of the second version no open header was at hand: that its
    /// grid lies where the third has it is a guess, and nothing else of it is read.
    fn read(bytes: &[u8], version: QmdVersion) -> Self {
        let releases = [0, 1]
            .into_iter()
            .filter_map(|which| {
                let at = match version {
                    QmdVersion::V2 => return None,
                    QmdVersion::V3 => {
                        let base = 768 + which * 128;
                        ReleaseBits {
                            enable: base + 55,
                            size: base + 62,
                            payload_64: base + 61,
                            address_low: base,
                            address_high: base + 32,
                            address_high_bits: 8,
                            payload: base + 64,
                        }
                    }
                    QmdVersion::V5 => {
                        let (control, base) = (288 + which * 16, 480 + which * 288);
                        ReleaseBits {
                            enable: control,
                            size: control + 1,
                            payload_64: control + 12,
                            address_low: base,
                            address_high: base + 32,
                            address_high_bits: 25,
                            payload: base + 64,
                        }
                    }
                };
                Release::read(bytes, &at)
            })
            .collect();
        let grid = match version {
            QmdVersion::V2 | QmdVersion::V3 => [(384, 32), (416, 16), (448, 16)],
            QmdVersion::V5 => [(1248, 32), (1280, 16), (1312, 16)],
        };
        let blocks = grid
            .into_iter()
            .map(|(at, count)| bits(bytes, at, count))
            .fold(1, u64::saturating_mul);
        let (enable, action, pointer) = match version {
            QmdVersion::V2 | QmdVersion::V3 => (512, 513, 480),
            QmdVersion::V5 => (336, 337, 384),
        };
        // Action 1: schedule the dependent one; the others only count.
        let dependent = (version != QmdVersion::V2
            && bits(bytes, enable, 1) == 1
            && bits(bytes, action, 3) == 1)
            .then(|| bits(bytes, pointer, 32) << 8);
        Self {
            blocks,
            releases,
            dependent,
        }
    }
}

impl Release {
    fn read(bytes: &[u8], at: &ReleaseBits) -> Option<Self> {
        if bits(bytes, at.enable, 1) == 0 {
            return None;
        }
        let payload = bits(bytes, at.payload, 32) | bits(bytes, at.payload + 32, 32) << 32;
        let wide = bits(bytes, at.payload_64, 1) == 1;
        Some(Self {
            address: bits(bytes, at.address_low, 32)
                | bits(bytes, at.address_high, at.address_high_bits) << 32,
            payload: if wide {
                payload
            } else {
                payload & u64::from(u32::MAX)
            },
            words: match bits(bytes, at.size, 2) {
                0 => Words::Four,
                1 => Words::One,
                _two => Words::Two,
            },
        })
    }
}

/// Up to 32 bits from a bit position on.
fn bits(bytes: &[u8], at: usize, count: usize) -> u64 {
    (0..count).fold(0, |value, bit| {
        let place = at + bit;
        let one = bytes
            .get(place / 8)
            .is_some_and(|byte| byte >> (place % 8) & 1 == 1);
        value | u64::from(one) << bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_takes_as_many_waves_as_its_blocks_need() {
        let of = |blocks| Length::of(KernelTime::OfBlocks { us: 10 }, 8, blocks).duration_ns;
        assert_eq!(
            [0, 1, 8, 9, 80].map(of),
            [10_000, 10_000, 10_000, 20_000, 100_000]
        );
        assert_eq!(of(u64::MAX), u64::MAX.div_ceil(8).saturating_mul(10_000));
        let fixed = Length::of(KernelTime::Fixed { us: 500 }, 8, 80);
        assert_eq!((fixed.duration_ns, fixed.block_ns), (500_000, 0));
    }
}
