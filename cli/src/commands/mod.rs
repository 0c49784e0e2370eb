//! What a command line of `cgpu` does.

#[cfg(feature = "nvml")]
mod cards;
#[cfg(feature = "nvml")]
mod doctor;
#[cfg(feature = "nvml")]
mod events;
#[cfg(feature = "nvml")]
mod install;
#[cfg(feature = "nvml")]
mod metrics;
#[cfg(feature = "nvml")]
mod ps;
#[cfg(feature = "nvml")]
mod run;
#[cfg(feature = "nvml")]
mod set;
mod smi;
#[cfg(feature = "nvml")]
mod upgrade;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

/// Share NVIDIA GPUs between containers, each with its own memory limit.
#[derive(Debug, Parser)]
#[command(name = "cgpu", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show GPUs as the driver or the simulator reports them; in a container, only its slice.
    Smi {
        #[command(flatten)]
        form: Form,
        /// Where the driver's nodes are.
        #[arg(long, default_value = smi::DEV)]
        dev: PathBuf,
    },
    /// Every vGPU of this host.
    Ps {
        #[command(flatten)]
        form: Form,
    },
    /// The cards of this host, and what is left to grant of them.
    Cards {
        #[command(flatten)]
        form: Form,
    },
    /// Check whether GPU containers can run on this host, and what is missing or broken. Exits 0 if nothing is; run it as root.
    Doctor {
        #[command(flatten)]
        form: Form,
        /// Take back what killed containers left behind.
        #[arg(long)]
        repair: bool,
    },
    /// What went wrong around containers: violations, Xids, lost cards, hung calls, replaced brokers, changed quotas.
    #[cfg(feature = "nvml")]
    Events(events::Options),
    /// What is granted, held and refused, as metrics in the text form of Prometheus, or in that of OpenMetrics.
    #[cfg(feature = "nvml")]
    Metrics(metrics::Options),
    /// Change a running container's slice; it is visible inside at once, and forgotten when the container ends or is restarted.
    #[cfg(feature = "nvml")]
    Set(Box<set::Options>),
    /// Replace the brokers of running containers by the installed program, one at a time, while their calls wait.
    #[cfg(feature = "nvml")]
    Upgrade(upgrade::Options),
    /// Tell containerd, docker, podman and CRI-O of the runtime; shows what is changed, and what to reload.
    #[cfg(feature = "nvml")]
    Install(Box<install::InstallOptions>),
    /// Take out of the engines' files what `install` put there.
    #[cfg(feature = "nvml")]
    Uninstall(Box<install::UninstallOptions>),
    /// Run a plain process in a slice, without any engine.
    #[cfg(feature = "nvml")]
    Run(Box<run::Options>),
    /// Run a plain process in a slice, without any engine.
    #[cfg(not(feature = "nvml"))]
    Run {
        /// Not in this build.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
    /// The process of `run`, before it becomes the command.
    #[cfg(feature = "nvml")]
    #[command(hide = true)]
    RunInside {
        /// What is prepared, as JSON.
        plan: String,
    },
    /// What ends the processes of a `run` that was killed.
    #[cfg(feature = "nvml")]
    #[command(hide = true)]
    RunGuard {
        /// Their control group.
        group: PathBuf,
    },
    /// A program that ends with this one.
    #[cfg(feature = "nvml")]
    #[command(hide = true)]
    WithParent {
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

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
            crate::render::json(document)?
        } else {
            table(document)
        };
        use anyhow::Context;
        crate::output::say(&text).context("write to standard output")
    }
}

/// Runs a command line.
///
/// # Errors
/// The step that failed.
#[cfg(feature = "nvml")]
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    use std::io::ErrorKind;
    // Bound in wherever a broker holds the container; the host has none.
    let is_inside = std::path::Path::new(vgpu::note::TARGET).exists();
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
            "this is a container with a vGPU, and the command is for the host; here `cgpu smi` shows what the container has"
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

#[cfg(feature = "nvml")]
fn host(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Smi { form, dev } => smi::run(form, &dev),
        Command::Ps { form } => ps::run(form),
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
        Command::Metrics(options) => metrics::run(&options),
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
#[cfg(not(feature = "nvml"))]
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
