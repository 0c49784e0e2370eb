//! The ring of a channel: entries and commands in card memory, filled by stores, with a doorbell. No call is made.
//!
//! Sources of fields: `clc56f.h`, `clc06f.h`, `clc361.h`. Before Volta there is no doorbell, groups are of graphics and compute alone
//! (`nvGpuOpsTsgAllocate`), and USERD is the driver's, which is mapped through the channel (`isDeviceVoltaPlus`, nv_gpu_ops.c).

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use nvabi::layout::channel_params;
use nvabi::{bytes, class, control};
use rmclient::{Card, Form, Handle, Uuid};
use sys::ioctl::Block;

use crate::Error;
use crate::memory::{CardMemory, CpuMapping};
use crate::uvm::{GpuRange, Uvm};

/// How long between two looks at a word.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// Length of the area that holds ring, USERD, commands and what a channel keeps beside them.
pub(crate) const AREA_BYTES: u64 = 2 << 20;
/// Where areas are in the card's address space, by place: far from what `mmap` gives.
const AREAS_ADDRESS: u64 = 0x10_0000_0000;
/// Ring entries of 8 bytes, from the area's beginning.
pub(crate) const ENTRIES: u32 = 512;
const USERD_AT: u64 = 0x1000;
const USERD_IN_AREA: usize = 0x1000;
/// `GPGet` and `GPPut` of USERD.
const GP_GET: usize = 0x88;
const GP_PUT: usize = 0x8c;
/// What of the driver's own USERD is mapped.
const USERD_BYTES: u64 = 0x200;
const COMMANDS_AT: usize = 0x1_0000;
/// Room of the commands of one ring entry.
const COMMANDS_BYTES: usize = 256;
/// The usermode page, and the doorbell in it (`NVC361_NOTIFY_CHANNEL_PENDING`).
const USERMODE_BYTES: u64 = 64 << 10;
const DOORBELL_AT: usize = 0x90;
/// `NV2080_ENGINE_TYPE_GRAPHICS`
pub(crate) const ENGINE_GRAPHICS: u32 = 1;
/// `hVASpace` and `engineType` of NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.
const GROUP_H_VA_SPACE: usize = 8;
const GROUP_ENGINE_TYPE: usize = 12;
/// `NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2`: `{numClasses 0, classes 4}`
const GET_CLASSLIST_V2: u32 = 0x80_0292;
/// Channel and usermode classes, newest first.
pub(crate) const CHANNELS: &[u32] = &[0xc96f, 0xc86f, 0xc56f, 0xc46f, 0xc36f, PASCAL_CHANNEL];
pub(crate) const USERMODES: &[u32] = &[0xc761, 0xc661, 0xc461, 0xc361];
const PASCAL_CHANNEL: u32 = 0xc06f;

/// An address space that a channel works in, which is registered with `nvidia-uvm`.
#[derive(Debug, Clone, Copy)]
pub struct Space<'a> {
    /// The file that it is registered with.
    pub uvm: &'a Uvm<'a>,
    /// The card.
    pub uuid: Uuid,
    /// The space.
    pub handle: Handle,
}

/// A channel in a group of its own, and its ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) group: Handle,
    pub(crate) channel: Handle,
    /// Address of the area on the card.
    pub(crate) address: u64,
    pub(crate) area: CpuMapping,
    memory: Handle,
    submission: Submission,
    put: u32,
}

/// How the card hears of an entry.
#[derive(Debug)]
enum Submission {
    /// USERD is in the area; a store to the doorbell says which channel to look at.
    Doorbell {
        page: CpuMapping,
        object: Handle,
        token: u32,
    },
    /// The driver's own USERD.
    Userd(CpuMapping),
}

/// The object that a channel is made for.
#[derive(Debug, Clone)]
pub(crate) struct Purpose {
    pub(crate) class: u32,
    /// `NV2080_ENGINE_TYPE_*`
    pub(crate) engine_type: u32,
    pub(crate) params: Vec<u8>,
}

/// The number that the hardware has for a channel. cuCtxCreate asks for it by this call.
///
/// # Errors
/// The driver's status; [`rmclient::Error::Malformed`] when it knows no such channel.
fn channel_number(card: &Card<'_>, channel: Handle) -> Result<u32, Error> {
    let cmd = control::NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST;
    let client = card.client();
    let mut params = client.params(cmd)?;
    bytes::put_u32(&mut params, 0, 1);
    let (mut handles, mut numbers) = (channel.0.to_le_bytes(), [0; 4]);
    let lists = [(8, &mut handles), (16, &mut numbers)].map(|(pointer_at, list)| Block {
        parent: 1,
        pointer_at,
        bytes: list,
    });
    client.control(card.device(), cmd, &mut params, lists.into())?;
    match u32::from_le_bytes(numbers) {
        // `NV0080_CTRL_FIFO_GET_CHANNELLIST_INVALID_CHANNEL`
        u32::MAX => Err(rmclient::Error::Malformed {
            call: "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST",
            what: "no number for a channel that it has made",
        }
        .into()),
        number => Ok(number),
    }
}

/// The classes that the card has.
pub(crate) fn classes(card: &Card<'_>) -> Result<Vec<u32>, Error> {
    let client = card.client();
    let mut params = client.params(GET_CLASSLIST_V2)?;
    client.control(card.device(), GET_CLASSLIST_V2, &mut params, Vec::new())?;
    let count = bytes::u32_at(&params, 0).unwrap_or(0);
    Ok((4..)
        .step_by(4)
        .map_while(|at| bytes::u32_at(&params, at))
        .take(usize::try_from(count).unwrap_or(0))
        .collect())
}

/// Zeroed parameters of a class, as long as the release has them.
pub(crate) fn zeroed(card: &Card<'_>, class: u32) -> Vec<u8> {
    let release = card.client().release();
    let length = class::row_of(class, release).map_or(0, |row| row.params.of(release));
    vec![0; usize::try_from(length).unwrap_or(0)]
}

impl Ring {
    /// Makes a group, a channel in it with an object of a class of the graphics engine's runlist, and schedules them. `place` tells the areas of
    /// one address space apart.
    pub(crate) fn make(
        card: &Card<'_>,
        space: Space<'_>,
        engine_class: u32,
        classes: &[u32],
        place: u32,
    ) -> Result<Self, Error> {
        let purpose = Purpose {
            class: engine_class,
            engine_type: ENGINE_GRAPHICS,
            params: zeroed(card, engine_class),
        };
        Self::make_for(card, space, purpose, classes, place)
    }

    /// The same for a class of any engine.
    pub(crate) fn make_for(
        card: &Card<'_>,
        space: Space<'_>,
        purpose: Purpose,
        classes: &[u32],
        place: u32,
    ) -> Result<Self, Error> {
        let client = card.client();
        let range = area_at(place);
        let memory = card.allocate(Form::Short, AREA_BYTES)?;
        let area = card.map(memory.handle, AREA_BYTES)?;
        space.uvm.create_range(range)?;
        space.uvm.map(range, space.uuid, memory.handle)?;

        let channel_class = first(CHANNELS, classes, "channel")?;
        let is_before_volta = channel_class == PASCAL_CHANNEL;
        let is_alone = is_before_volta && purpose.engine_type != ENGINE_GRAPHICS;
        let group = match is_alone {
            true => None,
            false => Some(make_group(card, space, purpose.engine_type)?),
        };
        let mut params = zeroed(card, channel_class);
        bytes::put_u64(&mut params, channel_params::GP_FIFO_OFFSET, range.base);
        bytes::put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, ENTRIES);
        let engine = purpose.engine_type;
        bytes::put_u32(&mut params, channel_params::ENGINE_TYPE, engine);
        if is_alone {
            bytes::put_u32(&mut params, channel_params::H_VA_SPACE, space.handle.0);
        }
        if !is_before_volta {
            bytes::put_u32(&mut params, channel_params::H_USERD_MEMORY, memory.handle.0);
            bytes::put_u64(&mut params, channel_params::USERD_OFFSET, USERD_AT);
        }
        let parent = group.unwrap_or_else(|| card.device());
        let channel = client.allocate(Form::Short, parent, channel_class, &mut params)?;
        let Purpose {
            class, mut params, ..
        } = purpose;
        client.allocate(Form::Short, channel, class, &mut params)?;
        space.uvm.register_channel(space.uuid, channel)?;

        let submission = if is_before_volta {
            Submission::Userd(card.map(channel, USERD_BYTES)?)
        } else {
            Submission::doorbell(card, channel, classes)?
        };
        channel_number(card, channel)?;
        let cmd = match is_alone {
            true => control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
            false => control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        };
        let group = group.unwrap_or(channel);
        let mut params = client.params(cmd)?;
        bytes::put(&mut params, 0, &[1]);
        client.control(group, cmd, &mut params, Vec::new())?;
        Ok(Self {
            group,
            channel,
            address: range.base,
            area,
            memory: memory.handle,
            submission,
            put: 0,
        })
    }

    /// Frees all that [`Ring::make_for`] has made, at the same place.
    pub(crate) fn free(self, card: &Card<'_>, space: Space<'_>, place: u32) -> Result<(), Error> {
        let client = card.client();
        space.uvm.unregister_channel(space.uuid, self.channel)?;
        match self.submission {
            Submission::Doorbell { page, object, .. } => {
                card.unmap(page)?;
                client.free(card.subdevice(), object)?;
            }
            Submission::Userd(userd) => card.unmap(userd)?,
        }
        client.free(card.device(), self.group)?;
        let range = area_at(place);
        space.uvm.unmap(range, space.uuid)?;
        space.uvm.free_range(range)?;
        card.unmap(self.area)?;
        card.free(self.memory)
    }

    /// The methods by which the host releases a value when all before it has ended, in one word.
    pub(crate) fn release(&self, address: u64, value: u32) -> Vec<u32> {
        let (high, low) = halves(address);
        match self.submission {
            // SEM_EXECUTE: release, and wait for idle.
            Submission::Doorbell { .. } => methods(0, 0x5c, &[low, high, value, 0, 1 | 1 << 20]),
            // SEMAPHORED: release of four bytes, which waits for idle by default.
            Submission::Userd(_) => methods(0, 0x10, &[high, low, value, 2 | 1 << 24]),
        }
    }

    /// The entry that the next commands go to: what is kept for each entry is at this place.
    pub(crate) fn slot(&self) -> usize {
        usize::try_from(self.put).unwrap_or(0)
    }

    /// Puts commands into the next entry and rings. Whoever submits sees to it that the entry is free again.
    pub(crate) fn submit(&mut self, commands: &[u32]) {
        let slot = self.slot();
        let at = COMMANDS_AT + slot * COMMANDS_BYTES;
        debug_assert!(commands.len() * 4 <= COMMANDS_BYTES, "one entry's commands");
        for (word, place) in commands.iter().zip((at..at + COMMANDS_BYTES).step_by(4)) {
            self.store(place, *word);
        }
        let address = self.address + u64::try_from(at).unwrap_or(0);
        let length = u64::try_from(commands.len()).unwrap_or(0);
        let (high, low) = halves(address | length << 42 | 1 << 41);
        self.store(slot * 8, low);
        self.store(slot * 8 + 4, high);
        self.put = (self.put + 1) % ENTRIES;
        fence(Ordering::SeqCst);
        match &self.submission {
            Submission::Doorbell { page, token, .. } => {
                self.store(USERD_IN_AREA + GP_PUT, self.put);
                fence(Ordering::SeqCst);
                let rung = page.words().write_u32(DOORBELL_AT, *token);
                debug_assert!(rung.is_some(), "the doorbell lies in its page");
            }
            Submission::Userd(userd) => {
                let stored = userd.words().write_u32(GP_PUT, self.put);
                debug_assert!(stored.is_some(), "the word lies in USERD");
            }
        }
    }

    pub(crate) fn store(&self, at: usize, word: u32) {
        let stored = self.area.words().write_u32(at, word);
        debug_assert!(stored.is_some(), "the area holds all of the ring");
    }

    pub(crate) fn load(&self, at: usize) -> u32 {
        self.area.words().read_u32(at).unwrap_or(0)
    }

    /// Waits for a word of the area's.
    ///
    /// # Errors
    /// [`Error::NotDone`] when it has not come in time.
    pub(crate) fn until(&self, at: usize, word: u32, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        while self.load(at) != word {
            if Instant::now() >= deadline {
                return Err(Error::NotDone {
                    value: word,
                    milliseconds: patience.as_millis(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// `GPGet` and `GPPut`.
    pub(crate) fn positions(&self) -> (u32, u32) {
        let word = |at| match &self.submission {
            Submission::Doorbell { .. } => self.load(USERD_IN_AREA + at),
            Submission::Userd(userd) => userd.words().read_u32(at).unwrap_or(0),
        };
        (word(GP_GET), word(GP_PUT))
    }

    /// Whether the driver still knows the channel as one that works. Where there is no doorbell there is nothing to ask for.
    pub(crate) fn check(&self, card: &Card<'_>) -> Result<(), Error> {
        match self.submission {
            Submission::Doorbell { .. } => token_of(card, self.channel).map(drop),
            Submission::Userd(_) => Ok(()),
        }
    }
}

impl Submission {
    fn doorbell(card: &Card<'_>, channel: Handle, classes: &[u32]) -> Result<Self, Error> {
        let class = first(USERMODES, classes, "doorbell")?;
        let mut params = zeroed(card, class);
        let client = card.client();
        let object = client.allocate(Form::Short, card.subdevice(), class, &mut params)?;
        let page = card.map(object, USERMODE_BYTES)?;
        let token = token_of(card, channel)?;
        Ok(Self::Doorbell {
            page,
            object,
            token,
        })
    }
}

fn token_of(card: &Card<'_>, channel: Handle) -> Result<u32, Error> {
    let cmd = control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN;
    let client = card.client();
    let mut params = client.params(cmd)?;
    client.control(channel, cmd, &mut params, Vec::new())?;
    Ok(bytes::u32_at(&params, 0).unwrap_or(0))
}

fn make_group(card: &Card<'_>, space: Space<'_>, engine_type: u32) -> Result<Handle, Error> {
    let class = class::KEPLER_CHANNEL_GROUP_A;
    let mut params = zeroed(card, class);
    bytes::put_u32(&mut params, GROUP_H_VA_SPACE, space.handle.0);
    bytes::put_u32(&mut params, GROUP_ENGINE_TYPE, engine_type);
    let client = card.client();
    Ok(client.allocate(Form::Short, card.device(), class, &mut params)?)
}

/// The area of a place.
fn area_at(place: u32) -> GpuRange {
    GpuRange {
        base: AREAS_ADDRESS + u64::from(place) * AREA_BYTES,
        length_bytes: AREA_BYTES,
    }
}

/// The first of the known classes that the card has.
pub(crate) fn first(known: &[u32], classes: &[u32], purpose: &'static str) -> Result<u32, Error> {
    let found = known.iter().copied().find(|class| classes.contains(class));
    found.ok_or(Error::NoClass { purpose })
}

/// A header of incrementing methods, and their values.
pub(crate) fn methods(subchannel: u32, method: u32, values: &[u32]) -> Vec<u32> {
    let count = u32::try_from(values.len()).unwrap_or(0);
    let header = 1 << 29 | count << 16 | subchannel << 13 | method >> 2;
    std::iter::once(header)
        .chain(values.iter().copied())
        .collect()
}

/// Upper and lower half.
pub(crate) fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}
