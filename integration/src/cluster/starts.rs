//! When each step of a pod's start was reached.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Kubectl, KubeletNode};
use crate::command::{LIMIT, succeed, wait_until};

/// The steps of a pod's start, each as the time since the moment before its creation.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// The scheduler has named its node, as a watch has it.
    pub bound: Duration,
    /// The engine has begun its sandbox; what the pod claims was prepared before.
    pub sandbox: Duration,
    /// The engine has its container.
    pub created: Duration,
    /// The container's program has started.
    pub started: Duration,
}

/// Watches which pods have a node, with the time of each.
#[derive(Debug)]
pub struct Bindings {
    watch: Child,
    seen: Arc<Mutex<BTreeMap<String, SystemTime>>>,
}

impl Bindings {
    /// Watches from now on.
    ///
    /// # Errors
    /// `kubectl` cannot be started.
    pub fn watch(kubectl: &Kubectl) -> Result<Self> {
        let pods = [
            "get",
            "pods",
            "--watch",
            "-o",
            r#"jsonpath={.metadata.name} {.spec.nodeName}{"\n"}"#,
        ];
        let mut command = kubectl.command(&pods)?;
        let mut watch = command
            .stdout(Stdio::piped())
            .spawn()
            .context("start a watch")?;
        let lines = BufReader::new(watch.stdout.take().context("its output")?).lines();
        let seen: Arc<Mutex<BTreeMap<String, SystemTime>>> = Arc::default();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for line in lines.map_while(std::io::Result::ok) {
                let now = SystemTime::now();
                if let Some((pod, node)) = line.split_once(' ')
                    && !node.is_empty()
                {
                    let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.entry(pod.to_owned()).or_insert(now);
                }
            }
        });
        Ok(Self { watch, seen })
    }

    fn of(&self, pod: &str) -> Option<SystemTime> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(pod).copied()
    }

    /// The steps of the start of a pod that runs, and was created after `began`.
    ///
    /// # Errors
    /// The engine does not know its container, or the watch has not seen it.
    pub fn steps(&self, node: &KubeletNode, pod: &Value, began: SystemTime) -> Result<Steps> {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
        let id = id.and_then(|id| id.rsplit('/').next()).context("an id")?;
        let (rig, engine) = (&node.rig, node.rig.engine.as_ref());
        let container = rig.crictl.inspect(engine, id)?;
        let sandbox = container["info"]["sandboxID"].as_str();
        let sandbox = rig
            .crictl
            .inspect_pod(engine, sandbox.context("a sandbox")?)?;
        let since = |time: SystemTime| {
            let since = time.duration_since(began);
            since.with_context(|| format!("{name} has a step before its creation"))
        };
        let of_engine = |object: &Value, key: &str| {
            let text = object["status"][key].as_str();
            since(time_of(text.with_context(|| format!("no {key}"))?)?)
        };
        wait_until("a node in the watch", LIMIT, || Ok(self.of(name).is_some()))?;
        Ok(Steps {
            bound: since(self.of(name).context("a node")?)?,
            sandbox: of_engine(&sandbox, "createdAt")?,
            created: of_engine(&container, "createdAt")?,
            started: of_engine(&container, "startedAt")?,
        })
    }
}

impl Drop for Bindings {
    fn drop(&mut self) {
        // It may have ended with its server.
        drop(self.watch.kill());
        drop(self.watch.wait());
    }
}

/// A time as engines write it: RFC 3339, to the nanosecond.
fn time_of(text: &str) -> Result<SystemTime> {
    let mut date = Command::new("date");
    let ns = succeed(date.args(["+%s%N", "--date", text]))?.stdout;
    Ok(UNIX_EPOCH + Duration::from_nanos(ns.trim().parse()?))
}
