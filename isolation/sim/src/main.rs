//! `cgpu-sim`: simulated NVIDIA cards for machines that have none.

#![forbid(unsafe_code)]

use std::io::Write;
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
use tracing_subscriber::EnvFilter;

/// The session that account and faults are asked in; it never holds anything.
const OBSERVER: &str = "cgpu-sim/observer";

/// Simulates NVIDIA cards: answers the driver's ioctls that a cgpu broker carries to it. Kernels are not executed; a
/// launch completes after the time that the profile declares.
#[derive(Debug, Parser)]
#[command(
    name = "cgpu-sim",
    version,
    args_conflicts_with_subcommands = true,
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
    /// The profile (TOML): which driver, which cards; or one that comes with the program: mixed, old-driver, shares, two-ada.
    #[arg(long, value_name = "FILE", required = true)]
    profile: Option<PathBuf>,
    /// Standard error is a file that is to stay short: what is older goes to this file, and what is older than that is gone.
    #[arg(long, value_name = "FILE")]
    former_log: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// The state folder of cgpu; the simulator's own files stand in its folder `sim`.
    #[arg(long, value_name = "DIR", default_value = "/run/cgpu")]
    state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints what each card holds, as JSON.
    Account {
        #[command(flatten)]
        place: Place,
    },
    /// Prints what went wrong on the cards since the simulator started, as JSON.
    Incidents {
        #[command(flatten)]
        place: Place,
    },
    /// Makes whole allocations as a CUDA library does, straight on the socket, and prints how long they take: what
    /// `cgpu-burn mallocs` takes longer in a container is what the container costs.
    Mallocs {
        #[command(flatten)]
        place: Place,
        /// Allocations.
        #[arg(long, default_value_t = 2_000)]
        count: usize,
        /// Bytes of each.
        #[arg(long, value_name = "N", default_value_t = 2 << 20)]
        bytes: u64,
    },
    /// Injects a fault into the running simulator.
    Fault {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        fault: Injected,
    },
}

#[derive(Debug, Subcommand)]
enum Injected {
    /// The next allocations on a card fail for lack of memory.
    OutOfMemory {
        #[command(flatten)]
        card: OneCard,
        /// How many allocations.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// Every call on a card fails as if it had fallen off the bus.
    CardLost {
        #[command(flatten)]
        card: OneCard,
    },
    /// The next calls take long.
    Slow {
        /// How long each.
        millis: u32,
        /// How many calls.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// A channel of a session faults: its channels on the card are dead, and the card reports an Xid.
    Xid {
        /// The card: GPU-…, or its index.
        #[arg(long)]
        card: String,
        /// Whose channel: namespace/container.
        #[arg(long)]
        session: String,
        /// The Xid, for example 31 (MMU fault) or 43 (stopped).
        #[arg(long, default_value_t = 31)]
        number: u32,
    },
    /// The next calls of a session do not return until the faults are cleared.
    Hang {
        /// Whose calls: namespace/container.
        #[arg(long)]
        session: String,
        /// How many calls.
        #[arg(long, default_value_t = 1)]
        calls: u32,
    },
    /// Takes memory of a card for a session that has not asked for it.
    Leak {
        /// The card: GPU-…, or its index.
        #[arg(long)]
        card: String,
        /// Whose sum grows: namespace/container.
        #[arg(long)]
        session: String,
        /// How much.
        #[arg(long, value_name = "N")]
        bytes: u64,
    },
    /// Ends all faults. Channels that an Xid has ended stay dead.
    Clear,
}

fn main() -> ExitCode {
    let filter =
        EnvFilter::try_from_env("CGPU_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    let arguments = Arguments::parse();
    // No tenant makes the log long quickly, or the simulator end by it.
    logfile::init(filter, arguments.serve.former_log.clone());
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
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
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
    say("ready\n")?;
    let signal = ends.wait().context("wait for the end")?;
    tracing::info!(%signal, "ends");
    Ok(())
}

fn account(state_dir: &Path) -> anyhow::Result<()> {
    let cards = connect(state_dir)?.account()?;
    say(&format!(
        "{}\n",
        serde_json::to_string_pretty(&cards).context("write JSON")?
    ))
}

fn incidents(state_dir: &Path) -> anyhow::Result<()> {
    let incidents = connect(state_dir)?.incidents(0)?;
    say(&format!(
        "{}\n",
        serde_json::to_string_pretty(&incidents).context("write JSON")?
    ))
}

fn measure(state_dir: &Path, count: usize, bytes: u64) -> anyhow::Result<()> {
    let dev = SimulatedInventory::socket_path(state_dir).with_file_name("dev");
    let times = sim::mallocs(&connect(state_dir)?, &dev, count, bytes)?;
    say(&format!("{times}\n"))
}

/// A card, by option as everywhere, or as the only word.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct OneCard {
    /// The card: GPU-…, or its index.
    #[arg(long = "card", value_name = "CARD")]
    option: Option<String>,
    /// The same.
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
    let named = named.with_context(|| format!("no card {index}; there are {}", cards.len()))?;
    Ok(named.uuid.to_string())
}

fn inject(state_dir: &Path, fault: Injected) -> anyhow::Result<()> {
    let uuid = |card| uuid_of(state_dir, card);
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
            session,
            number,
        } => Fault::Xid {
            uuid: uuid(card)?,
            session,
            number,
        },
        Injected::Hang { session, calls } => Fault::Hang { session, calls },
        Injected::Leak {
            card,
            session,
            bytes,
        } => Fault::Leak {
            uuid: uuid(card)?,
            session,
            bytes,
        },
        Injected::Clear => Fault::Clear,
    };
    Ok(connect(state_dir)?.fault(fault)?)
}

fn connect(state_dir: &Path) -> anyhow::Result<SimDriver> {
    Ok(SimDriver::connect(
        &SimulatedInventory::socket_path(state_dir),
        OBSERVER,
    )?)
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("write to standard output")
}
