//! A private containerd: own root, state, socket and configuration; the host's is never touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{LIMIT, Outcome, capture};
use crate::crictl::{NAMESPACE, PodServer};
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::freezer;
use crate::image::Image;
use crate::node::Node;
use crate::pods::PodsSetup;

/// The shim's runtime type.
pub const CGPU: &str = "io.containerd.cgpu.v2";
/// containerd's own shim.
pub const RUNC: &str = "io.containerd.runc.v2";

/// A running containerd of one node.
#[derive(Debug)]
pub struct Containerd {
    engines: Engines,
    folder: PathBuf,
    namespace: String,
    daemon: Daemon,
    path: std::ffi::OsString,
    config: PathBuf,
    pods: Option<PodsSetup>,
}

impl Containerd {
    /// Starts it on the node and waits until it answers.
    pub fn start(node: &Node, engines: &Engines) -> Result<Self> {
        Self::start_with(node, engines, None)
    }

    /// The same with CRI served as `pods` says.
    pub fn start_for_pods(node: &Node, engines: &Engines, pods: PodsSetup) -> Result<Self> {
        Self::start_with(node, engines, Some(pods))
    }

    fn start_with(node: &Node, engines: &Engines, pods: Option<PodsSetup>) -> Result<Self> {
        let folder = node
            .root()
            .join(format!("containerd-{}", engines.origin.name()));
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let config = folder.join("config.toml");
        fs::write(
            &config,
            configuration(&folder, engines.containerd_version()?, pods.as_ref()),
        )?;
        let path = node.search_path(engines)?;
        let daemon = daemon(engines, &folder, &path, &node.config(), pods.as_ref())?;
        Ok(Self {
            engines: engines.clone(),
            folder,
            namespace: node.namespace().to_owned(),
            daemon,
            path,
            config: node.config(),
            pods,
        })
    }

    /// Starts it again after [`Containerd::kill`], with the same state.
    pub fn restart(&mut self) -> Result<()> {
        self.daemon = daemon(
            &self.engines,
            &self.folder,
            &self.path,
            &self.config,
            self.pods.as_ref(),
        )?;
        Ok(())
    }

    /// Starts it after [`Containerd::kill`] and [`Node::lose_power`], with what is on its disk alone.
    ///
    /// # Errors
    /// It does not start.
    pub fn boot(&mut self) -> Result<()> {
        fs::remove_dir_all(self.folder.join("state")).context("containerd's state")?;
        self.restart()
    }

    /// Its configuration file, and all that it writes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The socket that clients speak to.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// The engines it came from.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// The namespace of the node's containers.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The bundle that it makes for a container.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.folder
            .join("state/io.containerd.runtime.v2.task")
            .join(&self.namespace)
            .join(id)
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        self.daemon.output()
    }

    /// A program in the same network as the daemon.
    pub fn beside(&self, program: &Path) -> Result<Command> {
        let mut command = match &self.pods {
            Some(pods) => pods.network.command(program)?,
            None => Command::new(program),
        };
        command.env("PATH", &self.path);
        Ok(command)
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// Its `PATH`, for programs that are beside it.
    pub fn search_path(&self) -> &std::ffi::OsStr {
        &self.path
    }

    /// A `ctr` command, not yet run. Its FIFOs go below the node's folder.
    pub fn ctr_command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.engines.program("ctr")?);
        command
            .arg("-a")
            .arg(self.socket())
            .args(["-n", &self.namespace])
            .env("PATH", &self.path)
            .env("CGPU_CONFIG", &self.config);
        let with_fifos = match args {
            ["run", ..] => 1,
            ["task" | "tasks" | "t", "exec" | "start", ..] => 2,
            _ => 0,
        };
        command.args(args.iter().take(with_fifos));
        if with_fifos > 0 {
            command.arg("--fifo-dir").arg(self.folder.join("fifo"));
        }
        command.args(args.iter().skip(with_fifos));
        Ok(command)
    }

    /// Runs `ctr` to its end.
    pub fn ctr(&self, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.ctr_command(args)?, LIMIT)
    }

    /// Imports an image built by this harness.
    pub fn import(&self, image: &Image) -> Result<()> {
        self.import_into(&self.namespace, image)
    }

    /// The same, into another namespace than the node's.
    pub fn import_into(&self, namespace: &str, image: &Image) -> Result<()> {
        let mut command = Command::new(self.engines.program("ctr")?);
        command
            .arg("-a")
            .arg(self.socket())
            .args(["-n", namespace, "images", "import"])
            .arg(&image.tar);
        capture(&mut command, Duration::from_secs(300))?.success()?;
        Ok(())
    }

    /// Starts a container that stays: `options` come before the image (`--runtime`, `--annotation`, …).
    pub fn run_detached(
        &self,
        image: &Image,
        id: &str,
        options: &[&str],
        program: &[&str],
    ) -> Result<Outcome> {
        let mut args = vec!["run", "-d"];
        args.extend(options);
        args.extend([image.name.as_str(), id]);
        args.extend(program);
        self.ctr(&args)
    }

    /// Runs a container to its end and removes it.
    pub fn run_once(
        &self,
        image: &Image,
        id: &str,
        options: &[&str],
        program: &[&str],
    ) -> Result<Outcome> {
        let mut args = vec!["run", "--rm"];
        args.extend(options);
        args.extend([image.name.as_str(), id]);
        args.extend(program);
        self.ctr(&args)
    }

    /// Runs a program in a running container.
    pub fn exec(&self, id: &str, program: &[&str]) -> Result<Outcome> {
        // Two execs of one container may run at once: each has its own name.
        let name = format!("exec-{}", next_number());
        let mut args = vec!["tasks", "exec", "--exec-id", name.as_str(), id];
        args.extend(program);
        self.ctr(&args)
    }

    /// Kills and removes a container, and waits until both are done.
    pub fn remove(&self, id: &str) -> Result<()> {
        let killed = self.ctr(&["tasks", "rm", "--force", id])?;
        if !killed.succeeded() && !killed.stderr.contains("not found") {
            killed.success()?;
        }
        self.ctr(&["containers", "rm", id])?.success()?;
        Ok(())
    }

    /// Pauses a container.
    ///
    /// # Errors
    /// As [`freezer::pause`].
    pub fn pause(&self, id: &str) -> Result<()> {
        freezer::pause(|| self.ctr(&["tasks", "pause", id])).map(drop)
    }

    /// Identities of the containers that exist.
    pub fn containers(&self) -> Result<Vec<String>> {
        let listed = self.ctr(&["containers", "ls", "-q"])?.success()?;
        Ok(listed.stdout.lines().map(str::to_owned).collect())
    }

    /// SIGKILL, as a crash would be. Containers and shims stay.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    /// Removes what a failed test left, then ends the daemon. Returns the containers that had to be removed.
    pub fn stop(&mut self) -> Result<Vec<String>> {
        if self.daemon.pid().is_none() {
            return Ok(Vec::new());
        }
        let left = self.containers().unwrap_or_default();
        for id in &left {
            self.remove(id)?;
        }
        self.daemon.stop(Duration::from_secs(20))?;
        Ok(left)
    }
}

impl PodServer for Containerd {
    fn socket(&self) -> PathBuf {
        Self::socket(self)
    }

    fn beside(&self, program: &Path) -> Result<Command> {
        Self::beside(self, program)
    }

    fn pid(&self) -> Option<u32> {
        Self::pid(self)
    }

    fn kill(&mut self) -> Result<()> {
        Self::kill(self)
    }

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn supervise(&mut self) -> Result<bool> {
        let ended = !self.daemon.runs()?;
        if ended {
            self.restart()?;
        }
        Ok(ended)
    }

    fn stop(&mut self) -> Result<Vec<String>> {
        Self::stop(self)
    }

    fn import(&self, image: &Image) -> Result<()> {
        self.import_into(NAMESPACE, image)
    }

    fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("containerd: {error:#}");
        }
        if std::thread::panicking() {
            eprintln!("--- end of containerd's log\n{}", self.daemon.tail());
        }
    }
}

fn daemon(
    engines: &Engines,
    folder: &Path,
    path: &std::ffi::OsStr,
    config: &Path,
    pods: Option<&PodsSetup>,
) -> Result<Daemon> {
    let program = engines.program("containerd")?;
    let mut command = match pods {
        Some(pods) => pods.network.command(&program)?,
        None => Command::new(program),
    };
    command
        .arg("--config")
        .arg(folder.join("config.toml"))
        .env("PATH", path)
        .env("CGPU_CONFIG", config);
    let mut daemon = Daemon::start("containerd", &command, &folder.join("log"))?;
    let socket = folder.join("containerd.sock");
    let ctr = engines.program("ctr")?;
    daemon.wait_ready(Duration::from_secs(30), || {
        if !socket.exists() {
            return Ok(false);
        }
        let answer = capture(
            Command::new(&ctr).arg("-a").arg(&socket).arg("version"),
            LIMIT,
        )?;
        Ok(answer.succeeded())
    })?;
    Ok(daemon)
}

/// Everything that would reach outside the folder is named or switched off.
fn configuration(folder: &Path, version: (u32, u32), pods: Option<&PodsSetup>) -> String {
    let at = folder.display();
    let cri = pods.map_or_else(String::new, |pods| pods.configuration(version));
    let major = version.0;
    let (version, extra) = if major >= 2 && pods.is_some() {
        (
            3,
            r#""io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile""#,
        )
    } else if pods.is_some() {
        (2, r#""io.containerd.snapshotter.v1.aufs""#)
    } else if major >= 2 {
        (
            3,
            // CRI and NRI open sockets in /var/run.
            r#""io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile""#,
        )
    } else {
        (
            2,
            r#""io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.aufs""#,
        )
    };
    format!(
        r#"version = {version}
root = "{at}/root"
state = "{at}/state"
disabled_plugins = [{extra}, "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{at}/containerd.sock"
[debug]
  level = "info"
[plugins."io.containerd.internal.v1.opt"]
  path = "{at}/opt"
{cri}"#
    )
}

fn next_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
