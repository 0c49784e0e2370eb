//! The scheduling controls on groups of our own: which are accepted, which values, how long they take (T2): on an idle group while
//! the card is idle, beside a storm of allocations, beside kernels of others; on simulated cards also on a group whose own
//! kernels run.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use nvabi::bytes::{put_u32, put_u64, u64_at};
use rmclient::{Card, Client, Error, Form, Handle};
use rmprogram::{CardMemory, ComputeChannel, Space, Uvm};
use serde_json::{Map, Value, json};

use super::channel::{Ring, disable, schedule};
use super::{Bench, End, Times, answer, found, torch};

const SET_TIMESLICE: u32 = 0xa06c_0103;
const GET_TIMESLICE: u32 = 0xa06c_0104;
const PREEMPT: u32 = 0xa06c_0105;
const SET_INTERLEAVE_LEVEL: u32 = 0xa06c_0107;

/// Calls of a kind, and the most time that they may take together.
const RUNS: usize = 1000;
const MOST: Duration = Duration::from_millis(2_500);
/// On simulated cards, whose numbers say nothing: enough to see that it runs.
const MOST_SIMULATED: Duration = Duration::from_millis(250);
/// What the storm allocates and frees.
const STORM_BYTES: u64 = 64 << 20;
/// Kernels that a busy group always has under way, and thread blocks of each: tens of milliseconds on simulated cards.
const UNDER_WAY: u64 = 4;
const BLOCKS: u32 = 50_000;

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
    for needed in [
        0, 1, 50, 100, 200, 1_000, 5_000, 20_000, 100_000, 1_000_000, 10_000_000,
    ] {
        let set = set_timeslice(&client, group, needed);
        let read = timeslice(&client, group).ok();
        found(
            format!("SET_TIMESLICE {needed} us"),
            json!({"answer": answer(&set), "read back": read}),
        );
    }
    if let Ok(slice) = first {
        // As it was; a refusal shows in the next line's value.
        let _reported_below = set_timeslice(&client, group, slice);
    }
    for level in 0..3_u32 {
        let set = interleave(&client, group, level);
        found(format!("SET_INTERLEAVE_LEVEL {level}"), answer(&set));
    }
    let idle = Target {
        client: &client,
        subdevice: card.subdevice(),
        group,
        channel: ring.channel,
        most: if bench.is_real() {
            MOST
        } else {
            MOST_SIMULATED
        },
    };
    found("latencies, the card idle", idle.times(&mut || {}));
    let storm = {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| allocate_until(bench, &over));
            let times = idle.times(&mut || {});
            over.store(true, Ordering::Relaxed);
            times
        })
    };
    found("latencies, beside a storm of allocations", storm);
    if bench.is_real() {
        match load() {
            Ok(mut load) => {
                found(
                    "latencies, beside PyTorch's kernels",
                    idle.times(&mut || {}),
                );
                let _ended_already = load.kill();
                load.wait().context("reap the load")?;
            }
            Err(why) => found("latencies, beside kernels", why),
        }
    } else {
        busy(&client, card)?;
    }
    // Whatever was refused on the way: the group must be left running.
    found("left enabled", answer(&idle.gate(0, 0)));
    Ok(End::Done)
}

/// What the controls are tried on.
struct Target<'c> {
    client: &'c Client,
    subdevice: Handle,
    group: Handle,
    channel: Handle,
    /// How long each control is tried.
    most: Duration,
}

impl Target<'_> {
    fn gate(&self, off: u8, scheduling_only: u8) -> Result<(), Error> {
        let channel = (self.client.root(), self.channel);
        disable(self.client, self.subdevice, channel, off, scheduling_only)
    }

    /// How long each control takes, or how it is refused. `between` is done before every call.
    fn times(&self, between: &mut dyn FnMut()) -> Value {
        let Self { client, group, .. } = self;
        let mut table = Map::new();
        let mut time = |what: &str, work: &dyn Fn() -> Result<(), Error>| {
            let times = Times::of(RUNS, self.most, || {
                between();
                work()
            });
            let value = match times {
                Ok(times) => times.summary(),
                Err(error) => answer::<()>(&Err(error)),
            };
            table.insert(what.to_owned(), value);
        };
        time("GET_TIMESLICE", &|| timeslice(client, *group).map(drop));
        time("SET_TIMESLICE", &|| set_timeslice(client, *group, 1_000));
        time("SET_INTERLEAVE_LEVEL", &|| interleave(client, *group, 0));
        time("PREEMPT, waiting", &|| preempt(client, *group, 1));
        time("PREEMPT, not waiting", &|| preempt(client, *group, 0));
        time("FIFO_DISABLE_CHANNELS off and on", &|| {
            self.gate(1, 0).and_then(|()| self.gate(0, 0))
        });
        time("FIFO_DISABLE_CHANNELS off and on, scheduling only", &|| {
            self.gate(1, 1).and_then(|()| self.gate(0, 1))
        });
        time("GPFIFO_SCHEDULE 0 and 1", &|| {
            schedule(client, *group, 0).and_then(|()| schedule(client, *group, 1))
        });
        Value::Object(table)
    }
}

/// The same on a group whose kernels run, and on an idle one beside it. For simulated cards: the kernels name no program.
fn busy(client: &Client, card: &Card<'_>) -> anyhow::Result<()> {
    let uuid = card.uuid()?;
    let uvm = Uvm::open(client).context("open nvidia-uvm")?;
    uvm.register(uuid)?;
    let handle = card.va_space()?;
    uvm.register_va_space(uuid, handle)?;
    let space = Space {
        uvm: &uvm,
        uuid,
        handle,
    };
    let mut channel = ComputeChannel::make(card, space, 1).context("make a channel for kernels")?;
    let target = Target {
        client,
        subdevice: card.subdevice(),
        group: channel.group(),
        channel: channel.channel(),
        most: MOST_SIMULATED,
    };
    let times = target.times(&mut || keep_busy(&mut channel));
    found("latencies, on a group whose kernels run", times);
    Ok(())
}

fn keep_busy(channel: &mut ComputeChannel<'_>) {
    while channel.next_ended().is_some() {}
    while channel.under_way() < UNDER_WAY && channel.launch(BLOCKS).is_some() {}
}

/// Allocates and frees by a client of its own; ends at once where it is refused.
fn allocate_until(bench: &Bench, over: &AtomicBool) {
    let Ok(client) = bench.client() else {
        return;
    };
    let Ok(cards) = client.cards() else {
        return;
    };
    let Some(card) = cards.first() else {
        return;
    };
    while !over.load(Ordering::Relaxed) {
        let done = card
            .allocate(Form::Short, STORM_BYTES)
            .and_then(|memory| card.free(memory.handle));
        if done.is_err() {
            return;
        }
    }
}

/// PyTorch's kernels in a process of their own, once they run; or why there are none.
fn load() -> Result<Child, String> {
    use std::io::BufRead;
    const SCRIPT: &str = "import torch\na = torch.randn(4096, 4096, device='cuda')\ntorch.mm(a, a)\ntorch.cuda.synchronize()\n\
        print('busy', flush=True)\nwhile True:\n    for _ in range(50):\n        torch.mm(a, a)\n    torch.cuda.synchronize()\n";
    let python = torch::python().map_err(|why| format!("needs kernels: {why}"))?;
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let busy = child
        .stdout
        .take()
        .map(|out| std::io::BufReader::new(out).read_line(&mut line));
    match busy {
        Some(Ok(read)) if read > 0 => Ok(child),
        _ended => {
            let _ended_already = child.kill();
            let _reaped = child.wait();
            Err("PyTorch's kernels did not start".to_owned())
        }
    }
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

fn interleave(client: &Client, group: Handle, level: u32) -> Result<(), Error> {
    let mut params = [0u8; 4];
    put_u32(&mut params, 0, level);
    client.control(group, SET_INTERLEAVE_LEVEL, &mut params, Vec::new())
}

fn preempt(client: &Client, group: Handle, wait: u8) -> Result<(), Error> {
    let mut params = [0u8; 8];
    if let Some(first) = params.first_mut() {
        *first = wait;
    }
    client.control(group, PREEMPT, &mut params, Vec::new())
}
