//! containerd by `ctr`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{LIMIT, Outcome, in_terminal, wait_until};
use crate::containerd::{CGPU, RUNC};
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::node::Node;
use crate::programs::Programs;
use crate::rig::Rig;

use super::engine::{Container, Engine, Lacks, Usage};
use super::rows::Frontend;

/// How long an event may come after the end that it belongs to.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// One containerd and its events.
pub(super) struct Ctr {
    events: Daemon,
    rig: Rig,
    /// Options of `ctr run` that lead to cgpu.
    frontend: Vec<String>,
    title: String,
}

impl Ctr {
    /// Starts it. Under containerd's own shim containers are created by our wrapper, or by runc.
    pub(super) fn start(
        programs: &Programs,
        engines: &Engines,
        frontend: Frontend,
        title: String,
    ) -> Result<Self> {
        let rig = Rig::start(programs, engines)?;
        let shim = match frontend {
            Frontend::Shim | Frontend::ConfiguredShim => CGPU,
            Frontend::Wrapper | Frontend::Hook | Frontend::Plain => RUNC,
        };
        let is_wrapped = matches!(frontend, Frontend::Wrapper | Frontend::Hook);
        let mut frontend = vec!["--runtime".to_owned(), shim.to_owned()];
        if is_wrapped {
            let wrapper = programs.program("cgpu-runtime")?;
            frontend.extend([
                "--runc-binary".to_owned(),
                wrapper.to_string_lossy().into_owned(),
            ]);
        }
        Ok(Self {
            events: events(&rig)?,
            rig,
            frontend,
            title,
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.rig.node.root().join(format!("{name}.out"))
    }

    fn options(&self, container: &Container<'_>) -> Result<Vec<String>> {
        let mut options = self.frontend.clone();
        if let Some(amount) = container.ask.amount() {
            options.extend(["--annotation".into(), format!("cgpu.io/memory={amount}")]);
        }
        if let Some(bytes) = container.memory_bytes {
            options.extend(["--memory-limit".into(), bytes.to_string()]);
        }
        if container.restarts != super::Restarts::Never {
            return Err(Lacks("ctr has no restart policy").into());
        }
        if container.health.is_some() {
            return Err(Lacks("ctr has no health checks").into());
        }
        Ok(options)
    }
}

impl Engine for Ctr {
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
        let options = self.options(container)?;
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.rig
            .containerd
            .run_once(&self.rig.image, container.name, &options, container.program)
    }

    fn start(&self, container: &Container<'_>) -> Result<()> {
        let mut options = self.options(container)?;
        let log = self.log(container.name);
        options.extend(["--log-uri".into(), format!("file://{}", log.display())]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.rig
            .containerd
            .run_detached(&self.rig.image, container.name, &options, container.program)?
            .success()?;
        Ok(())
    }

    fn exec(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        self.rig.containerd.exec(name, program)
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["tasks", "exec", "-t", "--exec-id", "terminal", name];
        args.extend(program);
        let mut command = self.rig.containerd.ctr_command(&args)?;
        in_terminal(&mut command, 123, 45, LIMIT)
    }

    fn logs(&self, name: &str) -> Result<String> {
        let log = self.log(name);
        fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        let metrics = self
            .rig
            .containerd
            .ctr(&["tasks", "metrics", "--format", "json", name])?
            .success()?
            .json()?;
        // cgroup v1 has a group "usage" for both, cgroup v2 a key for each.
        let memory = &metrics["memory"];
        let number = |value: &Value| value.as_u64();
        let (used, limit) = if memory["usage"].is_object() {
            (
                number(&memory["usage"]["usage"]),
                number(&memory["usage"]["limit"]),
            )
        } else {
            (number(&memory["usage"]), number(&memory["usage_limit"]))
        };
        Ok(Usage {
            memory_bytes: used.with_context(|| format!("no memory in {metrics}"))?,
            limit_bytes: limit,
        })
    }

    fn processes(&self, name: &str) -> Result<String> {
        let listed = self
            .rig
            .containerd
            .ctr(&["tasks", "ps", name])?
            .success()?
            .stdout;
        // It tells numbers alone.
        let mut lines = String::new();
        for pid in listed
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
        {
            let reply = fs::read(format!("/proc/{pid}/cmdline"))?;
            lines.push_str(&String::from_utf8_lossy(&reply).replace('\0', " "));
            lines.push('\n');
        }
        Ok(lines)
    }

    fn pause(&self, name: &str) -> Result<()> {
        self.rig.containerd.pause(name)
    }

    fn resume(&self, name: &str) -> Result<()> {
        self.rig
            .containerd
            .ctr(&["tasks", "resume", name])?
            .success()?;
        Ok(())
    }

    fn signal(&self, name: &str, signal: &str) -> Result<()> {
        self.rig
            .containerd
            .ctr(&["tasks", "kill", "-s", signal, name])?
            .success()?;
        Ok(())
    }

    fn end_of(&self, name: &str) -> Result<i32> {
        let listed = || -> Result<String> {
            Ok(self.rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout)
        };
        wait_until("the end of the program", LIMIT, || {
            Ok(listed()?
                .lines()
                .any(|line| line.starts_with(name) && line.contains("STOPPED")))
        })?;
        // The code is told, with a failure of its own, by what removes the task.
        let reply = self.rig.containerd.ctr(&["tasks", "rm", name])?;
        let code = reply
            .stderr
            .split_once("exit code ")
            .map(|(_, code)| code.trim().trim_end_matches('"'));
        match code {
            Some(code) => code
                .split_whitespace()
                .next()
                .and_then(|argument| argument.trim_matches('"').parse().ok())
                .with_context(|| format!("no exit code in {reply:?}")),
            None => {
                reply.success()?;
                Ok(0)
            }
        }
    }

    fn runs(&self, name: &str) -> Result<bool> {
        let listed = self.rig.containerd.ctr(&["tasks", "ls"])?.success()?;
        Ok(listed
            .stdout
            .lines()
            .any(|line| line.starts_with(name) && line.contains("RUNNING")))
    }

    fn oom_killed(&self, name: &str) -> Result<bool> {
        let reported =
            wait_until("the event of the end", EVENT_LIMIT, || {
                Ok(self.events.output().lines().any(|line| {
                    line.contains("/tasks/oom") && line.contains(&format!("\"{name}\""))
                }))
            });
        Ok(reported.is_ok())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.rig.containerd.remove(name)
    }

    fn remove_all(&self) -> Result<()> {
        for name in self.rig.containerd.containers()? {
            self.remove(&name)?;
        }
        Ok(())
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        self.rig.containerd.kill()?;
        self.rig.containerd.restart()?;
        self.events = events(&self.rig)?;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.events);
        self.rig.finish()
    }
}

/// `ctr events`, once it has subscribed.
fn events(rig: &Rig) -> Result<Daemon> {
    let log = rig.node.root().join("events.log");
    let command = rig.containerd.ctr_command(&["events"])?;
    let mut events = Daemon::start("ctr events", &command, &log)?;
    // It says nothing when it has: events are made until one arrives.
    events.wait_ready(LIMIT, || {
        rig.containerd
            .ctr(&["containers", "create", &rig.image.name, "probe"])?
            .success()?;
        rig.containerd
            .ctr(&["containers", "rm", "probe"])?
            .success()?;
        Ok(fs::read_to_string(&log)?.contains("probe"))
    })?;
    Ok(events)
}
