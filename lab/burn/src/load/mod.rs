//! Kernels on a simulated card, launched as a program of a kind would: how many get done, in what share of the time, how late.
//!
//! ```text
//! Pace (when to launch what; pure) ──▶ Lane ×N (a channel in a group of its own) ──▶ the card
//!                                         └── ends, by the card's clock ──▶ Tally (pure) ──▶ one JSON document
//! ```
//!
//! A real card would execute what these kernels do not name, and fault: on one the load is refused.

mod churn;
mod lane;
mod pace;
mod tally;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};
use rmclient::{Card, Client, Nodes};
use rmprogram::{CardMemory, ComputeChannel, Error, PreemptionMode, Space, Uvm, multiprocessors};
use serde_json::json;

use super::Outcome;
use super::random::Random;
use crate::JSON_VERSION;
use lane::{Kernel, KernelTime, Lane};
use pace::{Bursts, Pace};
use tally::{Counted, Tally};

/// What `load` is told.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Duration, seconds; 0: until interrupted.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The GPU, by its position in the list of `cgpu smi`.
    #[arg(long, default_value_t = 0, conflicts_with = "gang")]
    card: usize,
    /// Duration of a kernel, µs. Ignored where the profile gives all kernels the same duration.
    #[arg(long)]
    kernel_us: Option<u64>,
    /// Duration of a thread block, µs, as the profile has it. Default: measured.
    #[arg(long)]
    block_us: Option<u32>,
    /// Kernels in flight in each group: when one ends, the next is launched.
    #[arg(long, default_value_t = 16)]
    depth: u32,
    /// Launch at random times instead: this many requests a second on average, whether the GPU keeps up or not.
    #[arg(long, value_name = "RATE", conflicts_with_all = ["bursts", "gang"])]
    poisson: Option<f64>,
    /// Kernels per request.
    #[arg(long, default_value_t = 1, requires = "poisson")]
    batch: u32,
    /// Work for ON milliseconds, then idle for OFF milliseconds, and so on.
    #[arg(long, value_name = "ON/OFF", conflicts_with = "gang")]
    bursts: Option<Bursts>,
    /// Launch one kernel on every GPU, and the next when all have ended.
    #[arg(long)]
    gang: bool,
    /// Number of channel groups on the GPU, as a program makes that wants more than its share.
    #[arg(long, default_value_t = 1)]
    groups: u32,
    /// Ask for kernels that cannot be preempted.
    #[arg(long)]
    wfi: bool,
    /// Ask for a time slice of this many µs.
    #[arg(long, value_name = "US")]
    slice_us: Option<u64>,
    /// Number of threads that create and free clients with channels all the time.
    #[arg(long, default_value_t = 0)]
    churn: u32,
    /// Seed of the random numbers: the same seed gives the same arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Length of a kernel where nothing else is asked for and the card leaves the choice, µs.
const KERNEL_US: u64 = 2_000;
/// Between two looks at what has ended.
const LOOK_SHORTEST_NS: u64 = 50_000;
const LOOK_LONGEST_NS: u64 = 1_000_000;
/// How often it is asked whether the channels still work.
const CHECK_NS: u64 = 1_000_000_000;
/// Most groups of one load.
const MOST_GROUPS: u32 = 1024;
/// Most threads that churn.
const MOST_CHURN: u32 = 64;

/// Runs the load.
///
/// # Errors
/// A driver that cannot be used, a real card, options that the card cannot meet.
pub fn run(nodes: &Nodes, dev: &Path, options: &Options) -> anyhow::Result<Outcome> {
    check(options)?;
    refuse_a_real_card(dev)?;
    let stop = stop_on_signals()?;
    let client = Client::connect(nodes)?;
    let cards = client.cards()?;
    let used = chosen(&cards, options)?;
    let uvm = Uvm::open(&client)?;
    let mut requested = Requested::default();
    let mut lanes = lanes_on(&used, &uvm, options, &mut requested, &stop)?;
    let churn = churn::Churn::start(nodes, options.card, options.churn)?;
    let start_ns = now_ns()?;
    let mut tally = Tally::new(start_ns)?;
    let mut pace = Pace::new(options, start_ns);
    let (end_ns, broken) = drive(&mut lanes, &mut pace, &mut tally, options, start_ns, &stop)?;
    let (churned, not_churned) = churn.end();
    let under_way: u64 = lanes.iter().map(|lane| lane.channel.under_way()).sum();
    Ok(Ended {
        start_ns,
        end_ns,
        kernel_ns: kernel_ns(&lanes),
        cards: used.len(),
        counted: tally.finish(end_ns),
        unfinished: pace.backlog() + under_way,
        requested,
        churned,
        not_churned,
        broken,
    }
    .outcome(options))
}

/// The cards that the load is on.
fn chosen<'card>(
    cards: &'card [Card<'card>],
    options: &Options,
) -> anyhow::Result<Vec<&'card Card<'card>>> {
    let used: Vec<_> = if options.gang {
        cards.iter().collect()
    } else {
        let card = cards.get(options.card).with_context(|| {
            format!(
                "no GPU {} here: {} visible, counted from 0; see `cgpu smi`",
                options.card,
                cards.len()
            )
        })?;
        vec![card]
    };
    ensure!(!used.is_empty(), "no card of the driver has a node here");
    Ok(used)
}

/// Makes the groups of the load on its cards.
fn lanes_on<'card>(
    cards: &[&'card Card<'card>],
    uvm: &Uvm<'_>,
    options: &Options,
    requested: &mut Requested,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<Lane<'card>>> {
    let mut lanes = Vec::new();
    // Areas of all cards are in the addresses of one nvidia-uvm.
    let mut places = 1..;
    for card in cards {
        let uuid = card.uuid()?;
        uvm.register(uuid)?;
        let handle = card.va_space()?;
        uvm.register_va_space(uuid, handle)?;
        let space = Space { uvm, uuid, handle };
        let multiprocessors = multiprocessors(card)?;
        let mut kernel = None;
        for place in places.by_ref().take(usize::try_from(options.groups)?) {
            let mut channel = ComputeChannel::make(card, space, place)?;
            requested.of(&channel, options);
            let kernel = match kernel {
                Some(kernel) => kernel,
                None => {
                    let time = match options.block_us {
                        Some(us) => KernelTime::OfBlocks {
                            wave_ns: u64::from(us) * 1000,
                        },
                        None => lane::measure(&mut channel, multiprocessors, stop)?,
                    };
                    *kernel.insert(Kernel::of(time, multiprocessors, options.kernel_us)?)
                }
            };
            lanes.push(Lane::new(channel, kernel));
        }
    }
    Ok(lanes)
}

fn kernel_ns(lanes: &[Lane<'_>]) -> u64 {
    lanes.first().map_or(0, |lane| lane.kernel.ns)
}

/// Launches until the time is over, a signal comes or a channel is broken: when that was, and what is broken.
fn drive(
    lanes: &mut [Lane<'_>],
    pace: &mut Pace,
    tally: &mut Tally,
    options: &Options,
    start_ns: u64,
    stop: &AtomicBool,
) -> anyhow::Result<(u64, Option<Error>)> {
    let end_ns = match options.seconds {
        0 => u64::MAX,
        seconds => start_ns.saturating_add(seconds.saturating_mul(1_000_000_000)),
    };
    let mut random = Random::seeded(options.seed);
    let mut broken = None;
    let mut next_check_ns = start_ns.saturating_add(CHECK_NS);
    let look_ns = (kernel_ns(lanes) / 4).clamp(LOOK_SHORTEST_NS, LOOK_LONGEST_NS);
    let mut now = start_ns;
    while now < end_ns && !stop.load(Ordering::Relaxed) {
        for lane in lanes.iter_mut() {
            lane.collect(end_ns, tally);
        }
        let wait_ns = pace.drive(now, lanes, &mut random, tally);
        if now >= next_check_ns {
            next_check_ns = now.saturating_add(CHECK_NS);
            if let Some(error) = lanes.iter().find_map(|lane| lane.channel.check().err()) {
                broken = Some(error);
                break;
            }
        }
        let left_ns = end_ns.saturating_sub(now);
        std::thread::sleep(Duration::from_nanos(look_ns.min(wait_ns).min(left_ns)));
        now = now_ns()?;
    }
    let end_ns = now.min(end_ns);
    for lane in lanes {
        lane.collect(end_ns, tally);
    }
    Ok((end_ns, broken))
}

/// What came of a load.
struct Ended {
    start_ns: u64,
    end_ns: u64,
    kernel_ns: u64,
    cards: usize,
    counted: Counted,
    /// Kernels under way, and requests that were not launched.
    unfinished: u64,
    requested: Requested,
    churned: u64,
    not_churned: u64,
    broken: Option<Error>,
}

impl Ended {
    fn outcome(self, options: &Options) -> Outcome {
        let Self { counted, cards, .. } = &self;
        let error = self.broken.as_ref().map(ToString::to_string);
        let share = counted.share(*cards);
        Outcome {
            text: format!(
                "load: {} kernels of {} us, {:.2} % of the time, latency {}{}",
                counted.kernels,
                self.kernel_ns / 1000,
                share * 100.0,
                super::calls::line("of a request", &counted.latency),
                error
                    .as_ref()
                    .map_or(String::new(), |error| format!("; ended by {error}")),
            ),
            json: json!({
                "version": JSON_VERSION,
                "load": "load",
                "start_ns": self.start_ns,
                "end_ns": self.end_ns,
                "kernel_ns": self.kernel_ns,
                "cards": cards,
                "groups": options.groups,
                "kernels": counted.kernels,
                "requests": counted.requests,
                "busy_ns": counted.busy_ns,
                "achieved_share": share,
                "windows": counted.windows_json(*cards),
                "latency": counted.latency_json(),
                "unfinished": self.unfinished,
                "requested": self.requested.json(options),
                "churned": self.churned,
                "not_churned": self.not_churned,
                "error": error,
            }),
            code: u8::from(self.broken.is_some()),
        }
    }
}

fn check(options: &Options) -> anyhow::Result<()> {
    let depth = ComputeChannel::DEPTH;
    ensure!(
        (1..=depth).contains(&options.depth),
        "--depth {}: must be 1 to {depth}",
        options.depth
    );
    ensure!(
        (1..=MOST_GROUPS).contains(&options.groups),
        "--groups {}: must be 1 to {MOST_GROUPS}",
        options.groups
    );
    ensure!(
        options.churn <= MOST_CHURN,
        "--churn {}: must be at most {MOST_CHURN}",
        options.churn
    );
    ensure!(
        (1..=depth).contains(&options.batch),
        "--batch {}: must be 1 to {depth}",
        options.batch
    );
    ensure!(
        options.block_us != Some(0),
        "--block-us 0: must be 1 to {}",
        u32::MAX
    );
    if let Some(rate) = options.poisson {
        ensure!(
            (0.001..=1_000_000.0).contains(&rate),
            "--poisson {rate}: must be 0.001 to 1000000 requests a second"
        );
    }
    if let Some(kernel_us) = options.kernel_us {
        ensure!(
            (1..=60_000_000).contains(&kernel_us),
            "--kernel-us {kernel_us}: must be 1 to 60000000"
        );
    }
    Ok(())
}

/// The nodes of a simulated card are files.
fn refuse_a_real_card(dev: &Path) -> anyhow::Result<()> {
    let node = dev.join("nvidiactl");
    let is_device = std::fs::metadata(&node).is_ok_and(|node| node.file_type().is_char_device());
    if is_device {
        bail!(
            "{} is a real driver's: the kernels of this load name no program, and are for simulated cards only",
            node.display()
        );
    }
    Ok(())
}

/// Set when SIGTERM or SIGINT has come.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let signals: SigSet = super::allocate::ending_signals().context("block signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.wait().is_ok() {
                set.store(true, Ordering::Relaxed);
            }
        })
        .context("start a thread for signals")?;
    Ok(stop)
}

/// What the driver said to what a tenant should not get.
#[derive(Debug, Default)]
struct Requested {
    /// Of the first group.
    slice_us: Option<u64>,
    refused: Vec<String>,
}

impl Requested {
    fn of(&mut self, channel: &ComputeChannel<'_>, options: &Options) {
        let mut refused = |result: Result<(), Error>| {
            self.refused
                .extend(result.err().map(|error| error.to_string()));
        };
        if options.wfi {
            refused(channel.set_preemption_mode(PreemptionMode::Wfi));
        }
        if let Some(slice_us) = options.slice_us {
            refused(channel.set_timeslice(slice_us));
        }
        if self.slice_us.is_none() {
            self.slice_us = channel.timeslice().ok();
        }
    }

    fn json(&self, options: &Options) -> serde_json::Value {
        json!({
            "wfi": options.wfi, "slice_us": options.slice_us, "slice_seen_us": self.slice_us, "refused": self.refused,
        })
    }
}

/// ns of CLOCK_MONOTONIC, the clock of simulated cards.
fn now_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?;
    let (seconds, rest) = (u64::try_from(now.tv_sec())?, u64::try_from(now.tv_nsec())?);
    Ok(seconds * 1_000_000_000 + rest)
}
