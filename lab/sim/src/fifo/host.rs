//! Methods of the host engine: binding classes, semaphores, interrupts (clc56f.h).

use super::execution::{Execution, Method, Release, Words};
use super::{Channel, Failure};

/// State of the host's methods.
#[derive(Debug, Default)]
pub(super) struct Registers {
    semaphore_address: u64,
    semaphore_payload: u64,
    /// SEMAPHOREA to C of Volta and before.
    old_address: u64,
    old_payload: u32,
}

const SET_OBJECT: u32 = 0x00;
const SEMAPHORE_A: u32 = 0x10;
const SEMAPHORE_B: u32 = 0x14;
const SEMAPHORE_C: u32 = 0x18;
const SEMAPHORE_D: u32 = 0x1c;
const NON_STALL_INTERRUPT: u32 = 0x20;
const SEM_ADDR_LO: u32 = 0x5c;
const SEM_ADDR_HI: u32 = 0x60;
const SEM_PAYLOAD_LO: u32 = 0x64;
const SEM_PAYLOAD_HI: u32 = 0x68;
const SEM_EXECUTE: u32 = 0x6c;

impl Channel {
    pub(super) fn host_method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        method: u32,
        value: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        let low = |word: u64, value: u32| word & !0xffff_ffff | u64::from(value);
        let high = |word: u64, value: u32| word & 0xffff_ffff | u64::from(value) << 32;
        if self.spec.card.profile.architecture.is_before_usermode()
            && (SEM_ADDR_LO..=SEM_EXECUTE).contains(&method)
        {
            // clc06f.h has SEMAPHOREA to D alone.
            let class = 0;
            return Err(Failure::Method {
                class,
                method,
                value,
            });
        }
        let host = &mut execution.host;
        match method {
            SET_OBJECT => {
                if let Some(state) = execution.subchannels.get_mut(subchannel) {
                    state.class = value & 0xffff;
                }
            }
            SEM_ADDR_LO => host.semaphore_address = low(host.semaphore_address, value & !3),
            SEM_ADDR_HI => {
                host.semaphore_address = high(host.semaphore_address, value & 0x01ff_ffff)
            }
            SEM_PAYLOAD_LO => host.semaphore_payload = low(host.semaphore_payload, value),
            SEM_PAYLOAD_HI => host.semaphore_payload = high(host.semaphore_payload, value),
            SEM_EXECUTE => {
                let (address, payload) = (host.semaphore_address, host.semaphore_payload);
                return self.semaphore(execution, address, payload, value, now);
            }
            SEMAPHORE_A => host.old_address = high(host.old_address, value & 0xff),
            SEMAPHORE_B => host.old_address = low(host.old_address, value & !3),
            SEMAPHORE_C => host.old_payload = value,
            SEMAPHORE_D => {
                let (address, payload) = (host.old_address, host.old_payload);
                return self.old_semaphore(execution, address, payload, value, now);
            }
            NON_STALL_INTERRUPT => execution.interrupt(),
            // Flushes, idles, yields and the like: everything runs in order already.
            _in_order_anyway => {}
        }
        Ok(Method::Done)
    }

    fn semaphore(
        &self,
        execution: &mut Execution,
        address: u64,
        payload: u64,
        execute: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        const PAYLOAD_64: u32 = 1 << 24;
        const TIMESTAMP: u32 = 1 << 25;
        const RELEASE: u32 = 1;
        let width = if execute & PAYLOAD_64 == 0 { 32 } else { 64 };
        let mask = if width == 64 {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        let payload = payload & mask;
        if execute & 7 == RELEASE {
            let words = match (execute & TIMESTAMP != 0, width) {
                (true, _) => Words::Four,
                (false, 64) => Words::Two,
                (false, _) => Words::One,
            };
            let release = Release {
                address,
                payload,
                words,
            };
            self.release(execution, release, now)?;
            return Ok(Method::Done);
        }
        if !execution.due.is_empty() {
            return Ok(Method::Waits);
        }
        let read = || -> Result<u64, Failure> {
            let mut bytes = [0; 8];
            let length = if width == 64 { 8 } else { 4 };
            self.read(address, bytes.get_mut(..length).unwrap_or_default())?;
            Ok(u64::from_le_bytes(bytes))
        };
        let write = |value: u64| {
            let bytes = value.to_le_bytes();
            self.write(address, if width == 64 { &bytes[..] } else { &bytes[..4] })
        };
        let passes = match execute & 7 {
            0 => read()? == payload,
            2 => read()? >= payload,
            // Circular: the difference, as a signed number of the width, is not negative.
            3 => (read()?.wrapping_sub(payload) & mask) >> (width - 1) == 0,
            4 => read()? & payload != 0,
            5 => !(read()? | payload) & mask != 0,
            6 => {
                let reduced = reduce(execute, read()?, payload, width).ok_or(Failure::Method {
                    class: 0,
                    method: SEM_EXECUTE,
                    value: execute,
                })?;
                write(reduced & mask)?;
                true
            }
            _unknown => {
                return Err(Failure::Method {
                    class: 0,
                    method: SEM_EXECUTE,
                    value: execute,
                });
            }
        };
        Ok(if passes {
            Method::Done
        } else {
            Method::Stalled
        })
    }

    /// SEMAPHORED of Volta and before: 1 acquire, 2 release, 4 acquire greater or equal, 8 acquire and.
    fn old_semaphore(
        &self,
        execution: &mut Execution,
        address: u64,
        payload: u32,
        operation: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        const ONE_WORD: u32 = 1 << 24;
        const RELEASE: u32 = 2;
        if operation & 0x1f == RELEASE {
            let release = Release {
                address,
                payload: u64::from(payload),
                words: if operation & ONE_WORD == 0 {
                    Words::Four
                } else {
                    Words::One
                },
            };
            self.release(execution, release, now)?;
            return Ok(Method::Done);
        }
        if !execution.due.is_empty() {
            return Ok(Method::Waits);
        }
        let read = || -> Result<u32, Failure> {
            let mut bytes = [0; 4];
            self.read(address, &mut bytes)?;
            Ok(u32::from_le_bytes(bytes))
        };
        let passes = match operation & 0x1f {
            1 => read()? == payload,
            4 => read()?.wrapping_sub(payload) >> 31 == 0,
            8 => read()? & payload != 0,
            _unknown => {
                return Err(Failure::Method {
                    class: 0,
                    method: SEMAPHORE_D,
                    value: operation,
                });
            }
        };
        Ok(if passes {
            Method::Done
        } else {
            Method::Stalled
        })
    }
}

/// Reductions of SEM_EXECUTE (30:27); 31: unsigned.
fn reduce(execute: u32, old: u64, payload: u64, width: u32) -> Option<u64> {
    let unsigned = execute >> 31 == 1;
    // Signed comparison as unsigned, with the sign bits turned over.
    let key = |value: u64| {
        if unsigned {
            value
        } else {
            value ^ 1 << (width - 1)
        }
    };
    Some(match execute >> 27 & 0xf {
        0 => {
            if key(payload) < key(old) {
                payload
            } else {
                old
            }
        }
        1 => {
            if key(payload) > key(old) {
                payload
            } else {
                old
            }
        }
        2 => old ^ payload,
        3 => old & payload,
        4 => old | payload,
        5 => old.wrapping_add(payload),
        6 => {
            if old >= payload {
                0
            } else {
                old + 1
            }
        }
        7 => {
            if old == 0 || old > payload {
                payload
            } else {
                old - 1
            }
        }
        _unknown => return None,
    })
}
