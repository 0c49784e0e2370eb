//! A channel that copies: a ring in card memory, filled by stores, with a word that tells how far the card has come.
//!
//! ```text
//! copy ──▶ words behind the ring ──▶ ring entry ──▶ GP_PUT ──▶ doorbell          (no call)
//!   └──▶ fence n ◀── the card's release of n ◀── wait
//! ```
//!
//! Sources of methods and fields: `clc56f.h`, `clc7b5.h`. It has run on simulated cards only.

use std::time::{Duration, Instant};

use nvabi::layout::channel_params;
use nvabi::{bytes, class, control};

use crate::{Card, CpuMapping, Error, Form, GpuRange, Handle, Uuid, Uvm};

/// Length of the area that holds ring, USERD, fence and commands.
const AREA_BYTES: u64 = 2 << 20;
/// Where it is in the card's address space: far from what `mmap` gives.
const AREA_ADDRESS: u64 = 0x10_0000_0000;
/// Ring entries of 8 bytes, from the area's beginning.
const ENTRIES: u32 = 512;
const USERD_AT: u64 = 0x1000;
/// `GPPut` of USERD.
const GP_PUT_AT: usize = 0x1000 + 0x8c;
const FENCE_AT: usize = 0x2000;
const COMMANDS_AT: usize = 0x1_0000;
/// Room of the commands of one ring entry.
const COMMANDS_BYTES: usize = 256;
/// The usermode page, and the doorbell in it (`NVC361_NOTIFY_CHANNEL_PENDING`).
const USERMODE_BYTES: u64 = 64 << 10;
const DOORBELL_AT: usize = 0x90;
/// `NV2080_ENGINE_TYPE_GRAPHICS`
const ENGINE_GRAPHICS: u32 = 1;
/// `hVASpace` and `engineType` of NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.
const GROUP_H_VA_SPACE: usize = 8;
const GROUP_ENGINE_TYPE: usize = 12;
/// `NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2`: `{numClasses 0, classes 4}`
const GET_CLASSLIST_V2: u32 = 0x80_0292;
/// Channel, copy and usermode classes, newest first.
const CHANNELS: &[u32] = &[0xc96f, 0xc86f, 0xc56f];
const COPIES: &[u32] = &[0xc9b5, 0xcab5, 0xc8b5, 0xc7b5, 0xc6b5];
const USERMODES: &[u32] = &[0xc761, 0xc661, 0xc561, 0xc461];
/// The subchannel that the copy engine is bound to.
const COPY: u32 = 4;
/// How long between two looks at the fence.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// A channel with a copy engine.
#[derive(Debug)]
pub struct CopyChannel<'card> {
    card: &'card Card<'card>,
    channel: Handle,
    area: CpuMapping,
    usermode: CpuMapping,
    token: u32,
    put: u32,
    fence: u32,
}

impl Card<'_> {
    /// The classes that the card has.
    ///
    /// # Errors
    /// The driver's status.
    pub fn classes(&self) -> Result<Vec<u32>, Error> {
        let client = self.client();
        let mut params = client.params(GET_CLASSLIST_V2)?;
        client.control(self.device(), GET_CLASSLIST_V2, &mut params, Vec::new())?;
        let count = bytes::u32_at(&params, 0).unwrap_or(0);
        Ok((4..)
            .step_by(4)
            .map_while(|at| bytes::u32_at(&params, at))
            .take(usize::try_from(count).unwrap_or(0))
            .collect())
    }

    /// Makes a channel that copies within an address space, which is registered with `uvm`.
    ///
    /// # Errors
    /// [`Error::NoClass`] for a card whose generation is not known here; otherwise the driver's status.
    pub fn copy_channel<'card>(
        &'card self,
        uvm: &Uvm<'_>,
        uuid: Uuid,
        va_space: Handle,
    ) -> Result<CopyChannel<'card>, Error> {
        let client = self.client();
        let classes = self.classes()?;
        let first = |known: &[u32], purpose| {
            let found = known.iter().copied().find(|class| classes.contains(class));
            found.ok_or(Error::NoClass { purpose })
        };
        let copy_class = first(COPIES, "copy engine")?;
        let memory = self.allocate(Form::Short, AREA_BYTES)?;
        let area = self.map(memory.handle, AREA_BYTES)?;
        let range = GpuRange {
            base: AREA_ADDRESS,
            length_bytes: AREA_BYTES,
        };
        uvm.create_range(range)?;
        uvm.map(range, uuid, memory.handle)?;

        let mut params = self.zeroed(class::KEPLER_CHANNEL_GROUP_A);
        bytes::put_u32(&mut params, GROUP_H_VA_SPACE, va_space.0);
        bytes::put_u32(&mut params, GROUP_ENGINE_TYPE, ENGINE_GRAPHICS);
        let group = client.allocate(
            Form::Short,
            self.device(),
            class::KEPLER_CHANNEL_GROUP_A,
            &mut params,
        )?;
        let channel_class = first(CHANNELS, "channel")?;
        let mut params = self.zeroed(channel_class);
        bytes::put_u64(&mut params, channel_params::GP_FIFO_OFFSET, AREA_ADDRESS);
        bytes::put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, ENTRIES);
        bytes::put_u32(&mut params, channel_params::H_USERD_MEMORY, memory.handle.0);
        bytes::put_u64(&mut params, channel_params::USERD_OFFSET, USERD_AT);
        bytes::put_u32(&mut params, channel_params::ENGINE_TYPE, ENGINE_GRAPHICS);
        let channel = client.allocate(Form::Short, group, channel_class, &mut params)?;
        let mut params = self.zeroed(copy_class);
        client.allocate(Form::Short, channel, copy_class, &mut params)?;
        uvm.register_channel(uuid, channel)?;

        let usermode_class = first(USERMODES, "doorbell")?;
        let mut params = self.zeroed(usermode_class);
        let usermode =
            client.allocate(Form::Short, self.subdevice(), usermode_class, &mut params)?;
        let usermode = self.map(usermode, USERMODE_BYTES)?;
        let cmd = control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN;
        let mut params = client.params(cmd)?;
        client.control(channel, cmd, &mut params, Vec::new())?;
        let token = bytes::u32_at(&params, 0).unwrap_or(0);
        let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
        let mut params = client.params(cmd)?;
        bytes::put(&mut params, 0, &[1]);
        client.control(group, cmd, &mut params, Vec::new())?;

        let mut made = CopyChannel {
            card: self,
            channel,
            area,
            usermode,
            token,
            put: 0,
            fence: 0,
        };
        // SET_OBJECT binds the class to its subchannel.
        made.submit(&methods(COPY, 0, &[copy_class]));
        Ok(made)
    }

    fn zeroed(&self, class: u32) -> Vec<u8> {
        let release = self.client().release();
        let length = class::row_of(class, release).map_or(0, |row| row.params.of(release));
        vec![0; usize::try_from(length).unwrap_or(0)]
    }
}

impl CopyChannel<'_> {
    /// Whether the driver still knows the channel as one that works.
    ///
    /// # Errors
    /// The driver's status; see [`Error::is_fault`].
    pub fn check(&self) -> Result<(), Error> {
        let cmd = control::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN;
        let client = self.card.client();
        let mut params = client.params(cmd)?;
        client.control(self.channel, cmd, &mut params, Vec::new())
    }

    /// Copies within the address space and waits for the end.
    ///
    /// # Errors
    /// [`Error::NotDone`] when it has not come in time.
    pub fn copy(
        &mut self,
        from: u64,
        to: u64,
        size_bytes: u32,
        patience: Duration,
    ) -> Result<(), Error> {
        let ((from_high, from_low), (to_high, to_low)) = (halves(from), halves(to));
        let mut commands = methods(COPY, 0x400, &[from_high, from_low, to_high, to_low]);
        commands.extend(methods(COPY, 0x418, &[size_bytes]));
        // Pitch-linear, not pipelined, flushed.
        commands.extend(methods(COPY, 0x300, &[0x182]));
        self.fence = self.fence.wrapping_add(1);
        let fence = self.fence;
        let (high, low) = halves(AREA_ADDRESS + u64::try_from(FENCE_AT).unwrap_or(0));
        // SEM_EXECUTE: release, and wait for idle.
        commands.extend(methods(0, 0x5c, &[low, high, fence, 0, 1 | 1 << 20]));
        self.submit(&commands);
        let deadline = Instant::now() + patience;
        while self.area.words().read_u32(FENCE_AT) != Some(fence) {
            if Instant::now() >= deadline {
                return Err(Error::NotDone {
                    value: fence,
                    milliseconds: patience.as_millis(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Every submission is waited for, so the ring is empty but for the setup, and an entry's room is free again long before
    /// its turn comes.
    fn submit(&mut self, commands: &[u32]) {
        let slot = usize::try_from(self.put).unwrap_or(0);
        let at = COMMANDS_AT + slot * COMMANDS_BYTES;
        for (word, place) in commands.iter().zip((at..at + COMMANDS_BYTES).step_by(4)) {
            self.store(place, *word);
        }
        let address = AREA_ADDRESS + u64::try_from(at).unwrap_or(0);
        let length = u64::try_from(commands.len()).unwrap_or(0);
        let (high, low) = halves(address | length << 42 | 1 << 41);
        self.store(slot * 8, low);
        self.store(slot * 8 + 4, high);
        self.put = (self.put + 1) % ENTRIES;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.store(GP_PUT_AT, self.put);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let rung = self.usermode.words().write_u32(DOORBELL_AT, self.token);
        debug_assert!(rung.is_some(), "the doorbell lies in its page");
    }

    fn store(&self, at: usize, word: u32) {
        let stored = self.area.words().write_u32(at, word);
        debug_assert!(stored.is_some(), "the area holds all of the ring");
    }
}

/// A header of incrementing methods, and their values.
fn methods(subchannel: u32, method: u32, values: &[u32]) -> Vec<u32> {
    let count = u32::try_from(values.len()).unwrap_or(0);
    let header = 1 << 29 | count << 16 | subchannel << 13 | method >> 2;
    std::iter::once(header)
        .chain(values.iter().copied())
        .collect()
}

/// Upper and lower half.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}
