//! The command line of `cgpu-burn`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use rmclient::{Card, Client, Nodes};

use super::{
    Outcome, Printed, allocate, calls, churn, flood, load, mallocs, managed, references, share,
    storm, vectors, views, watch,
};
use crate::size::Size;

/// Put load on a GPU through the driver's own calls, without CUDA: allocate, map and free its memory, run kernels on simulated GPUs.
#[derive(Debug, Parser)]
#[command(name = "cgpu-burn", version)]
pub struct Arguments {
    /// The folder with the driver's device nodes.
    #[arg(long, global = true, value_name = "DIR", default_value = "/dev")]
    dev: PathBuf,
    /// Print one JSON document instead of a line of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    load: Load,
}

/// The driver call that allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// `NV_ESC_RM_ALLOC` with the 32-byte struct.
    Short,
    /// `NV_ESC_RM_ALLOC` with the 48-byte struct.
    Long,
    /// `NV_ESC_RM_VID_HEAP_CONTROL`.
    Heap,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Allocate memory; exit code 3 if there is not enough.
    Alloc {
        /// Size, for example 512Mi.
        size: Size,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
        /// Allocate in pieces of this size instead of one.
        #[arg(long)]
        chunk: Option<Size>,
        /// The driver call that allocates.
        #[arg(long, value_enum, default_value = "short")]
        path: Path,
        /// Keep the memory for this many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        hold: u64,
    },
    /// Allocate until no memory is left, and print how much there was.
    Fill {
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
        /// Size of a piece.
        #[arg(long, default_value = "64Mi")]
        chunk: Size,
        /// When a piece does not fit, try halves down to this size.
        #[arg(long)]
        down_to: Option<Size>,
        /// The driver call that allocates.
        #[arg(long, value_enum, default_value = "short")]
        path: Path,
        /// Keep the memory for this many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        hold: u64,
    },
    /// Allocate memory and keep it until interrupted.
    Hold {
        /// Size, for example 512Mi.
        size: Size,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Allocate, duplicate, map, unmap and free at random, in several processes.
    Churn(churn::Options),
    /// One process of `churn`; its report goes to standard output.
    #[command(hide = true)]
    ChurnWorker(churn::Options),
    /// Measure the latency of each kind of call.
    Calls {
        /// Number of calls of each kind.
        #[arg(long, default_value_t = 10_000)]
        count: u64,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Make as many refused calls as possible.
    Flood {
        /// Number of threads.
        #[arg(long, default_value_t = 8)]
        threads: usize,
        /// Duration, seconds.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Run kernels on a simulated GPU; print how many, their share of its time, and how late they were.
    #[command(name = "load")]
    Kernels(load::Options),
    /// Measure allocations as a CUDA library makes them: memory, a range of addresses, and the mapping between them.
    Mallocs {
        /// Number of allocations.
        #[arg(long, default_value_t = 2_000)]
        count: u64,
        /// Size of each.
        #[arg(long, default_value = "2Mi")]
        size: Size,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Map managed memory, let the GPU copy it, verify the copy, free it.
    Managed {
        /// Size, for example 64Mi.
        size: Size,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
        /// Keep the memory for this many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        hold: u64,
    },
    /// Export memory and give it to the process that connects to a socket.
    Give {
        /// Size, for example 64Mi.
        size: Size,
        /// The socket to listen on.
        socket: PathBuf,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Import memory that another process gives; exit code 3 if there is not enough room, 1 if it is refused.
    Take {
        /// The socket of the other process.
        socket: PathBuf,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
        /// Keep the memory for this many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        hold: u64,
    },
    /// Allocate and free while signals interrupt the calls; each call must happen exactly once.
    Storm {
        /// Duration, seconds: half with signal handlers that restart calls, half with handlers that do not.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Microseconds between signals.
        #[arg(long, default_value_t = 1000)]
        period_us: u32,
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Ask the driver for the GPU's memory in every possible way; all answers must agree.
    Views {
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Keep memory allocated without its first handle, in every possible way; it must be counted until the last reference ends.
    References {
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Print the GPU's total memory whenever it changes, until interrupted.
    Watch {
        /// The GPU, by its position in the list of `cgpu smi`.
        #[arg(long, default_value_t = 0)]
        card: usize,
    },
    /// Make every call that cgpu's seccomp filter must catch, in every variant, and print the results.
    Vectors {
        /// The file to make the calls on.
        #[arg(long, default_value = "/dev/null")]
        on: PathBuf,
    },
}

impl Arguments {
    fn printed(&self) -> Printed {
        if self.json {
            Printed::Json
        } else {
            Printed::Text
        }
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed; the load itself reports what the driver refused.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let nodes = Nodes::in_dir(&arguments.dev);
    let printed = arguments.printed();
    let finish = |outcome: Outcome| report(&outcome, printed);
    let finish_and_hold = |outcome: Outcome, seconds: u64| -> anyhow::Result<ExitCode> {
        let code = finish(outcome)?;
        std::thread::sleep(Duration::from_secs(seconds));
        Ok(code)
    };
    match &arguments.load {
        Load::Alloc {
            size,
            card,
            chunk,
            path,
            hold,
        } => with_card(&nodes, *card, |card| {
            let needed = allocate::Needed {
                total_bytes: size.bytes,
                chunk_bytes: chunk.map_or(size.bytes, |chunk| chunk.bytes),
                path: *path,
            };
            finish_and_hold(allocate::allocate(card, &needed), *hold)
        }),
        Load::Fill {
            card,
            chunk,
            down_to,
            path,
            hold,
        } => with_card(&nodes, *card, |card| {
            let smallest_bytes = down_to.map_or(chunk.bytes, |size| size.bytes);
            let outcome = allocate::fill(card, chunk.bytes, smallest_bytes, *path);
            finish_and_hold(outcome, *hold)
        }),
        Load::Hold { size, card } => with_card(&nodes, *card, |card| {
            hold_until_a_signal(card, size.bytes, finish)
        }),
        Load::Churn(options) => finish(churn::run(&arguments.dev, options)?),
        Load::ChurnWorker(options) => finish(churn::work(&nodes, options)?),
        Load::Calls { count, card } => {
            with_card(&nodes, *card, |card| finish(calls::measure(card, *count)?))
        }
        Load::Flood { threads, seconds } => {
            finish(flood::run(&nodes, *threads, Duration::from_secs(*seconds))?)
        }
        Load::Kernels(options) => finish(load::run(&nodes, &arguments.dev, options)?),
        Load::Mallocs { count, size, card } => with_card(&nodes, *card, |card| {
            finish(mallocs::measure(card, *count, size.bytes)?)
        }),
        Load::Managed { size, card, hold } => with_card(&nodes, *card, |card| {
            managed::run(card, size.bytes, |outcome| finish_and_hold(outcome, *hold))
        }),
        Load::Give { size, socket, card } => with_card(&nodes, *card, |card| {
            share::give(card, size.bytes, socket, finish)
        }),
        Load::Take { socket, card, hold } => with_card(&nodes, *card, |card| {
            share::take(card, socket, |outcome| finish_and_hold(outcome, *hold))
        }),
        Load::Storm {
            seconds,
            period_us,
            card,
        } => with_card(&nodes, *card, |card| {
            let storm = storm::Storm {
                duration: Duration::from_secs(*seconds),
                period_us: *period_us,
            };
            finish(storm::run(card, &storm)?)
        }),
        Load::Views { card } => with_card(&nodes, *card, |card| finish(views::look(card)?)),
        Load::References { card } => {
            with_card(&nodes, *card, |card| finish(references::run(card)?))
        }
        Load::Watch { card } => {
            with_card(&nodes, *card, |card| watch::watch(card, printed))?;
            Ok(ExitCode::SUCCESS)
        }
        Load::Vectors { on } => finish(vectors::run(on)?),
    }
}

/// Prints what came of a load; the program's exit code.
fn report(outcome: &Outcome, printed: Printed) -> anyhow::Result<ExitCode> {
    outcome.print(printed).context("write the report")?;
    Ok(outcome.exit_code())
}

/// Allocates, and holds the memory until a signal comes.
fn hold_until_a_signal(
    card: &Card<'_>,
    bytes: u64,
    finish: impl FnOnce(Outcome) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let signals = allocate::ending_signals()?;
    let needed = allocate::Needed {
        total_bytes: bytes,
        chunk_bytes: bytes,
        path: Path::Short,
    };
    let outcome = allocate::allocate(card, &needed);
    let held = outcome.code == 0;
    let code = finish(outcome)?;
    if held {
        signals.wait().context("wait for a signal")?;
    }
    Ok(code)
}

/// A node that is not there is another thing than one behind which nobody answers.
fn why_unconnected(error: &rmclient::Error) -> &'static str {
    match error {
        rmclient::Error::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            "no GPU here; start this in a container with a vGPU, or by `cgpu run --memory 1Gi -- cgpu-burn …`"
        }
        rmclient::Error::Open { .. } | rmclient::Error::Ioctl { .. } => {
            "there is a GPU here, and nobody answers its calls; on the host, `cgpu doctor` and `cgpu events` say why"
        }
        _ => "there is a GPU here, and its driver answers otherwise than expected",
    }
}

fn with_card<T>(
    nodes: &Nodes,
    index: usize,
    load: impl FnOnce(&Card<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let client = Client::connect(nodes).map_err(|error| {
        let what = why_unconnected(&error);
        anyhow::Error::from(error).context(what)
    })?;
    let cards = client.cards()?;
    let card = cards.get(index).with_context(|| {
        format!(
            "no GPU {index} here: {} visible, counted from 0; see `cgpu smi`",
            cards.len()
        )
    })?;
    load(card)
}
