//! `cgpu-card`: everything that needs a real card, in one command of a few minutes.
//!
//! It is a bundle's only frontend: beside it lie `cgpu`, `cgpu-broker`, `cgpu-executor`, `cgpu-sim` and `cgpu-burn`, and no engine or
//! network is needed. Each question is a *probe*: a process of its own with a time limit, since a call to a driver can hang; what
//! it found, or why it could not, goes into one report as Markdown and JSON. On a machine without a card `--simulate` runs the
//! same probes inside a slice of a simulated card: that proves the bundle, and says nothing about hardware.
//!
//! It changes no setting of a card: no clocks, no modes, no resets. Channels that it makes are its own and go with it.

#![forbid(unsafe_code)]

mod bundle;
mod catalogue;
mod probes;
mod record;
mod report;
mod runner;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cgpu-card",
    version,
    about = "Answer the questions that need a real NVIDIA GPU, and write a report"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the probes, and write report.md and report.json.
    Run(RunOptions),
    /// One probe, in this process; its findings go to standard output as JSON.
    #[command(hide = true)]
    Probe {
        /// Its name in the catalogue.
        name: String,
        /// Where the driver's nodes are.
        #[arg(long, default_value = "/dev")]
        dev: PathBuf,
    },
    /// A child of the probe of duplicated files.
    #[command(hide = true)]
    UseFile {
        /// An open `nvidiactl`, inherited.
        #[arg(long)]
        fd: i32,
        /// The root client that was made on it.
        #[arg(long)]
        client: u32,
    },
    /// Run a program and write every call that it makes to the driver: its exit status, then a call a line as JSON.
    Record {
        /// The file to write.
        #[arg(long)]
        out: PathBuf,
        /// Where the driver's nodes are.
        #[arg(long, default_value = "/dev")]
        dev: PathBuf,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// What `record` starts.
    #[command(hide = true)]
    Held {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// List the questions, and which probe answers them.
    List,
}

/// Options of `cgpu-card run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// The folder of the report.
    #[arg(long, default_value = "card-report")]
    out: PathBuf,
    /// The most seconds for all probes; those that do not fit are reported as not run.
    #[arg(long, default_value_t = 480)]
    budget_s: u64,
    /// Run these probes alone, with commas between.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Run on simulated GPUs of this profile, to test the bundle on a machine without a GPU.
    #[arg(long, value_name = "PROFILE")]
    simulate: Option<PathBuf>,
}

#[expect(clippy::print_stderr, reason = "the program's one error line")]
fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Run(options) => runner::run(&options),
        Task::Probe { name, dev } => probes::run_here(&name, dev),
        Task::UseFile { fd, client } => probes::files::use_file(fd, client),
        Task::Record { out, dev, command } => {
            probes::contact::record_here(&out, &dev, &command).map(|()| ExitCode::SUCCESS)
        }
        Task::Held { command } => match record::become_held(&command) {
            Ok(never) => match never {},
            Err(error) => Err(error),
        },
        Task::List => catalogue::print(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu-card: {error:#}");
            ExitCode::FAILURE
        }
    }
}
