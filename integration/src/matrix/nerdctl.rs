//! containerd by nerdctl.

use anyhow::{Context, Result};

use crate::command::{LIMIT, Outcome, in_terminal};
use crate::containerd::CGPU;
use crate::engines::Engines;
use crate::nerdctl::Nerdctl;
use crate::node::Node;
use crate::programs::Programs;
use crate::rig::Rig;

use super::docker::usage_of;
use super::engine::{Container, Engine, Lacks, Restarts, Usage, reported_code};
use super::rows::Frontend;

/// nerdctl on a containerd of its own.
pub(super) struct NerdctlRow {
    nerdctl: Nerdctl,
    rig: Rig,
    runtime: String,
    title: String,
}

impl NerdctlRow {
    /// Starts the containerd. A path as `--runtime` is an OCI runtime below containerd's own shim.
    pub(super) fn start(
        programs: &Programs,
        engines: &Engines,
        frontend: Frontend,
        below: String,
    ) -> Result<Self> {
        let rig = Rig::start(programs, engines)?;
        let nerdctl = Nerdctl::new(&rig.node, &rig.containerd)?;
        let reply = nerdctl.nerdctl(&["--version"])?.success()?.stdout;
        let version = reply.split_whitespace().last().unwrap_or_default();
        let runtime = match frontend {
            Frontend::Shim | Frontend::ConfiguredShim => CGPU.to_owned(),
            Frontend::Wrapper | Frontend::Hook => programs
                .program("cgpu-runtime")?
                .to_string_lossy()
                .into_owned(),
        };
        nerdctl.load(&rig.image)?;
        Ok(Self {
            title: format!("nerdctl {}, {below}", version.trim_start_matches('v')),
            nerdctl,
            rig,
            runtime,
        })
    }

    fn run(&self, how: &[&str], container: &Container<'_>) -> Result<Outcome> {
        let mut args: Vec<String> = ["run", "--network=none", "--name", container.name]
            .map(str::to_owned)
            .to_vec();
        args.extend(["--runtime".into(), self.runtime.clone()]);
        args.extend(how.iter().map(|&argument| argument.to_owned()));
        if let Some(amount) = container.ask.amount() {
            args.extend(["--annotation".into(), format!("cgpu.io/memory={amount}")]);
        }
        if let Some(bytes) = container.memory_bytes {
            args.extend([
                format!("--memory={bytes}b"),
                format!("--memory-swap={bytes}b"),
            ]);
        }
        match container.restarts {
            Restarts::Never => {}
            Restarts::OnFailure(times) => args.push(format!("--restart=on-failure:{times}")),
            Restarts::Always => args.push("--restart=always".into()),
        }
        if container.health.is_some() {
            return Err(Lacks("nerdctl 2.0 has no health checks").into());
        }
        args.push(self.rig.image.name.clone());
        args.extend(
            container
                .program
                .iter()
                .map(|&argument| argument.to_owned()),
        );
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.nerdctl.nerdctl(&args)
    }

    fn reported(&self, args: &[&str]) -> Result<String> {
        let reply = self.nerdctl.nerdctl(args)?.success()?.stdout;
        Ok(reply.trim().to_owned())
    }

    fn inspect(&self, name: &str, what: &str) -> Result<String> {
        self.reported(&["inspect", "-f", what, name])
    }
}

impl Engine for NerdctlRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.rig.node
    }

    fn daemons(&self) -> Vec<u32> {
        self.rig.containerd.pid().into_iter().collect()
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
        Ok(reported_code(self.nerdctl.nerdctl(&args)?))
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", "-it", name];
        args.extend(program);
        let reply = in_terminal(&mut self.nerdctl.command(&args), 123, 45, LIMIT)?;
        Ok(reported_code(reply))
    }

    fn logs(&self, name: &str) -> Result<String> {
        let reply = self.nerdctl.nerdctl(&["logs", name])?.success()?;
        Ok(format!("{}{}", reply.stdout, reply.stderr))
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        usage_of(&self.reported(&["stats", "--no-stream", "--format", "{{.MemUsage}}", name])?)
    }

    fn processes(&self, name: &str) -> Result<String> {
        self.reported(&["top", name])
    }

    fn pause(&self, name: &str) -> Result<()> {
        self.reported(&["pause", name]).map(drop)
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

    fn oom_killed(&self, _name: &str) -> Result<bool> {
        Err(Lacks("nerdctl 2.0 does not tell").into())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.reported(&["rm", "-f", name]).map(drop)
    }

    fn remove_all(&self) -> Result<()> {
        for id in self.reported(&["ps", "-aq"])?.lines() {
            self.remove(id)?;
        }
        Ok(())
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

    fn crash_and_restart(&mut self) -> Result<()> {
        self.rig.containerd.kill()?;
        self.rig.containerd.restart()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.rig.finish()
    }
}
