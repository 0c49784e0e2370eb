//! The scheduling controls on an idle group of our own: which are accepted, which values, how long they take.

use std::time::Duration;

use nvabi::bytes::{put_u32, put_u64, u64_at};
use rmclient::{Client, Error, Handle};
use serde_json::json;

use super::channel::{Ring, disable, schedule};
use super::{Bench, End, Times, answer, found};

const SET_TIMESLICE: u32 = 0xa06c_0103;
const GET_TIMESLICE: u32 = 0xa06c_0104;
const PREEMPT: u32 = 0xa06c_0105;
const SET_INTERLEAVE_LEVEL: u32 = 0xa06c_0107;

/// Calls of a kind, and the most time that they may take together.
const RUNS: usize = 1000;
const MOST: Duration = Duration::from_secs(5);

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    let cards = client.cards()?;
    let Some(card) = cards.first() else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    let ring = Ring::open(&client, card)?;
    let group = ring.group;
    let first = timeslice(&client, group);
    found(
        "GET_TIMESLICE of a new group, us",
        match &first {
            Ok(slice) => json!(slice),
            Err(_) => answer(&first),
        },
    );
    for wanted in [
        0, 1, 50, 100, 200, 1_000, 5_000, 20_000, 100_000, 1_000_000, 10_000_000,
    ] {
        let set = set_timeslice(&client, group, wanted);
        let read = timeslice(&client, group).ok();
        found(
            format!("SET_TIMESLICE {wanted} us"),
            json!({"answer": answer(&set), "read back": read}),
        );
    }
    if let Ok(slice) = first {
        // As it was; a refusal shows in the next line's value.
        let _told_below = set_timeslice(&client, group, slice);
    }
    for level in 0..3_u32 {
        let mut params = [0u8; 4];
        put_u32(&mut params, 0, level);
        let set = client.control(group, SET_INTERLEAVE_LEVEL, &mut params, Vec::new());
        found(format!("SET_INTERLEAVE_LEVEL {level}"), answer(&set));
    }
    let channel = (client.root(), ring.channel);
    let gate =
        |off: u8, scheduling: u8| disable(&client, card.subdevice(), channel, off, scheduling);
    time("GET_TIMESLICE", || timeslice(&client, group).map(drop));
    time("SET_TIMESLICE", || set_timeslice(&client, group, 1_000));
    time("PREEMPT, waiting", || preempt(&client, group, 1));
    time("PREEMPT, not waiting", || preempt(&client, group, 0));
    time("FIFO_DISABLE_CHANNELS off and on", || {
        gate(1, 0).and_then(|()| gate(0, 0))
    });
    time("FIFO_DISABLE_CHANNELS off and on, scheduling only", || {
        gate(1, 1).and_then(|()| gate(0, 1))
    });
    time("GPFIFO_SCHEDULE 0 and 1", || {
        schedule(&client, group, 0).and_then(|()| schedule(&client, group, 1))
    });
    // Whatever was refused on the way: the group must be left running.
    found("left enabled", answer(&gate(0, 0)));
    Ok(End::Done)
}

fn timeslice(client: &Client, group: Handle) -> Result<u64, Error> {
    let mut params = [0u8; 8];
    client.control(group, GET_TIMESLICE, &mut params, Vec::new())?;
    Ok(u64_at(&params, 0).unwrap_or(0))
}

fn set_timeslice(client: &Client, group: Handle, us: u64) -> Result<(), Error> {
    let mut params = [0u8; 8];
    put_u64(&mut params, 0, us);
    client.control(group, SET_TIMESLICE, &mut params, Vec::new())
}

fn preempt(client: &Client, group: Handle, wait: u8) -> Result<(), Error> {
    let mut params = [0u8; 8];
    if let Some(first) = params.first_mut() {
        *first = wait;
    }
    client.control(group, PREEMPT, &mut params, Vec::new())
}

/// Says how long a call takes, or how it is refused.
fn time(what: &str, work: impl FnMut() -> Result<(), Error>) {
    let times = Times::of(RUNS, MOST, work);
    found(
        what,
        match times {
            Ok(times) => times.summary(),
            Err(error) => answer::<()>(&Err(error)),
        },
    );
}
