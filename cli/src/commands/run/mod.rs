//! `cgpu run`: a slice around a plain process.
//!
//! ```text
//!   cgpu run ── grant, broker ──▶ cgpu run-inside ── own /dev, filter, listener to the broker,
//!       │                         stops itself; `cgpu run` verifies its filter and lets it go on ─▶ CMD
//!       │                                                                                          │
//!       └── forwards signals, waits ◀──────────────────────────── exit ────────────────────────────┘
//!       └── releases the grant; ends the simulated cards, if they were its own
//! ```
//!
//! The slice holds for CMD and all its children, and ends with CMD: children that it leaves running are killed, since what they
//! hold of a card is no longer granted, also where `cgpu run` itself is killed. It is no sandbox: a process that is root on the host can reach what it
//! likes by other ways than the driver's calls. CAP_SYS_ADMIN is taken from CMD, since the driver lets its holders past
//! any limit.

mod guard;
mod inside;
mod own_cgroup;
mod own_sim;
mod private_dev;
mod supervise;

pub(super) use guard::run as guard;
pub(super) use inside::run as inside;
pub(super) use own_sim::with_parent;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};
use cards::{Backend, ContainerKey, FrontendKind, IoUring, Isolation};
use clap::Args;
use host_config::{Config, terms};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use spec::{Request, request};
use vgpu::{Container, Created, Ended, Prepared, Running, Source};

use self::guard::Guard;
use self::inside::Plan;
use self::own_cgroup::{OwnCgroup, Owner};
use self::private_dev::DevPlan;
use super::not_understood;
use super::request_options::RequestOptions;

/// The namespace of containers that no engine knows.
const NAMESPACE: &str = "cgpu-run";
/// What the command's libraries are for, as for a container.
const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Below the help of `cgpu run`.
pub(super) const EXAMPLES: &str = "\
The vGPU is for the command and its children, and ends with the command: children that still run are killed. It is no sandbox.

Exit code: the command's own; 128 + N if signal N ended it; 126 or 127 if it cannot be started; 1 if it gets no vGPU.

Examples:
  cgpu run --memory 4Gi -- python3 train.py
  cgpu run --memory 25% --cards 2 --compute 30 -- ./bench
  cgpu run --memory 4Gi --simulate two-ada -- cgpu smi      No GPU is needed";

/// The options of `cgpu run`; their values are those of the `cgpu.io/` annotations.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Memory, for example 4Gi or 1.5Gi, split equally over the cards; or a part of each card, 25%.
    #[arg(long, allow_hyphen_values = true)]
    memory: String,
    #[command(flatten)]
    request: RequestOptions,
    /// Which process makes the calls to a real driver: strict (cgpu's executor) or compat (the command itself). Default: cgpu.toml's.
    #[arg(long)]
    mode: Option<String>,
    /// Managed memory (cudaMallocManaged): charge it to the quota, deny it, or allow it uncounted. Default: cgpu.toml's.
    #[arg(long)]
    managed: Option<String>,
    /// The driver's own page of figures, which tells of the whole card: show it as the driver does, or refuse it. Default: cgpu.toml's.
    #[arg(long, value_name = "show|refuse")]
    card_figures: Option<String>,
    /// Memory that programs register with the driver (cudaHostRegister): allow it, or refuse it. Default: cgpu.toml's.
    #[arg(long, value_name = "allow|refuse")]
    registered_memory: Option<String>,
    /// Commands with the same group may import memory that the others export.
    #[arg(long, value_name = "GROUP")]
    share_group: Option<String>,
    /// Simulate GPUs for this command alone: a profile file, or the name of a built-in profile such as two-ada.
    #[arg(long, value_name = "PROFILE")]
    simulate: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Options {
    /// Whoever runs this is the host's root, who writes the configuration too: the options may loosen what it says.
    fn apply_isolation(&self, isolation: &mut Isolation) -> Result<(), terms::Error> {
        if let Some(mode) = &self.mode {
            isolation.mode = terms::word("--mode", mode)?;
        }
        if let Some(managed) = &self.managed {
            isolation.managed = terms::word("--managed", managed)?;
        }
        if let Some(figures) = &self.card_figures {
            isolation.card_figures = terms::word("--card-figures", figures)?;
        }
        if let Some(registered) = &self.registered_memory {
            isolation.registered_memory = terms::word("--registered-memory", registered)?;
        }
        if let Some(group) = &self.share_group {
            isolation.share_group = Some(terms::share_group("--share-group", group)?);
        }
        Ok(())
    }
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "`cgpu run` needs root: it reserves GPU memory of the host and mounts a /dev of its own; run it with sudo"
        );
    }
    let mut config = Config::load()?;
    // The request is judged before anything is started.
    let environment = std::env::var_os(CAPABILITIES);
    let request = requested(&config, options, environment.as_deref())?;
    let ending = supervise::keep_ending_signals()?;
    // The host's, also where the cards are this command's own.
    let state_dir = config.state_dir.clone();
    let Some(profile) = &options.simulate else {
        return granted(config, &state_dir, &request, &options.command, ending);
    };
    let own = own_sim::OwnSim::start(&config, profile)?;
    own.apply(&mut config);
    let code = granted(config, &state_dir, &request, &options.command, ending);
    after(code, own.stop().context("end the simulated cards"))
}

/// What is asked for. The command inherits this program's environment, and with it the variable.
#[expect(
    clippy::print_stderr,
    reason = "the command starts all the same, and its own words follow"
)]
fn requested(
    config: &Config,
    options: &Options,
    capabilities: Option<&OsStr>,
) -> anyhow::Result<Request> {
    let mut request = options.request.read(config, &options.memory)?;
    options
        .apply_isolation(&mut request.isolation)
        .map_err(|error| not_understood(host_config::chain(&error)))?;
    let value = capabilities.map(OsStr::to_string_lossy);
    let admitted = request::driver_capabilities(config, value.as_deref())?;
    if let Some(warning) = admitted.warning {
        eprintln!("cgpu: {warning}");
    }
    request.isolation.capabilities = admitted.capabilities;
    Ok(request)
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

/// This program's number; in a PID namespace of its own beside that one's, since numbers repeat.
fn own_name() -> anyhow::Result<String> {
    let pid = std::process::id();
    let path = "/proc/self/ns/pid";
    let namespace = std::fs::metadata(path).with_context(|| format!("find {path}"))?;
    Ok(match namespace.ino() {
        HOST_PID_NAMESPACE => pid.to_string(),
        other => format!("{pid}-{other}"),
    })
}

/// The inode of the namespace that the kernel begins with (`PROC_PID_INIT_INO` of `include/linux/proc_ns.h`).
const HOST_PID_NAMESPACE: u64 = 0xeffffffc;

/// The command in its slice, from grant to release.
fn granted(
    config: Config,
    state_dir: &Path,
    request: &Request,
    command: &[OsString],
    ending: supervise::EndingSignals,
) -> anyhow::Result<ExitCode> {
    let container = Container::new(config, ContainerKey::new(NAMESPACE, own_name()?)?);
    let order = vgpu::Create::new(&container, Source::Plain(request), FrontendKind::Run);
    let created = vgpu::create(&order)?.context("the command asks for no vGPU")?;
    let (code, ended) = match Owner::of(state_dir) {
        Ok(owner) => supervised(&container, &owner, created, command, ending),
        Err(error) => (Err(error), Some(created.prepared.ended())),
    };
    let released = ended.map_or(Ok(()), |mut ended| ended.release());
    after(code, released.context("release the grant"))
}

/// What the command runs in.
struct HostEnvironment {
    signals: SignalFd,
    cgroup: Option<OwnCgroup>,
    guard: Option<Guard>,
}

impl HostEnvironment {
    fn make(
        container: &Container,
        owner: &Owner,
        backend: Backend,
        ending: supervise::EndingSignals,
    ) -> anyhow::Result<Self> {
        let signals = ending.and_all_others()?;
        let cgroup = match backend {
            Backend::DriverLimit => {
                OwnCgroup::make_in_v2(owner, &container.config().backend.cgroup_root)?
            }
            Backend::Broker | Backend::Share => OwnCgroup::make(owner)?,
        };
        let guard = cgroup.as_ref().map(Guard::start).transpose()?;
        Ok(Self {
            signals,
            cgroup,
            guard,
        })
    }
}

/// The vGPU is returned where it can be released: what a process that does not end has of a card is not the next one's. Its broker ends
/// with it then, and the next start takes the vGPU back.
fn supervised(
    container: &Container,
    owner: &Owner,
    created: Created,
    command: &[OsString],
    ending: supervise::EndingSignals,
) -> (anyhow::Result<ExitCode>, Option<Ended>) {
    let made = HostEnvironment::make(container, owner, created.grant.backend, ending);
    let HostEnvironment {
        signals,
        cgroup,
        guard,
    } = match made {
        Ok(made) => made,
        Err(error) => return (Err(error), Some(created.prepared.ended())),
    };
    let (code, ended) = match ending.come() {
        Ok(None) => {
            let started = start(&created, container.key(), command, cgroup.as_ref());
            let verified = match started {
                Ok(child) => verified(created.prepared, child),
                Err(error) => Err((error, created.prepared.ended())),
            };
            match verified {
                Ok((running, child)) => {
                    let code = supervise::wait(child, &signals, &running);
                    (code, running.ended())
                }
                Err((error, ended)) => (Err(error), ended),
            }
        }
        Ok(Some(code)) => (Ok(code), created.prepared.ended()),
        Err(error) => (Err(error), created.prepared.ended()),
    };
    // While the command's control group is there.
    let code = after(code, ended.teardown().context("undo what held the command"));
    let all_ended = cgroup.map_or(Ok(()), OwnCgroup::end);
    let ended = all_ended.is_ok().then_some(ended);
    let code = after(code, all_ended);
    let code = after(code, guard.map_or(Ok(()), Guard::stand_down));
    (code, ended)
}

/// Verifies the filter of a command that waits for it, and lets the command go on.
fn verified(
    prepared: Prepared,
    mut child: Child,
) -> Result<(Running, Child), (anyhow::Error, Ended)> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let stopped = match stopped_or_ended(pid) {
        Ok(None) => Ok(()),
        Ok(Some(status)) => {
            // It has said why.
            let error = anyhow::anyhow!("the command ended before it was held: {status}");
            return Err((error, prepared.ended()));
        }
        Err(error) => Err(error).context("wait until the command can be held"),
    };
    let (error, ended) = match stopped {
        Ok(()) => match prepared.verify_filter(pid.as_raw()) {
            Ok(running) => match kill(pid, Signal::SIGCONT).context("let the command go on") {
                Ok(()) => return Ok((running, child)),
                Err(error) => (error, running.ended()),
            },
            Err(rejected) => {
                let error = anyhow::Error::from(rejected.error).context("hold the command");
                (error, rejected.ended)
            }
        },
        Err(error) => (error, prepared.ended()),
    };
    let killed = child
        .kill()
        .context("kill a command that is not held")
        .and_then(|()| child.wait().context("wait for a command that is not held"));
    Err((killed.err().unwrap_or(error), ended))
}

/// Waits until a child has stopped itself, or has ended with this status. (Not by nix: it has no name for the real-time signals, and
/// calls an end by one of them an error.)
fn stopped_or_ended(child: Pid) -> io::Result<Option<ExitStatus>> {
    use rustix::process::{Pid as RawPid, WaitOptions, waitpid};
    let raw = RawPid::from_raw(child.as_raw()).ok_or(io::ErrorKind::InvalidInput)?;
    let (_, status) = rustix::io::retry_on_intr(|| waitpid(Some(raw), WaitOptions::UNTRACED))?
        .ok_or(io::ErrorKind::WouldBlock)?;
    Ok((!status.stopped()).then(|| ExitStatus::from_raw(status.as_raw())))
}

/// Removes what killed runs have left behind; says what.
pub(super) fn sweep(config: &Config) -> anyhow::Result<Vec<String>> {
    let mut removed = own_sim::sweep(config)?;
    removed.extend(own_cgroup::sweep(&Owner::of(&config.state_dir)?)?);
    Ok(removed)
}

fn start(
    created: &Created,
    key: &ContainerKey,
    command: &[OsString],
    cgroup: Option<&OwnCgroup>,
) -> anyhow::Result<Child> {
    let plan = Plan {
        id: key.to_string(),
        parent: std::process::id(),
        cgroup: cgroup.map(|cgroup| cgroup.folder().to_owned()),
        notify_socket: created.filter.map(|_| created.notify_socket()),
        filter: filter(created),
        dev: dev_plan(created),
    };
    let program = std::env::current_exe().context("find this program")?;
    Command::new(program)
        .arg("run-inside")
        .arg(serde_json::to_string(&plan)?)
        .arg("--")
        .args(command)
        .spawn()
        .context("start the process of the command")
}

/// The filter's instructions. A slice without a broker has none, and nothing could be installed.
fn filter(created: &Created) -> Vec<(u16, u8, u8, u32)> {
    let Some(spec) = created.filter else {
        return Vec::new();
    };
    let mut program = verdict::filter::program(&spec);
    match created.grant.isolation.io_uring {
        IoUring::Allow => {}
        IoUring::Deny => verdict::filter::deny_io_uring(&mut program, spec.arch),
    }
    program
        .iter()
        .map(|insn| (insn.code, insn.jt, insn.jf, insn.k))
        .collect()
}

/// The driver's nodes that the command finds: of the kernel's driver those of its cards, of the simulated one the mounts.
fn dev_plan(created: &Created) -> DevPlan {
    let added = created
        .mounts
        .iter()
        .filter_map(|mount| {
            let name = mount.target.strip_prefix("/dev").ok()?.to_str()?;
            Some((mount.source.clone(), name.to_owned()))
        })
        .collect();
    DevPlan {
        made: created.nodes.clone(),
        added,
    }
}

#[cfg(test)]
mod tests {
    use cards::Capability;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_command_has_the_capabilities_of_its_environment_that_the_host_allows() {
        let line = ["run", "--memory", "1Gi", "--", "true"];
        let options = Line::try_parse_from(line).unwrap().options;
        let mut config = Config::default();
        let requested = |config: &Config, value: Option<&str>| {
            let request = requested(config, &options, value.map(OsStr::new))?;
            anyhow::Ok(Vec::from_iter(request.isolation.capabilities))
        };
        for (value, capabilities) in [
            (None, vec![]),
            (Some(""), vec![]),
            (Some("compute,utility"), vec![]),
            (Some("video"), vec![Capability::Video]),
            (Some("all"), vec![Capability::Graphics, Capability::Video]),
        ] {
            let found = requested(&config, value).unwrap();
            assert_eq!(found, capabilities, "{value:?}");
        }
        let error = requested(&config, Some("compute,cuda")).unwrap_err();
        let reply = error.to_string();
        assert!(
            reply.contains(CAPABILITIES) && reply.contains("\"cuda\""),
            "{reply}"
        );
        config.isolation.capabilities.clear();
        assert_eq!(requested(&config, Some("all")).unwrap(), []);
    }

    #[test]
    fn a_command_that_ends_is_distinguished_from_one_that_waits_whatever_ended_it() {
        for (script, ended) in [
            ("kill -STOP $$", None),
            ("exit 7", Some("exit status: 7")),
            ("kill -TERM $$", Some("signal: 15 (SIGTERM)")),
            // A real-time one.
            ("kill -40 $$", Some("signal: 40")),
        ] {
            let mut child = Command::new("/bin/sh")
                .args(["-c", script])
                .spawn()
                .unwrap();
            let seen = stopped_or_ended(Pid::from_raw(child.id().cast_signed())).unwrap();
            let seen = seen.map(|status| status.to_string());
            assert_eq!(seen.as_deref(), ended, "{script}");
            if ended.is_none() {
                child.kill().unwrap();
            }
            // Of one that has ended nothing is left to wait for.
            assert_eq!(child.wait().is_ok(), ended.is_none(), "{script}");
        }
    }
}
