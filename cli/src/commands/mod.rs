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

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

/// `cargo xtask package` adds commit and date. Other builds name the version alone: they would be compiled again for each commit.
const VERSION: &str = match option_env!("CGPU_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

/// Share NVIDIA GPUs between containers, each with its own memory limit.
#[derive(Debug, Parser)]
#[command(name = "cgpu", version = VERSION)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the GPUs that are visible here; in a container, only its slice.
    Smi {
        #[command(flatten)]
        form: Form,
        /// The folder with the driver's device nodes.
        #[arg(long, value_name = "DIR", default_value = smi::DEV)]
        dev: PathBuf,
    },
    /// List the containers of this host that have a vGPU: quota, use, compute share, health.
    #[command(after_help = PS_COLUMNS)]
    Ps {
        #[command(flatten)]
        form: Form,
        /// Show all columns, with the full names of containers and cards.
        #[arg(long)]
        wide: bool,
    },
    /// List the GPUs (cards) of this host: how much of each is granted, to whom, and what is free.
    #[command(after_help = CARDS_COLUMNS)]
    Cards {
        #[command(flatten)]
        form: Form,
    },
    /// Check whether GPU containers can run on this host; list what is missing or broken, and what to do.
    #[command(after_help = "Exit code: 0 if nothing is missing or broken, else 1.")]
    Doctor {
        #[command(flatten)]
        form: Form,
        /// Also clean up: release what killed containers still hold, and use cards again that were marked unhealthy.
        #[arg(long)]
        repair: bool,
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
    #[command(
        after_help = "The containers keep running: their GPU calls wait for some milliseconds, and none fails."
    )]
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
    /// Run a command with a vGPU, without a container engine.
    #[cfg(not(feature = "host"))]
    Run {
        /// Not in this build.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
    /// The process of `run`, before it becomes the command.
    #[cfg(feature = "host")]
    #[command(hide = true)]
    RunInside {
        /// What is prepared, as JSON.
        plan: String,
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

/// What is in the table of `cgpu ps`.
const PS_COLUMNS: &str = "\
Columns:
  CONTAINER         Namespace and id; an id of 64 digits by its first 12, which other commands take as well
  CARD              The card's minor number; with --wide its UUID too
  QUOTA, USED       Memory that the container may use, and uses now
  COMPUTE           Its compute policy, share, weight and priority
  ISOLATION         strict or compat, or why it is not isolated
  HEALTH            ok, or what is wrong; `cgpu events` says more

Columns with --wide:
  PEAK, REFUSED     The most memory that it has used; allocations that exceeded the quota
  ENTITLED, HAD     Its part of the card's time: what it is entitled to now, and what it had in the last second
  LEVEL             How its share is enforced, and why no better way is used
  MANAGED           What managed memory counts: charge, deny or allow
  HOST MEMORY       Host memory that the driver has taken for it, and the limit
  BACKEND           What enforces its quota, and the driver
  BROKER, ITS ...   Pid of its broker; CPU time and memory of cgpu's own processes for it";

/// What is in the table of `cgpu cards`.
const CARDS_COLUMNS: &str = "\
Columns:
  GRANTED        Memory that is reserved for containers, whether they use it or not
  FREE TO GRANT  Memory that new containers can get
  COMPUTE        How the card's time is divided: the policy of containers that name none
  RESERVED       The part of its time that containers have for themselves
  LEFT           The part of its time that can still be reserved
  HEALTH         ok, or why no new container is placed on it";

/// How a document is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Form {
    /// Print a JSON document instead of tables.
    #[arg(long)]
    json: bool,
}

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
        crate::output::print(&text).context("write to standard output")
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed.
#[cfg(feature = "host")]
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    use std::io::ErrorKind;
    // Bound in wherever a broker holds the container; the host has none.
    let is_inside = std::path::Path::new(vgpu::slice_record::TARGET).exists();
    // All others are steps of a `run` on the host.
    let is_for_both = matches!(
        arguments.command,
        Command::Smi { .. }
            | Command::RunInside { .. }
            | Command::RunGuard { .. }
            | Command::WithParent { .. }
    );
    if is_inside && !is_for_both {
        anyhow::bail!(
            "this is a container with a vGPU, and this command is for the host; here `cgpu smi` shows what the container has"
        );
    }
    let is_denied = |error: &anyhow::Error| {
        error.chain().any(|cause| {
            let io = cause.downcast_ref::<std::io::Error>();
            io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied)
        })
    };
    host(arguments).map_err(|error| {
        if is_denied(&error) && !nix::unistd::geteuid().is_root() {
            error.context("this needs root; run it with sudo")
        } else {
            error
        }
    })
}

#[cfg(feature = "host")]
fn host(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Smi { form, dev } => smi::run(form, &dev),
        Command::Ps { form, wide } => ps::run(
            form,
            if wide {
                crate::render::ps::Width::Wide
            } else {
                crate::render::ps::Width::Narrow
            },
        ),
        Command::Cards { form } => cards::run(form),
        Command::Doctor { form, repair } => doctor::run(
            form,
            if repair {
                doctor::Repair::Yes
            } else {
                doctor::Repair::No
            },
        ),
        Command::Events(options) => events::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Logs(options) => logs::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Metrics(options) => metrics::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Set(options) => set::run(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Install(options) => install::install(&options),
        Command::Uninstall(options) => install::uninstall(&options),
        Command::Run(options) => run::run(&options),
        Command::RunInside { plan } => run::inside(&plan),
        Command::RunGuard { group } => run::guard(group),
        Command::WithParent { command } => run::with_parent(&command),
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed; a command that this build does not have.
#[cfg(not(feature = "host"))]
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let absent = match arguments.command {
        Command::Smi { form, dev } => return smi::run(form, &dev),
        Command::Ps { .. } => "ps",
        Command::Cards { .. } => "cards",
        Command::Doctor { .. } => "doctor",
        Command::Run { .. } => "run",
    };
    anyhow::bail!(
        "`cgpu {absent}` is for the host: this build is for use inside containers and has `cgpu smi` only"
    )
}
