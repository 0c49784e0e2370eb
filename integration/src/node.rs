//! One private node: its folder, its configuration, its simulated cards, and the check that nothing is left.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::{LIMIT, Outcome, capture, wait_until};
use crate::control_groups::{Driver, slice};
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::leftovers::{Belongings, SHIM_SOCKETS, grants};
use crate::mounts;
use crate::programs::Programs;

/// How long processes that are already told to end may take.
const SETTLE: Duration = Duration::from_secs(5);

/// A node of its own. Declare it before the engines on it: they must end first.
#[derive(Debug)]
pub struct Node {
    root: Option<tempfile::TempDir>,
    state: Option<tempfile::TempDir>,
    state_path: PathBuf,
    path: PathBuf,
    namespace: String,
    programs: Option<Programs>,
    sim: Option<Daemon>,
    belongings: Belongings,
    mounts: File,
}

impl Node {
    /// Only a folder and a namespace: engines run on it as if cgpu did not exist.
    ///
    /// The thread enters a mount namespace of its own, where no other node's shims have sockets: one whose
    /// test kills shims leaves them, and would take away those of others.
    pub fn bare() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = |prefix: &str, at: &str| {
            tempfile::Builder::new()
                .prefix(prefix)
                .rand_bytes(4)
                .tempdir_in(at)
                .with_context(|| format!("folder of the node in {at}"))
        };
        mounts::ensure_own(Path::new(SHIM_SOCKETS))?;
        let root = folder("cgpu-", "/tmp")?;
        // As short as the shipped one is: below it stand sockets, whose paths end at 107 bytes, under a namespace and
        // an identity of 64 digits.
        let state = folder("cg", "/run")?;
        let path = root.path().to_path_buf();
        let state_path = state.path().to_path_buf();
        mount_state(&state_path)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("t{:x}.{number}", std::process::id());
        let docker = docker_namespace(&namespace);
        let pods = slice(&namespace);
        let names = [namespace.as_str(), &docker, &pods];
        let belongings = Belongings::new(&[&path, &state_path], &names);
        Ok(Self {
            root: Some(root),
            state: Some(state),
            state_path,
            path,
            namespace,
            programs: None,
            sim: None,
            belongings,
            mounts: mounts::current()?,
        })
    }

    /// A node with simulated cards, described by the text of a profile file.
    pub fn simulated(programs: &Programs, engines: &Engines, profile: &str) -> Result<Self> {
        let mut node = Self::bare()?;
        node.programs = Some(programs.clone());
        let profile_file = node.path.join("cards.toml");
        fs::write(&profile_file, profile)?;
        fs::write(
            node.config(),
            format!(
                r#"state_dir = "{}"
runc = "{}"
container_tools = "{}"

[broker]
path = "{}"

[driver]
kind = "sim"
"#,
                node.state_dir().display(),
                engines.runc()?.display(),
                programs.folder().join("static/cgpu").display(),
                programs.program("cgpu-broker")?.display(),
            ),
        )?;
        node.start_sim()?;
        Ok(node)
    }

    /// Starts `cgpu-sim` (again, after [`Node::kill_sim`]).
    pub fn start_sim(&mut self) -> Result<()> {
        let programs = self
            .programs
            .as_ref()
            .context("a bare node has no simulated cards")?;
        let mut command = Command::new(programs.program("cgpu-sim")?);
        command
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg("--profile")
            .arg(self.path.join("cards.toml"))
            .env("CGPU_CONFIG", self.config());
        let mut sim = Daemon::start("cgpu-sim", &command, &self.path.join("sim.log"))?;
        let log = self.path.join("sim.log");
        sim.wait_ready(Duration::from_secs(10), || {
            Ok(fs::read_to_string(&log)?
                .lines()
                .any(|line| line == "ready"))
        })?;
        self.sim = Some(sim);
        Ok(())
    }

    /// SIGKILL to the simulated cards.
    pub fn kill_sim(&mut self) -> Result<()> {
        self.sim.as_mut().context("no simulated cards run")?.kill()
    }

    /// Takes this thread to where the node's folders and sockets are: for a thread that its maker did not start.
    pub fn enter(&self) -> Result<()> {
        mounts::enter(&self.mounts)
    }

    /// The node's own folder.
    pub fn root(&self) -> &Path {
        &self.path
    }

    /// The containerd namespace of the node's containers.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The containerd namespace that dockerd uses on the node.
    pub fn docker_namespace(&self) -> String {
        docker_namespace(&self.namespace)
    }

    /// `state_dir` of the configuration.
    pub fn state_dir(&self) -> PathBuf {
        self.state_path.clone()
    }

    /// The configuration file: `CGPU_CONFIG` of everything on the node.
    pub fn config(&self) -> PathBuf {
        self.path.join("cgpu.toml")
    }

    /// Rewrites the configuration file, for tests of bad ones.
    pub fn edit_config(&self, edit: impl FnOnce(String) -> String) -> Result<()> {
        let (path, new) = (self.config(), self.config().with_extension("new"));
        let text = fs::read_to_string(&path)?;
        fs::write(&new, edit(text))?;
        fs::set_permissions(&new, fs::metadata(&path)?.permissions())?;
        // In place it would be empty for a moment, in which containers start.
        fs::rename(&new, &path)?;
        Ok(())
    }

    /// What stands here is found before all other programs, by the engines too.
    pub fn own_programs(&self) -> PathBuf {
        self.path.join("bin")
    }

    /// `PATH` with the node's own programs first, then ours, then the engines', then the machine's.
    pub fn search_path(&self, engines: &Engines) -> Result<OsString> {
        let mut folders = vec![self.own_programs()];
        if let Some(programs) = &self.programs {
            folders.push(programs.folder().to_path_buf());
        }
        folders.extend(engines.folders());
        folders.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        Ok(std::env::join_paths(folders)?)
    }

    /// One of our programs as a person on the node would run it.
    pub fn command(&self, program: &str) -> Result<Command> {
        let programs = self.programs.as_ref().context("a bare node")?;
        let mut command = Command::new(programs.program(program)?);
        command.env("CGPU_CONFIG", self.config());
        Ok(command)
    }

    /// `cgpu ARGS` on the host.
    pub fn cgpu(&self, args: &[&str]) -> Result<Outcome> {
        capture(self.command("cgpu")?.args(args), LIMIT)
    }

    /// What is in the state folder: vGPUs and grants.
    pub fn grants(&self) -> Vec<String> {
        grants(&self.state_dir())
    }

    /// What the brokers' ledgers hold: bytes by `(container, card)`. Cards on which nothing is held are left out.
    pub fn ledgers(&self) -> Result<BTreeMap<(String, String), u64>> {
        let mut held = BTreeMap::new();
        for socket in control_sockets(&self.state_dir()) {
            let status = ask(&socket, r#"{"op":"status"}"#)
                .with_context(|| format!("asking {}", socket.display()))?;
            let container = status["container"]
                .as_str()
                .with_context(|| format!("no container in {status}"))?;
            for card in status["cards"].as_array().into_iter().flatten() {
                let used = card["used_bytes"]
                    .as_u64()
                    .with_context(|| format!("no used_bytes in {status}"))?;
                if used > 0 {
                    let uuid = card["uuid"].as_str().unwrap_or_default();
                    held.insert((container.to_owned(), uuid.to_owned()), used);
                }
            }
        }
        Ok(held)
    }

    /// The simulated cards' own account: a JSON list of cards.
    pub fn sim_account(&self) -> Result<Value> {
        let mut command = self.command("cgpu-sim")?;
        command
            .args(["account", "--state-dir"])
            .arg(self.state_dir());
        capture(&mut command, LIMIT)?.success()?.json()
    }

    /// Processes of the node that run `program`.
    pub fn running(&self, program: &str) -> Vec<i32> {
        self.belongings
            .processes()
            .into_iter()
            .filter(|(_, command)| {
                let first = command.split(' ').next().unwrap_or_default();
                Path::new(first)
                    .file_name()
                    .is_some_and(|name| name == program)
            })
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Everything of the node except the simulated cards that still runs or is mounted.
    pub fn leftovers(&self) -> Vec<String> {
        let sim = self.sim.as_ref().and_then(Daemon::pid);
        let sim = sim.map(|pid| format!("process {pid}:"));
        let mut left = self.belongings.report();
        left.retain(|line| sim.as_ref().is_none_or(|sim| !line.starts_with(sim)));
        left.extend(self.grants());
        left
    }

    /// Waits a moment for what was told to end, then says what is left besides the simulated cards and daemons
    /// of the caller.
    pub fn settled(&self, known: impl Fn(&str) -> bool) -> Vec<String> {
        let until = Instant::now() + SETTLE;
        loop {
            let mut left = self.leftovers();
            left.retain(|line| !known(line));
            if left.is_empty() || Instant::now() > until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the simulated cards and checks that nothing is left. Engines must be stopped before.
    pub fn finish(mut self) -> Result<()> {
        let left = self.end()?;
        if left.is_empty() {
            return Ok(());
        }
        bail!("left behind on the node:\n  {}", left.join("\n  "))
    }

    /// What a loss of power leaves of the node: what is on disks, and so neither a process, a mount nor a control group, and an empty
    /// state folder. Engines forget what is not on disks when they boot ([`Containerd::boot`](crate::containerd::Containerd::boot)).
    ///
    /// # Errors
    /// A process does not end, or the system's.
    pub fn lose_power(&mut self) -> Result<()> {
        if let Some(mut sim) = self.sim.take() {
            sim.kill()?;
        }
        // Whoever lives on starts another for who was killed, and a group is busy for a moment after its last process.
        wait_until("the end of all processes and their groups", LIMIT, || {
            self.clear()?;
            let belongings = &self.belongings;
            let groups = belongings.own_groups().len() + belongings.cgroups().len();
            Ok(belongings.processes().is_empty() && groups == 0)
        })?;
        self.clear()?;
        umount2(&self.state_path, MntFlags::MNT_DETACH).context("unmounting the state folder")?;
        mount_state(&self.state_path)
    }

    /// Ends and removes everything of the node's but its folders. Returns what could not be ended.
    fn clear(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (pid, what) in self.belongings.processes() {
            if kill(Pid::from_raw(pid), Signal::SIGKILL).is_err() {
                left.push(format!("process {pid} could not be killed: {what}"));
            }
        }
        for mount in self.belongings.mounts() {
            umount2(&mount, MntFlags::MNT_DETACH)
                .with_context(|| format!("unmounting {}", mount.display()))?;
        }
        for socket in self.belongings.dead_sockets() {
            drop(fs::remove_file(socket));
        }
        for state in self.belongings.runc_state() {
            drop(fs::remove_dir_all(state));
        }
        let own_groups = self.belongings.own_groups();
        for cgroup in self.belongings.cgroups().into_iter().chain(own_groups) {
            drop(fs::remove_dir(cgroup));
        }
        Ok(left)
    }

    fn end(&mut self) -> Result<Vec<String>> {
        let Some(root) = self.root.take() else {
            return Ok(Vec::new());
        };
        let mut left = self.settled(|_| false);
        if let Some(mut sim) = self.sim.take() {
            match sim.stop(Duration::from_secs(10)) {
                Ok(_) => {}
                Err(error) => left.push(format!("{error:#}")),
            }
            left.extend(self.settled(|line| left.iter().any(|known| known == line)));
        }
        // Reported; now end it all the same, so that one failure does not make the next.
        left.extend(self.clear()?);
        if Driver::of_this_machine() == Driver::Systemd {
            // systemd keeps a slice that it has made for a scope, and says so if there is none.
            let slice = slice(&self.namespace);
            drop(capture(
                Command::new("systemctl").args(["stop", &slice]),
                LIMIT,
            ));
        }
        self.belongings.remove_parents();
        if std::env::var_os("CGPU_KEEP").is_some() {
            eprintln!("kept: {}", root.keep().display());
            if let Some(state) = self.state.take() {
                eprintln!("kept: {}", state.keep().display());
            }
        } else {
            root.close().context("removing the node's folder")?;
            if let Some(state) = self.state.take() {
                umount2(state.path(), MntFlags::MNT_DETACH)
                    .with_context(|| format!("unmounting {}", state.path().display()))?;
                state.close().context("removing the node's state")?;
            }
        }
        Ok(left)
    }
}

impl Drop for Node {
    /// Without [`Node::finish`] before it, this is a failed test: it says what there is to say and cleans up. It does not
    /// panic, or the test's own error would be lost.
    fn drop(&mut self) {
        if self.root.is_none() {
            return;
        }
        if let Some(sim) = &self.sim {
            eprintln!("--- cgpu-sim says\n{}", sim.tail());
        }
        for socket in control_sockets(&self.state_dir()) {
            let log = socket.with_file_name("broker.log");
            let text = fs::read_to_string(&log).unwrap_or_default();
            eprintln!("--- {} says\n{}", log.display(), text.trim_end());
        }
        match self.end() {
            Ok(left) => {
                for line in left {
                    eprintln!("left behind: {line}");
                }
            }
            Err(error) => eprintln!("ending the node: {error:#}"),
        }
    }
}

/// State is written with fsync, and is on a tmpfs on every host with systemd; not every machine that runs tests has one at /run.
fn mount_state(at: &Path) -> Result<()> {
    mount(
        Some("cgpu-test"),
        at,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=0700"),
    )
    .with_context(|| format!("a tmpfs at {}", at.display()))
}

fn control_sockets(state_dir: &Path) -> Vec<PathBuf> {
    let folders = |folder: PathBuf| -> Vec<PathBuf> {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    };
    folders(state_dir.join("vgpus"))
        .into_iter()
        .flat_map(folders)
        .map(|vgpu| vgpu.join("control.sock"))
        .filter(|socket| socket.exists())
        .collect()
}

/// One JSON request a line, one JSON answer a line.
fn ask(socket: &Path, request: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).with_context(|| format!("not JSON: {line:?}"))
}

fn docker_namespace(namespace: &str) -> String {
    format!("{namespace}d")
}
