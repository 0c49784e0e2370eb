//! Several slices of one card at the same time, each with a load: what shares and their knobs are tried on.
//!
//! On a real card the load is PyTorch's, on a simulated one `cgpu-burn`'s: no other program here has kernels for the card in
//! question. Both print one document: `start_ns` and `end_ns` (CLOCK_MONOTONIC), the card's time by second, latencies.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::torch;
use crate::bundle::Bundle;

const SCRIPT: &str = include_str!("load.py");
/// How long the simulated cards may take to be there.
const START: Duration = Duration::from_secs(10);
/// How long a load may take beyond its own time: PyTorch needs seconds to be there.
const PATIENCE: Duration = Duration::from_secs(40);
/// Of a profile that does not say how long a thread block runs.
const BLOCK_US: u64 = 100;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What runs in a slice.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    /// Kernels without a pause.
    Busy,
    /// Requests that come at random, this many a second, of some short kernels each.
    Requests(u32),
}

/// A card to have slices of.
pub(super) struct World<'b> {
    bundle: &'b Bundle,
    folder: tempfile::TempDir,
    sim: Option<Child>,
    python: Option<String>,
    /// Time of one of PyTorch's kernels, once it was measured alone.
    pub(super) kernel_ns: Option<u64>,
    /// How long a thread block runs on the simulated cards, where this program has chosen it.
    block_us: Option<u64>,
}

/// A load in its slice, under way.
pub(super) struct Tenant {
    run: Child,
    out: PathBuf,
    deadline: Instant,
}

impl<'b> World<'b> {
    /// Opens it; the error's text says what it lacks.
    pub(super) fn open(bundle: &'b Bundle) -> anyhow::Result<Result<Self, String>> {
        let mut world = Self::without_kernels(bundle)?;
        if bundle.profile().is_none() {
            match torch::python() {
                Ok(python) => {
                    std::fs::write(world.script(), SCRIPT).context("write the script")?;
                    world.python = Some(python);
                }
                Err(why) => {
                    return Ok(Err(format!(
                        "needs kernels: {why}; where it has, `cgpu-card run --only` this probe"
                    )));
                }
            }
        }
        Ok(Ok(world))
    }

    /// A card for programs that bring no kernels to it: nothing is lacking for these.
    pub(super) fn without_kernels(bundle: &'b Bundle) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let mut world = Self {
            bundle,
            folder,
            sim: None,
            python: None,
            kernel_ns: None,
            block_us: None,
        };
        if let Some(profile) = bundle.profile() {
            world.simulate(profile.to_owned())?;
        }
        Ok(world)
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// Starts a load in a slice with these options of `cgpu run`.
    pub(super) fn tenant(
        &self,
        name: &str,
        options: &[&str],
        load: Load,
        seconds: u64,
    ) -> anyhow::Result<Tenant> {
        let out = self.folder.path().join(name);
        let mut command = self.cgpu();
        command
            .args(["run", "--memory", "4Gi", "--cards", "0,"])
            .args(options)
            .arg("--");
        match &self.python {
            None => {
                command.arg(self.bundle.program("cgpu-burn")).args([
                    "--json",
                    "load",
                    "--seconds",
                    &seconds.to_string(),
                ]);
                if let Some(block_us) = self.block_us {
                    // Known, it need not be measured beside those who have the card already.
                    command.args(["--block-us", &block_us.to_string()]);
                }
                if let Load::Requests(rate) = load {
                    command.args(["--poisson", &rate.to_string()]);
                    command.args(["--batch", "10", "--kernel-us", "100"]);
                }
            }
            Some(python) => {
                command.arg(python).arg(self.script());
                command.args(["--seconds", &seconds.to_string()]);
                if let Some(kernel_ns) = self.kernel_ns {
                    command.args(["--kernel-ns", &kernel_ns.to_string()]);
                }
                if let Load::Requests(rate) = load {
                    command.args(["--rate", &rate.to_string()]);
                }
            }
        }
        let run = command
            .stdin(Stdio::null())
            .stdout(File::create(&out).context("make a file for a load's answer")?)
            .stderr(File::create(out.with_extension("err")).context("make a file")?)
            .spawn()
            .context("start cgpu run")?;
        Ok(Tenant {
            run,
            out,
            deadline: Instant::now() + Duration::from_secs(seconds) + PATIENCE,
        })
    }

    /// What `cgpu ps` says of a tenant; null while it says nothing.
    pub(super) fn ps(&self, tenant: &Tenant) -> Value {
        let container = tenant.run.id().to_string();
        self.cgpu()
            .args(["ps", "--json"])
            .output()
            .ok()
            .and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok())
            .and_then(|all| {
                all.get("vgpus")?
                    .as_array()?
                    .iter()
                    .find(|vgpu| vgpu.get("container").and_then(Value::as_str) == Some(&container))
                    .cloned()
            })
            .unwrap_or(Value::Null)
    }

    /// `cgpu` of this world.
    pub(super) fn cgpu(&self) -> Command {
        let mut command = self.bundle.cgpu();
        if self.sim.is_some() {
            command.env("CGPU_CONFIG", self.config());
        }
        command
    }

    fn script(&self) -> PathBuf {
        self.folder.path().join("load.py")
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("cgpu.toml")
    }

    fn simulate(&mut self, profile: PathBuf) -> anyhow::Result<()> {
        let mut text = std::fs::read_to_string(&profile)
            .with_context(|| format!("read {}", profile.display()))?;
        if !text.contains("block_us") && !text.contains("kernel_duration_us") {
            // Kernels of a length that the load chooses; the last table of a profile is a card's.
            text.push_str(&format!("block_us = {BLOCK_US}\n"));
            self.block_us = Some(BLOCK_US);
        }
        let profile = self.folder.path().join("cards.toml");
        std::fs::write(&profile, text).context("write a profile")?;
        let state = self.folder.path().join("state");
        std::fs::create_dir(&state).context("make a state folder")?;
        let config = format!(
            "state_dir = {state:?}\n\n[driver]\nkind = \"sim\"\n\n[isolation]\nreconcile_ms = 500\n"
        );
        std::fs::write(self.config(), config).context("write a configuration")?;
        let sim = Command::new(self.bundle.program("cgpu-sim"))
            .arg("--state-dir")
            .arg(&state)
            .arg("--profile")
            .arg(profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.folder.path().join("sim.log"))?)
            .spawn()
            .context("start cgpu-sim")?;
        // Ended with the world from here on.
        self.sim = Some(sim);
        let socket = state.join("sim").join("sim.sock");
        let deadline = Instant::now() + START;
        while sys::fd_passing::connect_seqpacket(&socket).is_err() {
            if Instant::now() > deadline {
                bail!("cgpu-sim does not serve after {} s", START.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if let Some(mut sim) = self.sim.take() {
            let _ended_already = sim.kill();
            let _reaped = sim.wait();
        }
    }
}

impl Tenant {
    /// Waits until `cgpu ps` says that this holds of the tenant, and returns what it says; null where the load ends before.
    pub(super) fn await_ps(&mut self, world: &World<'_>, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let reply = world.ps(self);
            if holds(&reply) {
                return reply;
            }
            if Instant::now() > self.deadline || !matches!(self.run.try_wait(), Ok(None)) {
                return Value::Null;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether it ends within this time. Afterwards it has ended in any case.
    pub(super) fn await_end(mut self, patience: Duration) -> anyhow::Result<bool> {
        self.deadline = Instant::now() + patience;
        Ok(self.ended()?.is_some())
    }

    /// Its load's answer, once it has ended.
    pub(super) fn answer(mut self) -> anyhow::Result<Value> {
        let Some(status) = self.ended()? else {
            return Ok(json!("it did not end in time"));
        };
        let text = std::fs::read_to_string(&self.out).context("read a load's answer")?;
        // The last line: a library may have said something before it.
        let last = text.lines().rfind(|line| line.starts_with('{'));
        let answer = serde_json::from_str::<Value>(&text)
            .ok()
            .or_else(|| serde_json::from_str(last?).ok());
        Ok(answer.unwrap_or_else(|| {
            let complaint =
                std::fs::read_to_string(self.out.with_extension("err")).unwrap_or_default();
            let end = complaint.lines().last().unwrap_or_default();
            json!(format!("{status}: {end}"))
        }))
    }

    /// How it has ended; `None`: not in time, it was killed.
    fn ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        loop {
            if let Some(status) = self.run.try_wait().context("look at cgpu run")? {
                return Ok(Some(status));
            }
            if Instant::now() > self.deadline {
                let _ended_already = self.run.kill();
                self.run.wait().context("reap cgpu run")?;
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Parts of the card's time that loads had while all of them ran, percent: the whole seconds of each that are in the seconds common to all, without
/// the first of these.
pub(super) fn shares(answers: &[Value]) -> Option<Vec<f64>> {
    let field = |answer: &Value, key: &str| answer.get(key).and_then(Value::as_u64);
    let begins = answers.iter().map(|answer| field(answer, "start_ns"));
    let ends = answers.iter().map(|answer| field(answer, "end_ns"));
    let from_ns = begins.max()?? + 1_000_000_000;
    let to_ns = ends.collect::<Option<Vec<_>>>()?.into_iter().min()?;
    answers
        .iter()
        .map(|answer| {
            let start_ns = field(answer, "start_ns")?;
            let inside = answer
                .get("windows")?
                .as_array()?
                .iter()
                .zip(0..)
                .filter(|(_, number)| {
                    let begin = start_ns + number * 1_000_000_000_u64;
                    begin >= from_ns && begin + 1_000_000_000 <= to_ns
                })
                .filter_map(|(window, _)| field(window, "busy_ns"))
                .collect::<Vec<_>>();
            // A second is 10^7 times a percent of it.
            #[expect(clippy::cast_precision_loss, reason = "a share for people to read")]
            let share = inside.iter().sum::<u64>() as f64 / (inside.len() as f64 * 1e7);
            (!inside.is_empty()).then_some((share * 100.0).round() / 100.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_seconds_that_all_loads_ran() {
        let load = |start_ns: u64, busy_ms: &[u64]| {
            let windows = busy_ms
                .iter()
                .map(|ms| json!({"busy_ns": ms * 1_000_000}))
                .collect::<Vec<_>>();
            let end_ns = start_ns + u64::try_from(busy_ms.len()).unwrap() * 1_000_000_000;
            json!({"start_ns": start_ns, "end_ns": end_ns, "windows": windows})
        };
        let early = load(0, &[1000, 900, 250, 250, 1000]);
        let late = load(1_000_000_000, &[700, 750, 750]);
        assert_eq!(shares(&[early.clone(), late]), Some(vec![25.0, 75.0]));
        assert_eq!(shares(&[early.clone(), json!("it failed")]), None);
        assert_eq!(shares(&[early, load(10_000_000_000, &[5, 5])]), None);
    }
}
