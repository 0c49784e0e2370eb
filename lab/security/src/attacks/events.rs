//! Names that a driver shares among all of a host, and asks nobody whose they are; events without end.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nvabi::class::{CLIENT_HANDLE_BASE, NV01_DEVICE_0, NV01_EVENT_OS_EVENT};
use nvabi::layout::{card_info, event_params, os_event};
use nvabi::{Release, bytes, escape};
use serde_json::{Value, json};

use crate::Fixture;
use crate::seat::{Answer, Interrupted, Seat, Target, done, new_handle, open};
use crate::tally::{PIECE_BYTES, Tally};

const RELEASE: Release = Release::R570;
/// ATTACH_GPUS_TO_FD with one id, in a native spelling and in one with another type byte and direction.
const ATTACH: [u64; 2] = [0xc004_46d4, 0x4004_54d4];
/// CARD_INFO with room for 32 entries.
const CARD_INFO: u64 = 0xc900_46c8;

/// Takes and frees a neighbour's events, and has cards that were not granted opened.
pub(super) fn foreign_names(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let (client, _memory) = fixture
        .foreign
        .context("--client and --memory are needed")?;
    let guesses = (0..32).map(|number| CLIENT_HANDLE_BASE + number);
    let clients: Vec<u32> = std::iter::once(client)
        .chain(guesses)
        .filter(|client| *client != seat.client)
        .collect();
    let (mut attempts, mut tally) = (0, Tally::default());
    for row in [escape::NV_ESC_ALLOC_OS_EVENT, escape::NV_ESC_FREE_OS_EVENT] {
        for client in &clients {
            for number in [seat.number, 5, 0x7fff_ffff] {
                let mut argument = vec![0; 16];
                bytes::put_u32(&mut argument, os_event::H_CLIENT, *client);
                bytes::put_u32(&mut argument, os_event::FD, number.cast_unsigned());
                let cmd = u64::from(row.cmd(RELEASE));
                let on = seat.number;
                let answer = seat.spell(on, cmd, &argument, Interrupted::Again);
                tally.count(done(answer, os_event::STATUS, 0), 0);
                attempts += 1;
            }
        }
    }
    let number = seat.number;
    let shown = seat
        .spell(
            number,
            CARD_INFO,
            &[0; 32 * card_info::BYTES],
            Interrupted::Again,
        )
        .context("CARD_INFO")?;
    let own: Vec<u32> = shown
        .chunks_exact(card_info::BYTES)
        .filter(|entry| entry.first() == Some(&1))
        .filter_map(|entry| bytes::u32_at(entry, card_info::GPU_ID))
        .collect();
    // Bus 1 and on, slot 0: where cards are on this machine, and where on others.
    for id in (1..40_u32)
        .map(|bus| bus << 8)
        .filter(|id| !own.contains(id))
    {
        for cmd in ATTACH {
            let answer = seat.spell(number, cmd, &id.to_le_bytes(), Interrupted::Again);
            tally.count(
                match answer {
                    Ok(_struct) => Answer::Done(id),
                    Err(errno) => Answer::Errno(errno as i32),
                },
                0,
            );
            attempts += 1;
        }
    }
    let mine = own.first().context("no card is shown")?;
    let granted = seat.spell(number, ATTACH[0], &mine.to_le_bytes(), Interrupted::Again);
    anyhow::ensure!(granted.is_ok(), "the granted card: {granted:?}");
    let again = seat.spell(number, ATTACH[0], &[0; 4], Interrupted::Again);
    anyhow::ensure!(
        matches!(again, Ok(_) | Err(Errno::EINVAL)),
        "no card at all: {again:?}"
    );
    fixture.keep(seat);
    let own_tally = Tally::default().json();
    Ok(json!({"attempts": attempts, "foreign": tally.json(), "tally": own_tally}))
}

/// Events without end of one engine's interrupts, with one descriptor that nobody reads.
pub(super) fn event_flood(fixture: &mut Fixture) -> Result<Value> {
    const GR0: u32 = 12;
    let mut seat = Seat::take()?;
    let waiting = open("nvidiactl")?;
    let number = waiting.as_raw_fd().cast_unsigned();
    let mut argument = vec![0; 16];
    bytes::put_u32(&mut argument, os_event::H_CLIENT, seat.client);
    bytes::put_u32(&mut argument, os_event::FD, number);
    let cmd = u64::from(escape::NV_ESC_ALLOC_OS_EVENT.cmd(RELEASE));
    let on = seat.number;
    let made = seat.spell(on, cmd, &argument, Interrupted::Again);
    let made = done(made, os_event::STATUS, number);
    anyhow::ensure!(made.is_done(), "no OS event: {}", made.text());
    let mut params = [0; 24];
    bytes::put_u32(&mut params, event_params::H_SRC_RESOURCE, seat.subdevice);
    let index = GR0 | event_params::NONSTALL_INTR;
    bytes::put_u32(&mut params, event_params::NOTIFY_INDEX, index);
    bytes::put_u32(&mut params, event_params::DATA, number);
    let mut tally = Tally::default();
    for _event in 0..2000 {
        tally.count(seat.make(seat.subdevice, NV01_EVENT_OS_EVENT, &params), 0);
    }
    fixture.keep(seat);
    fixture.keep(waiting);
    Ok(json!({"events": tally.json(), "tally": Tally::default().json()}))
}

/// Second handles below objects that are not there, or that another thread frees at that moment.
pub(super) fn missing_destinations(fixture: &mut Fixture) -> Result<Value> {
    const ROUNDS: usize = 40;
    let mut seat = Seat::take()?;
    let Answer::Done(memory) = seat.memory(PIECE_BYTES) else {
        anyhow::bail!("no memory to begin with")
    };
    let source = seat.own(memory);
    let (mut attempts, mut tally) = (0, Tally::default());
    for parent in [0, 1, memory + 1, u32::MAX, CLIENT_HANDLE_BASE, 0x00ab_cdef] {
        for client in [seat.client, seat.client + 1, 0] {
            let to = Target {
                client,
                object: parent,
            };
            for handle in [0, new_handle(), memory, seat.device] {
                tally.count(seat.duplicate_as(to, handle, source), 0);
                attempts += 1;
            }
        }
    }
    let mut raced = Tally::default();
    for _round in 0..ROUNDS {
        let mut params = [0u8; 56];
        bytes::put_u32(&mut params, 4, seat.client);
        bytes::put_u32(&mut params, 48, 2);
        let Answer::Done(device) = seat.make(seat.client, NV01_DEVICE_0, &params) else {
            anyhow::bail!("a second device")
        };
        let (number, client) = (seat.number, seat.client);
        let other = std::thread::spawn(move || -> Result<Tally> {
            let mut calls = crate::seat::Calls::on(number)?;
            let mut tally = Tally::default();
            for _try in 0..3 {
                let to = Target {
                    client,
                    object: device,
                };
                tally.count(calls.duplicate_as(to, new_handle(), source), 0);
            }
            Ok(tally)
        });
        let _freed = seat.free_as(client, client, device);
        let of_thread = other
            .join()
            .map_err(|_panic| anyhow::anyhow!("a thread panicked"))?;
        raced.add(&of_thread?);
    }
    fixture.keep(seat);
    let held = json!({"held_bytes": PIECE_BYTES, "done": 1, "others": {}});
    Ok(json!({"attempts": attempts, "foreign": tally.json(), "raced": raced.json(), "tally": held}))
}
