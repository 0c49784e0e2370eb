//! A channel that launches kernels: grids of a length of their own, each of which reports when it has ended.
//!
//! ```text
//! launch(blocks) ──▶ descriptor, commands ──▶ ring ──▶ the card runs it ──▶ report {number, time} ──▶ ended()
//! ```
//!
//! The descriptors name no program: a simulated card runs none, and lets a grid take its time. A real card would fault.
//!
//! Sources: `clc6c0.h`, `clc6c0qmd.h` and `clcec0qmd.h`, `ctrla06c.h`, `ctrl2080gr.h`.

use std::sync::atomic::{Ordering, fence};

use nvabi::{bytes, control};
use rmclient::{Card, Handle};
use sys::ioctl::Block;

use crate::Error;
use crate::ring::{ENTRIES, Ring, Space, classes, first, halves, methods};

/// Compute classes, newest first.
pub(crate) const COMPUTES: &[u32] = &[0xcec0, 0xcdc0, 0xcbc0, 0xc9c0, 0xc7c0, 0xc6c0];
/// From this class on descriptors have version 5.
const FIRST_VERSION_5: u32 = 0xcdc0;
/// The subchannel that the compute engine is bound to.
const COMPUTE: u32 = 1;
const SEND_PCAS_A: u32 = 0x2b4;
const SEND_SIGNALING_PCAS2_B: u32 = 0x2c0;
/// Invalidate and schedule.
const PCAS_ACTION: u32 = 9;
/// In the channel's area: reports of 16 bytes, and descriptors, one of each for a ring entry.
const REPORTS_AT: usize = 0x4000;
const REPORT_BYTES: usize = 16;
const DESCRIPTORS_AT: usize = 0x10_0000;
const DESCRIPTOR_BYTES: usize = 512;
/// `NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE` `{flags 0, hChannel 4, gfxpPreemptMode 8, cilpPreemptMode 12}`; bit 0 of
/// the flags: the compute mode is set.
const SET_PREEMPTION_MODE: u32 = 0x2080_1210;
const FLAG_COMPUTE: u32 = 1;
/// `NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS`, `..._NUM_TPC_PER_GPC`, `..._NUM_SM_PER_TPC`.
const GR_INDICES: [u32; 3] = [0x14, 0x17, 0x20];

/// When a kernel may be taken off the card (`NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptionMode {
    /// At its end.
    Wfi,
    /// At the end of its running thread blocks.
    Cta,
    /// At any instruction.
    Cilp,
}

/// A kernel that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its number: launches of a channel are counted from 1.
    pub number: u64,
    /// When, by the card's clock: on a simulated card ns of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// A channel with a compute engine, in a group of its own.
#[derive(Debug)]
pub struct ComputeChannel<'card> {
    card: &'card Card<'card>,
    ring: Ring,
    descriptor: Descriptor,
    launched: u64,
    ended: u64,
}

/// Bit positions in a launch's descriptor.
#[derive(Debug)]
struct Descriptor {
    grid_width: usize,
    grid_height: usize,
    grid_depth: usize,
    release_enable: usize,
    release_address: usize,
    release_payload: usize,
}

/// NVC6C0_QMDV03_00
const VERSION_3: Descriptor = Descriptor {
    grid_width: 384,
    grid_height: 416,
    grid_depth: 448,
    release_enable: 823,
    release_address: 768,
    release_payload: 832,
};

/// NVCEC0_QMDV05_00
const VERSION_5: Descriptor = Descriptor {
    grid_width: 1248,
    grid_height: 1280,
    grid_depth: 1312,
    release_enable: 288,
    release_address: 480,
    release_payload: 544,
};

impl Descriptor {
    /// A grid of one dimension that reports its number and its end in four words.
    fn words(&self, blocks: u32, report: u64, number: u32) -> [u32; DESCRIPTOR_BYTES / 4] {
        let mut words = [0; DESCRIPTOR_BYTES / 4];
        let mut set = |at: usize, value: u32| {
            // All but the enabling bit begin a word, or fill its lower part.
            if let Some(word) = words.get_mut(at / 32) {
                *word |= value << (at % 32);
            }
        };
        let (high, low) = halves(report);
        set(self.grid_width, blocks);
        set(self.grid_height, 1);
        set(self.grid_depth, 1);
        set(self.release_enable, 1);
        set(self.release_address, low);
        set(self.release_address + 32, high);
        set(self.release_payload, number);
        words
    }
}

/// Multiprocessors (SMs) of a card, by GR_GET_INFO.
///
/// # Errors
/// The driver's status.
pub fn multiprocessors(card: &Card<'_>) -> Result<u32, Error> {
    let cmd = control::NV2080_CTRL_CMD_GR_GET_INFO;
    let mut params = card.client().params(cmd)?;
    let mut list = [0; 8 * GR_INDICES.len()];
    for (entry, index) in list.chunks_exact_mut(8).zip(GR_INDICES) {
        bytes::put_u32(entry, 0, index);
    }
    bytes::put_u32(&mut params, 0, u32::try_from(GR_INDICES.len()).unwrap_or(0));
    let nested = vec![Block {
        parent: 1,
        pointer_at: 8,
        bytes: &mut list,
    }];
    card.client()
        .control(card.subdevice(), cmd, &mut params, nested)?;
    Ok(list
        .chunks_exact(8)
        .map(|entry| bytes::u32_at(entry, 4).unwrap_or(0))
        .fold(1, u32::saturating_mul))
}

impl<'card> ComputeChannel<'card> {
    /// Makes a channel, in a group of its own, that launches kernels. `place` is unique among the channels of an address
    /// space, and at least 1: 0 is where a [`crate::CopyChannel`] has its area.
    ///
    /// # Errors
    /// [`Error::NoClass`] for a card whose generation is not known here; otherwise the driver's status.
    pub fn make(card: &'card Card<'card>, space: Space<'_>, place: u32) -> Result<Self, Error> {
        let classes = classes(card)?;
        let class = first(COMPUTES, &classes, "compute engine")?;
        let mut ring = Ring::make(card, space, class, &classes, place)?;
        ring.submit(&methods(COMPUTE, 0, &[class]));
        Ok(Self {
            card,
            ring,
            descriptor: if class < FIRST_VERSION_5 {
                VERSION_3
            } else {
                VERSION_5
            },
            launched: 0,
            ended: 0,
        })
    }
}

impl ComputeChannel<'_> {
    /// Most kernels that can be under way: one entry stays free, and one was the setup's.
    pub const DEPTH: u32 = ENTRIES - 2;

    /// Kernels that have been launched and were not seen to have ended.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.launched - self.ended
    }

    /// Launches a kernel of this many thread blocks; its number, or `None` where [`ComputeChannel::DEPTH`] are under way.
    pub fn launch(&mut self, blocks: u32) -> Option<u64> {
        if self.under_way() >= u64::from(Self::DEPTH) {
            return None;
        }
        let slot = self.ring.slot();
        let report = REPORTS_AT + slot * REPORT_BYTES;
        let descriptor = DESCRIPTORS_AT + slot * DESCRIPTOR_BYTES;
        let on_card = |at: usize| self.ring.address + u64::try_from(at).unwrap_or(0);
        self.launched += 1;
        let words = self
            .descriptor
            .words(blocks, on_card(report), low_word(self.launched));
        for (word, at) in words.iter().zip((descriptor..).step_by(4)) {
            self.ring.store(at, *word);
        }
        let address = u32::try_from(on_card(descriptor) >> 8).unwrap_or(0);
        let mut commands = methods(COMPUTE, SEND_PCAS_A, &[address]);
        commands.extend(methods(COMPUTE, SEND_SIGNALING_PCAS2_B, &[PCAS_ACTION]));
        self.ring.submit(&commands);
        Some(self.launched)
    }

    /// The next kernel that has ended, in the order of launches.
    pub fn next_ended(&mut self) -> Option<Ended> {
        let number = self.ended + 1;
        if number > self.launched {
            return None;
        }
        // The setup took the first entry, so that kernel n has entry n.
        let slot = usize::try_from(number % u64::from(ENTRIES)).unwrap_or(0);
        let report = REPORTS_AT + slot * REPORT_BYTES;
        if self.ring.load(report) != low_word(number) {
            return None;
        }
        // The card writes the time before the number.
        fence(Ordering::Acquire);
        let at_ns =
            u64::from(self.ring.load(report + 8)) | u64::from(self.ring.load(report + 12)) << 32;
        self.ended = number;
        Some(Ended { number, at_ns })
    }

    /// Whether the driver still knows the channel as one that works.
    ///
    /// # Errors
    /// The driver's status.
    pub fn check(&self) -> Result<(), Error> {
        self.ring.check(self.card)
    }

    /// How far the card has taken entries from the ring, and how far they were put there, as USERD has both.
    #[must_use]
    pub fn positions(&self) -> (u32, u32) {
        self.ring.positions()
    }

    /// Handle of the channel.
    #[must_use]
    pub fn channel(&self) -> Handle {
        self.ring.channel
    }

    /// Handle of its group.
    #[must_use]
    pub fn group(&self) -> Handle {
        self.ring.group
    }

    /// Asks for a time slice of the group, µs.
    ///
    /// # Errors
    /// The driver's status.
    pub fn set_timeslice(&self, micros: u64) -> Result<(), Error> {
        let (cmd, client) = (control::NVA06C_CTRL_CMD_SET_TIMESLICE, self.card.client());
        let mut params = client.params(cmd)?;
        bytes::put_u64(&mut params, 0, micros);
        Ok(client.control(self.ring.group, cmd, &mut params, Vec::new())?)
    }

    /// The time slice that the group has, µs.
    ///
    /// # Errors
    /// The driver's status.
    pub fn timeslice(&self) -> Result<u64, Error> {
        let (cmd, client) = (control::NVA06C_CTRL_CMD_GET_TIMESLICE, self.card.client());
        let mut params = client.params(cmd)?;
        client.control(self.ring.group, cmd, &mut params, Vec::new())?;
        Ok(bytes::u64_at(&params, 0).unwrap_or(0))
    }

    /// Asks for a preemption mode of the channel's context.
    ///
    /// # Errors
    /// The driver's status.
    pub fn set_preemption_mode(&self, mode: PreemptionMode) -> Result<(), Error> {
        let client = self.card.client();
        let mut params = client.params(SET_PREEMPTION_MODE)?;
        bytes::put_u32(&mut params, 0, FLAG_COMPUTE);
        bytes::put_u32(&mut params, 4, self.ring.channel.0);
        let mode = match mode {
            PreemptionMode::Wfi => 0,
            PreemptionMode::Cta => 1,
            PreemptionMode::Cilp => 2,
        };
        bytes::put_u32(&mut params, 12, mode);
        Ok(client.control(
            self.card.subdevice(),
            SET_PREEMPTION_MODE,
            &mut params,
            Vec::new(),
        )?)
    }
}

fn low_word(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_reports_its_grid_and_where_it_reports() {
        let report = 0x10_0012_3450;
        for (descriptor, enable, address, grid) in
            [(&VERSION_3, 823, 24, 12), (&VERSION_5, 288, 15, 39)]
        {
            let words = descriptor.words(640, report, 7);
            assert_eq!(words[grid], 640);
            assert_eq!(words[enable / 32] >> (enable % 32) & 1, 1);
            assert_eq!(
                u64::from(words[address]) | u64::from(words[address + 1] & 0xff) << 32,
                report
            );
            assert_eq!(words[address + 2], 7);
        }
    }
}
