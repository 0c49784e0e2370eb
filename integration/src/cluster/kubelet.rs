//! A node with a kubelet: a containerd or CRI-O that serves pods, simulated cards, and the kubelet beside it.
//!
//! The kubelet has its default folder, `/var/lib/kubelet`, in an overlay of the thread's mount namespace, so that sockets are where agents
//! and plugins look for them. It sets kernel parameters of the whole machine: files with the values that it looks for are mounted over
//! them, and it finds nothing to set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use super::bare_host;
use super::control_plane::ControlPlane;
use crate::command::succeed;
use crate::control_groups::are_version_2_alone;
use crate::daemon::Daemon;
use crate::image;
use crate::mounts;
use crate::oci::OciRuntime;
use crate::packages::Suite;
use crate::pods::Handlers;
use crate::rig::{PodEngine, PodRig};

/// What the kubelet makes of the machine's parameters (`pkg/kubelet/cm/container_manager_linux.go`, 1.36).
const PARAMETERS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Which of the nodes that the control plane knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nth {
    /// `k1`.
    First,
    /// `k2`.
    Second,
}

impl Nth {
    /// The node's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "k1",
            Self::Second => "k2",
        }
    }

    fn address(self) -> &'static str {
        match self {
            Self::First => "10.223.0.1",
            Self::Second => "10.223.0.2",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::First => 10250,
            Self::Second => 10251,
        }
    }
}

/// What the node's host has of cgpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Our programs, in the build's folder, and handlers of every form.
    WithCgpu,
    /// The same with CRI-O as the engine.
    WithCrio,
    /// Nothing: every path is the default one, and the engine has runc's handler alone.
    WithoutCgpu,
}

/// The kubelet's process. Dropped while it runs, it belongs to a failed test, and prints the end of its log.
#[derive(Debug)]
struct Kubelet {
    daemon: Daemon,
    command: Command,
    log: PathBuf,
}

impl Kubelet {
    fn start(command: Command, log: PathBuf) -> Result<Self> {
        Ok(Self {
            daemon: Daemon::start("kubelet", &command, &log)?,
            command,
            log,
        })
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if self.daemon.pid().is_some() {
            eprintln!("--- end of the kubelet's log\n{}", self.daemon.tail());
        }
    }
}

/// The node. Fields end in this order.
#[derive(Debug)]
pub struct KubeletNode {
    kubelet: Kubelet,
    /// The engine and the node below it.
    pub rig: PodRig,
    overlay: Overlay,
    groups: Groups,
    which: Nth,
}

impl KubeletNode {
    /// Takes this thread into a mount namespace of its own and starts the node there: one node a thread. The inner error is a reason to
    /// skip aloud.
    ///
    /// # Errors
    /// The kubelet does not start, or does not register.
    pub fn start(plane: &ControlPlane, which: Nth, suite: Suite) -> Result<Result<Self, String>> {
        Self::start_on(plane, which, suite, Host::WithCgpu)
    }

    /// The same on a host of this kind.
    ///
    /// # Errors
    /// As [`KubeletNode::start`].
    pub fn start_on(
        plane: &ControlPlane,
        which: Nth,
        suite: Suite,
        host: Host,
    ) -> Result<Result<Self, String>> {
        let network = plane.network();
        let engine = match host {
            Host::WithCgpu => {
                mounts::enter_new()?;
                PodEngine::Containerd(Handlers::All)
            }
            Host::WithCrio => {
                mounts::enter_new()?;
                PodEngine::Crio
            }
            Host::WithoutCgpu => {
                if let Err(error) = bare_host::enter(suite) {
                    return Ok(Err(format!("{error:#}")));
                }
                PodEngine::Containerd(Handlers::RuncAlone)
            }
        };
        let rig = match PodRig::start_on(
            (suite, OciRuntime::HostRunc),
            Some(Arc::clone(network)),
            engine,
        )? {
            Ok(rig) => rig,
            Err(reason) => return Ok(Err(reason)),
        };
        if host == Host::WithoutCgpu {
            bare_host::settle(&rig)?;
        }
        let root = rig.node.root().to_path_buf();
        let folder = root.join("kubelet");
        fs::create_dir_all(&folder)?;
        let overlay = Overlay::mount(&root)?;
        protect_parameters(&folder)?;
        let mut add = network.command(&image::busybox_program()?)?;
        let address = format!("{}/32", which.address());
        succeed(add.args(["ip", "addr", "add", &address, "dev", "lo"]))?;
        let groups = Groups::make(rig.node.namespace())?;
        let config = folder.join("kubelet.json");
        let document = configuration(which, &folder, &groups.path(), &rig.engine.socket());
        fs::write(&config, serde_json::to_vec_pretty(&document)?)?;
        let mut command = network.command(&plane.program("kubelet"))?;
        command
            .arg(format!("--config={}", config.display()))
            .arg(format!(
                "--kubeconfig={}",
                plane.config(which.name()).display()
            ))
            .arg(format!("--hostname-override={}", which.name()))
            .arg(format!("--node-ip={}", which.address()))
            .arg(format!(
                "--cert-dir={}",
                folder.join("certificates").display()
            ))
            .env("PATH", &rig.search_path);
        let mut kubelet = Kubelet::start(command, folder.join("log"))?;
        let kubectl = plane.kubectl();
        kubelet.daemon.wait_ready(Duration::from_secs(120), || {
            let node = kubectl.run(&["get", "node", which.name(), "-o", "json"])?;
            Ok(node.succeeded() && is_ready(&node.json()?))
        })?;
        // The controller that takes the taint of a new node away would call posted nodes lost.
        let untainted = r#"{"spec":{"taints":null}}"#;
        kubectl
            .run(&[
                "patch",
                "node",
                which.name(),
                "--type=merge",
                "-p",
                untainted,
            ])?
            .success()?;
        Ok(Ok(Self {
            kubelet,
            rig,
            overlay,
            groups,
            which,
        }))
    }

    /// The node's name in the cluster.
    pub fn name(&self) -> &'static str {
        self.which.name()
    }

    /// What the kubelet has logged.
    pub fn log(&self) -> String {
        self.kubelet.daemon.output()
    }

    /// Ends the kubelet as a crash would, and starts it again; its pods run on.
    ///
    /// # Errors
    /// It cannot be killed, or does not start.
    pub fn restart_kubelet(&mut self) -> Result<()> {
        let kubelet = &mut self.kubelet;
        kubelet.daemon.kill()?;
        kubelet.daemon = Daemon::start("kubelet", &kubelet.command, &kubelet.log)?;
        Ok(())
    }

    /// Where plugins put their registration sockets.
    pub fn registry() -> PathBuf {
        PathBuf::from("/var/lib/kubelet/plugins_registry")
    }

    /// Ends the kubelet, then its pods, the engine and the node; fails when anything is left. Pods are deleted before, or stay
    /// with the kubelet gone.
    ///
    /// # Errors
    /// Something does not end, or is left.
    pub fn finish(mut self) -> Result<()> {
        self.kubelet.daemon.stop(Duration::from_secs(60))?;
        let Self {
            rig,
            overlay,
            groups,
            ..
        } = self;
        rig.crictl.remove_all(rig.engine.as_ref())?;
        drop(groups);
        overlay.unmount()?;
        rig.finish()
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn configuration(which: Nth, folder: &Path, group: &str, socket: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": which.address(),
        "port": which.port(),
        "healthzPort": 0,
        // Nobody else is in the network.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": ["none"],
        "localStorageCapacityIsolation": false,
        // The machine's disk may be as full as it likes.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": folder.join("pod-logs"),
        "volumePluginDir": folder.join("volume-plugins"),
        "resolvConf": "",
        "syncFrequency": "2s",
        "nodeStatusUpdateFrequency": "2s",
    })
}

/// An overlay over `/var/lib`: what the kubelet writes there is gone at the end.
#[derive(Debug)]
struct Overlay {
    changes: PathBuf,
}

impl Overlay {
    fn mount(root: &Path) -> Result<Self> {
        let changes = root.join("var-lib");
        fs::create_dir_all(&changes)?;
        let nosuid = MsFlags::MS_NOSUID;
        mount(
            Some("cgpu-test"),
            &changes,
            Some("tmpfs"),
            nosuid,
            Some("mode=0755"),
        )
        .with_context(|| format!("a tmpfs at {}", changes.display()))?;
        let (upper, work) = (changes.join("upper"), changes.join("work"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options = format!(
            "lowerdir=/var/lib,upperdir={},workdir={}",
            upper.display(),
            work.display()
        );
        let options = Some(options.as_str());
        mount(
            Some("cgpu-test"),
            "/var/lib",
            Some("overlay"),
            MsFlags::empty(),
            options,
        )
        .context("an overlay over /var/lib")?;
        // Volumes that the kubelet mounts there have to reach containers that run already.
        let folder = "/var/lib/kubelet";
        fs::create_dir_all(folder)?;
        mount(
            Some(folder),
            folder,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .context("a mount of the kubelet's folder")?;
        mount(
            None::<&str>,
            folder,
            None::<&str>,
            MsFlags::MS_SHARED,
            None::<&str>,
        )
        .context("sharing the kubelet's mounts")?;
        Ok(Self { changes })
    }

    fn unmount(self) -> Result<()> {
        for path in [Path::new("/var/lib"), &self.changes] {
            umount2(path, MntFlags::MNT_DETACH)
                .with_context(|| format!("unmounting {}", path.display()))?;
        }
        Ok(())
    }
}

fn protect_parameters(folder: &Path) -> Result<()> {
    for (name, value) in PARAMETERS {
        let parameter = Path::new("/proc/sys").join(name);
        if !parameter.exists() {
            continue;
        }
        let file = folder.join(name.replace('/', "-"));
        fs::write(&file, format!("{value}\n"))?;
        mount(
            Some(&file),
            &parameter,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .with_context(|| format!("a file over {}", parameter.display()))?;
    }
    Ok(())
}

/// The groups that all pods of the node are below: removed when it ends, with those that the kubelet has made below them.
#[derive(Debug)]
struct Groups {
    name: String,
    folders: Vec<PathBuf>,
}

impl Groups {
    /// Makes them in every hierarchy: the kubelet does not make its root itself.
    fn make(name: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let mut parents = vec![root.to_path_buf()];
        if !are_version_2_alone() {
            let hierarchies = fs::read_dir(root)?.map(|entry| Ok(entry?.path()));
            parents = hierarchies.collect::<Result<_>>()?;
            parents.retain(|path| path.is_dir() && !path.is_symlink());
        }
        let mut groups = Self {
            name: name.to_owned(),
            folders: Vec::new(),
        };
        for parent in parents {
            let folder = parent.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
            // A set of processors is not inherited under version 1.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(values) = fs::read_to_string(parent.join(file)) {
                    drop(fs::write(folder.join(file), values.trim()));
                }
            }
            groups.folders.push(folder);
        }
        Ok(groups)
    }

    /// As the kubelet's `cgroupRoot`.
    fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in &self.folders {
            remove(folder);
        }
    }
}

/// Removes a group and those below it. One with processes stays, and the node reports it.
fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    drop(fs::remove_dir(folder));
}
