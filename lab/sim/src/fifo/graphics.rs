//! What 3D, inline-to-memory and compute have in common (clc697.h, cla140.h, clc6c0.h): inline data and the report semaphore. Nothing is drawn.

use super::execution::{Execution, Method, Release, Words};
use super::{Channel, Failure};

const LINE_LENGTH_IN: u32 = 0x180;
const LINE_COUNT: u32 = 0x184;
const OFFSET_OUT_UPPER: u32 = 0x188;
const PITCH_OUT: u32 = 0x190;
const LAUNCH_DMA: u32 = 0x1b0;
const LOAD_INLINE_DATA: u32 = 0x1b4;
const SET_I2M_SEMAPHORE_A: u32 = 0x1dc;
const SET_I2M_SEMAPHORE_C: u32 = 0x1e4;
const SET_REPORT_SEMAPHORE_A: u32 = 0x1b00;
const SET_REPORT_SEMAPHORE_C: u32 = 0x1b08;
const SET_REPORT_SEMAPHORE_D: u32 = 0x1b0c;

/// Bits of LAUNCH_DMA.
const TO_PITCH: u32 = 1;
const REDUCTION: u32 = 1 << 1;
const COMPLETION_MASK: u32 = 3 << 4;
const COMPLETION_SEMAPHORE: u32 = 2 << 4;
const INTERRUPT: u32 = 1 << 8;
const SEMAPHORE_ONE_WORD: u32 = 1 << 12;

impl Channel {
    /// Methods of 3D and of inline-to-memory; all that is no data and no semaphore is state.
    pub(super) fn graphics_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        (method, value): (u32, u32),
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        match method {
            LAUNCH_DMA | LOAD_INLINE_DATA => {
                self.inline_method(execution, subchannel, (method, value), now)
            }
            SET_REPORT_SEMAPHORE_D => self.report(execution, subchannel, value, now),
            _state => Ok(Method::Done),
        }
    }

    /// Inline data: the bytes of all lines follow each other, word by word, and the last word of all may be cut.
    pub(super) fn inline_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        (method, value): (u32, u32),
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        let is_free = execution.due.is_empty();
        let Some(state) = execution.subchannels.get_mut(subchannel) else {
            return Ok(Method::Done);
        };
        let length = u64::from(state.register(LINE_LENGTH_IN));
        let lines = u64::from(state.register(LINE_COUNT)).max(1);
        if method == LAUNCH_DMA {
            // Lines of half a word are of no known order.
            let is_fake = value & TO_PITCH != 0
                && value & REDUCTION == 0
                && (lines == 1 || length.is_multiple_of(4));
            if !is_fake {
                return Err(Failure::Method {
                    class: state.class,
                    method,
                    value,
                });
            }
            state.inline_bytes = 0;
            state.inline_launch = value;
            return Ok(Method::Done);
        }
        if !is_free {
            return Ok(Method::Waits);
        }
        let all = length.saturating_mul(lines);
        let at = state.inline_bytes;
        let left = all.saturating_sub(at);
        let bytes = value.to_le_bytes();
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (line, column) = (
            at.checked_div(length).unwrap_or(0),
            at.checked_rem(length).unwrap_or(0),
        );
        let pitch = u64::from(state.register(PITCH_OUT));
        let to = state
            .address(OFFSET_OUT_UPPER)
            .wrapping_add(line.wrapping_mul(pitch))
            .wrapping_add(column);
        state.inline_bytes += u64::try_from(count).unwrap_or(0);
        let launch = state.inline_launch;
        let is_last = count > 0 && state.inline_bytes >= all;
        let release = Release {
            address: state.address(SET_I2M_SEMAPHORE_A),
            payload: u64::from(state.register(SET_I2M_SEMAPHORE_C)),
            words: if launch & SEMAPHORE_ONE_WORD == 0 {
                Words::Four
            } else {
                Words::One
            },
        };
        self.write(to, bytes.get(..count).unwrap_or_default())?;
        if is_last && launch & COMPLETION_MASK == COMPLETION_SEMAPHORE {
            self.release(execution, release, now)?;
        }
        if is_last && launch & INTERRUPT != 0 {
            execution.interrupt();
        }
        Ok(Method::Done)
    }

    pub(super) fn report(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        value: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        const ONE_WORD: u32 = 1 << 28;
        let Some(state) = execution.subchannels.get(subchannel) else {
            return Ok(Method::Done);
        };
        let release = Release {
            address: state.address(SET_REPORT_SEMAPHORE_A),
            payload: u64::from(state.register(SET_REPORT_SEMAPHORE_C)),
            words: if value & ONE_WORD == 0 {
                Words::Four
            } else {
                Words::One
            },
        };
        match value & 3 {
            0 => self.release(execution, release, now)?,
            // A trap: nobody listens.
            3 => {}
            _counters => {
                return Err(Failure::Method {
                    class: state.class,
                    method: SET_REPORT_SEMAPHORE_D,
                    value,
                });
            }
        }
        Ok(Method::Done)
    }
}
