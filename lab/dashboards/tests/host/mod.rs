//! A host with two simulated cards and containers under load, and its agent. All of it is on loopback and ends with the test.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration::command::succeed;
use integration::daemon::Daemon;
use integration::programs::Programs;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);

/// What is asked of a server on this host, and its answer's body.
pub(crate) fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP")?;
    ensure!(
        head.split(' ').nth(1) == Some("200"),
        "{path}: {head}\n{body}"
    );
    Ok(body.to_owned())
}

/// Ended in this order.
pub(crate) struct Host {
    agent: Daemon,
    /// Where the agent answers.
    pub(crate) agent_address: String,
    containers: Vec<Daemon>,
    _sim: Daemon,
    programs: &'static Programs,
    folder: tempfile::TempDir,
}

impl Host {
    /// With its containers.
    pub(crate) fn start(programs: &'static Programs) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = folder.path();
        let state = at.join("state");
        fs::create_dir(&state)?;
        fs::write(
            at.join("cgpu.toml"),
            format!("state_dir = {state:?}\n[driver]\nkind = \"sim\"\n"),
        )?;
        let mut sim = Command::new(programs.program("cgpu-sim")?);
        sim.args(["--profile", "shares", "--state-dir"]).arg(&state);
        let mut sim = Daemon::start("cgpu-sim", &sim, &at.join("sim.log"))?;
        let log = at.join("sim.log");
        sim.wait_ready(PATIENCE, || {
            Ok(fs::read_to_string(&log)?
                .lines()
                .any(|line| line == "ready"))
        })?;
        let containers = containers(programs, at)?;
        let mut agent = Command::new(programs.program("cgpu-agent")?);
        agent
            .args(["--listen", "127.0.0.1:0", "--runtime-dir"])
            .arg(at.join("agent"))
            .arg("--history-dir")
            .arg(at.join("history"))
            .env("NODE_NAME", "node-1")
            .env("CGPU_CONFIG", at.join("cgpu.toml"));
        let mut agent = Daemon::start("cgpu-agent", &agent, &at.join("agent.log"))?;
        let log = at.join("agent.log");
        let address = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let (_, address) = text.split_once("address=\"")?;
            Some(address.split_once('"')?.0.to_owned())
        };
        agent.wait_ready(PATIENCE, || Ok(address().is_some()))?;
        let agent_address = address().context("the agent's address")?;
        Ok(Self {
            agent,
            agent_address,
            containers,
            _sim: sim,
            programs,
            folder,
        })
    }

    /// The id of the first container, which is in a pod.
    pub(crate) fn first(&self) -> Result<u32> {
        self.containers
            .first()
            .and_then(Daemon::pid)
            .context("it runs")
    }

    /// `cgpu ARGS --json`.
    pub(crate) fn document(&self, command: &str) -> Result<Value> {
        let mut cgpu = Command::new(self.programs.program("cgpu")?);
        cgpu.args([command, "--json"])
            .env("CGPU_CONFIG", self.folder.path().join("cgpu.toml"));
        succeed(&mut cgpu)?.json()
    }

    /// An Xid error of the first container.
    pub(crate) fn xid(&self) -> Result<()> {
        let mut sim = Command::new(self.programs.program("cgpu-sim")?);
        sim.args(["fault", "--state-dir"])
            .arg(self.folder.path().join("state"))
            .args(["xid", "--card", "0", "--number", "31", "--session"])
            .arg(format!("cgpu-run/{}", self.first()?));
        succeed(&mut sim).map(drop)
    }

    /// What the agent has logged, for a test that fails.
    pub(crate) fn tail(&self) -> String {
        self.agent.tail()
    }

    /// A folder that ends with the host.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// In a pod and throttled; beside it one that is refused memory again and again; and one without terms on another card.
fn containers(programs: &Programs, at: &Path) -> Result<Vec<Daemon>> {
    let burn = programs.program("cgpu-burn")?;
    let burn = burn.display();
    // An Xid error ends the load, and not the container.
    let load = format!("{burn} hold 640Mi & while :; do {burn} load --seconds 0; sleep 1; done");
    let refused = format!("{burn} load --seconds 0 & while :; do {burn} alloc 2Gi; sleep 1; done");
    let hold = format!("exec {burn} hold 300Mi");
    let mut all = Vec::new();
    for (name, card, terms, script) in [
        (
            "first",
            "0,",
            &["--policy", "fixed", "--compute", "30%"][..],
            &load,
        ),
        (
            "second",
            "0,",
            &["--policy", "fixed", "--compute", "40%"],
            &refused,
        ),
        ("third", "1,", &[], &hold),
    ] {
        let mut run = Command::new(programs.program("cgpu")?);
        run.args(["run", "--memory", "1Gi", "--cards", card])
            .args(terms)
            .args(["--", "sh", "-c", script])
            .env("CGPU_CONFIG", at.join("cgpu.toml"));
        let mut run = Daemon::start(name, &run, &at.join(format!("{name}.log")))?;
        let id = run.pid().context("it runs")?;
        let state = at.join(format!("state/vgpus/cgpu-run/{id}"));
        run.wait_ready(PATIENCE, || Ok(state.join("control.sock").exists()))?;
        if name == "first" {
            // What an engine's frontend writes of a pod's container.
            let names =
                json!({"pod": {"namespace": "team-a", "name": "train-0", "container": "app"}});
            fs::write(state.join("names.json"), names.to_string())?;
        }
        all.push(run);
    }
    Ok(all)
}
