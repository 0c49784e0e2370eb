//! Objects of other containers, by handles that are told or guessed.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nvabi::class::{self, CLIENT_HANDLE_BASE};
use nvabi::control as ctl;
use nvabi::layout::{channel_group_params, channel_params, nvos33, nvos57};
use nvabi::uvm::{self, map_external};
use nvabi::{Release, bytes};
use serde_json::{Value, json};

use crate::Fixture;
use crate::seat::{Answer, Calls, Interrupted, Seat, Target, done, open};
use crate::tally::{PIECE_BYTES, Tally};

/// The one that is told, and the clients that a driver is likely to have given out; never one's own.
fn clients(fixture: &Fixture, seat: &Seat) -> Result<(Vec<u32>, u32)> {
    let (client, memory) = fixture
        .foreign
        .context("--client and --memory are needed")?;
    let guesses = (0..64).map(|number| CLIENT_HANDLE_BASE + number);
    let clients = std::iter::once(client)
        .chain(guesses)
        .filter(|client| *client != seat.client)
        .collect();
    Ok((clients, memory))
}

fn report(attempts: usize, tally: &Tally) -> Value {
    json!({"attempts": attempts, "foreign": tally.json(), "tally": Tally::default().json()})
}

/// Another handle for a neighbour's memory.
pub(super) fn foreign_duplicate(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let (clients, memory) = clients(fixture, &seat)?;
    let mut tally = Tally::default();
    for client in &clients {
        for object in [memory, *client] {
            let from = Target {
                client: *client,
                object,
            };
            tally.count(seat.duplicate(from), 0);
        }
    }
    fixture.keep(seat);
    Ok(report(2 * clients.len(), &tally))
}

/// A neighbour's memory in one's own GPU address space.
pub(super) fn foreign_mapping(fixture: &mut Fixture) -> Result<Value> {
    let seat = Seat::take()?;
    let (clients, memory) = clients(fixture, &seat)?;
    let release = Release::R570;
    let place = |offset: nvabi::PerRelease| usize::try_from(offset.of(release)).unwrap_or(0);
    let file = open("nvidia-uvm")?;
    let mut calls = Calls::on(file.as_raw_fd())?;
    let mut tally = Tally::default();
    for client in &clients {
        let mut argument = vec![0; place(uvm::UVM_MAP_EXTERNAL_ALLOCATION.size)];
        bytes::put_u64(&mut argument, map_external::BASE, 1 << 36);
        bytes::put_u64(&mut argument, map_external::LENGTH, 4 << 20);
        bytes::put(
            &mut argument,
            place(map_external::RM_CTRL_FD),
            &seat.number.to_le_bytes(),
        );
        bytes::put_u32(&mut argument, place(map_external::H_CLIENT), *client);
        bytes::put_u32(&mut argument, place(map_external::H_MEMORY), memory);
        let row = uvm::UVM_MAP_EXTERNAL_ALLOCATION;
        let number = calls.number;
        let answer = calls.spell(number, u64::from(row.cmd), &argument, Interrupted::Again);
        tally.count(done(answer, place(row.status), 0), 0);
    }
    fixture.keep((seat, file));
    Ok(report(clients.len(), &tally))
}

/// Stops a neighbour's channels.
pub(super) fn foreign_channels(fixture: &mut Fixture) -> Result<Value> {
    const COUNT: usize = 4;
    const CLIENTS: usize = 24;
    const CHANNELS: usize = 280;
    let mut seat = Seat::take()?;
    let (clients, memory) = clients(fixture, &seat)?;
    let mut tally = Tally::default();
    for client in &clients {
        // Alone, and hidden behind one's own.
        for count in [1u32, 2] {
            let mut params = [0; 536];
            params[0] = 1;
            bytes::put_u32(&mut params, COUNT, count);
            let own = seat.client;
            let mut names = vec![*client];
            if count == 2 {
                names.insert(0, own);
            }
            for (slot, name) in names.iter().enumerate() {
                bytes::put_u32(&mut params, CLIENTS + 4 * slot, *name);
                bytes::put_u32(&mut params, CHANNELS + 4 * slot, memory);
            }
            let subdevice = seat.own(seat.subdevice);
            let cmd = ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
            tally.count(seat.control(subdevice, cmd, 0, &params), 0);
        }
    }
    fixture.keep(seat);
    Ok(report(2 * clients.len(), &tally))
}

/// Every other call in a neighbour's name: allocating, freeing, mapping, sharing, asking.
pub(super) fn foreign_handles(fixture: &mut Fixture) -> Result<Value> {
    const MAP: u64 = 0xc038_464e;
    const SHARE: u64 = 0xc018_4635;
    let mut seat = Seat::take()?;
    let (clients, memory) = clients(fixture, &seat)?;
    let mut tally = Tally::default();
    let number = seat.number;
    for client in &clients {
        let client = *client;
        let target = Target {
            client,
            object: memory,
        };
        let device = seat.device;
        tally.count(seat.memory_as(client, device, 0, PIECE_BYTES), 0);
        let cmd = ctl::NV2080_CTRL_CMD_GPU_GET_NAME_STRING;
        tally.count(seat.control(target, cmd, 0, &[0; 132]), 0);
        let mut map = vec![0; 56];
        bytes::put_u32(&mut map, nvos33::H_CLIENT, client);
        bytes::put_u32(&mut map, nvos33::H_DEVICE, device);
        bytes::put_u32(&mut map, nvos33::H_MEMORY, memory);
        bytes::put_u64(&mut map, nvos33::LENGTH, 4096);
        bytes::put_u32(&mut map, nvos33::FD, seat.node.as_raw_fd().cast_unsigned());
        let answer = seat.spell(number, MAP, &map, Interrupted::Again);
        tally.count(done(answer, nvos33::STATUS, 0), 0);
        let mut share = vec![0; 24];
        bytes::put_u32(&mut share, 0, client);
        bytes::put_u32(&mut share, 4, memory);
        let answer = seat.spell(number, SHARE, &share, Interrupted::Again);
        tally.count(done(answer, nvos57::STATUS, 0), 0);
        // Last, as they would take the rest away: the memory, then the whole client.
        for object in [memory, client] {
            tally.count(seat.free_as(client, client, object), 0);
        }
    }
    fixture.keep(seat);
    Ok(report(6 * clients.len(), &tally))
}

/// Channels without memory for their USERD, which the driver would keep in a page of eight: a neighbour's are in it, and whoever maps a channel
/// has the page.
pub(super) fn common_userd(fixture: &mut Fixture) -> Result<Value> {
    /// Of Volta, Turing and Ampere: later cards take those of earlier ones.
    const CHANNELS: [u32; 3] = [0xc36f, 0xc46f, 0xc56f];
    let mut seat = Seat::take()?;
    let mut params = [0; 20];
    bytes::put_u32(&mut params, channel_group_params::ENGINE_TYPE, 1);
    let group = seat.make(seat.device, class::KEPLER_CHANNEL_GROUP_A, &params);
    let space = seat.make(seat.device, class::FERMI_VASPACE_A, &[0; 48]);
    let (Answer::Done(group), Answer::Done(space)) = (group, space) else {
        anyhow::bail!("neither group nor address space: {group:?}, {space:?}")
    };
    let mut params = [0; 368];
    bytes::put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, 64);
    bytes::put_u64(&mut params, channel_params::GP_FIFO_OFFSET, 1 << 20);
    bytes::put_u32(&mut params, channel_params::H_VA_SPACE, space);
    bytes::put_u32(&mut params, channel_params::ENGINE_TYPE, 1);
    let mut tally = Tally::default();
    for class in CHANNELS {
        for parent in [group, seat.device] {
            tally.count(seat.make(parent, class, &params), 0);
        }
    }
    fixture.keep(seat);
    Ok(report(2 * CHANNELS.len(), &tally))
}
