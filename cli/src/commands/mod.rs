//! What a command line of `cgpu` does.

#[cfg(feature = "host")]
mod cards;
#[cfg(feature = "host")]
mod doctor;
#[cfg(feature = "host")]
mod events;
#[cfg(feature = "host")]
mod explain;
#[cfg(feature = "host")]
mod inspect;
#[cfg(feature = "host")]
mod install;
#[cfg(feature = "host")]
mod list;
#[cfg(feature = "host")]
mod logs;
#[cfg(feature = "host")]
mod metrics;
#[cfg(feature = "host")]
mod ps;
#[cfg(feature = "host")]
mod report;
#[cfg(feature = "host")]
mod request_options;
#[cfg(feature = "host")]
mod run;
#[cfg(feature = "host")]
mod set;
mod smi;
#[cfg(feature = "host")]
mod top;
#[cfg(feature = "host")]
mod upgrade;
mod version;

#[cfg(not(feature = "host"))]
use std::ffi::OsString;
#[cfg(feature = "host")]
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(feature = "host")]
use clap::Args;
use clap::{Parser, Subcommand};
#[cfg(feature = "host")]
use serde::Serialize;
use view::version::Build;

/// Below the help.
#[cfg(feature = "host")]
const EXAMPLES: &str = "\
Examples:
  cgpu doctor                       What is missing on this host, and what to do
  cgpu install --dry-run            How engines come to know cgpu
  cgpu run --memory 4Gi -- CMD      A command with a part of a GPU, without an engine
  cgpu ps                           Who has what
  cgpu set web --memory 6Gi         Another quota for a running container
  cgpu smi                          In a container: what it has";

/// Below the help.
#[cfg(not(feature = "host"))]
const EXAMPLES: &str = "\
Example:
  cgpu smi      What this container has";

/// Share NVIDIA GPUs between containers, each with its own memory limit.
#[derive(Debug, Parser)]
#[command(name = "cgpu", version, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the GPUs that are visible here; in a container, only its slice.
    #[command(after_help = smi::EXAMPLES)]
    Smi(smi::Options),
    /// List the containers of this host that have a vGPU: memory, compute share, health.
    #[cfg(feature = "host")]
    #[command(after_help = ps::COLUMNS)]
    Ps(ps::Options),
    /// List the GPUs (cards) of this host: how much of each is granted, to whom, and what is free.
    #[cfg(feature = "host")]
    #[command(after_help = cards::COLUMNS)]
    Cards(cards::Options),
    /// Check whether GPU containers can run on this host; list what is missing or broken, and what to do.
    #[cfg(feature = "host")]
    #[command(after_help = doctor::EXAMPLES)]
    Doctor {
        #[command(flatten)]
        form: Form,
        /// Also clean up: release what killed containers still hold. What runs is left alone, and so are unhealthy cards.
        #[arg(long)]
        repair: bool,
        /// With --repair: also use this card again, which was marked unhealthy: its UUID or index. Nothing checks the card.
        #[arg(long, value_name = "CARD", requires = "repair")]
        card: Option<String>,
    },
    /// Show what happened to containers and cards: refused starts, Xid errors, lost cards, hung calls, changed quotas.
    #[cfg(feature = "host")]
    #[command(after_help = events::EXAMPLES)]
    Events(events::Options),
    /// Show everything that is known of one container's vGPU.
    #[cfg(feature = "host")]
    #[command(after_help = inspect::EXAMPLES)]
    Inspect(inspect::Options),
    /// Print what the broker of a container has logged.
    #[cfg(feature = "host")]
    #[command(after_help = logs::EXAMPLES)]
    Logs(logs::Options),
    /// Write what helps others to understand this host into an archive, without containers' specs and environments.
    #[cfg(feature = "host")]
    #[command(after_help = report::EXAMPLES)]
    Report(report::Options),
    /// Say which cards a request would get now, or why it is refused, card by card.
    #[cfg(feature = "host")]
    #[command(after_help = explain::EXAMPLES, override_usage = explain::USAGE)]
    Explain(explain::Options),
    /// Print metrics of all containers and cards for Prometheus, once.
    #[cfg(feature = "host")]
    #[command(after_help = metrics::EXAMPLES)]
    Metrics(metrics::Options),
    /// Watch cards and containers live: memory, compute share, refused allocations, state.
    #[cfg(feature = "host")]
    #[command(after_help = top::EXAMPLES)]
    Top(top::Options),
    /// Change the memory or the compute share of a running container, or the rules of a card.
    #[cfg(feature = "host")]
    #[command(after_help = set::EXAMPLES)]
    Set(Box<set::Options>),
    /// Replace the brokers of running containers by the installed version, one at a time.
    #[cfg(feature = "host")]
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::Options),
    /// Register cgpu's runtime with containerd, docker, podman and CRI-O; show what changes and what to reload.
    #[cfg(feature = "host")]
    #[command(after_help = install::INSTALL_EXAMPLES)]
    Install(Box<install::InstallOptions>),
    /// Restore the engines' configuration files as they were before `install`.
    #[cfg(feature = "host")]
    #[command(after_help = install::UNINSTALL_EXAMPLES)]
    Uninstall(Box<install::UninstallOptions>),
    /// Run a command with a vGPU, without a container engine.
    #[cfg(feature = "host")]
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Options>),
    /// Print which cgpu this is: version, commit, time of the build, and the drivers that it knows.
    #[command(after_help = version::EXAMPLES)]
    Version(version::Options),
    /// A command of the host, or none.
    #[cfg(not(feature = "host"))]
    #[command(external_subcommand)]
    Other(Vec<OsString>),
    /// The process of `run`, before it becomes the command.
    #[cfg(feature = "host")]
    #[command(hide = true)]
    RunInside {
        /// What is prepared, as JSON.
        plan: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// What ends the processes of a `run` that was killed.
    #[cfg(feature = "host")]
    #[command(hide = true)]
    RunGuard {
        /// Their control group.
        group: PathBuf,
    },
    /// A program that ends with this one.
    #[cfg(feature = "host")]
    #[command(hide = true)]
    WithParent {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// The commands that a container's build does not have.
#[cfg(any(test, not(feature = "host")))]
const HOST_COMMANDS: [&str; 15] = [
    "ps",
    "cards",
    "doctor",
    "events",
    "inspect",
    "logs",
    "report",
    "explain",
    "metrics",
    "top",
    "set",
    "upgrade",
    "install",
    "uninstall",
    "run",
];

/// The answer to a command of the host in a container.
const FOR_THE_HOST: &str =
    "this command is for the host; in a container, `cgpu smi` shows what the container has";

/// A command line that is wrong on every host: its exit code is that of one that cannot be read.
#[derive(Debug)]
pub struct NotUnderstood(String);

impl std::fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotUnderstood {}

#[cfg(feature = "host")]
pub(crate) fn not_understood(why: impl Into<String>) -> anyhow::Error {
    NotUnderstood(why.into()).into()
}

/// How a document is printed.
#[cfg(feature = "host")]
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Form {
    /// Print a JSON document instead of tables.
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "host")]
impl Form {
    /// Prints a document as asked.
    pub(crate) fn print<T: Serialize>(
        self,
        document: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let text = if self.json {
            view::json(document)?
        } else {
            table(document)
        };
        use anyhow::Context;
        crate::output::print(&text).context("write to standard output")?;
        Ok(())
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed.
#[cfg(feature = "host")]
pub fn run(arguments: Arguments, build: Build) -> anyhow::Result<ExitCode> {
    use std::io::ErrorKind;
    // Bound in wherever a broker holds the container; the host has none.
    let is_inside = std::path::Path::new(vgpu::slice_record::TARGET).exists();
    // All others are steps of a `run` on the host.
    let is_for_both = matches!(
        arguments.command,
        Command::Smi { .. }
            | Command::Version { .. }
            | Command::RunInside { .. }
            | Command::RunGuard { .. }
            | Command::WithParent { .. }
    );
    if is_inside && !is_for_both {
        anyhow::bail!(FOR_THE_HOST);
    }
    let is_denied = |error: &anyhow::Error| {
        error.chain().any(|cause| {
            let io = cause.downcast_ref::<std::io::Error>();
            io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied)
        })
    };
    host(arguments, build).map_err(|error| {
        if is_denied(&error) && !nix::unistd::geteuid().is_root() {
            error.context("this needs root; run it with sudo")
        } else {
            error
        }
    })
}

#[cfg(feature = "host")]
fn host(arguments: Arguments, build: Build) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Smi(options) => smi::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Cards(options) => cards::run(&options),
        Command::Doctor { form, repair, card } => doctor::run(
            form,
            &match (repair, card) {
                (false, _) => doctor::Repair::No,
                (true, None) => doctor::Repair::Leftovers,
                (true, Some(card)) => doctor::Repair::Card(card),
            },
        ),
        Command::Events(options) => events::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Logs(options) => logs::run(&options),
        Command::Report(options) => report::run(&options, build),
        Command::Explain(options) => explain::run(&options),
        Command::Metrics(options) => metrics::run(&options, build),
        Command::Top(options) => top::run(&options),
        Command::Set(options) => set::run(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Install(options) => install::install(&options),
        Command::Uninstall(options) => install::uninstall(&options),
        Command::Run(options) => run::run(&options),
        Command::Version(options) => version::run(&options, build),
        Command::RunInside { plan, command } => run::inside(&plan, &command),
        Command::RunGuard { group } => run::guard(group),
        Command::WithParent { command } => run::with_parent(&command),
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed; a command that this build does not have.
#[cfg(not(feature = "host"))]
pub fn run(arguments: Arguments, build: Build) -> anyhow::Result<ExitCode> {
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    let words = match arguments.command {
        Command::Smi(options) => return smi::run(&options),
        Command::Version(options) => return version::run(&options, build),
        Command::Other(words) => words,
    };
    let name = words.first().map(|word| word.to_string_lossy());
    let name = name.unwrap_or_default();
    if HOST_COMMANDS.contains(&&*name) {
        anyhow::bail!(FOR_THE_HOST);
    }
    let what = format!("unrecognized subcommand '{}'", name.escape_default());
    Arguments::command()
        .error(ErrorKind::InvalidSubcommand, what)
        .exit()
}

#[cfg(all(test, feature = "host"))]
mod tests;
