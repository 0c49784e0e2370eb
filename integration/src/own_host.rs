//! A host as its operator finds it: our programs and an engine in `/usr/bin`, every path the default
//! one.
//!
//! ```text
//!   a mount namespace of this thread
//!     /run                 empty
//!     /usr/bin, /usr/sbin  the host's, with our programs and the engine's over them
//!     /etc, /var/lib       the host's, without engines' files; changes are gone at the end
//!     /usr/lib/cgpu        the program for the inside of containers
//!     /run/cgpu            the node's state folder
//!     /run/containerd/containerd.sock, /run/docker.sock   the node's engines
//! ```
//!
//! Processes, control groups and the network are the host's. So containers are in the node's own
//! namespace of containerd, and cgpu's state folder keeps the node's own name: `/run/cgpu` is a
//! second one.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use crate::containerd::Containerd;
use crate::docker::Docker;
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::mounts;
use crate::node::Node;
use crate::packages::Suite;
use crate::programs::Programs;
use crate::{rig, skip};

/// What is there first of all, for everything below `/run` of the host's own.
const RUN: &str = "/run";
/// Where changes go; it is below [`RUN`], and of the namespace.
const CHANGES: &str = "/run/own-host";
/// Files and folders of the host's that a fresh one has not.
const ABSENT: [&str; 15] = [
    "/opt/cgpu",
    "/etc/cgpu",
    "/etc/containerd",
    "/etc/containers",
    "/etc/crio",
    "/etc/docker",
    "/var/lib/cgpu",
    "/usr/bin/podman",
    "/usr/bin/crio",
    "/usr/sbin/podman",
    "/usr/sbin/crio",
    "/usr/bin/nvidia-smi",
    "/usr/bin/systemctl",
    "/usr/bin/conmon",
    "/usr/bin/crun",
];
/// `PATH` of a root shell.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The host. Fields end in this order.
#[derive(Debug)]
pub struct OwnHost {
    docker: Option<Docker>,
    /// Its containerd.
    pub containerd: Containerd,
    /// The node below it.
    pub node: Node,
    /// An image that its containerd knows.
    pub image: Image,
}

impl OwnHost {
    /// Takes this thread into a mount namespace of its own and makes the host there. The inner
    /// error says why this machine cannot have one.
    ///
    /// The thread stays there: run it on one of its own, and let that end.
    pub fn enter(programs: &Programs, engines: &Engines) -> Result<Result<Self, String>> {
        if Path::new("/proc/driver/nvidia/version").exists() {
            return Ok(Err("this machine has NVIDIA's driver".to_owned()));
        }
        let image = image::busybox(Some(programs))?;
        if let Err(error) = namespace(Some(programs), engines, &FOLDERS) {
            return Ok(Err(format!("{error:#}")));
        }
        let node = Node::bare()?;
        // The shim gets this file's name from containerd; everybody else takes the default one.
        let config = Path::new("/etc/cgpu/cgpu.toml");
        fs::create_dir_all("/etc/cgpu")?;
        fs::write(config, format!("state_dir = {:?}\n", node.state_dir()))?;
        symlink(config, node.config())?;
        fs::create_dir("/run/cgpu")?;
        bind(&node.state_dir(), Path::new("/run/cgpu"))?;
        let containerd = Containerd::start(&node, engines)?;
        containerd.import(&image)?;
        fs::create_dir_all("/run/containerd")?;
        symlink(containerd.socket(), "/run/containerd/containerd.sock")?;
        Ok(Ok(Self {
            docker: None,
            containerd,
            node,
            image,
        }))
    }

    /// A host with nothing of ours in its images.
    pub fn load_plain_image(&mut self) -> Result<()> {
        self.image = image::busybox(None)?;
        self.containerd.import(&self.image)
    }

    /// Makes `name` a command of the host: a script that runs `command` with what it is given.
    pub fn provide(name: &str, command: &Command) -> Result<()> {
        let quoted = |text: &OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
        let mut script = "#!/bin/sh\nexec env".to_owned();
        if let Some(folder) = command.get_current_dir() {
            script += &format!(" -C {}", quoted(folder.as_os_str()));
        }
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                script += &format!(" {}={}", name.to_string_lossy(), quoted(value));
            }
        }
        for part in [command.get_program()]
            .into_iter()
            .chain(command.get_args())
        {
            script += &format!(" {}", quoted(part));
        }
        script += " \"$@\"\n";
        let path = Path::new("/usr/bin").join(name);
        fs::write(&path, script).with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Starts docker too, on the same containerd.
    pub fn start_docker(&mut self) -> Result<()> {
        let docker = Docker::start(&self.node, &self.containerd)?;
        docker.load(&self.image)?;
        symlink(docker.socket(), "/run/docker.sock")?;
        self.docker = Some(docker);
        Ok(())
    }

    /// `bash` as root's, in a folder of its own.
    pub fn shell(&self) -> Result<Command> {
        let home = self.node.root().join("home");
        fs::create_dir_all(&home)?;
        let mut shell = Command::new("/bin/bash");
        shell
            .current_dir(&home)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", &home)
            .env("LC_ALL", "C.UTF-8")
            // Tables in full: what is cut or folded depends on what differs from run to run.
            .env("COLUMNS", "1000")
            .env("CONTAINERD_NAMESPACE", self.node.namespace())
            .env("IMAGE", &self.image.name);
        Ok(shell)
    }

    /// Pairs of a name that commands print here, and the name that an ordinary host has for it.
    pub fn names(&self) -> Vec<(String, String)> {
        let home = self.node.root().join("home");
        [
            (home.display().to_string(), "/root"),
            (
                self.node.config().display().to_string(),
                "/etc/cgpu/cgpu.toml",
            ),
            (self.node.state_dir().display().to_string(), "/run/cgpu"),
            (self.node.root().display().to_string(), "/tmp"),
            (self.node.docker_namespace(), "moby"),
            (self.node.namespace().to_owned(), "default"),
        ]
        .map(|(from, to)| (from, to.to_owned()))
        .to_vec()
    }

    /// Stops the engine and then the node; fails when anything is left.
    pub fn finish(mut self) -> Result<()> {
        if let Some(mut docker) = self.docker.take() {
            docker.stop()?;
        }
        rig::finish(Box::new(self.containerd), self.node)
    }
}

/// Does something on a host with Debian 13's engines, or skips aloud. The host is a thread's, and goes with it.
///
/// # Errors
/// What `body` fails with, and what is left afterwards.
pub fn on_one<F>(test: &str, body: F) -> Result<()>
where
    F: FnOnce(&mut OwnHost) -> Result<()> + Send + 'static,
{
    if let Some(reason) = skip::lacks_root() {
        skip!(test, "{reason}");
    }
    let engines = match Engines::fetch(Suite::Trixie) {
        Ok(engines) => engines,
        Err(error) => skip!(test, "{error:#}"),
    };
    let programs = Programs::for_tests()?;
    let inside = move || -> Result<Option<String>> {
        let mut host = match OwnHost::enter(programs, &engines)? {
            Ok(host) => host,
            Err(reason) => return Ok(Some(reason)),
        };
        let done = body(&mut host);
        host.finish()?;
        done.map(|()| None)
    };
    let done = std::thread::spawn(inside).join();
    match done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))? {
        None => Ok(()),
        Some(reason) => skip!(test, "{reason}"),
    }
}

/// Folders of the host's in which changes are the namespace's alone, beside `/usr/bin`.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/lib", "/etc", "/var/lib"];

/// Takes this thread into a mount namespace whose host has these engines, nothing of cgpu's and nothing of a former one's. Changes of
/// `folders` are the namespace's alone, and so are `/run` and `/usr/bin`.
///
/// # Errors
/// The machine does not allow it.
pub fn enter_without_cgpu(engines: &Engines, folders: &[&str]) -> Result<()> {
    namespace(None, engines, folders)
}

fn namespace(programs: Option<&Programs>, engines: &Engines, folders: &[&str]) -> Result<()> {
    mounts::enter_new()?;
    mount(
        Some("own-host"),
        RUN,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=0755"),
    )
    .context("a tmpfs at /run")?;
    let changes = Path::new(CHANGES);
    let ours = programs.map(|programs| programs.folder().to_path_buf());
    let mut bin: Vec<PathBuf> = ours.into_iter().collect();
    for folder in engines.folders() {
        let folder = fs::canonicalize(&folder).unwrap_or(folder);
        // A folder that is named twice is refused.
        if folder.is_dir() && !bin.contains(&folder) {
            bin.push(folder);
        }
    }
    mounts::overlay(changes, Path::new("/usr/bin"), &bin)?;
    for folder in folders {
        mounts::overlay(changes, Path::new(folder), &[])?;
    }
    let changed = |path: &Path| folders.iter().any(|folder| path.starts_with(folder));
    let in_bin = |path: &Path| path.starts_with("/usr/bin");
    for path in ABSENT.map(Path::new) {
        if !changed(path) && !in_bin(path) {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)?;
        } else if path.symlink_metadata().is_ok() {
            fs::remove_file(path)?;
        }
    }
    if let Some(programs) = programs {
        let inside = Path::new("/usr/lib/cgpu/static");
        fs::create_dir_all(inside)?;
        fs::copy(programs.folder().join("static/cgpu"), inside.join("cgpu"))?;
    }
    // Programs are looked for here first.
    for program in ["containerd", "dockerd", "docker"] {
        let hosts = Path::new("/usr/sbin").join(program);
        if hosts.symlink_metadata().is_ok() {
            fs::remove_file(hosts)?;
        }
    }
    Ok(())
}

/// Makes a folder appear at another place as well.
///
/// # Errors
/// The system's.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("binding {} to {}", from.display(), to.display()))
}
