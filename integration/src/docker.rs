//! A private dockerd on top of a node's private containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use serde_json::json;

use crate::command::{LIMIT, Outcome, capture};
use crate::containerd::{CGPU, Containerd, RUNC};
use crate::daemon::Daemon;
use crate::image::Image;
use crate::node::Node;

/// A running dockerd of one node. Declare it after its containerd.
#[derive(Debug)]
pub struct Docker {
    folder: PathBuf,
    client: PathBuf,
    version: (u32, u32),
    command: Command,
    daemon: Daemon,
}

/// How a dockerd differs from the usual one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings<'a> {
    /// What becomes of running containers.
    pub live_restore: LiveRestore,
    /// The user whose subordinate ids containers have (`userns-remap`).
    pub remapped_to: Option<&'a str>,
}

/// What becomes of running containers when dockerd stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LiveRestore {
    /// They end with it.
    #[default]
    Off,
    /// They run on, and the next dockerd takes them over.
    On,
}

impl Docker {
    /// Starts it with runtime `cgpu` = `cgpu-runtime` where that is built, and waits until it answers.
    pub fn start(node: &Node, containerd: &Containerd) -> Result<Self> {
        Self::start_with(node, containerd, &Settings::default())
    }

    /// The same with these settings. From docker 24 on there are also runtimes `cgpu-type` and `runc-type`, our shim and containerd's
    /// by their types.
    pub fn start_with(
        node: &Node,
        containerd: &Containerd,
        settings: &Settings<'_>,
    ) -> Result<Self> {
        let engines = containerd.engines();
        let folder = node
            .root()
            .join(format!("docker-{}", engines.origin.name()));
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut runtimes = json!({});
        if let Ok(command) = node.command("cgpu-runtime") {
            runtimes["cgpu"] = json!({ "path": command.get_program().to_string_lossy() });
        }
        let version = engines.docker_version()?;
        if version >= (24, 0) {
            runtimes["cgpu-type"] = json!({ "runtimeType": CGPU });
            runtimes["runc-type"] = json!({ "runtimeType": RUNC });
        }
        let config = folder.join("daemon.json");
        let mut written = json!({
            "runtimes": runtimes,
            "live-restore": settings.live_restore == LiveRestore::On,
        });
        if let Some(user) = settings.remapped_to {
            written["userns-remap"] = json!(user);
        }
        fs::write(&config, serde_json::to_vec_pretty(&written)?)?;
        let namespace = node.docker_namespace();
        let mut command = Command::new(engines.program("dockerd")?);
        command
            .arg("--config-file")
            .arg(&config)
            .arg("--data-root")
            .arg(folder.join("data"))
            .arg("--exec-root")
            .arg(folder.join("exec"))
            .arg("--pidfile")
            .arg(folder.join("pid"))
            .arg("--host")
            .arg(format!("unix://{}", folder.join("docker.sock").display()))
            .arg("--containerd")
            .arg(containerd.socket())
            .args(["--containerd-namespace", &namespace])
            .args(["--containerd-plugins-namespace", &format!("{namespace}p")])
            .args(["--cgroup-parent", &format!("/{namespace}")])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .arg("--exec-opt")
            .arg("native.cgroupdriver=cgroupfs")
            .env("PATH", containerd.search_path())
            .env("CGPU_CONFIG", node.config());
        let client = engines.program("docker")?;
        let daemon = daemon(&command, &folder, &client)?;
        Ok(Self {
            folder,
            client,
            version,
            command,
            daemon,
        })
    }

    /// SIGKILL, as a crash would be, and a new daemon on the same state.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon = daemon(&self.command, &self.folder, &self.client)?;
        Ok(())
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// There is no such process any more.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    /// Starts it after [`Docker::kill`] and [`Node::lose_power`], with what is on its disk alone.
    ///
    /// # Errors
    /// It does not start.
    pub fn boot(&mut self) -> Result<()> {
        fs::remove_dir_all(self.folder.join("exec")).context("docker's state")?;
        self.daemon = daemon(&self.command, &self.folder, &self.client)?;
        Ok(())
    }

    /// SIGTERM, as an upgrade does, and a new daemon on the same state.
    pub fn stop_and_start(&mut self) -> Result<()> {
        self.daemon.stop(Duration::from_secs(60))?;
        self.daemon = daemon(&self.command, &self.folder, &self.client)?;
        Ok(())
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("docker.sock")
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// A `docker` command, not yet run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.client);
        command
            .arg("-H")
            .arg(format!(
                "unix://{}",
                self.folder.join("docker.sock").display()
            ))
            .args(args)
            .env("DOCKER_CONFIG", self.folder.join("client"));
        command
    }

    /// Runs `docker` to its end.
    pub fn docker(&self, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.command(args), LIMIT)
    }

    /// Loads an image built by this harness.
    pub fn load(&self, image: &Image) -> Result<()> {
        let tar = image.tar.to_string_lossy();
        capture(
            &mut self.command(&["load", "-i", &tar]),
            Duration::from_secs(300),
        )?
        .success()?;
        Ok(())
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        self.daemon.output()
    }

    /// Removes every container, then ends the daemon.
    pub fn stop(&mut self) -> Result<()> {
        if self.daemon.pid().is_none() {
            return Ok(());
        }
        let listed = self.docker(&["ps", "-aq"])?;
        for id in listed.stdout.lines() {
            self.docker(&["rm", "-f", id])?.success()?;
        }
        self.daemon.stop(Duration::from_secs(30))?;
        // dockerd makes its data folder a mount; one that was killed leaves that to nobody.
        let data = self.folder.join("data");
        while umount2(&data, MntFlags::empty()).is_ok() {}
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("dockerd: {error:#}");
        }
        if std::thread::panicking() {
            eprintln!("--- end of dockerd's log\n{}", self.daemon.tail());
        }
    }
}

fn daemon(command: &Command, folder: &Path, client: &Path) -> Result<Daemon> {
    // What a killed daemon left of these would be taken for a running one.
    for stale in ["docker.sock", "pid"] {
        drop(fs::remove_file(folder.join(stale)));
    }
    let mut daemon = Daemon::start("dockerd", command, &folder.join("log"))?;
    let socket = folder.join("docker.sock");
    daemon.wait_ready(Duration::from_secs(60), || {
        if !socket.exists() {
            return Ok(false);
        }
        let answer = capture(
            Command::new(client).args(["-H", &format!("unix://{}", socket.display()), "info"]),
            LIMIT,
        )?;
        Ok(answer.succeeded())
    })?;
    Ok(daemon)
}
