//! The agent of a node with a kubelet, with a token that is bound to that node, and the controllers of a cluster.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::control_plane::ControlPlane;
use super::kubelet::KubeletNode;
use crate::cache::repository;
use crate::claims::cdi_folder;
use crate::daemon::Daemon;
use crate::programs::Programs;

/// A running one. Dropped while it runs, it belongs to a failed test, and prints the end of its log.
#[derive(Debug)]
pub struct NodeAgent {
    daemon: Daemon,
    socket: PathBuf,
}

impl NodeAgent {
    /// Starts it and waits until the kubelet knows it. `pod_uid` is that of the agent's own pod, by which two agents of a node are told apart.
    ///
    /// # Errors
    /// The agent gets no token, does not start, or its node's slice does not come.
    pub fn start(plane: &ControlPlane, worker: &KubeletNode, pod_uid: &str) -> Result<Self> {
        let kubectl = plane.kubectl();
        let name = worker.name();
        let selector = format!("--field-selector=spec.driver=gpu.cgpu.io,spec.nodeName={name}");
        Self::launch(plane, worker, pod_uid, &[], || {
            let slices = kubectl.get(&["resourceslices", &selector])?;
            Ok(slices["items"]
                .as_array()
                .is_some_and(|slices| !slices.is_empty()))
        })
    }

    /// Starts it as the device plugin of a resource, and waits until the node has some of it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_plugin(
        plane: &ControlPlane,
        worker: &KubeletNode,
        pod_uid: &str,
        resource: &str,
    ) -> Result<Self> {
        let kubectl = plane.kubectl();
        let argument = format!("--device-plugin={resource}");
        Self::launch(plane, worker, pod_uid, &[&argument], || {
            let node = kubectl.get(&["node", worker.name()])?;
            let count = node["status"]["allocatable"][resource].as_str();
            Ok(count.is_some_and(|count| count != "0"))
        })
    }

    fn launch(
        plane: &ControlPlane,
        worker: &KubeletNode,
        pod_uid: &str,
        arguments: &[&str],
        is_ready: impl FnMut() -> Result<bool>,
    ) -> Result<Self> {
        let (node, name) = (&worker.rig.node, worker.name());
        let kubectl = plane.kubectl_of("cgpu-agent", Some(name))?;
        let program = node.command("cgpu-agent")?;
        let root = node.root();
        let runtime = root.join("agent");
        std::fs::create_dir_all(&runtime)?;
        let socket = root.join(format!("{pod_uid}.sock"));
        let mut command = plane.network().command(Path::new(program.get_program()))?;
        command
            .arg("--kubernetes")
            .arg(format!("--node-name={name}"))
            .arg(format!("--pod-uid={pod_uid}"))
            .arg(format!("--cdi-dir={}", cdi_folder(node).display()))
            .arg(format!("--kubeconfig={}", kubectl.config().display()))
            .arg(format!("--runtime-dir={}", runtime.display()))
            .arg(format!("--history-dir={}", root.join("history").display()))
            .arg(format!("--listen=unix:{}", socket.display()))
            .args(arguments)
            .env("CGPU_CONFIG", node.config());
        let mut daemon = Daemon::start(
            "cgpu-agent",
            &command,
            &root.join(format!("agent-{pod_uid}.log")),
        )?;
        daemon.wait_ready(Duration::from_secs(60), is_ready)?;
        Ok(Self { daemon, socket })
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.daemon.output()
    }

    /// Its metrics, as text.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metrics(&self) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Memory that is its process' alone, KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn private_kib(&self) -> Result<u64> {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()?))?;
        let lines = rollup.lines().filter(|line| line.starts_with("Private_"));
        let amounts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(amounts.sum())
    }

    /// Its process.
    ///
    /// # Errors
    /// It has ended.
    pub fn pid(&self) -> Result<u32> {
        self.daemon.pid().context("the agent has ended")
    }

    /// SIGKILL, as a crash would be.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.daemon.kill()
    }

    /// Ends it.
    ///
    /// # Errors
    /// It does not end.
    pub fn finish(mut self) -> Result<()> {
        self.daemon.stop(Duration::from_secs(30))?;
        Ok(())
    }
}

/// A controller of the cluster, with a token of its own account.
#[derive(Debug)]
pub struct Controller(Daemon);

impl Controller {
    /// That of classic pods' templates and of namespaces' GPU memory.
    ///
    /// # Errors
    /// It gets no token, or does not start.
    pub fn templates(plane: &ControlPlane) -> Result<Self> {
        Self::start(plane, "cgpu-templates", "--classic-templates")
    }

    /// That which evicts for priority, and its rights.
    ///
    /// # Errors
    /// As [`Self::templates`].
    pub fn preemption(plane: &ControlPlane) -> Result<Self> {
        let rights = repository().join("cluster/policies/preemption/controller.yaml");
        let rights = rights.display().to_string();
        plane.kubectl().run(&["apply", "-f", &rights])?.success()?;
        Self::start(plane, "cgpu-preemption", "--evict-for-priority")
    }

    fn start(plane: &ControlPlane, account: &str, option: &str) -> Result<Self> {
        let kubectl = plane.kubectl_of(account, None)?;
        let program = Programs::for_tests()?.program("cgpu-agent")?;
        let mut command = plane.network().command(&program)?;
        command
            .arg(option)
            .arg(format!("--kubeconfig={}", kubectl.config().display()));
        let log = plane.folder().join(format!("{account}.log"));
        Ok(Self(Daemon::start("cgpu-agent", &command, &log)?))
    }

    /// Ends it.
    ///
    /// # Errors
    /// It does not end.
    pub fn finish(mut self) -> Result<()> {
        self.0.stop(Duration::from_secs(30))?;
        Ok(())
    }
}

impl Drop for NodeAgent {
    fn drop(&mut self) {
        if self.daemon.pid().is_some() {
            eprintln!("--- end of the agent's log\n{}", self.daemon.tail());
        }
    }
}
