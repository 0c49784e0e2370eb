//! A private podman: its own storage, configuration, control group and, for crun, its own view of the control groups.
//!
//! podman hands neither its runtime nor its hooks the environment that it was started with, so a script is before
//! `cgpu-runtime`, and the hook's file names the configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::cache;
use crate::command::{LIMIT, Outcome, capture, succeed, wait_until};
use crate::daemon::Daemon;
use crate::image::Image;
use crate::node::Node;
use crate::packages::{Suite, unpacked};

/// Where the programs of our own libraries' loader are in a package.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Which way a container comes to its vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frontend {
    /// `cgpu-runtime` is podman's runtime.
    Wrapper,
    /// `cgpu-hook` is podman's `precreate` hook, its runtime is plain.
    Precreate,
    /// Both.
    Both,
    /// `cgpu-hook` is called at createRuntime alone, which is too late.
    CreateRuntime,
    /// Neither: its runtime is plain.
    Plain,
}

/// The programs of one release.
#[derive(Debug, Clone)]
pub struct Release {
    podman: PathBuf,
    conmon: PathBuf,
    helpers: PathBuf,
}

impl Release {
    /// Fetches podman and what it starts, once. An error is a reason to skip aloud.
    ///
    /// # Errors
    /// A package cannot be had, or podman does not start on this machine.
    pub fn fetch(suite: Suite) -> Result<Self> {
        let packages: &[&str] = match suite {
            Suite::Host => &[
                "podman",
                "conmon",
                "libsubid4",
                "libgpgme11",
                "libassuan0",
                "libdevmapper1.02.1",
                "golang-github-containers-image",
            ],
            _ => &[
                "podman",
                "libc6",
                "libsubid5",
                "libgpgme11t64",
                "libassuan9",
                "libgpg-error0",
                "libseccomp2",
                "libsqlite3-0",
                "libsystemd0",
                "libcap2",
                "golang-github-containers-image",
                "netavark",
            ],
        };
        let name = format!("podman-{}", suite.name());
        let root = unpacked(suite, &format!("engines/{name}"), packages)?;
        // Its own helper is the machine's release's in any case: it wants no newer library.
        let conmon = unpacked(Suite::Host, "engines/conmon", &["conmon"])?.join("usr/bin/conmon");
        let release = Self {
            podman: linked(&root, &name)?,
            conmon,
            helpers: root.join("usr/lib/podman"),
        };
        release.version()?;
        Ok(release)
    }

    /// podman itself.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.podman
    }

    /// conmon, which holds each container.
    #[must_use]
    pub fn conmon(&self) -> &Path {
        &self.conmon
    }

    /// podman's major and minor version.
    ///
    /// # Errors
    /// It does not start.
    pub fn version(&self) -> Result<(u32, u32)> {
        let reply = succeed(Command::new(&self.podman).arg("--version"))?.stdout;
        let version = reply.trim().rsplit(' ').next().unwrap_or_default();
        let mut parts = version.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => bail!("no version in `{}`", reply.trim()),
        }
    }
}

/// A copy that finds the libraries unpacked beside it, also when conmon starts it with an empty environment.
fn linked(root: &Path, name: &str) -> Result<PathBuf> {
    let patchelf = unpacked(Suite::Host, "engines/patchelf", &["patchelf"])?;
    let folder = cache::folder().join(format!("engines/{name}-linked"));
    let stamp = format!(
        "{} {}",
        root.display(),
        fs::read_to_string(root.join(".stamp"))?
    );
    cache::once("packages", &folder, &stamp, |at| {
        let copy = at.join("podman");
        fs::copy(root.join("usr/bin/podman"), &copy)?;
        let libraries = root.join(LIBRARIES);
        let mut command = Command::new(patchelf.join("usr/bin/patchelf"));
        command.arg("--force-rpath").arg("--set-rpath").arg(format!(
            "{}:/{LIBRARIES}:/lib/x86_64-linux-gnu",
            libraries.display()
        ));
        let loader = libraries.join("ld-linux-x86-64.so.2");
        if loader.exists() {
            command.arg("--set-interpreter").arg(loader);
        }
        succeed(command.arg(&copy))?;
        Ok(())
    })?;
    Ok(folder.join("podman"))
}

/// Of which kind the control groups are that podman sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// The machine's own.
    Host,
    /// Version 2 alone, in a mount namespace: crun wants no hybrid ones.
    Unified,
}

/// One podman. Declare it after its node.
#[derive(Debug)]
pub struct Podman {
    folder: PathBuf,
    program: PathBuf,
    group: String,
    environment: Option<Daemon>,
}

impl Podman {
    /// Configures it; podman has no daemon. `runtime` is runc or crun, and is the one in the node's `cgpu.toml` too.
    ///
    /// # Errors
    /// A file cannot be written, or the mount namespace cannot be made.
    pub fn start(
        node: &Node,
        release: &Release,
        frontend: Frontend,
        runtime: &Path,
        cgroups: Cgroups,
    ) -> Result<Self> {
        let folder = node.root().join("podman");
        let policy = folder.join("home/.config/containers");
        fs::create_dir_all(&policy).with_context(|| format!("creating {}", policy.display()))?;
        fs::create_dir_all(folder.join("hooks"))?;
        fs::create_dir_all(folder.join("temporary"))?;
        fs::write(
            policy.join("policy.json"),
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
        )?;
        fs::write(
            folder.join("storage.conf"),
            format!(
                "[storage]\ndriver = \"vfs\"\nrunroot = \"{0}/run\"\ngraphroot = \"{0}/data\"\n",
                folder.display()
            ),
        )?;
        let named = match frontend {
            Frontend::Wrapper | Frontend::Both => wrapper(node, &folder)?,
            Frontend::Precreate | Frontend::CreateRuntime | Frontend::Plain => runtime.to_owned(),
        };
        let stage = match frontend {
            Frontend::Wrapper | Frontend::Plain => None,
            Frontend::Precreate | Frontend::Both => Some("precreate"),
            Frontend::CreateRuntime => Some("createRuntime"),
        };
        if let Some(stage) = stage {
            hook(node, &folder, stage)?;
        }
        // Without CAP_SYS_RESOURCE no limit can be raised, and podman raises these by default.
        fs::write(
            folder.join("containers.conf"),
            format!(
                r#"[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
pids_limit = 0
[engine]
runtime = "chosen"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
conmon_path = ["{}"]
hooks_dir = ["{}"]
helper_binaries_dir = ["{}"]
[engine.runtimes]
chosen = ["{}"]
"#,
                release.conmon.display(),
                folder.join("hooks").display(),
                release.helpers.display(),
                named.display(),
            ),
        )?;
        let environment = match cgroups {
            Cgroups::Host => None,
            Cgroups::Unified => Some(unified(node, &folder)?),
        };
        Ok(Self {
            folder,
            program: release.podman.clone(),
            group: format!("/{}", node.namespace()),
            environment,
        })
    }

    /// A `podman` command, not yet run.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.environment.as_ref().and_then(Daemon::pid) {
            None => Command::new(&self.program),
            Some(pid) => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--mount=/proc/{pid}/ns/mnt"))
                    .arg("--")
                    .arg(&self.program);
                command
            }
        };
        for (option, place) in [
            ("--root", "data"),
            ("--runroot", "run"),
            ("--tmpdir", "tmp"),
        ] {
            command.arg(option).arg(self.folder.join(place));
        }
        command
            .args(["--cgroup-manager", "cgroupfs", "--storage-driver", "vfs"])
            .args(args)
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.folder.join("home"))
            .env("TMPDIR", self.folder.join("temporary"))
            // podman 5 says at each call that control groups of version 1 will go.
            .env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1")
            .env("CONTAINERS_CONF", self.folder.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.folder.join("storage.conf"));
        command
    }

    /// Where it keeps images and layers, and where what is of no use after a restart of the machine.
    #[must_use]
    pub fn storage(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("data"), self.folder.join("run"))
    }

    /// Forgets what a loss of power takes from it ([`Node::lose_power`]), its OCI runtime's state too: it has nothing running by itself.
    ///
    /// # Errors
    /// The system's, or its containers cannot be listed.
    pub fn boot(&self) -> Result<()> {
        for place in ["run", "tmp"] {
            let folder = self.folder.join(place);
            fs::remove_dir_all(&folder)
                .with_context(|| format!("removing {}", folder.display()))?;
        }
        let listed = self.podman(&["ps", "-aq", "--no-trunc"])?.success()?;
        for id in listed.stdout.lines() {
            // podman names no folder to its runtime. There is none where the container had ended before.
            for runtime in ["runc", "crun"] {
                drop(fs::remove_dir_all(Path::new("/run").join(runtime).join(id)));
            }
        }
        Ok(())
    }

    /// The groups of its helpers that are there: one in each tree of version 1, one of version 2.
    #[must_use]
    pub fn helper_groups(&self) -> Vec<PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let trees = fs::read_dir(root).into_iter().flatten().flatten();
        let trees = trees.map(|tree| tree.path()).chain([root.to_owned()]);
        let name = self.group.trim_start_matches('/');
        let groups = trees.map(|tree| tree.join(name).join("conmon"));
        groups.filter(|group| group.is_dir()).collect()
    }

    /// Runs `podman` to its end.
    ///
    /// # Errors
    /// It cannot be started, or hangs.
    pub fn podman(&self, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.command(args), LIMIT)
    }

    /// `podman run`, without a network.
    ///
    /// # Errors
    /// As [`Podman::podman`].
    pub fn run(&self, image: &Image, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["run", "--network=none", "--cgroup-parent", &self.group];
        args.extend(options);
        args.push(&image.name);
        args.extend(program);
        self.podman(&args)
    }

    /// Loads an image built by this harness.
    ///
    /// # Errors
    /// podman refuses it.
    pub fn load(&self, image: &Image) -> Result<()> {
        let tar = image.tar.to_string_lossy();
        capture(
            &mut self.command(&["load", "-i", &tar]),
            Duration::from_secs(300),
        )?
        .success()?;
        Ok(())
    }

    /// Removes every container, and the group of its helpers, which podman leaves under any runtime (`podman_slices` shows it under
    /// runc alone): cgpu does not make it and has nothing in it. A helper that still lives there keeps it, and is the node's to report.
    ///
    /// # Errors
    /// A container cannot be removed.
    pub fn stop(&mut self) -> Result<()> {
        self.podman(&["rm", "--all", "--force", "--time", "0"])?
            .success()?;
        // A helper ends a moment after its container.
        let gone = wait_until(
            "the end of podman's helpers",
            Duration::from_secs(5),
            || {
                for group in self.helper_groups() {
                    drop(fs::remove_dir(group));
                }
                Ok(self.helper_groups().is_empty())
            },
        );
        if let Err(error) = gone {
            eprintln!("{error:#}");
        }
        if let Some(mut environment) = self.environment.take() {
            environment.stop(Duration::from_secs(10))?;
        }
        Ok(())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let to_be_stopped = self.environment.is_some() || std::thread::panicking();
        if to_be_stopped && let Err(error) = self.stop() {
            eprintln!("podman: {error:#}");
        }
    }
}

/// `cgpu-runtime` with the node's configuration, for engines that keep their own environment from their runtime.
pub(crate) fn wrapper(node: &Node, folder: &Path) -> Result<PathBuf> {
    let program = node.command("cgpu-runtime")?;
    let script = folder.join("cgpu-runtime");
    fs::write(
        &script,
        format!(
            "#!/bin/sh\nCGPU_CONFIG='{}' exec '{}' \"$@\"\n",
            node.config().display(),
            Path::new(program.get_program()).display()
        ),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

fn hook(node: &Node, folder: &Path, stage: &str) -> Result<()> {
    let program = node.command("cgpu-hook")?;
    let hook = json!({
        "version": "1.0.0",
        "hook": {
            "path": program.get_program().to_string_lossy(),
            "args": ["cgpu-hook", stage],
            "env": [format!("CGPU_CONFIG={}", node.config().display())],
            "timeout": 60,
        },
        "when": {"always": true},
        "stages": [stage],
    });
    fs::write(
        folder.join("hooks/cgpu.json"),
        serde_json::to_vec_pretty(&hook)?,
    )
    .context("writing the hook")
}

/// A process whose mount namespace has control groups of version 2 alone at their usual place. The controllers of this machine stay
/// version 1's, which a vGPU's own processes need: that tree is at another place.
fn unified(node: &Node, folder: &Path) -> Result<Daemon> {
    let controllers = folder.join("controllers");
    fs::create_dir_all(&controllers)?;
    let root = format!("[broker]\ncgroup_root = {controllers:?}\n");
    node.edit_config(|text| text.replacen("[broker]\n", &root, 1))?;
    let script = format!(
        "mount --rbind /sys/fs/cgroup '{}' && umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && \
         echo ready && exec sleep 100000",
        controllers.display()
    );
    let log = folder.join("environment.log");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let mut daemon = Daemon::start("unified control groups", &command, &log)?;
    daemon.wait_ready(Duration::from_secs(10), || {
        Ok(fs::read_to_string(&log)?
            .lines()
            .any(|line| line == "ready"))
    })?;
    Ok(daemon)
}
