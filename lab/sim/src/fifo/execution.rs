//! What a channel is doing: the words of its ring entry, the header it is in, the state of its methods.

use std::collections::VecDeque;

use super::{Failure, host};

const SUBCHANNELS: usize = 8;
/// Methods in a subchannel's space: a 12-bit word address.
const METHODS: usize = 4096;
/// What a method came to.
pub(super) enum Method {
    Done,
    /// An acquire waits for a value.
    Stalled,
    /// It can only be done when all that is under way has ended.
    Waits,
    /// Work has been given to an engine.
    Launched,
}

/// What is to be done when what was launched before it has ended, in the order of the ring.
#[derive(Debug)]
pub(super) enum Due {
    /// Work of an engine, by its tag, and what it writes at its end.
    Work { tag: u64, releases: Vec<Release> },
    /// A semaphore's release.
    Release(Release),
    /// A non-stalling interrupt.
    Interrupt,
    /// The client is told that an entry has been taken; the next one's index.
    Taken { get: u32 },
}

/// A value that the card writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) address: u64,
    pub(super) payload: u64,
    pub(super) words: Words,
}

/// How much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    One,
    Two,
    /// Two of the payload, two of the time.
    Four,
}

#[derive(Debug, Default)]
pub(super) struct Execution {
    /// Index of the next ring entry.
    pub(super) get: u32,
    pub(super) words: Vec<u32>,
    pub(super) at: usize,
    pub(super) header: Option<Header>,
    pub(super) host: host::Registers,
    pub(super) subchannels: [Subchannel; SUBCHANNELS],
    pub(super) due: VecDeque<Due>,
    /// Works among what is due.
    pub(super) under_way: usize,
    /// Address of a launch that follows the last one.
    pub(super) dependent: Option<u64>,
    pub(super) interrupts: u32,
    /// What was wrong behind work that has not ended: it counts when that has.
    pub(super) coming: Option<Failure>,
    pub(super) failure: Option<Failure>,
}

#[derive(Debug, Default)]
pub(super) struct Subchannel {
    pub(super) class: u32,
    pub(super) registers: Option<Box<[u32; METHODS]>>,
    /// Bytes of inline data that have come.
    pub(super) inline_bytes: u64,
    /// The LAUNCH_DMA that they are for.
    pub(super) inline_launch: u32,
}

/// A method header whose data has not all been taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) subchannel: usize,
    pub(super) method: u32,
    pub(super) remaining: u32,
    /// What the next method address is, relative to this one.
    pub(super) stride: Stride,
    pub(super) immediate: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stride {
    Increment,
    Stay,
    IncrementOnce,
}

impl Subchannel {
    pub(super) fn register(&self, method: u32) -> u32 {
        let at = usize::try_from(method / 4).unwrap_or(usize::MAX);
        self.registers
            .as_ref()
            .and_then(|all| all.get(at))
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn set(&mut self, method: u32, value: u32) {
        let at = usize::try_from(method / 4).unwrap_or(usize::MAX);
        let registers = self.registers.get_or_insert_with(|| Box::new([0; METHODS]));
        if let Some(register) = registers.get_mut(at) {
            *register = value;
        }
    }

    /// An address in two registers, upper part first.
    pub(super) fn address(&self, upper: u32) -> u64 {
        u64::from(self.register(upper)) << 32 | u64::from(self.register(upper + 4))
    }
}

impl Execution {
    /// An interrupt when all before it has ended.
    pub(super) fn interrupt(&mut self) {
        if self.due.is_empty() {
            self.interrupt_now();
        } else {
            self.due.push_back(Due::Interrupt);
        }
    }

    pub(super) fn interrupt_now(&mut self) {
        self.interrupts = self.interrupts.saturating_add(1);
    }

    /// What was launched will not end any more.
    pub(super) fn forget_due(&mut self) {
        self.due.clear();
        self.under_way = 0;
        self.dependent = None;
        self.coming = None;
    }

    /// Reads a method header (clc56f.h, DMA_*); `false` at the end of the segment.
    pub(super) fn read_header(&mut self, word: u32) -> Result<bool, Failure> {
        let count = word >> 16 & 0x1fff;
        let subchannel = usize::try_from(word >> 13 & 7).unwrap_or(0);
        let method = (word & 0xfff) * 4;
        let (stride, remaining, immediate) = match word >> 29 {
            // No operation: what rings are padded with.
            0 if word == 0 => return Ok(true),
            1 => (Stride::Increment, count, None),
            3 => (Stride::Stay, count, None),
            4 => (Stride::Stay, 1, Some(count)),
            5 => (Stride::IncrementOnce, count, None),
            7 => return Ok(false),
            _unknown => {
                return Err(Failure::Method {
                    class: 0,
                    method,
                    value: word,
                });
            }
        };
        if remaining > 0 {
            self.header = Some(Header {
                subchannel,
                method,
                remaining,
                stride,
                immediate,
            });
        }
        Ok(true)
    }

    /// The method of a header is done.
    pub(super) fn take(&mut self, header: Header) {
        if header.immediate.is_none() {
            self.at += 1;
        }
        let (method, stride) = match header.stride {
            Stride::Increment => (header.method.wrapping_add(4), Stride::Increment),
            Stride::Stay => (header.method, Stride::Stay),
            Stride::IncrementOnce => (header.method.wrapping_add(4), Stride::Stay),
        };
        let remaining = header.remaining - 1;
        self.header = (remaining > 0).then_some(Header {
            method,
            stride,
            remaining,
            ..header
        });
    }
}
