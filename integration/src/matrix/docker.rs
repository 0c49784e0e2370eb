//! dockerd by `docker`.

use anyhow::{Context, Result};

use crate::command::{LIMIT, Outcome, in_terminal, wait_until};
use crate::docker::{Docker, LiveRestore};
use crate::engines::Engines;
use crate::node::Node;
use crate::programs::Programs;
use crate::rig::Rig;

use super::engine::{Container, Engine, Restarts, Usage};

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
    ) -> Result<Self> {
        let rig = Rig::start(programs, engines)?;
        let docker = Docker::start_with(&rig.node, &rig.containerd, LiveRestore::On)?;
        docker.load(&rig.image)?;
        Ok(Self {
            docker,
            rig,
            runtime,
            title,
        })
    }

    fn run(&self, how: &[&str], container: &Container<'_>) -> Result<Outcome> {
        let mut args: Vec<String> = ["run", "--network=none", "--name", container.name]
            .map(str::to_owned)
            .to_vec();
        args.extend(["--runtime".into(), self.runtime.into()]);
        args.extend(how.iter().map(|&argument| argument.to_owned()));
        if let Some(amount) = container.ask.amount() {
            // --annotation came with docker 24.
            if self.docker.version() >= (24, 0) {
                args.extend(["--annotation".into(), format!("cgpu.io/memory={amount}")]);
            } else {
                args.extend([
                    "-e".into(),
                    format!(
                        "ALIYUN_COM_GPU_MEM_CONTAINER={}",
                        amount.trim_end_matches("Gi")
                    ),
                    "-e".into(),
                    "ALIYUN_COM_GPU_MEM_DEV=24".into(),
                ]);
            }
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
        if let Some(command) = container.health {
            args.extend([
                format!("--health-cmd={command}"),
                "--health-interval=1s".into(),
                "--health-retries=1".into(),
            ]);
        }
        args.push(self.rig.image.name.clone());
        args.extend(
            container
                .program
                .iter()
                .map(|&argument| argument.to_owned()),
        );
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.docker.docker(&args)
    }

    fn reported(&self, args: &[&str]) -> Result<String> {
        let reply = self.docker.docker(args)?.success()?.stdout;
        Ok(reply.trim().to_owned())
    }

    fn inspect(&self, name: &str, what: &str) -> Result<String> {
        self.reported(&["inspect", "-f", what, name])
    }
}

/// Bytes of a size as `docker stats` writes it: `780KiB`.
pub(super) fn bytes_of(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: f64 = match unit.trim() {
        "B" | "" => 1.0,
        "kB" | "KB" => 1000.0,
        "KiB" => 1024.0,
        "MB" => 1e6,
        "MiB" => 1_048_576.0,
        "GB" => 1e9,
        "GiB" => 1_073_741_824.0,
        other => anyhow::bail!("no unit of bytes: {other:?} in {text:?}"),
    };
    let number: f64 = number
        .parse()
        .with_context(|| format!("no size: {text:?}"))?;
    // Whole bytes are far more than such a text says.
    let bytes = (number * factor).round();
    format!("{bytes:.0}")
        .parse()
        .with_context(|| format!("no size: {text:?}"))
}

/// `780KiB / 64MiB`, where a container without a limit has 0 or the machine's memory for one.
pub(super) fn usage_of(text: &str) -> Result<Usage> {
    let (used, limit) = text
        .split_once('/')
        .with_context(|| format!("no usage and limit in {text:?}"))?;
    Ok(Usage {
        memory_bytes: bytes_of(used)?,
        limit_bytes: Some(bytes_of(limit)?),
    })
}

impl Engine for DockerRow {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.rig.node
    }

    fn daemons(&self) -> Vec<u32> {
        [self.rig.containerd.pid(), self.docker.pid()]
            .into_iter()
            .flatten()
            .collect()
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
        self.docker.docker(&args)
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", "-it", name];
        args.extend(program);
        in_terminal(&mut self.docker.command(&args), 123, 45, LIMIT)
    }

    fn logs(&self, name: &str) -> Result<String> {
        let reply = self.docker.docker(&["logs", name])?.success()?;
        Ok(format!("{}{}", reply.stdout, reply.stderr))
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        usage_of(&self.reported(&["stats", "--no-stream", "--format", "{{.MemUsage}}", name])?)
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
        self.end_of(name)?;
        Ok(self.inspect(name, "{{.State.OOMKilled}}")? == "true")
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

    fn healthy(&self, name: &str) -> Result<bool> {
        let mut judged = String::new();
        wait_until("a judgement", LIMIT, || {
            judged = self.inspect(name, "{{.State.Health.Status}}")?;
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

    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        Some((127, 126))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut docker = self.docker;
        docker.stop()?;
        drop(docker);
        self.rig.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_docker_stats_are_read() {
        for (text, bytes) in [
            ("780KiB", 798_720),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("0B", 0),
        ] {
            assert_eq!(bytes_of(text).unwrap(), bytes, "{text}");
        }
        bytes_of("7parsec").unwrap_err();
        let usage = usage_of("1MiB / 2MiB").unwrap();
        assert_eq!(
            (usage.memory_bytes, usage.limit_bytes),
            (1 << 20, Some(2 << 20))
        );
    }
}
