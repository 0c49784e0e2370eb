//! The video engines (clc7b0.h, clc9b7.h, clc9d1.h): frames that take time and are neither read nor written, and semaphores. The security
//! engine's class has the same place, and nothing of its is played but semaphores of the host.

use runlist::Work;

use super::execution::{Execution, Method, Release, Words};
use super::{Channel, Failure};
use crate::architecture::Unit;

const SEMAPHORE_A: u32 = 0x240;
const SEMAPHORE_C: u32 = 0x248;
const EXECUTE: u32 = 0x300;
const SEMAPHORE_D: u32 = 0x304;
/// Bit 8 of both: an interrupt at the end.
const AWAKEN: u32 = 1 << 8;

impl Channel {
    pub(super) fn video_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        unit: Unit,
        (method, value): (u32, u32),
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        let Some(state) = execution.subchannels.get(subchannel) else {
            return Ok(Method::Done);
        };
        let unknown = Failure::Method {
            class: state.class,
            method,
            value,
        };
        match (unit, method) {
            (Unit::Sec2, EXECUTE | SEMAPHORE_D) => return Err(unknown),
            (Unit::Nvdec | Unit::Nvenc | Unit::Nvjpg | Unit::Ofa, EXECUTE) => {
                let duration_ns = u64::from(self.spec.card.profile.video_frame_us) * 1000;
                if duration_ns > 0 {
                    self.submit(execution, Work::kernel(duration_ns), Vec::new());
                }
                if value & AWAKEN != 0 {
                    execution.interrupt();
                }
                if duration_ns > 0 {
                    return Ok(Method::Launched);
                }
            }
            (Unit::Nvdec | Unit::Nvenc | Unit::Nvjpg | Unit::Ofa, SEMAPHORE_D) => {
                let words = match value & 3 {
                    0 => Words::One,
                    1 => Words::Four,
                    _payload_of_64_bits => return Err(unknown),
                };
                let release = Release {
                    address: state.address(SEMAPHORE_A),
                    payload: u64::from(state.register(SEMAPHORE_C)),
                    words,
                };
                match value >> 16 & 3 {
                    0 => self.release(execution, release, now)?,
                    // A trap: nobody listens.
                    3 => {}
                    _monitored_fence => return Err(unknown),
                }
                if value & AWAKEN != 0 {
                    execution.interrupt();
                }
            }
            (Unit::Nvdec | Unit::Nvenc | Unit::Nvjpg | Unit::Ofa | Unit::Sec2, _state) => {}
        }
        Ok(Method::Done)
    }
}
