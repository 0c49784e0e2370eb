//! A user without privileges who has subordinate ids, and engines of theirs: podman, and dockerd with a containerd of its own.
//!
//! ```text
//!   a mount namespace of this thread
//!     /etc/passwd, subuid, subgid   the host's, and the user
//!     ROOT/user                     the user's home
//! ```

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::command::{LIMIT, Outcome, capture, wait_until};
use crate::containerd::CGPU;
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::image::Image;
use crate::mounts;
use crate::node::Node;
use crate::packages::{Suite, unpacked};
use crate::podman::Release;

/// The user's name; dockerd takes it for `userns-remap` too.
pub const NAME: &str = "cgpu-user";
/// The user's id and its group's. No distribution gives it to anybody.
pub const ID: u32 = 21_000;
/// The first of 65,536 subordinate ids.
pub const SUBORDINATE: u32 = 2_100_000;

/// The user. Declare it after its node.
#[derive(Debug)]
pub struct User {
    home: PathBuf,
    tools: PathBuf,
}

impl User {
    /// Makes the user, for this thread and what it starts, and the user's home on the node. The inner error says why this machine
    /// cannot have one.
    ///
    /// # Errors
    /// The system's.
    pub fn on(node: &Node) -> Result<Result<Self, String>> {
        let packages = ["uidmap", "rootlesskit"];
        let tools = match unpacked(Suite::Host, "engines/rootless", &packages) {
            Ok(root) => root.join("usr/bin"),
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        // The thread is in the node's mount namespace, which has nothing at /mnt.
        let changes = Path::new("/mnt");
        let overlaid =
            mounts::tmpfs(changes).and_then(|()| mounts::overlay(changes, Path::new("/etc"), &[]));
        if let Err(error) = overlaid {
            return Ok(Err(format!("{error:#}")));
        }
        let ids = format!("{NAME}:{SUBORDINATE}:65536");
        for (file, first) in [
            ("passwd", format!("{NAME}:x:{ID}:{ID}::/:/bin/sh")),
            ("group", format!("{NAME}:x:{ID}:")),
            ("subuid", ids.clone()),
            ("subgid", ids),
        ] {
            let path = Path::new("/etc").join(file);
            let others = fs::read_to_string(&path).unwrap_or_default();
            // A thread has one user, and may have several nodes.
            if !others.starts_with(&first) {
                fs::write(&path, format!("{first}\n{others}"))?;
            }
        }
        let home = node.root().join("user");
        for folder in ["", "run", ".config", ".config/containers", "temporary"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder)?;
            chown(&folder, Some(ID), Some(ID))?;
        }
        fs::set_permissions(home.join("run"), Permissions::from_mode(0o700))?;
        // Nothing there is a secret, and a user comes to its home.
        fs::set_permissions(node.root(), Permissions::from_mode(0o711))?;
        let user = Self { home, tools };
        let mut unshare = user.command(Path::new("unshare"));
        let tried = capture(unshare.args(["--user", "true"]), LIMIT)?;
        if !tried.succeeded() {
            return Ok(Err(format!(
                "users may make no user namespaces: {}",
                tried.stderr.trim()
            )));
        }
        Ok(Ok(user))
    }

    /// A program as the user starts it, with nothing of this process's environment.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let id = ID.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            // It is lost where a process becomes another user's.
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .current_dir(&self.home)
            .env_clear()
            .env("PATH", self.search_path(&[]))
            .env("HOME", &self.home)
            .env("TMPDIR", self.home.join("temporary"))
            .env("XDG_RUNTIME_DIR", self.run());
        command
    }

    /// Why the user cannot start a program of an engine: it is below a folder that is root's alone.
    ///
    /// # Errors
    /// The system's.
    pub fn lacks(&self, program: &Path) -> Result<Option<String>> {
        let tried = capture(self.command(program).arg("--version"), LIMIT)?;
        Ok((!tried.succeeded()).then(|| format!("user {ID}: {}", tried.stderr.trim())))
    }

    fn run(&self) -> PathBuf {
        self.home.join("run")
    }

    fn search_path(&self, first: &[PathBuf]) -> String {
        let folders = first.iter().chain([&self.tools]);
        let folders = folders.map(|folder| folder.display().to_string());
        let machine = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(str::to_owned);
        folders.chain(machine).collect::<Vec<_>>().join(":")
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.home.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        chown(&path, Some(ID), Some(ID))?;
        Ok(path)
    }
}

/// The runtime that a container is made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// runc, without anything of cgpu's.
    Runc,
    /// `cgpu-runtime`.
    Wrapper,
    /// cgpu's shim, by its type; docker 24 and later.
    Shim,
}

/// What a user's engine does, whichever it is.
pub trait RootlessEngine {
    /// Its client, to the end.
    ///
    /// # Errors
    /// It cannot be started, or hangs.
    fn client(&self, args: &[&str]) -> Result<Outcome>;

    /// The name that it has for a runtime.
    fn runtime(&self, by: By) -> String;

    /// `run`, without a network.
    ///
    /// # Errors
    /// As [`RootlessEngine::client`].
    fn run(&self, by: By, image: &Image, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let runtime = self.runtime(by);
        let mut args = vec!["run", "--network=none", "--runtime", &runtime];
        args.extend(options);
        args.push(&image.name);
        args.extend(program);
        self.client(&args)
    }

    /// Ends what runs of it.
    ///
    /// # Errors
    /// It does not end.
    fn stop(&mut self) -> Result<()>;
}

/// The user's podman.
#[derive(Debug)]
pub struct RootlessPodman<'a> {
    user: &'a User,
    program: PathBuf,
    runc: PathBuf,
    wrapper: PathBuf,
}

impl<'a> RootlessPodman<'a> {
    /// Configures it and loads the image.
    ///
    /// # Errors
    /// A file cannot be written, or podman refuses the image.
    pub fn start(
        user: &'a User,
        node: &Node,
        engines: &Engines,
        release: &Release,
        image: &Image,
    ) -> Result<Self> {
        let wrapper = node.command("cgpu-runtime")?;
        // podman hands its runtime no environment.
        let wrapper = user.write(
            "cgpu-runtime",
            &format!(
                "#!/bin/sh\nCGPU_CONFIG='{}' exec '{}' \"$@\"\n",
                node.config().display(),
                Path::new(wrapper.get_program()).display()
            ),
        )?;
        fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
        user.write(
            ".config/containers/policy.json",
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
        )?;
        user.write(
            ".config/containers/storage.conf",
            "[storage]\ndriver = \"vfs\"\n",
        )?;
        user.write(
            ".config/containers/containers.conf",
            &format!(
                "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nconmon_path = [\"{}\"]\n",
                release.conmon().display()
            ),
        )?;
        let podman = Self {
            user,
            program: release.program().to_owned(),
            runc: engines.runc()?,
            wrapper,
        };
        podman
            .client(&["load", "-i", &image.tar.to_string_lossy()])?
            .success()?;
        Ok(podman)
    }
}

impl RootlessEngine for RootlessPodman<'_> {
    fn client(&self, args: &[&str]) -> Result<Outcome> {
        let mut command = self.user.command(&self.program);
        command.env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1");
        capture(command.args(args), LIMIT)
    }

    fn runtime(&self, by: By) -> String {
        let program = match by {
            By::Runc => &self.runc,
            By::Wrapper | By::Shim => &self.wrapper,
        };
        program.display().to_string()
    }

    /// It has no daemon, and one process that holds the user's namespaces.
    fn stop(&mut self) -> Result<()> {
        self.client(&["rm", "--all", "--force", "--time", "0"])?
            .success()?;
        let pid = self.user.run().join("libpod/tmp/pause.pid");
        let pid = fs::read_to_string(&pid).with_context(|| pid.display().to_string())?;
        kill(Pid::from_raw(pid.trim().parse()?), Signal::SIGTERM)?;
        Ok(())
    }
}

/// The user's dockerd, with its containerd, in a user namespace by `rootlesskit`.
#[derive(Debug)]
pub struct RootlessDocker<'a> {
    user: &'a User,
    client: PathBuf,
    daemon: Daemon,
}

impl<'a> RootlessDocker<'a> {
    /// Starts it, waits until it answers, and loads the image.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(user: &'a User, node: &Node, engines: &Engines, image: &Image) -> Result<Self> {
        let wrapper = node.command("cgpu-runtime")?;
        let wrapper = Path::new(wrapper.get_program());
        let mut runtimes = json!({"cgpu": {"path": wrapper}});
        if engines.docker_version()? >= (24, 0) {
            runtimes["cgpu-type"] = json!({"runtimeType": CGPU});
        }
        let config = user.write("daemon.json", &json!({"runtimes": runtimes}).to_string())?;
        let run = user.run();
        // What docker's own script for this does: root's folders are copied up as links, which the user could not write below.
        let own = "rm -rf /run/docker /run/containerd /run/xtables.lock; exec \"$@\"";
        let mut command = user.command(Path::new("rootlesskit"));
        command
            .args(["--net=host", "--copy-up=/etc", "--copy-up=/run"])
            .args(["--propagation=rslave", "--state-dir"])
            .arg(run.join("rootlesskit"))
            .args(["sh", "-c", own, "sh"])
            .arg(engines.program("dockerd")?)
            .args(["--rootless", "--config-file"])
            .arg(&config)
            .arg("--data-root")
            .arg(user.home.join("docker"))
            .arg("--exec-root")
            .arg(run.join("docker"))
            .arg("--pidfile")
            .arg(run.join("docker.pid"))
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .args(["--storage-driver", "vfs", "--host"])
            .arg(format!("unix://{}", run.join("docker.sock").display()));
        let mut programs = vec![wrapper.parent().context("a folder")?.to_owned()];
        programs.extend(engines.folders());
        command
            .env("PATH", user.search_path(&programs))
            .env("CGPU_CONFIG", node.config());
        let daemon = Daemon::start("rootlesskit", &command, &node.root().join("rootless.log"))?;
        let client = engines.program("docker")?;
        let mut docker = Self {
            user,
            client,
            daemon,
        };
        let program = docker.client.clone();
        docker.daemon.wait_ready(Duration::from_secs(60), || {
            Ok(capture(docker_command(user, &program).arg("info"), LIMIT)?.succeeded())
        })?;
        docker
            .client(&["load", "-i", &image.tar.to_string_lossy()])?
            .success()?;
        Ok(docker)
    }
}

/// The user's `docker`.
fn docker_command(user: &User, client: &Path) -> Command {
    let mut command = user.command(client);
    let socket = user.run().join("docker.sock");
    command.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    command
}

impl RootlessEngine for RootlessDocker<'_> {
    fn client(&self, args: &[&str]) -> Result<Outcome> {
        capture(docker_command(self.user, &self.client).args(args), LIMIT)
    }

    fn runtime(&self, by: By) -> String {
        match by {
            By::Runc => "runc",
            By::Wrapper => "cgpu",
            By::Shim => "cgpu-type",
        }
        .to_owned()
    }

    fn stop(&mut self) -> Result<()> {
        let listed = self.client(&["ps", "-aq"])?.success()?.stdout;
        for id in listed.lines() {
            self.client(&["rm", "-f", id])?.success()?;
        }
        // Told to end itself, rootlesskit leaves dockerd's containerd behind.
        let pid = fs::read_to_string(self.user.run().join("docker.pid"))?;
        kill(Pid::from_raw(pid.trim().parse()?), Signal::SIGTERM)?;
        let daemon = &mut self.daemon;
        wait_until("the end of dockerd", LIMIT, || Ok(!daemon.runs()?))
    }
}
