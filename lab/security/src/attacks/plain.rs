//! What a container without a card does with another one's open driver.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nvabi::{bytes, class};
use serde_json::{Map, Value, json};

use super::spelling::foreign_call;
use crate::seat::{
    ALLOC, ALLOC_SHORT, CONTROL, Calls, DUP, FREE, Interrupted, New, Target, new_handle,
};
use crate::tally::{PIECE_BYTES, Tally};
use crate::{Fixture, kernel};

/// What the driver understands of commands: NVOS02, the tunnel, UVM_INITIALIZE and an external mapping are spelt here.
const COMMANDS: [u64; 12] = [
    ALLOC as u64,
    ALLOC_SHORT as u64,
    CONTROL as u64,
    DUP as u64,
    FREE as u64,
    0x1234_c030_542b,
    0x0030_002b,
    0xc038_4627,
    0xc0b8_464a,
    0xc010_46d3,
    0x3000_0001,
    33,
];

/// `TCGETS` and `TUNSETSNDBUF`: other drivers'.
const OTHERS: [u64; 2] = [0x5401, 0x4004_54d4];

/// `ioctl` in the 32-bit table.
const IOCTL_I386: u32 = 54;

/// Takes what a container with a quota gives, and tries to have memory by it: of the giver's client, by a client of its own, and by each
/// command that the driver knows. A descriptor that is none shows what the kernel would have passed on.
pub(super) fn fd_in_plain_container(fixture: &mut Fixture) -> Result<Value> {
    let connection = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::empty(),
        None,
    )?;
    let path = fixture.out.join("shared.sock");
    connect(connection.as_raw_fd(), &UnixAddr::new(&path)?)?;
    let mut names = [0; 12];
    let (_length, files) =
        sys::fd_passing::receive(std::os::fd::AsFd::as_fd(&connection), &mut names)?;
    let name = |at| bytes::u32_at(&names, at).unwrap_or(0);
    let (client, device, memory) = (name(0), name(4), name(8));
    let mut tally = Tally::default();
    let mut answers = Map::new();
    for file in &files {
        let mut calls = Calls::on(file.as_raw_fd())?;
        let root = New {
            client: 0,
            parent: 0,
            handle: 0,
            class: class::NV01_ROOT_CLIENT,
        };
        tally.count(calls.object(root, &[]), 0);
        tally.count(
            calls.memory_as(client, device, new_handle(), PIECE_BYTES),
            PIECE_BYTES,
        );
        let of = |object| Target { client, object };
        tally.count(calls.duplicate_as(of(device), new_handle(), of(memory)), 0);
    }
    let file = files.first().context("a file came")?;
    for (whose, number) in [("given", file.as_raw_fd()), ("none", -1)] {
        let mut calls = Calls::on(number)?;
        for command in COMMANDS {
            let answer = text(calls.spell(number, command, &[0; 256], Interrupted::Again));
            answers.insert(format!("{whose} {command:#x}"), answer.into());
        }
    }
    let mut others = Map::new();
    let mut calls = Calls::on(-1)?;
    for command in OTHERS {
        let answer = text(calls.spell(-1, command, &[0; 64], Interrupted::Again));
        others.insert(format!("{command:#x}"), answer.into());
    }
    if cfg!(target_arch = "x86_64") {
        for (of, command) in [(&mut answers, ALLOC), (&mut others, 0x5401)] {
            let words = [u32::MAX, command, 0, 0, 0, 0];
            let answer = foreign_call(|| i64::from(kernel::call_i386(IOCTL_I386, words)))?;
            of.insert(format!("i386 {command:#x}"), answer.into());
        }
    }
    let kept: (OwnedFd, Vec<OwnedFd>) = (connection, files);
    fixture.keep(kept);
    Ok(json!({"tally": tally.json(), "answers": answers, "others": others}))
}

fn text(answer: Result<Vec<u8>, Errno>) -> String {
    answer.map_or_else(|errno| format!("{errno:?}"), |_struct| "done".to_owned())
}
