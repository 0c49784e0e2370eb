//! `cgpu-sim`: simulated NVIDIA cards for machines that have none.

#![forbid(unsafe_code)]

mod container_name;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use cards::{Inventory, SimulatedInventory};
use clap::{Args, Parser, Subcommand};
use driver::Driver;
use driver::sim::SimDriver;
use driver::wire::Fault;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use sim::{Profile, Server};
use tracing::level_filters::LevelFilter;

/// The session that account and faults are asked in; it never holds anything.
const OBSERVER: &str = "cgpu-sim/observer";

/// Below the help.
const EXAMPLES: &str = "\
Examples:
  cgpu-sim --profile two-ada                   Two GPUs of 24 GiB; `ready` is printed when they are there
  cgpu-sim --profile ./my-cards.toml
  cgpu-sim fault xid --card 0 --session web";

/// Simulate NVIDIA GPUs for cgpu until interrupted. GPU kernels are not executed: a launch completes after the time that the profile
/// declares.
#[derive(Debug, Parser)]
#[command(
    name = "cgpu-sim",
    version,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES,
    subcommand_negates_reqs = true
)]
struct Arguments {
    #[command(flatten)]
    serve: Serve,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Serve {
    /// Which driver and GPUs to simulate: a TOML file, or the name of a built-in profile: generations, mixed, old-driver, shares, two-ada.
    #[arg(long, value_name = "PROFILE", required = true)]
    profile: Option<PathBuf>,
    /// Keep the log on standard error short, which must be a file: older lines are moved to this file, replacing what it has.
    #[arg(long, value_name = "FILE")]
    former_log: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// The state folder of cgpu, `state_dir` in cgpu.toml; the simulator's files are in its folder `sim`.
    #[arg(long, value_name = "DIR", default_value = "/run/cgpu")]
    state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what each card's memory is used for, as JSON.
    Account {
        #[command(flatten)]
        place: Place,
    },
    /// Print what went wrong on the cards since the simulator started, as JSON.
    Incidents {
        #[command(flatten)]
        place: Place,
    },
    /// Measure allocations made directly in the simulator, to compare with `cgpu-burn mallocs` in a container.
    Mallocs {
        #[command(flatten)]
        place: Place,
        /// Number of allocations.
        #[arg(long, default_value_t = 2_000)]
        count: usize,
        /// Size of each, bytes.
        #[arg(long, value_name = "N", default_value_t = 2 << 20)]
        bytes: u64,
    },
    /// Make the running simulator fail in a given way.
    Fault {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        fault: Injected,
    },
}

#[derive(Debug, Subcommand)]
enum Injected {
    /// Make the next allocations on a card fail for lack of memory.
    OutOfMemory {
        #[command(flatten)]
        card: OneCard,
        /// Number of allocations.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// Make every call on a card fail, as if the card had fallen off the bus.
    CardLost {
        #[command(flatten)]
        card: OneCard,
    },
    /// Make the next calls slow.
    Slow {
        /// Duration of each call, milliseconds.
        millis: u32,
        /// Number of calls.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// Report an Xid error on a card, caused by a container; its channels there are dead from then on.
    Xid {
        /// The card: its UUID or index.
        #[arg(long)]
        card: String,
        /// The container that causes it, as `cgpu ps` shows it.
        #[arg(long, value_name = "CONTAINER")]
        session: String,
        /// The Xid's number, for example 31 (MMU fault) or 43 (stopped).
        #[arg(long, default_value_t = 31)]
        number: u32,
    },
    /// Make the next calls of a container hang until the faults are cleared.
    Hang {
        /// The container, as `cgpu ps` shows it.
        #[arg(long, value_name = "CONTAINER")]
        session: String,
        /// Number of calls.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// Use memory of a card in a container's name without a call of the container.
    Leak {
        /// The card: its UUID or index.
        #[arg(long)]
        card: String,
        /// The container that the driver charges, as `cgpu ps` shows it.
        #[arg(long, value_name = "CONTAINER")]
        session: String,
        /// How much, bytes.
        #[arg(long, value_name = "N")]
        bytes: u64,
    },
    /// End all faults. Channels that an Xid error has ended stay dead.
    Clear,
}

fn main() -> ExitCode {
    let (filter, problem) = logfile::filter::of_environment(LevelFilter::INFO);
    let arguments = Arguments::parse();
    // No tenant makes the log long quickly, or the simulator end by it.
    logfile::init(filter, arguments.serve.former_log.clone());
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    let result = match arguments.command {
        None => serve(&arguments.serve),
        Some(Command::Account { place }) => account(&place.state_dir),
        Some(Command::Incidents { place }) => incidents(&place.state_dir),
        Some(Command::Mallocs {
            place,
            count,
            bytes,
        }) => measure(&place.state_dir, count, bytes),
        Some(Command::Fault { place, fault }) => inject(&place.state_dir, fault),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let needs_root = if is_denied(&error) && !nix::unistd::geteuid().is_root() {
                "this needs root; run it with sudo: "
            } else {
                ""
            };
            // For whoever has typed the command, and for `cgpu run --simulate`, which shows it. Nobody is left to hear of a failure.
            drop(writeln!(
                std::io::stderr(),
                "cgpu-sim: {needs_root}{error:#}"
            ));
            ExitCode::FAILURE
        }
    }
}

fn is_denied(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied)
    })
}

fn serve(arguments: &Serve) -> anyhow::Result<()> {
    // Before any thread is made, so that every one of them leaves these to this one.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.thread_block().context("block signals")?;
    // Every object that a client maps is a file.
    let (_soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")?;

    let profile = Profile::read(
        arguments
            .profile
            .as_deref()
            .context("no profile is given")?,
    )?;
    let server = Server::bind(profile, &arguments.place.state_dir)?;
    server.start()?;
    print("ready\n")?;
    // Without systemd nothing is sent.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "systemd is not notified");
    }
    let signal = ends.wait().context("wait for the end")?;
    tracing::info!(%signal, "ends");
    Ok(())
}

fn account(state_dir: &Path) -> anyhow::Result<()> {
    let cards = connect(state_dir)?.account()?;
    print(&format!(
        "{}\n",
        serde_json::to_string_pretty(&cards).context("write JSON")?
    ))
}

fn incidents(state_dir: &Path) -> anyhow::Result<()> {
    let incidents = connect(state_dir)?.incidents(0)?;
    print(&format!(
        "{}\n",
        serde_json::to_string_pretty(&incidents).context("write JSON")?
    ))
}

fn measure(state_dir: &Path, count: usize, bytes: u64) -> anyhow::Result<()> {
    let dev = SimulatedInventory::socket_path(state_dir).with_file_name("dev");
    let times = sim::mallocs(&connect(state_dir)?, &dev, count, bytes)?;
    print(&format!("{times}\n"))
}

/// A card, by option as everywhere, or as the only word.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct OneCard {
    /// The card: its UUID or index.
    #[arg(long = "card", value_name = "CARD")]
    option: Option<String>,
    /// The card, without `--card`.
    #[arg(value_name = "CARD")]
    word: Option<String>,
}

impl OneCard {
    fn name(self) -> String {
        self.option.or(self.word).unwrap_or_default()
    }
}

/// A card's UUID: what is no index is taken for one.
fn uuid_of(state_dir: &Path, card: String) -> anyhow::Result<String> {
    let Ok(index) = card.parse::<u32>() else {
        return Ok(card);
    };
    let cards = Inventory::simulated(state_dir)?.cards;
    let named = cards.iter().find(|card| card.index == index);
    let named = named.with_context(|| {
        let known: Vec<String> = cards
            .iter()
            .map(|card| format!("{} ({})", card.index, card.uuid))
            .collect();
        format!(
            "no card {index}; those that there are: {}",
            known.join(", ")
        )
    })?;
    Ok(named.uuid.to_string())
}

fn inject(state_dir: &Path, fault: Injected) -> anyhow::Result<()> {
    let uuid = |card| uuid_of(state_dir, card);
    let session = |name| container_name::session_of(state_dir, name);
    let fault = match fault {
        Injected::OutOfMemory { card, calls } => Fault::OutOfMemory {
            uuid: uuid(card.name())?,
            calls,
        },
        Injected::CardLost { card } => Fault::CardLost {
            uuid: uuid(card.name())?,
        },
        Injected::Slow { millis, calls } => Fault::Slow { millis, calls },
        Injected::Xid {
            card,
            session: name,
            number,
        } => Fault::Xid {
            uuid: uuid(card)?,
            session: session(name)?,
            number,
        },
        Injected::Hang {
            session: name,
            calls,
        } => Fault::Hang {
            session: session(name)?,
            calls,
        },
        Injected::Leak {
            card,
            session: name,
            bytes,
        } => Fault::Leak {
            uuid: uuid(card)?,
            session: session(name)?,
            bytes,
        },
        Injected::Clear => Fault::Clear,
    };
    Ok(connect(state_dir)?.fault(fault)?)
}

fn connect(state_dir: &Path) -> anyhow::Result<SimDriver> {
    let socket = SimulatedInventory::socket_path(state_dir);
    SimDriver::connect(&socket, OBSERVER).with_context(|| {
        format!(
            "no simulator answers in {}: start `cgpu-sim --profile PROFILE`, or name its --state-dir",
            state_dir.display()
        )
    })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("write to standard output")
}
