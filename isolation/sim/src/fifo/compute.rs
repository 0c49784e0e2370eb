//! The compute engine (clc6c0.h and its successors): launches that take time and do nothing, their releases, inline data.

use std::time::Duration;

use super::execution::{Execution, Subchannel};
use super::{Channel, Failure};
use crate::architecture::QmdVersion;
use crate::session::nanoseconds;

const LINE_LENGTH_IN: u32 = 0x180;
const OFFSET_OUT_UPPER: u32 = 0x188;
const LAUNCH_DMA: u32 = 0x1b0;
const LOAD_INLINE_DATA: u32 = 0x1b4;
const SEND_PCAS_A: u32 = 0x2b4;
const SEND_SIGNALING_PCAS_B: u32 = 0x2bc;
const SEND_SIGNALING_PCAS2_B: u32 = 0x2c0;
const SET_REPORT_SEMAPHORE_A: u32 = 0x1b00;
const SET_REPORT_SEMAPHORE_C: u32 = 0x1b08;
const SET_REPORT_SEMAPHORE_D: u32 = 0x1b0c;

/// A kernel that runs.
#[derive(Debug)]
pub(super) struct Launch {
    /// By the cards' clock.
    pub(super) ends: Duration,
    duration: Duration,
    qmd: Qmd,
}

/// What is done at a kernel's end.
#[derive(Debug, Clone, Copy)]
struct Release {
    address: u64,
    payload: u64,
    words: Words,
}

#[derive(Debug, Clone, Copy)]
enum Words {
    One,
    Two,
    Four,
}

/// A launch's descriptor, as far as it is carried out.
#[derive(Debug)]
struct Qmd {
    releases: Vec<Release>,
    /// Address of the launch that follows this one.
    dependent: Option<u64>,
}

impl Channel {
    /// A launch, if the method is one.
    pub(super) fn compute_method(
        &self,
        state: &mut Subchannel,
        method: u32,
        value: u32,
        now: Duration,
    ) -> Result<Option<Launch>, Failure> {
        match method {
            SEND_SIGNALING_PCAS_B | SEND_SIGNALING_PCAS2_B => self
                .launch(u64::from(state.register(SEND_PCAS_A)) << 8, now)
                .map(Some),
            LAUNCH_DMA => {
                state.inline_bytes = 0;
                Ok(None)
            }
            LOAD_INLINE_DATA => {
                // The last word may be cut.
                let left =
                    u64::from(state.register(LINE_LENGTH_IN)).saturating_sub(state.inline_bytes);
                let bytes = value.to_le_bytes();
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let to = state
                    .address(OFFSET_OUT_UPPER)
                    .wrapping_add(state.inline_bytes);
                self.write(to, bytes.get(..length).unwrap_or_default())?;
                state.inline_bytes += u64::try_from(length).unwrap_or(0);
                Ok(None)
            }
            SET_REPORT_SEMAPHORE_D => {
                const ONE_WORD: u32 = 1 << 28;
                let address = state.address(SET_REPORT_SEMAPHORE_A);
                let payload = state.register(SET_REPORT_SEMAPHORE_C);
                match value & 3 {
                    0 if value & ONE_WORD == 0 => {
                        self.write_stamped(address, u64::from(payload), now)?
                    }
                    0 => self.write(address, &payload.to_le_bytes())?,
                    // A trap: nobody listens.
                    3 => {}
                    _counters => {
                        return Err(Failure::Method {
                            class: state.class,
                            method,
                            value,
                        });
                    }
                }
                Ok(None)
            }
            _state => Ok(None),
        }
    }

    fn launch(&self, address: u64, now: Duration) -> Result<Launch, Failure> {
        let version = self.spec.card.profile.architecture.qmd();
        let mut bytes = match version {
            QmdVersion::V3 => vec![0; 64 * 4],
            QmdVersion::V5 => vec![0; 96 * 4],
        };
        self.read(address, &mut bytes)?;
        let duration = Duration::from_micros(u64::from(self.spec.card.profile.kernel_duration_us));
        Ok(Launch {
            ends: now.saturating_add(duration),
            duration,
            qmd: Qmd::read(&bytes, version),
        })
    }

    /// Writes what the kernel releases; the launch that follows it, if there is one.
    pub(super) fn finish_launch(
        &self,
        execution: &mut Execution,
        now: Duration,
    ) -> Result<Option<Launch>, Failure> {
        let Some(launch) = execution.launch.take() else {
            return Ok(None);
        };
        self.spec
            .card
            .worked(&self.spec.session, nanoseconds(launch.duration));
        for release in &launch.qmd.releases {
            let payload = release.payload.to_le_bytes();
            match release.words {
                Words::One => self.write(release.address, &payload[..4])?,
                Words::Two => self.write(release.address, &payload)?,
                Words::Four => self.write_stamped(release.address, release.payload, now)?,
            }
        }
        launch
            .qmd
            .dependent
            .map(|address| self.launch(address, now))
            .transpose()
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
    /// Layouts: NVC6C0_QMDV03_00 and NVCEC0_QMDV05_00 (clc6c0qmd.h, clcec0qmd.h).
    fn read(bytes: &[u8], version: QmdVersion) -> Self {
        let releases = [0, 1]
            .into_iter()
            .filter_map(|which| {
                let at = match version {
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
        let (enable, action, pointer) = match version {
            QmdVersion::V3 => (512, 513, 480),
            QmdVersion::V5 => (336, 337, 384),
        };
        // Action 1: schedule the dependent one; the others only count.
        let dependent = (bits(bytes, enable, 1) == 1 && bits(bytes, action, 3) == 1)
            .then(|| bits(bytes, pointer, 32) << 8);
        Self {
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
