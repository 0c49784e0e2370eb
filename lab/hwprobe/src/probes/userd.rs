//! What a channel's own page tells of its backlog (T11): whether GP_GET moves, how far it lags, what a look costs.

use std::time::{Duration, Instant};

use anyhow::Context;
use rmprogram::{CardMemory, ComputeChannel, Space, Uvm};
use serde_json::json;

use super::{Bench, End, Times, answer, found};

/// How long the card may take for the ring's first entry, which only binds the engine's class.
const PATIENCE: Duration = Duration::from_secs(2);
/// Thread blocks of a kernel on simulated cards: enough for some milliseconds.
const BLOCKS: u32 = 10_000;
const KERNELS: u64 = 8;

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    let cards = client.cards()?;
    let Some(card) = cards.first() else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    let uuid = card.uuid()?;
    let uvm = Uvm::open(&client).context("open nvidia-uvm")?;
    uvm.register(uuid)?;
    let handle = card.va_space()?;
    uvm.register_va_space(uuid, handle)?;
    let space = Space {
        uvm: &uvm,
        uuid,
        handle,
    };
    let made = ComputeChannel::make(card, space, 1);
    found("a compute channel", answer(&made));
    let Ok(mut channel) = made else {
        return Ok(End::Done);
    };
    let began = Instant::now();
    while !is_idle(&channel) && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(20));
    }
    let (get, put) = channel.positions();
    found(
        "GP_GET and GP_PUT after the first entry",
        json!({"get": get, "put": put, "us until equal": is_idle(&channel).then(|| began.elapsed().as_micros().to_string())}),
    );
    let looks = Times::of(1000, PATIENCE, || {
        std::hint::black_box(channel.positions());
        Ok::<(), std::convert::Infallible>(())
    });
    found(
        "one look at both, of memory on the card",
        looks.map(Times::summary)?,
    );
    found("the channel still works", answer(&channel.check()));
    if bench.is_real() {
        found(
            "GP_GET under kernels",
            "kernels of this client name no program: not tried on a real card",
        );
        return Ok(End::Done);
    }
    for _kernel in 0..KERNELS {
        channel.launch(BLOCKS);
    }
    let (mut ended, mut lags) = (0, Vec::new());
    let began = Instant::now();
    while ended < KERNELS && began.elapsed() < PATIENCE {
        while channel.next_ended().is_some() {
            ended += 1;
            let (get, put) = channel.positions();
            lags.push(put.wrapping_sub(get));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    found(
        "entries between GP_GET and GP_PUT at the end of each of 8 kernels",
        json!(lags),
    );
    Ok(End::Done)
}

fn is_idle(channel: &ComputeChannel<'_>) -> bool {
    let (get, put) = channel.positions();
    get == put
}
