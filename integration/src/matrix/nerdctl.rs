//! containerd by nerdctl.

use std::process::Command;

use anyhow::Result;

use crate::command::Outcome;
use crate::containerd::{CGPU, RUNC};
use crate::engines::Engines;
use crate::nerdctl::Nerdctl;
use crate::node::Node;
use crate::programs::Programs;
use crate::rig::Rig;

use super::client::{ByClient, Client};
use super::engine::{Lacks, reported_code};
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
    ) -> Result<ByClient<Self>> {
        let rig = Rig::start(programs, engines)?;
        let nerdctl = Nerdctl::new(&rig.node, &rig.containerd)?;
        let reply = nerdctl.nerdctl(&["--version"])?.success()?.stdout;
        let version = reply.split_whitespace().last().unwrap_or_default();
        let runtime = match frontend {
            Frontend::Shim | Frontend::ConfiguredShim => CGPU.to_owned(),
            Frontend::Plain => RUNC.to_owned(),
            Frontend::Wrapper | Frontend::Hook => programs
                .program("cgpu-runtime")?
                .to_string_lossy()
                .into_owned(),
        };
        nerdctl.load(&rig.image)?;
        Ok(ByClient(Self {
            title: format!("nerdctl {}, {below}", version.trim_start_matches('v')),
            nerdctl,
            rig,
            runtime,
        }))
    }
}

impl Client for NerdctlRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.rig.node
    }

    fn daemons(&self) -> Vec<u32> {
        self.rig.containerd.pid().into_iter().collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        self.nerdctl.command(args)
    }

    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let runtime = ["run", "--network=none", "--runtime", &self.runtime];
        let args = [&runtime, options, &[&self.rig.image.name], program].concat();
        self.nerdctl.nerdctl(&args)
    }

    fn health_check(&self, _command: &str) -> Result<Vec<String>> {
        Err(Lacks("nerdctl 2.0 has no health checks").into())
    }

    fn with_code(&self, reply: Outcome) -> Outcome {
        reported_code(reply)
    }

    fn shows_pause(&self) -> bool {
        false
    }

    fn lacks_oom(&self) -> Option<&'static str> {
        Some("nerdctl 2.0 does not tell")
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        self.rig.containerd.kill()?;
        self.rig.containerd.restart()
    }

    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        None
    }

    fn finish(self) -> Result<()> {
        self.rig.finish()
    }
}
