//! podman: no daemon, and no containerd below.

use std::process::Command;

use anyhow::Result;

use crate::command::Outcome;
use crate::control_groups;
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::podman::{Cgroups, Frontend, Podman, Release};
use crate::programs::Programs;
use crate::rig::TWO_CARDS;

use super::client::{ByClient, Client};
use super::engine::Lacks;

/// podman on a node of its own.
pub(super) struct PodmanRow {
    podman: Podman,
    node: Node,
    image: Image,
    groups: Cgroups,
    title: String,
}

impl PodmanRow {
    /// Configures it; `below` names the OCI runtime.
    pub(super) fn start(
        programs: &Programs,
        engines: &Engines,
        release: &Release,
        frontend: Frontend,
        groups: Cgroups,
        below: String,
    ) -> Result<ByClient<Self>> {
        let node = Node::simulated(programs, engines, TWO_CARDS)?;
        let image = image::busybox(Some(programs))?;
        let podman = Podman::start(&node, release, frontend, &engines.runc()?, groups)?;
        podman.load(&image)?;
        let (major, minor) = release.version()?;
        Ok(ByClient(Self {
            title: format!("podman {major}.{minor}, {below}"),
            podman,
            node,
            image,
            groups,
        }))
    }
}

impl Client for PodmanRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn daemons(&self) -> Vec<u32> {
        Vec::new()
    }

    fn command(&self, args: &[&str]) -> Command {
        self.podman.command(args)
    }

    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome> {
        self.podman.run(&self.image, options, program)
    }

    fn health_check(&self, command: &str) -> Result<Vec<String>> {
        // By hand: podman has systemd's timers ask, and there is no systemd here.
        Ok(vec![
            format!("--health-cmd={command}"),
            "--health-interval=disable".into(),
            "--health-retries=1".into(),
        ])
    }

    fn healthy(&self, name: &str) -> Result<bool> {
        let reply = self.podman.podman(&["healthcheck", "run", name])?;
        Ok(reply.succeeded())
    }

    fn usage_field(&self) -> &'static str {
        // `MemUsage` is in decimal units, which a limit is not.
        "{{.MemUsageBytes}}"
    }

    fn limit(&self, name: &str) -> Option<Result<Option<u64>>> {
        // Its statistics keep the limit of the creation, under plain runc as well.
        let script =
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max";
        let reply = self.podman.podman(&["exec", name, "sh", "-c", script]);
        let limit = reply.and_then(Outcome::success);
        Some(limit.map(|reply| reply.stdout.trim().parse().ok()))
    }

    fn lacks_oom(&self) -> Option<&'static str> {
        let are_unified = self.groups == Cgroups::Unified || control_groups::are_version_2_alone();
        (!are_unified).then_some(
            "podman does not tell it on control groups of version 1, under plain runc neither",
        )
    }

    fn at_once(&self) -> &'static [&'static str] {
        &["-f", "-t", "0"]
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        Err(Lacks("podman has no daemon").into())
    }

    fn finish(self) -> Result<()> {
        let mut podman = self.podman;
        podman.stop()?;
        drop(podman);
        self.node.finish()
    }
}
