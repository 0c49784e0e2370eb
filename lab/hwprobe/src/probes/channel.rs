//! A scheduled channel group with one channel, idle: what the scheduling controls are tried on.
//!
//! The steps are those of any open client (the sequence is tinygrad's `ops_nv.py`, MIT); nothing is ever submitted.

use anyhow::{Context, bail};
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::layout::{channel_group_params, channel_params};
use nvabi::{class, control};
use rmclient::{Card, Client, Form, Handle};
use rmprogram::{CardMemory, GpuRange, Uvm};
use sys::ioctl::Block;

const MIB: u64 = 1 << 20;
/// Where the ring is in the GPU's address space.
const AREA: GpuRange = GpuRange {
    base: 0x10_0000_0000,
    length_bytes: 2 * MIB,
};
const ENTRIES: u32 = 1024;
/// `NV2080_ENGINE_TYPE_GRAPHICS`
const ENGINE_GRAPHICS: u32 = 1;
/// `FERMI_CONTEXT_SHARE_A`
const CONTEXT_SHARE: u32 = 0x9067;
/// Channel classes, newest first: Blackwell, Hopper, Ampere and Ada, Turing, Volta.
const CHANNELS: [u32; 6] = [0xca6f, 0xc96f, 0xc86f, 0xc56f, 0xc46f, 0xc36f];

/// An idle channel group.
pub(super) struct Ring<'client> {
    pub(super) group: Handle,
    pub(super) channel: Handle,
    pub(super) channel_class: u32,
    /// Free memory before anything was made, and after each step, bytes.
    pub(super) free_bytes: Vec<(&'static str, u64)>,
    _uvm: Uvm<'client>,
}

/// The classes that the card has.
pub(super) fn classes(card: &Card<'_>) -> anyhow::Result<Vec<u32>> {
    let cmd = control::NV0080_CTRL_CMD_GPU_GET_CLASSLIST;
    let client = card.client();
    let mut params = client.params(cmd)?;
    client.control(card.device(), cmd, &mut params, Vec::new())?;
    let count = usize::try_from(u32_at(&params, 0).unwrap_or(0))?;
    let mut list = vec![0u8; count * 4];
    let nested = vec![Block {
        parent: 1,
        pointer_at: 8,
        bytes: &mut list,
    }];
    client.control(card.device(), cmd, &mut params, nested)?;
    Ok(list
        .chunks_exact(4)
        .filter_map(|word| u32_at(word, 0))
        .collect())
}

impl<'client> Ring<'client> {
    pub(super) fn open(client: &'client Client, card: &Card<'client>) -> anyhow::Result<Self> {
        let classes = classes(card).context("list the card's classes")?;
        let Some(channel_class) = CHANNELS.into_iter().find(|class| classes.contains(class)) else {
            bail!("the card lists no channel class that is known here");
        };
        let mut free_bytes = Vec::new();
        let mut after = |step| {
            if let Ok(memory) = card.memory() {
                free_bytes.push((step, memory.free_bytes));
            }
        };
        after("at first");
        let uuid = card.uuid()?;
        let space = card.va_space().context("make an address space")?;
        after("address space");
        let uvm = Uvm::open(client).context("open nvidia-uvm")?;
        uvm.register(uuid)?;
        uvm.register_va_space(uuid, space)
            .context("register the address space")?;
        after("registered with nvidia-uvm");

        let mut params = vec![0; 20];
        put_u32(
            &mut params,
            channel_group_params::ENGINE_TYPE,
            ENGINE_GRAPHICS,
        );
        let group = client
            .allocate(
                Form::Short,
                card.device(),
                class::KEPLER_CHANNEL_GROUP_A,
                &mut params,
            )
            .context("make a channel group")?;
        after("channel group");

        let area = card.allocate(Form::Short, AREA.length_bytes)?.handle;
        let notifier = client.allocate(
            Form::Short,
            card.device(),
            class::NV01_MEMORY_SYSTEM,
            &mut system_memory(client, 4096),
        )?;
        uvm.create_range(AREA)?;
        uvm.map(AREA, uuid, area).context("map the ring")?;
        after("memory of the ring, 2 MiB");

        let mut params = vec![0; 12];
        put_u32(&mut params, 0, space.0);
        // NV_CTXSHARE_ALLOCATION_FLAGS_SUBCONTEXT_ASYNC
        put_u32(&mut params, 4, 1);
        let share = client
            .allocate(Form::Short, group, CONTEXT_SHARE, &mut params)
            .context("make a context share")?;
        after("context share");

        let length = class::row_of(channel_class, client.release())
            .map_or(368, |row| row.params.of(client.release()));
        let mut params = vec![0; usize::try_from(length)?];
        put_u64(&mut params, channel_params::GP_FIFO_OFFSET, AREA.base);
        for (at, word) in [
            (0, notifier.0),
            // hObjectBuffer
            (4, area.0),
            (channel_params::GP_FIFO_ENTRIES, ENTRIES),
            (channel_params::H_CONTEXT_SHARE, share.0),
            (channel_params::H_USERD_MEMORY, area.0),
        ] {
            put_u32(&mut params, at, word);
        }
        put_u64(
            &mut params,
            channel_params::USERD_OFFSET,
            u64::from(ENTRIES) * 8,
        );
        let channel = client
            .allocate(Form::Short, group, channel_class, &mut params)
            .context("make a channel")?;
        after("channel");
        schedule(client, group, 1).context("schedule the channel group")?;
        after("scheduled");
        Ok(Self {
            group,
            channel,
            channel_class,
            free_bytes,
            _uvm: uvm,
        })
    }
}

/// `NV_MEMORY_ALLOCATION_PARAMS` for memory of the host.
fn system_memory(client: &Client, size_bytes: u64) -> Vec<u8> {
    let length = class::row_of(class::NV01_MEMORY_SYSTEM, client.release())
        .map_or(128, |row| row.params.of(client.release()));
    let mut params = vec![0; usize::try_from(length).unwrap_or(128)];
    put_u32(&mut params, 0, client.root().0);
    // LOCATION_PCI (bits 26:25 = 1), PHYSICALITY_NONCONTIGUOUS (28:27 = 1), COHERENCY_CACHED (31:29 = 1).
    put_u32(
        &mut params,
        nvabi::layout::memory_params::ATTR,
        (1 << 25) | (1 << 27) | (1 << 29),
    );
    put_u64(&mut params, nvabi::layout::memory_params::SIZE, size_bytes);
    params
}

/// NVA06C GPFIFO_SCHEDULE.
pub(super) fn schedule(client: &Client, group: Handle, enable: u8) -> Result<(), rmclient::Error> {
    let cmd = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
    let mut params = client.params(cmd)?;
    if let Some(first) = params.first_mut() {
        *first = enable;
    }
    client.control(group, cmd, &mut params, Vec::new())
}

/// FIFO_DISABLE_CHANNELS for one channel.
pub(super) fn disable(
    client: &Client,
    subdevice: Handle,
    (owner, channel): (Handle, Handle),
    disable: u8,
    scheduling_only: u8,
) -> Result<(), rmclient::Error> {
    const CMD: u32 = 0x2080_110b;
    // bDisable 0, numChannels 4, bOnlyDisableScheduling 8, hClientList 24, hChannelList 280.
    let mut params = vec![0; 536];
    if let Some(first) = params.first_mut() {
        *first = disable;
    }
    put_u32(&mut params, 4, 1);
    if let Some(only) = params.get_mut(8) {
        *only = scheduling_only;
    }
    put_u32(&mut params, 24, owner.0);
    put_u32(&mut params, 280, channel.0);
    client.control(subdevice, CMD, &mut params, Vec::new())
}
