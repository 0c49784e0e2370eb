//! `cgpu run`: a slice around a plain process.
//!
//! ```text
//!   cgpu run ── grant, broker ──▶ cgpu run-inside ── own /dev, filter, listener to the broker ──▶ CMD
//!       │                                                                                          │
//!       └── forwards signals, waits ◀──────────────────────────── exit ────────────────────────────┘
//!       └── releases the grant; ends the simulated cards, if they were its own
//! ```
//!
//! The slice holds for CMD and all its children, and ends with CMD: children that it leaves running are killed, since what they
//! hold of a card is no longer granted. It is no sandbox: a process that is root on the host can reach what it
//! likes by other ways than the driver's calls. CAP_SYS_ADMIN is taken from CMD, since the driver lets its holders past
//! any limit.

mod inside;
mod own_cgroup;
mod own_sim;
mod private_dev;
mod supervise;

pub(super) use inside::run as inside;
pub(super) use own_sim::with_parent;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use cards::{ContainerKey, DriverSpec, Grant};
use clap::Args;
use vgpu::{Config, Request};

use self::inside::Plan;
use self::own_cgroup::OwnCgroup;
use self::private_dev::DevPlan;

/// The namespace of containers that no engine knows.
const NAMESPACE: &str = "cgpu-run";

/// The options of `cgpu run`; their values are those of the `cgpu.io/` annotations.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Memory in all, e.g. 4Gi; split equally over the cards.
    #[arg(long)]
    memory: String,
    /// A number of cards, or UUIDs or indices with commas.
    #[arg(long)]
    cards: Option<String>,
    /// Cap or share of compute, 1 to 100 percent of a card.
    #[arg(long)]
    compute: Option<String>,
    /// Relative weight, 1 to 1000.
    #[arg(long)]
    weight: Option<String>,
    /// Compute policy, by number or name.
    #[arg(long)]
    policy: Option<String>,
    /// normal or high.
    #[arg(long)]
    priority: Option<String>,
    /// binpack or spread.
    #[arg(long)]
    placement: Option<String>,
    /// Start simulated cards of this profile for the command alone, and end them with it.
    #[arg(long, value_name = "PROFILE")]
    simulate: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Options {
    fn terms(&self) -> impl Iterator<Item = (&str, &str)> {
        [
            ("cgpu.io/memory", Some(&self.memory)),
            ("cgpu.io/cards", self.cards.as_ref()),
            ("cgpu.io/compute", self.compute.as_ref()),
            ("cgpu.io/weight", self.weight.as_ref()),
            ("cgpu.io/policy", self.policy.as_ref()),
            ("cgpu.io/priority", self.priority.as_ref()),
            ("cgpu.io/placement", self.placement.as_ref()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?.as_str())))
    }
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "`cgpu run` needs root: it grants from the host's cards and mounts a /dev of its own"
        );
    }
    let mut config = Config::load()?;
    // The request is judged before anything is started.
    let request = Request::from_terms(&config, options.terms())?;
    let ending = supervise::keep_ending_signals()?;
    let Some(profile) = &options.simulate else {
        return granted(&config, &request, &options.command, ending);
    };
    let own = own_sim::OwnSim::start(&config, profile)?;
    own.apply(&mut config);
    let code = granted(&config, &request, &options.command, ending);
    after(code, own.stop().context("end the simulated cards"))
}

/// The command's own code counts, but what could not be undone behind it never goes unsaid or for a success.
#[expect(
    clippy::print_stderr,
    reason = "an error beside the command's exit code"
)]
fn after(code: anyhow::Result<ExitCode>, undone: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    match (code, undone) {
        (code, Ok(())) => code,
        (Ok(ExitCode::SUCCESS), Err(error)) => Err(error),
        (code, Err(error)) => {
            eprintln!("cgpu: {error:#}");
            code
        }
    }
}

/// The command in its slice, from grant to release.
fn granted(
    config: &Config,
    request: &Request,
    command: &[OsString],
    ending: supervise::EndingSignals,
) -> anyhow::Result<ExitCode> {
    let key = ContainerKey::new(NAMESPACE, std::process::id().to_string())?;
    let vgpu = vgpu::create_plain(config, &key, request)?;
    let code = supervised(&vgpu, &key, command, ending);
    drop(vgpu);
    after(
        code,
        vgpu::release(config, &key).context("release the grant"),
    )
}

fn supervised(
    vgpu: &vgpu::Vgpu,
    key: &ContainerKey,
    command: &[OsString],
    ending: supervise::EndingSignals,
) -> anyhow::Result<ExitCode> {
    let signals = ending.and_all_others()?;
    let cgroup = OwnCgroup::make()?;
    let code = start(vgpu, key, command, cgroup.as_ref())
        .and_then(|child| supervise::wait(child, &signals));
    after(code, cgroup.map_or(Ok(()), OwnCgroup::end))
}

/// Removes what killed runs have left behind; says what.
pub(super) fn sweep(config: &Config) -> anyhow::Result<Vec<String>> {
    let mut removed = own_sim::sweep(config)?;
    removed.extend(own_cgroup::sweep()?);
    Ok(removed)
}

fn start(
    vgpu: &vgpu::Vgpu,
    key: &ContainerKey,
    command: &[OsString],
    cgroup: Option<&OwnCgroup>,
) -> anyhow::Result<std::process::Child> {
    let grant = vgpu.grant();
    let plan = Plan {
        id: key.to_string(),
        parent: std::process::id(),
        cgroup: cgroup.map(|cgroup| cgroup.folder().to_owned()),
        notify_socket: vgpu.notify_socket(),
        filter: verdict::filter::program(&vgpu.filter())
            .iter()
            .map(|insn| (insn.code, insn.jt, insn.jf, insn.k))
            .collect(),
        dev: dev_plan(vgpu, grant),
        command: command
            .iter()
            .map(|part| part.as_encoded_bytes().to_vec())
            .collect(),
    };
    let program = std::env::current_exe().context("find this program")?;
    Command::new(program)
        .arg("run-inside")
        .arg(serde_json::to_string(&plan)?)
        .spawn()
        .context("start the process of the command")
}

/// The driver's nodes that the command finds: of the kernel's driver those of its cards, of the simulated one the mounts.
fn dev_plan(vgpu: &vgpu::Vgpu, grant: &Grant) -> DevPlan {
    let kept = match grant.driver {
        DriverSpec::Kernel => grant
            .cards
            .iter()
            .map(|card| format!("nvidia{}", card.minor))
            .chain(["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned))
            .collect(),
        DriverSpec::Sim { .. } => Vec::new(),
    };
    let added = vgpu
        .mounts()
        .iter()
        .filter_map(|mount| {
            let name = mount.target.strip_prefix("/dev").ok()?.to_str()?;
            Some((mount.source.clone(), name.to_owned()))
        })
        .collect();
    DevPlan { kept, added }
}
