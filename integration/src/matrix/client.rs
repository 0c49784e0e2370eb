//! Engines whose client speaks docker's command line: docker, nerdctl and podman.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{LIMIT, Outcome, capture, in_terminal};
use crate::freezer;
use crate::node::Node;

use super::engine::{Container, Engine, Lacks, Restarts, Usage};

/// Where the clients differ.
pub(super) trait Client: Sync {
    /// The engine, its version and the OCI runtime's.
    fn title(&self) -> String;

    /// The node below it.
    fn node(&self) -> &Node;

    /// Process ids of its daemons.
    fn daemons(&self) -> Vec<u32>;

    /// Its client with these arguments.
    fn command(&self, args: &[&str]) -> Command;

    /// `run` with these options of the container, and the image that the tests use.
    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome>;

    /// SIGKILL to its daemon, and a new one on the same state.
    fn crash_and_restart(&mut self) -> Result<()>;

    /// Ends the engine and the node; fails when anything is left.
    fn finish(self) -> Result<()>;

    /// How a request for memory is written.
    fn amount(&self, amount: &str) -> Vec<String> {
        vec!["--annotation".into(), format!("cgpu.io/memory={amount}")]
    }

    /// Options of a health check, where it has them.
    fn health_check(&self, command: &str) -> Result<Vec<String>>;

    /// Waits for the first judgement of a health check: whether it is well.
    fn healthy(&self, _name: &str) -> Result<bool> {
        Err(Lacks("it has no health checks").into())
    }

    /// The exit code of an exec, where the client does not end with it.
    fn with_code(&self, reply: Outcome) -> Outcome {
        reply
    }

    /// The field of `stats` that has usage and limit, in binary units.
    fn usage_field(&self) -> &'static str {
        "{{.MemUsage}}"
    }

    /// A container's limit of host memory now, where `stats` does not follow it.
    fn limit(&self, _name: &str) -> Option<Result<Option<u64>>> {
        None
    }

    /// Whether `inspect` says that a container is paused.
    fn shows_pause(&self) -> bool {
        true
    }

    /// Why it cannot say that a container was killed for want of memory.
    fn lacks_oom(&self) -> Option<&'static str> {
        None
    }

    /// Options of `rm` that make it wait for nothing.
    fn at_once(&self) -> &'static [&'static str] {
        &["-f"]
    }

    /// As [`Engine::stop_and_start`].
    fn stop_and_start(&mut self) -> Result<()> {
        Err(Lacks("it has no live-restore: see the restart of the engine").into())
    }

    /// As [`Engine::codes_of_no_program`].
    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        Some((127, 126))
    }
}

/// An engine by its client.
pub(super) struct ByClient<C>(pub(super) C);

impl<C: Client> ByClient<C> {
    fn call(&self, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.0.command(args), LIMIT)
    }

    /// What it prints, when it succeeds.
    fn printed(&self, args: &[&str]) -> Result<String> {
        Ok(self.call(args)?.success()?.stdout.trim().to_owned())
    }

    fn inspect(&self, name: &str, what: &str) -> Result<String> {
        self.printed(&["inspect", "-f", what, name])
    }

    fn number<T>(&self, text: &str) -> Result<T>
    where
        T: std::str::FromStr,
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        text.parse().with_context(|| format!("no number: {text:?}"))
    }

    fn run(&self, how: &str, container: &Container<'_>) -> Result<Outcome> {
        let mut options: Vec<String> = vec!["--name".into(), container.name.into(), how.into()];
        if let Some(amount) = container.ask.amount() {
            options.extend(self.0.amount(&amount));
        }
        if let Some(bytes) = container.memory_bytes {
            options.extend(memory(bytes));
        }
        match container.restarts {
            Restarts::Never => {}
            Restarts::OnFailure(times) => options.push(format!("--restart=on-failure:{times}")),
            Restarts::Always => options.push("--restart=always".into()),
        }
        if let Some(command) = container.health {
            options.extend(self.0.health_check(command)?);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.0.run(&options, container.program)
    }
}

/// Memory and swap together: no swap.
fn memory(bytes: u64) -> [String; 2] {
    [
        format!("--memory={bytes}b"),
        format!("--memory-swap={bytes}b"),
    ]
}

impl<C: Client> Engine for ByClient<C> {
    fn title(&self) -> String {
        self.0.title()
    }

    fn node(&self) -> &Node {
        self.0.node()
    }

    fn daemons(&self) -> Vec<u32> {
        self.0.daemons()
    }

    fn once(&self, container: &Container<'_>) -> Result<Outcome> {
        self.run("--rm", container)
    }

    fn start(&self, container: &Container<'_>) -> Result<()> {
        self.run("-d", container)?.success()?;
        Ok(())
    }

    fn exec(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let args = [&["exec", name], program].concat();
        Ok(self.0.with_code(self.call(&args)?))
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let args = [&["exec", "-it", name], program].concat();
        let reply = in_terminal(&mut self.0.command(&args), 123, 45, LIMIT)?;
        Ok(self.0.with_code(reply))
    }

    fn logs(&self, name: &str) -> Result<String> {
        let reply = self.call(&["logs", name])?.success()?;
        Ok(format!("{}{}", reply.stdout, reply.stderr))
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        let field = self.0.usage_field();
        usage_of(&self.printed(&["stats", "--no-stream", "--format", field, name])?)
    }

    fn processes(&self, name: &str) -> Result<String> {
        self.printed(&["top", name])
    }

    fn pause(&self, name: &str) -> Result<()> {
        freezer::pause(|| self.call(&["pause", name]))?;
        if self.0.shows_pause() {
            let state = self.inspect(name, "{{.State.Status}}")?;
            ensure!(state == "paused", "paused, it is {state}");
        }
        Ok(())
    }

    fn resume(&self, name: &str) -> Result<()> {
        self.printed(&["unpause", name]).map(drop)
    }

    fn set_memory(&self, name: &str, bytes: u64) -> Result<()> {
        let [memory, swap] = memory(bytes);
        self.printed(&["update", &memory, &swap, name]).map(drop)
    }

    fn limit(&self, name: &str) -> Result<Option<u64>> {
        match self.0.limit(name) {
            Some(limit) => limit,
            None => Ok(self.usage(name)?.limit_bytes),
        }
    }

    fn signal(&self, name: &str, signal: &str) -> Result<()> {
        self.printed(&["kill", "-s", signal, name]).map(drop)
    }

    fn end_of(&self, name: &str) -> Result<i32> {
        self.number(&self.printed(&["wait", name])?)
    }

    fn runs(&self, name: &str) -> Result<bool> {
        Ok(self.inspect(name, "{{.State.Running}}")? == "true")
    }

    fn oom_killed(&self, name: &str) -> Result<bool> {
        if let Some(why) = self.0.lacks_oom() {
            return Err(Lacks(why).into());
        }
        self.end_of(name)?;
        Ok(self.inspect(name, "{{.State.OOMKilled}}")? == "true")
    }

    fn remove(&self, name: &str) -> Result<()> {
        let args = [&["rm"], self.0.at_once(), &[name]].concat();
        self.printed(&args).map(drop)
    }

    fn remove_all(&self) -> Result<()> {
        for id in self.printed(&["ps", "-aq"])?.lines() {
            self.remove(id)?;
        }
        Ok(())
    }

    fn restart(&self, name: &str) -> Result<()> {
        self.printed(&["restart", "-t", "0", name]).map(drop)
    }

    fn restarted(&self, name: &str) -> Result<u32> {
        self.number(&self.inspect(name, "{{.RestartCount}}")?)
    }

    fn healthy(&self, name: &str) -> Result<bool> {
        self.0.healthy(name)
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        self.0.crash_and_restart()
    }

    fn stop_and_start(&mut self) -> Result<()> {
        self.0.stop_and_start()
    }

    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        self.0.codes_of_no_program()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.finish()
    }
}

/// Bytes of a size as `docker stats` writes it: `780KiB`.
fn bytes_of(text: &str) -> Result<u64> {
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
fn usage_of(text: &str) -> Result<Usage> {
    let (used, limit) = text
        .split_once('/')
        .with_context(|| format!("no usage and limit in {text:?}"))?;
    Ok(Usage {
        memory_bytes: bytes_of(used)?,
        limit_bytes: Some(bytes_of(limit)?),
    })
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
