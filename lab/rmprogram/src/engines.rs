//! Every engine of a card, of any generation: a channel on its runlist, a piece of work that only that engine does, and a fence.
//!
//! ```text
//! EngineClass::all ──▶ EngineChannel::make ──▶ work: copies, inline data, a frame ──▶ fence ──▶ free: the card has what it had before
//! ```
//!
//! What the work is: copies both ways with their bytes compared, inline data of 3D, inline-to-memory and compute likewise, a frame of a
//! video engine that decodes nothing, a wait for idle of 2D. It has run on simulated cards only: on a real one an empty frame may be an
//! error to the engine.
//!
//! Sources of methods: `clc7b5.h`, `cla140.h`, `clc697.h`, `cl902d.h`, `clc7b0.h`, `clc9b7.h`, `clc9d1.h`.

use std::time::Duration;

use nvabi::bytes;
use nvabi::class::{self, Kind};
use nvabi::layout::engine_type;
use rmclient::Card;

use crate::Error;
use crate::ring::{ENGINE_GRAPHICS, Purpose, Ring, Space, classes, halves, methods, zeroed};

/// The subchannel that an engine is bound to.
const SUBCHANNEL: u32 = 2;
/// In the channel's area: the host's fence, the engine's own report, and two pieces of data.
const FENCE_AT: usize = 0x2000;
const REPORT_AT: usize = 0x3000;
const FROM_AT: usize = 0x10_0000;
const TO_AT: usize = 0x18_0000;
/// What is copied, and what goes inline: some words of one entry's.
const COPIED_BYTES: usize = 0x4_0000;
const INLINE_BYTES: usize = 64;
/// The engine's own report.
const REPORTED: u32 = 0x600d;

/// What does the work of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Compute, on the graphics engine.
    Compute,
    /// 3D.
    ThreeD,
    /// 2D.
    TwoD,
    /// Data that are in the commands.
    InlineToMemory,
    /// A copy engine.
    Copy,
    /// NVDEC.
    Decoder,
    /// NVENC.
    Encoder,
    /// NVJPG.
    Jpeg,
    /// OFA: optical flow.
    OpticalFlow,
}

/// A class of an engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineClass {
    /// Its number.
    pub number: u32,
    /// The driver's name of it.
    pub name: &'static str,
    /// The engine.
    pub engine: Engine,
}

impl EngineClass {
    /// The engine of a class that the release has; `None` where the class is no engine's.
    #[must_use]
    pub fn of(number: u32, release: nvabi::Release) -> Option<Self> {
        let row = class::row_of(number, release)?;
        // Classes of one engine end alike in all generations.
        let engine = match (row.kind, number & 0xff) {
            (Kind::Graphics, 0xc0) => Engine::Compute,
            (Kind::Graphics, 0x97) => Engine::ThreeD,
            (Kind::Graphics, 0x2d) => Engine::TwoD,
            (Kind::Graphics, 0x40) => Engine::InlineToMemory,
            (Kind::Copy, _) => Engine::Copy,
            (Kind::Video, 0xb0) => Engine::Decoder,
            (Kind::Video, 0xb7) => Engine::Encoder,
            (Kind::Video, 0xd0 | 0xd1) => Engine::Jpeg,
            (Kind::Video, 0xfa) => Engine::OpticalFlow,
            (
                Kind::Graphics
                | Kind::Video
                | Kind::Root
                | Kind::Device
                | Kind::Subdevice
                | Kind::Vidmem
                | Kind::Sysmem
                | Kind::OsDescriptor
                | Kind::Virtual
                | Kind::VaSpace
                | Kind::ChannelGroup
                | Kind::Channel
                | Kind::ContextShare
                | Kind::OtherEngine
                | Kind::Usermode
                | Kind::Event
                | Kind::Fabric
                | Kind::Plain(_),
                _number,
            ) => return None,
        };
        Some(Self {
            number,
            name: row.name,
            engine,
        })
    }

    /// The classes of engines that a card lists.
    ///
    /// # Errors
    /// The driver's status.
    pub fn all(card: &Card<'_>) -> Result<Vec<Self>, Error> {
        let release = card.client().release();
        Ok(classes(card)?
            .into_iter()
            .filter_map(|number| Self::of(number, release))
            .collect())
    }

    /// `NV2080_ENGINE_TYPE_*` of the first one (cl2080_notification.h).
    fn engine_type(self) -> u32 {
        match self.engine {
            Engine::Compute | Engine::ThreeD | Engine::TwoD | Engine::InlineToMemory => {
                ENGINE_GRAPHICS
            }
            Engine::Copy => engine_type::COPY0,
            Engine::Decoder => 0x13,
            Engine::Encoder => 0x1b,
            Engine::Jpeg => 0x2b,
            Engine::OpticalFlow => 0x33,
        }
    }
}

/// A channel with one engine's object.
#[derive(Debug)]
pub struct EngineChannel<'card> {
    card: &'card Card<'card>,
    space: Space<'card>,
    class: EngineClass,
    place: u32,
    ring: Ring,
    fence: u32,
    patience: Duration,
}

impl<'card> EngineChannel<'card> {
    /// Makes a channel of an engine's, in a group of its own, and binds the class. `place` is unique among the channels of an address space;
    /// nothing that is done on the channel takes longer than `patience`.
    ///
    /// # Errors
    /// The driver's status; [`Error::NoClass`] for a card whose channels are not known here.
    pub fn make(
        card: &'card Card<'card>,
        space: Space<'card>,
        class: EngineClass,
        place: u32,
        patience: Duration,
    ) -> Result<Self, Error> {
        let mut params = zeroed(card, class.number);
        match class.engine {
            // {size, prohibitMultipleInstances, engineInstance} of all of them (nvos.h)
            Engine::Decoder | Engine::Encoder | Engine::Jpeg | Engine::OpticalFlow => {
                let size = u32::try_from(params.len()).unwrap_or(0);
                bytes::put_u32(&mut params, 0, size);
            }
            Engine::Compute
            | Engine::ThreeD
            | Engine::TwoD
            | Engine::InlineToMemory
            | Engine::Copy => {}
        }
        let purpose = Purpose {
            class: class.number,
            engine_type: class.engine_type(),
            params,
        };
        let ring = Ring::make_for(card, space, purpose, &classes(card)?, place)?;
        let mut channel = Self {
            card,
            space,
            class,
            place,
            ring,
            fence: 0,
            patience,
        };
        channel.run(methods(SUBCHANNEL, 0, &[class.number]))?;
        Ok(channel)
    }
}

impl EngineChannel<'_> {
    /// Does work that only this engine does, and looks at what has come of it.
    ///
    /// # Errors
    /// [`Error::NotDone`] when it does not end; [`Error::OtherBytes`] where something else was written.
    pub fn work(&mut self) -> Result<(), Error> {
        match self.class.engine {
            Engine::Copy => {
                self.copies(FROM_AT, TO_AT, 1)?;
                self.copies(TO_AT, FROM_AT, 2)
            }
            Engine::Compute | Engine::ThreeD => {
                self.writes_inline()?;
                let (high, low) = halves(self.address(REPORT_AT));
                // SET_REPORT_SEMAPHORE: release of one word.
                let report = methods(SUBCHANNEL, 0x1b00, &[high, low, REPORTED, 1 << 28]);
                self.reports(report)
            }
            Engine::InlineToMemory => self.writes_inline(),
            // WAIT_FOR_IDLE
            Engine::TwoD => self.run(methods(SUBCHANNEL, 0x110, &[0])),
            Engine::Decoder | Engine::Encoder | Engine::Jpeg | Engine::OpticalFlow => {
                let (high, low) = halves(self.address(REPORT_AT));
                // SET_APPLICATION_ID, EXECUTE, and SEMAPHORE_A to D: release of one word.
                let mut frame = methods(SUBCHANNEL, 0x200, &[1]);
                frame.extend(methods(SUBCHANNEL, 0x300, &[0]));
                frame.extend(methods(SUBCHANNEL, 0x240, &[high, low, REPORTED]));
                frame.extend(methods(SUBCHANNEL, 0x304, &[0]));
                self.reports(frame)
            }
        }
    }

    /// Frees the channel, its group, its memory and its addresses.
    ///
    /// # Errors
    /// The driver's status.
    pub fn free(self) -> Result<(), Error> {
        self.ring.free(self.card, self.space, self.place)
    }

    fn copies(&mut self, from: usize, to: usize, seed: u32) -> Result<(), Error> {
        self.fill(from, COPIED_BYTES, seed);
        let ((fh, fl), (th, tl)) = (halves(self.address(from)), halves(self.address(to)));
        let length = u32::try_from(COPIED_BYTES).unwrap_or(0);
        let mut commands = methods(SUBCHANNEL, 0x400, &[fh, fl, th, tl]);
        commands.extend(methods(SUBCHANNEL, 0x418, &[length]));
        // Pitch-linear, not pipelined, flushed.
        commands.extend(methods(SUBCHANNEL, 0x300, &[0x182]));
        self.run(commands)?;
        self.compare(to, COPIED_BYTES, seed)
    }

    fn writes_inline(&mut self) -> Result<(), Error> {
        const SEED: u32 = 3;
        let (high, low) = halves(self.address(TO_AT));
        let length = u32::try_from(INLINE_BYTES).unwrap_or(0);
        let mut commands = methods(SUBCHANNEL, 0x180, &[length, 1, high, low]);
        // To memory that lies line by line.
        commands.extend(methods(SUBCHANNEL, 0x1b0, &[1]));
        // All words to one method.
        let words = length / 4;
        commands.push(3 << 29 | words << 16 | SUBCHANNEL << 13 | 0x1b4 >> 2);
        commands.extend((0..words).map(|at| pattern(SEED, at)));
        self.run(commands)?;
        self.compare(TO_AT, INLINE_BYTES, SEED)
    }

    /// Runs commands whose last is a report of the engine's own.
    fn reports(&mut self, commands: Vec<u32>) -> Result<(), Error> {
        self.ring.store(REPORT_AT, 0);
        self.run(commands)?;
        match self.ring.load(REPORT_AT) {
            REPORTED => Ok(()),
            _other => Err(Error::OtherBytes {
                class: self.class.name,
                at: 0,
            }),
        }
    }

    /// Runs commands, and waits for the host's word that they have ended. Every entry is waited for, so that its room is free.
    fn run(&mut self, mut commands: Vec<u32>) -> Result<(), Error> {
        self.fence = self.fence.wrapping_add(1);
        let (fence, patience) = (self.fence, self.patience);
        commands.extend(self.ring.release(self.address(FENCE_AT), fence));
        self.ring.submit(&commands);
        self.ring.until(FENCE_AT, fence, patience)
    }

    fn address(&self, at: usize) -> u64 {
        self.ring.address + u64::try_from(at).unwrap_or(0)
    }

    fn fill(&self, at: usize, count: usize, seed: u32) {
        for (word, place) in (0..).zip((at..at + count).step_by(4)) {
            self.ring.store(place, pattern(seed, word));
        }
    }

    fn compare(&self, at: usize, count: usize, seed: u32) -> Result<(), Error> {
        let mut places = (0..).zip((at..at + count).step_by(4));
        match places.find(|(word, place)| self.ring.load(*place) != pattern(seed, *word)) {
            None => Ok(()),
            Some((_word, place)) => Err(Error::OtherBytes {
                class: self.class.name,
                at: place - at,
            }),
        }
    }
}

/// A word of the data of a seed.
fn pattern(seed: u32, word: u32) -> u32 {
    word.wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(0x85eb_ca6b)
}

#[cfg(test)]
mod tests {
    use nvabi::Release;

    use super::*;

    #[test]
    fn every_class_of_an_engine_is_known_by_its_end() {
        let is_engine = |kind| matches!(kind, Kind::Graphics | Kind::Copy | Kind::Video);
        for row in class::ALL.iter().filter(|row| is_engine(row.kind)) {
            let release = row.until.unwrap_or(Release::R595);
            let found = EngineClass::of(row.number, release);
            assert_eq!(found.map(|class| class.name), Some(row.name));
        }
        assert_eq!(EngineClass::of(0x3e, Release::R570), None);
    }
}
