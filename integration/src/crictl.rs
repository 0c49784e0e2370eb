//! crictl: a pod and its containers as a kubelet makes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::{LIMIT, Outcome, capture};
use crate::control_groups::Driver;
use crate::go::{Effort, GoProgram};
use crate::image::Image;
use crate::node::Node;

const PROGRAM: GoProgram = GoProgram {
    name: "crictl",
    packages: &["sigs.k8s.io/cri-tools/cmd/crictl"],
    tags: "",
    module: include_str!("../crictl/go.mod"),
    sums: include_str!("../crictl/go.sum"),
    source: "",
    effort: Effort::USUAL,
};

/// Builds crictl once. An error is a reason to skip aloud.
pub fn program() -> Result<PathBuf> {
    PROGRAM.fetch()
}

/// The containerd namespace of everything that CRI makes; it is fixed in containerd.
pub const NAMESPACE: &str = "k8s.io";

/// What a kubelet hides from every container that is not privileged; containerd itself hides nothing.
const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
];
/// What it makes read-only there.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Whose processes a container sees; a kubelet's pods say `shareProcessNamespace` for the second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Processes {
    /// Its own.
    #[default]
    OfTheContainer,
    /// All of its pod's.
    OfThePod,
}

impl Processes {
    /// CRI's `NamespaceMode`.
    fn mode(self) -> u32 {
        match self {
            Self::OfTheContainer => 1,
            Self::OfThePod => 0,
        }
    }
}

/// Whose a container's users are; a pod and its containers say the same. A kubelet's pods say `hostUsers` for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Users {
    /// The host's.
    #[default]
    OfTheHost,
    /// Those from this one on, in a user namespace of the pod's.
    From(u32),
}

/// CRI's `NamespaceOption`.
fn namespaces(processes: Processes, users: Users) -> Value {
    let mut options = json!({"pid": processes.mode()});
    if let Users::From(first) = users {
        let map = json!([{"container_id": 0, "host_id": first, "length": 65536}]);
        options["userns_options"] = json!({"mode": 0, "uids": map, "gids": map});
    }
    options
}

/// What serves pods at a socket of its own.
pub trait PodServer: std::fmt::Debug + Send + Sync {
    /// The socket that clients speak to.
    fn socket(&self) -> PathBuf;

    /// A program in the same network as the daemon.
    ///
    /// # Errors
    /// The network is gone.
    fn beside(&self, program: &Path) -> Result<Command>;

    /// The daemon's process id, while it runs.
    fn pid(&self) -> Option<u32>;

    /// SIGKILL, as a crash would be. Containers stay.
    ///
    /// # Errors
    /// There is no such process any more.
    fn kill(&mut self) -> Result<()>;

    /// Starts it again after [`PodServer::kill`], with the same state.
    ///
    /// # Errors
    /// It does not start.
    fn restart(&mut self) -> Result<()>;

    /// What a service manager does: starts it again where it has ended. Whether it had.
    ///
    /// # Errors
    /// It does not start.
    fn supervise(&mut self) -> Result<bool>;

    /// Ends it. Returns what of containers was left and had to be removed.
    ///
    /// # Errors
    /// It does not end.
    fn stop(&mut self) -> Result<Vec<String>>;

    /// Gives it an image of this harness. It may hear of it later.
    ///
    /// # Errors
    /// The image is refused.
    fn import(&self, image: &Image) -> Result<()>;

    /// Its configuration file, and all that it writes.
    fn folder(&self) -> &Path;
}

/// crictl on a node's containerd or CRI-O.
#[derive(Debug)]
pub struct Crictl {
    program: PathBuf,
    folder: PathBuf,
    namespace: String,
    driver: Driver,
}

/// A container of a pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct PodContainer<'a> {
    /// Its name in the pod.
    pub name: &'a str,
    /// Annotations of its own, `key=value`.
    pub annotations: &'a [&'a str],
    /// Its environment, `KEY=value`.
    pub environment: &'a [&'a str],
    /// Its CDI devices, by their qualified names.
    pub devices: &'a [&'a str],
    /// Its limit of host memory.
    pub memory_bytes: Option<u64>,
    /// Whose processes it sees; a pod and its containers say the same.
    pub processes: Processes,
    /// Whose its users are.
    pub users: Users,
    /// What it runs.
    pub program: &'a [&'a str],
}

fn pairs(of: &[&str]) -> Result<Vec<(String, String)>> {
    of.iter()
        .map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .with_context(|| format!("no = in {pair}"))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

impl Crictl {
    /// crictl for the pods on a node.
    pub fn new(node: &Node) -> Result<Self> {
        let folder = node.root().join("pods");
        fs::create_dir_all(&folder)?;
        Ok(Self {
            program: program()?,
            folder,
            namespace: node.namespace().to_owned(),
            driver: Driver::of_this_machine(),
        })
    }

    /// For an engine that makes groups by files, whatever the machine has.
    #[must_use]
    pub fn with_cgroupfs(self) -> Self {
        Self {
            driver: Driver::Cgroupfs,
            ..self
        }
    }

    /// A `crictl` command, not yet run. It runs in the network of the node's engine, where exec is streamed.
    pub fn command(&self, server: &dyn PodServer, args: &[&str]) -> Result<Command> {
        let endpoint = format!("unix://{}", server.socket().display());
        let mut command = server.beside(&self.program)?;
        command
            .args(["--runtime-endpoint", &endpoint])
            .args(["--image-endpoint", &endpoint])
            .args(["--timeout", "60s"])
            .arg("--config")
            .arg(self.folder.join("crictl.yaml"))
            .args(args);
        fs::write(self.folder.join("crictl.yaml"), "")?;
        Ok(command)
    }

    /// Runs `crictl` to its end.
    pub fn crictl(&self, server: &dyn PodServer, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.command(server, args)?, LIMIT)
    }

    /// The description of a pod as its containers name it later.
    pub fn pod(&self, name: &str, annotations: &[&str], processes: Processes) -> Result<PathBuf> {
        let parent = self.driver.parent(&self.namespace);
        self.pod_in(&parent, name, annotations, processes)
    }

    /// The same in a user namespace.
    ///
    /// # Errors
    /// The description cannot be written.
    pub fn pod_of_users(&self, name: &str, annotations: &[&str], users: Users) -> Result<PathBuf> {
        let parent = self.driver.parent(&self.namespace);
        self.describe(&parent, name, annotations, (Processes::default(), users))
    }

    /// The same below a control group that a kubelet would have made for the pod.
    ///
    /// # Errors
    /// The description cannot be written.
    pub fn pod_in(
        &self,
        group: &str,
        name: &str,
        annotations: &[&str],
        processes: Processes,
    ) -> Result<PathBuf> {
        self.describe(group, name, annotations, (processes, Users::default()))
    }

    fn describe(
        &self,
        group: &str,
        name: &str,
        annotations: &[&str],
        (processes, users): (Processes, Users),
    ) -> Result<PathBuf> {
        let annotations: serde_json::Map<String, Value> = pairs(annotations)?
            .into_iter()
            .map(|(key, value)| (key, Value::String(value)))
            .collect();
        let path = self.folder.join(format!("{name}.json"));
        let pod = json!({
            "metadata": {"name": name, "namespace": self.namespace, "uid": name, "attempt": 0},
            "hostname": name,
            "log_directory": self.logs(name),
            "annotations": annotations,
            // As a kubelet labels them; CRI-O tells the runtime a container's name in no other way.
            "labels": {
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": self.namespace,
                "io.kubernetes.pod.uid": name,
            },
            "dns_config": {},
            "linux": {
                "cgroup_parent": group,
                "security_context": {"namespace_options": namespaces(processes, users)},
            },
        });
        fs::write(&path, serde_json::to_vec_pretty(&pod)?)?;
        Ok(path)
    }

    /// The folder with the logs of a pod's containers.
    pub fn logs(&self, pod: &str) -> PathBuf {
        self.folder.join(format!("{pod}.logs"))
    }

    /// Starts a pod's sandbox under a runtime handler: its identity.
    pub fn run_pod(&self, server: &dyn PodServer, pod: &Path, handler: &str) -> Result<String> {
        let pod = pod.to_string_lossy();
        let reply = self
            .crictl(server, &["runp", "--runtime", handler, &pod])?
            .success()?;
        Ok(reply.stdout.trim().to_owned())
    }

    /// Creates and starts a container in a pod: its identity.
    pub fn run_container(
        &self,
        server: &dyn PodServer,
        sandbox: &str,
        pod: &Path,
        image: &str,
        container: &PodContainer<'_>,
    ) -> Result<String> {
        let environment: Vec<Value> = pairs(container.environment)?
            .into_iter()
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let annotations: serde_json::Map<String, Value> = pairs(container.annotations)?
            .into_iter()
            .map(|(key, value)| (key, Value::String(value)))
            .collect();
        let mut description = json!({
            "metadata": {"name": container.name, "attempt": 0},
            "image": {"image": image},
            "command": container.program,
            "envs": environment,
            "CDI_devices": container.devices.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            "annotations": annotations,
            "labels": {"io.kubernetes.container.name": container.name},
            "log_path": format!("{}.log", container.name),
            "linux": {"security_context": {
                "namespace_options": namespaces(container.processes, container.users),
                "masked_paths": MASKED,
                "readonly_paths": READ_ONLY,
            }},
        });
        if let Some(bytes) = container.memory_bytes {
            description["linux"]["resources"] =
                json!({"memory_limit_in_bytes": bytes, "memory_swap_limit_in_bytes": bytes});
        }
        let path = self
            .folder
            .join(format!("{}.{}.json", &sandbox[..12], container.name));
        fs::write(&path, serde_json::to_vec_pretty(&description)?)?;
        let (pod, path) = (pod.to_string_lossy(), path.to_string_lossy());
        let created = self
            .crictl(server, &["create", "--no-pull", sandbox, &path, &pod])?
            .success()?;
        let id = created.stdout.trim().to_owned();
        self.crictl(server, &["start", &id])?.success()?;
        Ok(id)
    }

    /// What the engine tells of a container.
    pub fn inspect(&self, server: &dyn PodServer, id: &str) -> Result<Value> {
        self.crictl(server, &["inspect", "-o", "json", id])?
            .success()?
            .json()
    }

    /// What the engine tells of a pod's sandbox.
    pub fn inspect_pod(&self, server: &dyn PodServer, id: &str) -> Result<Value> {
        self.crictl(server, &["inspectp", "-o", "json", id])?
            .success()?
            .json()
    }

    /// Kills every container, or those of one pod. CRI-O gives a program that does not mind SIGTERM all the time that its caller has.
    pub fn kill_all(&self, server: &dyn PodServer, pod: Option<&str>) -> Result<()> {
        let mut list = vec!["ps", "-q"];
        list.extend(pod.iter().flat_map(|pod| ["--pod", pod]));
        let listed = self.crictl(server, &list)?.success()?.stdout;
        let mut stop = vec!["stop", "--timeout", "0"];
        stop.extend(listed.lines());
        if !listed.trim().is_empty() {
            self.crictl(server, &stop)?.success()?;
        }
        Ok(())
    }

    /// Stops and removes every pod.
    pub fn remove_all(&self, server: &dyn PodServer) -> Result<()> {
        self.kill_all(server, None)?;
        let listed = self.crictl(server, &["pods", "-q"])?.success()?;
        for pod in listed.stdout.lines() {
            self.crictl(server, &["stopp", pod])?.success()?;
            self.crictl(server, &["rmp", "-f", pod])?.success()?;
        }
        Ok(())
    }
}
