//! dockerd by `docker`.

use std::process::Command;

use anyhow::Result;

use crate::command::{LIMIT, Outcome, capture, wait_until};
use crate::docker::{Docker, LiveRestore, Settings};
use crate::engines::Engines;
use crate::node::Node;
use crate::programs::Programs;
use crate::rig::Rig;

use super::client::{ByClient, Client};

/// One dockerd on a containerd of its own.
pub(super) struct DockerRow {
    docker: Docker,
    rig: Rig,
    runtime: &'static str,
    title: String,
}

impl DockerRow {
    /// Starts both; `runtime` is what `--runtime` is given.
    pub(super) fn start(
        programs: &Programs,
        engines: &Engines,
        runtime: &'static str,
        title: String,
    ) -> Result<ByClient<Self>> {
        let rig = Rig::start(programs, engines)?;
        let settings = Settings {
            live_restore: LiveRestore::On,
            ..Settings::default()
        };
        let docker = Docker::start_with(&rig.node, &rig.containerd, &settings)?;
        docker.load(&rig.image)?;
        Ok(ByClient(Self {
            docker,
            rig,
            runtime,
            title,
        }))
    }
}

impl Client for DockerRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.rig.node
    }

    fn daemons(&self) -> Vec<u32> {
        let both = [self.rig.containerd.pid(), self.docker.pid()];
        both.into_iter().flatten().collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        self.docker.command(args)
    }

    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let runtime = ["run", "--network=none", "--runtime", self.runtime];
        let args = [&runtime, options, &[&self.rig.image.name], program].concat();
        self.docker.docker(&args)
    }

    fn amount(&self, amount: &str) -> Vec<String> {
        // --annotation came with docker 24.
        if self.docker.version() >= (24, 0) {
            return vec!["--annotation".into(), format!("cgpu.io/memory={amount}")];
        }
        let gib = amount.trim_end_matches("Gi");
        vec![
            "-e".into(),
            format!("ALIYUN_COM_GPU_MEM_CONTAINER={gib}"),
            "-e".into(),
            "ALIYUN_COM_GPU_MEM_DEV=24".into(),
        ]
    }

    fn health_check(&self, command: &str) -> Result<Vec<String>> {
        Ok(vec![
            format!("--health-cmd={command}"),
            "--health-interval=1s".into(),
            "--health-retries=1".into(),
        ])
    }

    fn healthy(&self, name: &str) -> Result<bool> {
        let mut judged = String::new();
        wait_until("a judgement", LIMIT, || {
            let args = ["inspect", "-f", "{{.State.Health.Status}}", name];
            let reply = capture(&mut self.docker.command(&args), LIMIT)?.success()?;
            reply.stdout.trim().clone_into(&mut judged);
            Ok(judged != "starting")
        })?;
        Ok(judged == "healthy")
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        // Both, as a machine's engine that is upgraded by force: docker's containerd goes first.
        self.rig.containerd.kill()?;
        self.rig.containerd.restart()?;
        self.docker.crash_and_restart()
    }

    fn stop_and_start(&mut self) -> Result<()> {
        self.docker.stop_and_start()
    }

    fn finish(self) -> Result<()> {
        let mut docker = self.docker;
        docker.stop()?;
        drop(docker);
        self.rig.finish()
    }
}
