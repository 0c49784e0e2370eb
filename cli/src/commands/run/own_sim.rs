//! Simulated cards for one command alone.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cards::SimulatedInventory;
use cards::lock::FileLock;
use host_config::Config;
use host_config::config::DriverKind;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use vgpu::Life;

/// The simulator's standard error, in its state folder.
const LOG: &str = "log";
const FORMER_LOG: &str = "log.1";
/// How long simulated cards may take to be there.
const START: Duration = Duration::from_secs(10);
/// How often it is looked whether they are: the simulator says so by its socket alone.
const LOOK: Duration = Duration::from_millis(2);
/// How long they may take to end before they are killed.
const STOP_MS: u16 = 2_000;

/// Where the state folders of such simulators are, below the host's state folder.
const FOLDER: &str = "own";
/// In each of them: held while its `cgpu run` lives.
const OWNER_LOCK: &str = "owner.lock";

/// A `cgpu-sim` of our own with its state folder.
#[derive(Debug)]
pub(super) struct OwnSim {
    sim: Child,
    state_dir: PathBuf,
    _owner: FileLock,
}

impl OwnSim {
    /// Starts it and waits until it serves. What killed runs left behind is removed first.
    pub(super) fn start(config: &Config, profile: &Path) -> anyhow::Result<Self> {
        let (state_dir, owner) = make_state_dir(config)?;
        match spawn(&state_dir, profile) {
            Ok(sim) => {
                let mut own = Self {
                    sim,
                    state_dir,
                    _owner: owner,
                };
                match own.await_ready() {
                    Ok(()) => Ok(own),
                    Err(error) => {
                        own.stop()?;
                        Err(error)
                    }
                }
            }
            Err(error) => {
                remove(&state_dir)?;
                Err(error)
            }
        }
    }

    /// Makes these cards the ones to grant from.
    pub(super) fn apply(&self, config: &mut Config) {
        config.state_dir.clone_from(&self.state_dir);
        config.driver.kind = DriverKind::Sim;
    }

    fn await_ready(&mut self) -> anyhow::Result<()> {
        let socket = SimulatedInventory::socket_path(&self.state_dir);
        let deadline = Instant::now() + START;
        loop {
            if sys::fd_passing::connect_seqpacket(&socket).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.sim.try_wait().context("look at cgpu-sim")? {
                match self.last_line() {
                    line if line.is_empty() => bail!("cgpu-sim ended with {status}"),
                    line => bail!("{line}"),
                }
            }
            if Instant::now() > deadline {
                bail!("cgpu-sim does not serve after {} s", START.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn last_line(&self) -> String {
        let log = std::fs::read(self.state_dir.join(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end().to_owned()
    }

    /// Ends the cards and removes their folder.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.sim.id().cast_signed();
        if self.sim.try_wait().context("look at cgpu-sim")?.is_none() {
            let process = sys::pidfd::PidFd::open(pid).context("open cgpu-sim's process")?;
            kill(Pid::from_raw(pid), Signal::SIGTERM).context("end cgpu-sim")?;
            if !process.wait_exit(STOP_MS).context("wait for cgpu-sim")? {
                self.sim.kill().context("kill cgpu-sim")?;
            }
            self.sim.wait().context("wait for cgpu-sim")?;
        }
        remove(&self.state_dir)
    }
}

fn make_state_dir(config: &Config) -> anyhow::Result<(PathBuf, FileLock)> {
    let folder = config.state_dir.join(FOLDER);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("make {}", folder.display()))?;
    let _one_at_a_time = FileLock::take(&folder.join("lock"))?;
    sweep_locked(&folder)?;
    let state_dir = nix::unistd::mkdtemp(&folder.join("XXXXXX"))
        .with_context(|| format!("make a folder in {}", folder.display()))?;
    let owner = FileLock::take(&state_dir.join(OWNER_LOCK))?;
    Ok((state_dir, owner))
}

/// Removes the state of simulators whose `cgpu run` was killed; says which.
pub(in crate::commands) fn sweep(config: &Config) -> anyhow::Result<Vec<String>> {
    let folder = config.state_dir.join(FOLDER);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let _one_at_a_time = FileLock::take(&folder.join("lock"))?;
    sweep_locked(&folder)
}

fn sweep_locked(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let state_dir = entry.path();
        if !entry.file_type()?.is_dir() || FileLock::is_held(&state_dir.join(OWNER_LOCK))? {
            continue;
        }
        // Children of the command may have outlived it; their broker ends after them.
        let left = Config {
            state_dir: state_dir.clone(),
            ..Config::default()
        };
        let in_use = vgpu::list(&left)?
            .iter()
            .any(|vgpu| vgpu.life == Life::Live);
        if !in_use {
            remove(&state_dir)?;
            removed.push(format!("folder {}", state_dir.display()));
        }
    }
    Ok(removed)
}

fn remove(state_dir: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(state_dir).with_context(|| format!("remove {}", state_dir.display()))
}

fn spawn(state_dir: &Path, profile: &Path) -> anyhow::Result<Child> {
    let this_program = std::env::current_exe().context("find this program")?;
    let log = File::create(state_dir.join(LOG)).context("make the log of cgpu-sim")?;
    Command::new(&this_program)
        .args(["with-parent", "--"])
        .arg(this_program.with_file_name("cgpu-sim"))
        .arg("--state-dir")
        .arg(state_dir)
        .arg("--profile")
        .arg(profile)
        .arg("--former-log")
        .arg(state_dir.join(FORMER_LOG))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // A terminal's Ctrl-C is for the command; the cards end after it.
        .process_group(0)
        .spawn()
        .context("start cgpu-sim")
}

/// Becomes a program that is killed when its parent ends, so that a killed `cgpu run` leaves no cards behind.
pub(in crate::commands) fn with_parent(command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("there is no program");
    };
    SigSet::empty()
        .thread_set_mask()
        .context("unblock signals")?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("follow the parent")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}
