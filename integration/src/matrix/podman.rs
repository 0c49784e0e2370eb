//! podman: no daemon, and no containerd below.

use anyhow::{Context, Result};

use crate::command::{LIMIT, Outcome, in_terminal};
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::podman::{Cgroups, Frontend, Podman, Release};
use crate::programs::Programs;
use crate::rig::TWO_CARDS;

use super::docker::usage_of;
use super::engine::{Container, Engine, Lacks, Restarts, Usage};

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
    ) -> Result<Self> {
        let node = Node::simulated(programs, engines, TWO_CARDS)?;
        let image = image::busybox(Some(programs))?;
        let podman = Podman::start(&node, release, frontend, &engines.runc()?, groups)?;
        podman.load(&image)?;
        let (major, minor) = release.version()?;
        Ok(Self {
            title: format!("podman {major}.{minor}, {below}"),
            podman,
            node,
            image,
            groups,
        })
    }

    fn run(&self, how: &[&str], container: &Container<'_>) -> Result<Outcome> {
        let mut options: Vec<String> = vec!["--name".into(), container.name.into()];
        options.extend(how.iter().map(|&argument| argument.to_owned()));
        if let Some(amount) = container.ask.amount() {
            options.extend(["--annotation".into(), format!("cgpu.io/memory={amount}")]);
        }
        if let Some(bytes) = container.memory_bytes {
            options.extend([
                format!("--memory={bytes}b"),
                format!("--memory-swap={bytes}b"),
            ]);
        }
        match container.restarts {
            Restarts::Never => {}
            Restarts::OnFailure(times) => options.push(format!("--restart=on-failure:{times}")),
            Restarts::Always => options.push("--restart=always".into()),
        }
        if let Some(command) = container.health {
            // By hand: podman has systemd's timers ask, and there is no systemd here.
            options.extend([
                format!("--health-cmd={command}"),
                "--health-interval=disable".into(),
                "--health-retries=1".into(),
            ]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.podman.run(&self.image, &options, container.program)
    }

    fn reported(&self, args: &[&str]) -> Result<String> {
        let reply = self.podman.podman(args)?.success()?.stdout;
        Ok(reply.trim().to_owned())
    }

    fn inspect(&self, name: &str, what: &str) -> Result<String> {
        self.reported(&["inspect", "-f", what, name])
    }
}

impl Engine for PodmanRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn daemons(&self) -> Vec<u32> {
        Vec::new()
    }

    fn once(&self, container: &Container<'_>) -> Result<Outcome> {
        self.run(&["--rm"], container)
    }

    fn start(&self, container: &Container<'_>) -> Result<()> {
        self.run(&["-d"], container)?.success()?;
        Ok(())
    }

    fn exec(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", name];
        args.extend(program);
        self.podman.podman(&args)
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", "-it", name];
        args.extend(program);
        in_terminal(&mut self.podman.command(&args), 123, 45, LIMIT)
    }

    fn logs(&self, name: &str) -> Result<String> {
        let reply = self.podman.podman(&["logs", name])?.success()?;
        Ok(format!("{}{}", reply.stdout, reply.stderr))
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        // `MemUsage` is in decimal units, which a limit is not.
        usage_of(&self.reported(&[
            "stats",
            "--no-stream",
            "--format",
            "{{.MemUsageBytes}}",
            name,
        ])?)
    }

    fn processes(&self, name: &str) -> Result<String> {
        self.reported(&["top", name])
    }

    fn pause(&self, name: &str) -> Result<()> {
        self.reported(&["pause", name])?;
        let state = self.inspect(name, "{{.State.Status}}")?;
        anyhow::ensure!(state == "paused", "paused, it is {state}");
        Ok(())
    }

    fn resume(&self, name: &str) -> Result<()> {
        self.reported(&["unpause", name]).map(drop)
    }

    fn set_memory(&self, name: &str, bytes: u64) -> Result<()> {
        let (memory, swap) = (
            format!("--memory={bytes}b"),
            format!("--memory-swap={bytes}b"),
        );
        self.reported(&["update", &memory, &swap, name]).map(drop)
    }

    fn limit(&self, name: &str) -> Result<Option<u64>> {
        // Its statistics keep telling the limit of the creation, under plain runc as well.
        let script =
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max";
        let reply = self.exec(name, &["sh", "-c", script])?.success()?;
        Ok(reply.stdout.trim().parse().ok())
    }

    fn signal(&self, name: &str, signal: &str) -> Result<()> {
        self.reported(&["kill", "-s", signal, name]).map(drop)
    }

    fn end_of(&self, name: &str) -> Result<i32> {
        let reply = self.reported(&["wait", name])?;
        reply.parse().with_context(|| format!("no code: {reply:?}"))
    }

    fn runs(&self, name: &str) -> Result<bool> {
        Ok(self.inspect(name, "{{.State.Running}}")? == "true")
    }

    fn oom_killed(&self, name: &str) -> Result<bool> {
        if self.groups == Cgroups::Host {
            return Err(Lacks(
                "podman does not tell it on control groups of version 1, under plain runc neither",
            )
            .into());
        }
        self.end_of(name)?;
        Ok(self.inspect(name, "{{.State.OOMKilled}}")? == "true")
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.reported(&["rm", "-f", "-t", "0", name]).map(drop)
    }

    fn remove_all(&self) -> Result<()> {
        self.reported(&["rm", "--all", "-f", "-t", "0"]).map(drop)
    }

    fn restart(&self, name: &str) -> Result<()> {
        self.reported(&["restart", "-t", "0", name]).map(drop)
    }

    fn restarted(&self, name: &str) -> Result<u32> {
        let reply = self.inspect(name, "{{.RestartCount}}")?;
        reply
            .parse()
            .with_context(|| format!("no count: {reply:?}"))
    }

    fn healthy(&self, name: &str) -> Result<bool> {
        Ok(self
            .podman
            .podman(&["healthcheck", "run", name])?
            .succeeded())
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        Err(Lacks("podman has no daemon").into())
    }

    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        Some((127, 126))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut podman = self.podman;
        podman.stop()?;
        drop(podman);
        self.node.finish()
    }
}
