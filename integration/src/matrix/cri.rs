//! CRI of containerd or CRI-O by crictl: every container in a pod of its own, as most pods are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{LIMIT, Outcome, in_terminal, wait_until};
use crate::containerd::Containerd;
use crate::crictl::{Crictl, NAMESPACE, PodContainer, PodServer, Processes};
use crate::crio::{self, Crio};
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::podman::Release;
use crate::pods::PodsSetup;
use crate::programs::Programs;
use crate::rig::TWO_CARDS;

use super::engine::{Container, Engine, Lacks, Restarts, Usage, reported_code};

/// Where shims keep runc's state of everything that CRI makes.
const RUNC_STATE: &str = "/run/containerd/runc";

/// One engine that serves pods.
#[derive(Debug)]
pub struct Cri {
    /// crictl.
    pub(super) crictl: Crictl,
    /// The engine.
    pub(super) server: Box<dyn PodServer>,
    /// Where its OCI runtime keeps the state of containers, a folder each.
    runtime_state: PathBuf,
    pub(super) handler: &'static str,
    image: Image,
    title: String,
    /// containerd's version; absent for CRI-O.
    containerd: Option<(u32, u32)>,
    reads_on: bool,
    /// Whether the sandbox of a pod that shares its processes is one of which the kernel kills last.
    spares_sandboxes: bool,
    made: Mutex<BTreeMap<String, Made>>,
    all: Mutex<Vec<String>>,
    node: Node,
}

/// A pod with its one container.
#[derive(Debug, Clone)]
struct Made {
    sandbox: String,
    container: String,
    log: PathBuf,
}

impl Cri {
    /// Starts it; pods are started under `handler`.
    pub(super) fn start(
        programs: &Programs,
        engines: &Engines,
        handler: &'static str,
        below: String,
    ) -> Result<Self> {
        let node = Node::simulated(programs, engines, TWO_CARDS)?;
        let setup = PodsSetup::new(&node, engines)?;
        let (pause, image) = (setup.pause.clone(), image::busybox(Some(programs))?);
        let crictl = Crictl::new(&node)?;
        let containerd = Containerd::start_for_pods(&node, engines, setup)?;
        for image in [&pause, &image] {
            containerd.import_into(NAMESPACE, image)?;
        }
        let cri = Self {
            crictl,
            server: Box::new(containerd),
            runtime_state: Path::new(RUNC_STATE).join(NAMESPACE),
            handler,
            image,
            title: below,
            // CRI of 1.6 stops reading at the end of the task, and loses on a busy machine what it has not read by then; under
            // containerd's own shim as well.
            reads_on: engines.containerd_version()? >= (1, 7),
            containerd: Some(engines.containerd_version()?),
            // It is told not to.
            spares_sandboxes: false,
            made: Mutex::default(),
            all: Mutex::default(),
            node,
        };
        cri.has_images(&pause)?;
        Ok(cri)
    }

    /// Starts CRI-O, whose pods are under our wrapper.
    pub(super) fn start_crio(
        programs: &Programs,
        engines: &Engines,
        release: &Release,
        title: String,
    ) -> Result<Self> {
        let node = Node::simulated(programs, engines, TWO_CARDS)?;
        let setup = PodsSetup::new(&node, engines)?;
        let (pause, image) = (setup.pause.clone(), image::busybox(Some(programs))?);
        let crictl = Crictl::new(&node)?.with_cgroupfs();
        let crio = Crio::start(&node, engines, release, setup, &image)?;
        let cri = Self {
            crictl,
            runtime_state: crio.runtime_state(),
            server: Box::new(crio),
            handler: crio::HANDLER,
            image,
            title,
            reads_on: true,
            containerd: None,
            spares_sandboxes: true,
            made: Mutex::default(),
            all: Mutex::default(),
            node,
        };
        cri.has_images(&pause)?;
        Ok(cri)
    }

    /// containerd's CRI hears of imported images by events.
    fn has_images(&self, pause: &Image) -> Result<()> {
        wait_until("the images", LIMIT, || {
            let reply = self.reported(&["images", "-o", "json"])?;
            Ok([pause, &self.image]
                .iter()
                .all(|image| reply.contains(&image.name)))
        })
    }

    pub(super) fn reported(&self, args: &[&str]) -> Result<String> {
        let reply = self.crictl.crictl(self.server.as_ref(), args)?.success()?;
        Ok(reply.stdout.trim().to_owned())
    }

    /// Starts a pod's sandbox.
    pub(super) fn pod(&self, name: &str, annotations: &[&str]) -> Result<Pod<'_>> {
        self.pod_with(name, annotations, Processes::OfTheContainer)
    }

    /// The same with the choice of whose processes its containers see.
    pub(super) fn pod_with(
        &self,
        name: &str,
        annotations: &[&str],
        processes: Processes,
    ) -> Result<Pod<'_>> {
        if self.spares_sandboxes && processes == Processes::OfThePod && !may_lower_oom_score()? {
            let reason = "CRI-O lowers the OOM score of such a sandbox, for which this machine lacks CAP_SYS_RESOURCE";
            return Err(Lacks(reason).into());
        }
        self.pod_under(self.handler, name, annotations, processes)
    }

    fn pod_under(
        &self,
        handler: &str,
        name: &str,
        annotations: &[&str],
        processes: Processes,
    ) -> Result<Pod<'_>> {
        let description = self.crictl.pod(name, annotations, processes)?;
        let sandbox = self
            .crictl
            .run_pod(self.server.as_ref(), &description, handler)?;
        self.remember(&sandbox);
        Ok(Pod {
            cri: self,
            name: name.to_owned(),
            description,
            processes,
            sandbox,
        })
    }

    /// A pod under the engine's own runtime.
    pub(super) fn pod_of_runc(&self, name: &str) -> Result<Pod<'_>> {
        self.pod_under("runc", name, &[], Processes::OfTheContainer)
    }

    pub(super) fn is_crio(&self) -> bool {
        self.containerd.is_none()
    }

    /// Whether CDI devices reach a container: CRI-O's do, and containerd's from 2.0 on, where it is on by default.
    pub(super) fn has_cdi(&self) -> bool {
        self.containerd.is_none_or(|version| version >= (2, 0))
    }

    fn remember(&self, id: &str) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(id.to_owned());
    }

    fn made(&self, name: &str) -> Result<Made> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.get(name)
            .cloned()
            .with_context(|| format!("no container {name}"))
    }

    /// What the engine tells of the state of a container.
    pub(super) fn status(&self, id: &str) -> Result<Value> {
        Ok(self.crictl.inspect(self.server.as_ref(), id)?["status"].take())
    }

    /// Waits for the end of a container: its exit code and the reason that is told.
    pub(super) fn end(&self, id: &str) -> Result<(i32, String)> {
        let mut status = Value::Null;
        wait_until("the end of the program", LIMIT, || {
            status = self.status(id)?;
            Ok(status["state"] == "CONTAINER_EXITED")
        })?;
        // Protobuf's JSON leaves a zero out.
        let code = status["exitCode"].as_i64().unwrap_or_default();
        let reason = status["reason"].as_str().unwrap_or_default();
        Ok((i32::try_from(code)?, reason.to_owned()))
    }

    /// Runs a program in a container through the streaming server.
    pub(super) fn exec_in(&self, id: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", id];
        args.extend(program);
        let reply = self.crictl.crictl(self.server.as_ref(), &args)?;
        Ok(reported_code(reply))
    }

    /// The same in one call. crictl says what the program printed only where it ended with 0.
    pub(super) fn exec_sync(&self, id: &str, program: &[&str]) -> Result<Outcome> {
        let mut args = vec!["exec", "-s", id];
        args.extend(program);
        let reply = self.crictl.crictl(self.server.as_ref(), &args)?;
        Ok(reported_code(reply))
    }

    fn create(&self, container: &Container<'_>) -> Result<Made> {
        if container.restarts != Restarts::Never {
            return Err(Lacks("restarts are the kubelet's").into());
        }
        if container.health.is_some() {
            return Err(Lacks("probes are the kubelet's").into());
        }
        let ask = container.ask.amount();
        let ask = ask.map(|amount| format!("cgpu.io/memory={amount}"));
        let ask: Vec<&str> = ask.iter().map(String::as_str).collect();
        let pod = self.pod(container.name, &ask)?;
        let id = pod.run(&PodContainer {
            name: "main",
            memory_bytes: container.memory_bytes,
            program: container.program,
            ..PodContainer::default()
        })?;
        let made = Made {
            sandbox: pod.sandbox.clone(),
            container: id,
            log: self.crictl.logs(container.name).join("main.log"),
        };
        let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(container.name.to_owned(), made.clone());
        Ok(made)
    }
}

/// Whether this process has CAP_SYS_RESOURCE.
fn may_lower_oom_score() -> Result<bool> {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("no CapEff in /proc/self/status")?;
    Ok(u64::from_str_radix(effective.trim(), 16)? >> CAP_SYS_RESOURCE & 1 == 1)
}

/// A sandbox, to start containers in.
pub(super) struct Pod<'a> {
    cri: &'a Cri,
    name: String,
    description: PathBuf,
    processes: Processes,
    pub(super) sandbox: String,
}

impl Pod<'_> {
    /// Starts a container in it: its identity.
    pub(super) fn run(&self, container: &PodContainer<'_>) -> Result<String> {
        let id = self.cri.crictl.run_container(
            self.cri.server.as_ref(),
            &self.sandbox,
            &self.description,
            &self.cri.image.name,
            &PodContainer {
                processes: self.processes,
                ..*container
            },
        )?;
        self.cri.remember(&id);
        Ok(id)
    }

    /// What a container of it has printed.
    pub(super) fn log(&self, container: &str) -> Result<String> {
        reply_in(
            &self
                .cri
                .crictl
                .logs(&self.name)
                .join(format!("{container}.log")),
        )
    }

    /// Kills its containers and removes it.
    pub(super) fn remove(self) -> Result<()> {
        let Cri { crictl, server, .. } = self.cri;
        crictl.kill_all(server.as_ref(), Some(&self.sandbox))?;
        self.stop_and_remove()
    }

    /// Stops it, with whatever runs in it, and removes it.
    pub(super) fn stop_and_remove(self) -> Result<()> {
        self.cri.reported(&["stopp", &self.sandbox])?;
        self.cri.reported(&["rmp", &self.sandbox])?;
        Ok(())
    }
}

/// What a program has said, from a log as CRI writes it: time, stream, `F` or `P`, text.
fn reply_in(log: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
    let mut reply = String::new();
    for line in text.lines() {
        let mut parts = line.splitn(4, ' ');
        let (tag, text) = (parts.nth(2), parts.next());
        reply.push_str(text.unwrap_or_default());
        if tag == Some("F") {
            reply.push('\n');
        }
    }
    Ok(reply)
}

impl Engine for Cri {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn daemons(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn once(&self, container: &Container<'_>) -> Result<Outcome> {
        let made = match self.create(container) {
            Ok(made) => made,
            Err(error) if error.is::<Lacks>() => return Err(error),
            Err(error) => {
                return Ok(Outcome {
                    line: format!("a pod that runs {:?}", container.program),
                    code: Some(1),
                    stdout: String::new(),
                    stderr: format!("{error:#}"),
                    took: std::time::Duration::ZERO,
                });
            }
        };
        let (code, _) = self.end(&made.container)?;
        let stdout = reply_in(&made.log)?;
        self.remove(container.name)?;
        Ok(Outcome {
            line: format!("a pod that runs {:?}", container.program),
            code: Some(code),
            stdout,
            stderr: String::new(),
            took: std::time::Duration::ZERO,
        })
    }

    fn start(&self, container: &Container<'_>) -> Result<()> {
        self.create(container).map(drop)
    }

    fn exec(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        self.exec_in(&self.made(name)?.container, program)
    }

    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let id = self.made(name)?.container;
        let mut args = vec!["exec", "-i", "-t", &id];
        args.extend(program);
        let mut command = self.crictl.command(self.server.as_ref(), &args)?;
        Ok(reported_code(in_terminal(&mut command, 123, 45, LIMIT)?))
    }

    fn logs(&self, name: &str) -> Result<String> {
        reply_in(&self.made(name)?.log)
    }

    fn usage(&self, name: &str) -> Result<Usage> {
        let id = self.made(name)?.container;
        let mut used = None;
        // The engine gathers them every ten seconds at first.
        wait_until("statistics", LIMIT, || {
            let reply: Value =
                serde_json::from_str(&self.reported(&["stats", "-a", "-o", "json", "--id", &id])?)?;
            let value = &reply["stats"][0]["memory"]["workingSetBytes"]["value"];
            used = value.as_str().and_then(|text| text.parse::<u64>().ok());
            Ok(used.is_some_and(|used| used > 0))
        })?;
        let limit = &self.status(&id)?["resources"]["linux"]["memoryLimitInBytes"];
        Ok(Usage {
            memory_bytes: used.context("statistics")?,
            limit_bytes: limit.as_str().and_then(|text| text.parse().ok()),
        })
    }

    fn set_memory(&self, name: &str, bytes: u64) -> Result<()> {
        let bytes = bytes.to_string();
        let id = self.made(name)?.container;
        self.reported(&["update", "--memory", &bytes, &id])
            .map(drop)
    }

    fn end_of(&self, name: &str) -> Result<i32> {
        Ok(self.end(&self.made(name)?.container)?.0)
    }

    fn runs(&self, name: &str) -> Result<bool> {
        Ok(self.status(&self.made(name)?.container)?["state"] == "CONTAINER_RUNNING")
    }

    fn oom_killed(&self, name: &str) -> Result<bool> {
        Ok(self.end(&self.made(name)?.container)?.1 == "OOMKilled")
    }

    fn remove(&self, name: &str) -> Result<()> {
        let sandbox = self.made(name)?.sandbox;
        self.crictl.kill_all(self.server.as_ref(), Some(&sandbox))?;
        self.reported(&["stopp", &sandbox])?;
        self.reported(&["rmp", &sandbox])?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.remove(name);
        Ok(())
    }

    fn remove_all(&self) -> Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.clear();
        self.crictl.remove_all(self.server.as_ref())
    }

    fn crash_and_restart(&mut self) -> Result<()> {
        self.server.kill()?;
        self.server.restart()?;
        wait_until("CRI", LIMIT, || {
            Ok(self
                .crictl
                .crictl(self.server.as_ref(), &["pods"])?
                .succeeded())
        })
    }

    fn reads_on_after_the_end(&self) -> bool {
        self.reads_on
    }

    fn pods(&mut self) -> Result<&mut Cri> {
        Ok(self)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self {
            mut server,
            runtime_state,
            all,
            node,
            ..
        } = *self;
        server.stop()?;
        drop(server);
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        let left: Vec<String> = all
            .iter()
            .map(|id| runtime_state.join(id))
            .filter(|path| path.exists())
            .map(|path| path.display().to_string())
            .collect();
        node.finish()?;
        if !left.is_empty() {
            bail!("runc's state of pods: {}", left.join(" "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_cri_is_what_the_program_reported() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("c.log");
        let text = "2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:00Z stdout F line\n2026-01-01T00:00:00Z stderr F two\n";
        std::fs::write(&log, text).unwrap();
        assert_eq!(reply_in(&log).unwrap(), "one line\ntwo\n");
    }
}
