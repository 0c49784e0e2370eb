//! What isolation costs and how quickly it changes: allocations, a flood beside a neighbour, a resize, a broker's replacement.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration::command::{progress, succeed};

use super::value::Value;
use super::{Bench, microseconds, pairs, quantile, sorted};

/// How long anything here may take that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

impl Bench {
    /// A whole allocation (RM_ALLOC, range, map) in a container, less the same calls made to the simulator directly.
    pub(super) fn allocations(&mut self, turns: usize, count: u32) -> Result<()> {
        progress("allocations of a container, and directly");
        self.rig
            .hold("mallocs", &["cgpu.io/memory=1Gi"])?
            .success()?;
        let count = count.to_string();
        let (mut inside, mut directly, mut tails) = (Vec::new(), Vec::new(), Vec::new());
        let mut floors = Vec::new();
        for _turn in 0..turns {
            let reply = self
                .rig
                .containerd
                .exec(
                    "mallocs",
                    &["cgpu-burn", "--json", "mallocs", "--count", &count],
                )?
                .success()?
                .json()?;
            let (median, p99) = microseconds(&reply["allocated"])?;
            inside.push(median);
            tails.push(p99);
            let mut command = self.rig.node.command("cgpu-sim")?;
            command
                .args(["mallocs", "--count", &count, "--state-dir"])
                .arg(self.rig.node.state_dir());
            let reply = succeed(&mut command)?.json()?;
            let row = if reply["allocated"].is_null() {
                &reply
            } else {
                &reply["allocated"]
            };
            directly.push(microseconds(row)?.0);
            floors.push(self.floor()?);
        }
        self.rig.containerd.remove("mallocs")?;
        let more = pairs(&inside, &directly, |inside, directly| inside - directly);
        let tail = quantile(&sorted(tails), 0.5);
        self.add(
            "allocation (3 calls) in a container, more than directly",
            "µs",
            Value::of_turns(more.clone()),
            tail,
            None,
        );
        let ratios = pairs(&more, &floors, |more, floor| more / floor);
        let tail = quantile(&sorted(ratios.clone()), 0.99);
        self.add(
            "allocation (3 calls) in a container, more than directly, to the floor",
            "×",
            Value::of_turns(ratios),
            tail,
            Some(15.0),
        );
        Ok(())
    }

    /// A neighbour's allocations beside a tenant whose every call is refused, and beside one that sleeps, turn by turn.
    pub(super) fn flood(&mut self, turns: usize, count: u32) -> Result<()> {
        progress("a neighbour of a flood of refused calls");
        self.rig
            .hold("neighbour", &["cgpu.io/memory=1Gi"])?
            .success()?;
        self.rig.hold("flood", &["cgpu.io/memory=1Gi"])?.success()?;
        let count = count.to_string();
        let neighbour = |bench: &Self| -> Result<f64> {
            let reply = bench
                .rig
                .containerd
                .exec(
                    "neighbour",
                    &["cgpu-burn", "--json", "mallocs", "--count", &count],
                )?
                .success()?
                .json()?;
            Ok(microseconds(&reply["allocated"])?.0)
        };
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            quiet.push(neighbour(self)?);
            let id = format!("flood-{turn}");
            let mut command = self.rig.containerd.ctr_command(&[
                "tasks",
                "exec",
                "--exec-id",
                &id,
                "flood",
                "cgpu-burn",
                "--json",
                "flood",
                "--seconds",
                "600",
            ])?;
            let mut flood = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("starting the flood")?;
            let before = self.refused("flood")?;
            let began = Instant::now();
            while self.refused("flood")? < before + 1_000 {
                if began.elapsed() > PATIENCE {
                    bail!("the flood does not flow");
                }
                thread::sleep(Duration::from_millis(20));
            }
            beside.push(neighbour(self)?);
            // The exec's processes end with their container's task; the client is ours to end.
            self.rig
                .containerd
                .exec("flood", &["killall", "-9", "cgpu-burn"])?
                .success()?;
            flood.wait().context("waiting for the flood")?;
        }
        self.rig.containerd.remove("flood")?;
        self.rig.containerd.remove("neighbour")?;
        let ratio = pairs(&beside, &quiet, |beside, quiet| beside / quiet);
        let tail = quantile(&sorted(ratio.clone()), 0.99);
        self.add(
            "a neighbour's allocation beside a flood of refused calls, to without",
            "×",
            Value::of_turns(ratio),
            tail,
            Some(1.1),
        );
        Ok(())
    }

    /// How many calls of a container its broker has refused.
    fn refused(&self, id: &str) -> Result<u64> {
        let ps = self.rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
        let vgpus = ps["vgpus"].as_array().context("a list of vGPUs")?;
        let one = vgpus
            .iter()
            .find(|vgpu| vgpu["container"] == id)
            .with_context(|| format!("no container {id} in {ps}"))?;
        one["calls"]["refused"]
            .as_u64()
            .with_context(|| format!("no count of refused calls in {one}"))
    }

    /// From `cgpu set` being started until a program in the container has seen the new total and said so.
    pub(super) fn resize(&mut self, turns: usize) -> Result<()> {
        progress("a resize, as the container sees it");
        self.rig
            .hold("resize", &["cgpu.io/memory=1Gi"])?
            .success()?;
        let mut command = self.rig.containerd.ctr_command(&[
            "tasks",
            "exec",
            "--exec-id",
            "watch",
            "resize",
            "cgpu-burn",
            "--json",
            "watch",
        ])?;
        let mut watch = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the watch")?;
        let out = watch.stdout.take().context("standard output is a pipe")?;
        let (reply, heard) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                if reply.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        let next = || -> Result<(Instant, u64)> {
            let (at, line) = heard
                .recv_timeout(PATIENCE)
                .context("the watch says nothing")?;
            let reply: serde_json::Value =
                serde_json::from_str(&line).with_context(|| line.clone())?;
            let total = reply["total_bytes"].as_u64();
            Ok((at, total.with_context(|| format!("no total in {line}"))?))
        };
        next()?;
        let (mut seen, mut commands) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            let gib = 2 - u64::try_from(turn % 2)?;
            let memory = format!("{gib}Gi");
            let began = Instant::now();
            self.rig
                .node
                .cgpu(&["set", "resize", "--memory", &memory])?
                .success()?;
            commands.push(began.elapsed().as_secs_f64() * 1e3);
            let (at, total) = next()?;
            if total != gib << 30 {
                bail!("the container sees {total} bytes after a resize to {memory}");
            }
            seen.push(at.saturating_duration_since(began).as_secs_f64() * 1e3);
        }
        self.rig.containerd.remove("resize")?;
        // Its task is gone, and so is what it waited for.
        watch.wait().context("waiting for the watch")?;
        drop(reader);
        let (seen, commands) = (sorted(seen), sorted(commands));
        self.add(
            "resize, from `cgpu set` to a program in the container that says so",
            "ms",
            Value::of_turns(seen.clone()),
            quantile(&seen, 0.99),
            Some(10.0),
        );
        self.add(
            "`cgpu set --memory`, from start to end",
            "ms",
            Value::of_turns(commands.clone()),
            quantile(&commands, 0.99),
            None,
        );
        Ok(())
    }

    /// For how long calls wait while a broker is replaced under load.
    pub(super) fn replacement(&mut self, turns: usize) -> Result<()> {
        progress("replacements of a broker under load");
        self.rig
            .hold("replaced", &["cgpu.io/memory=1Gi"])?
            .success()?;
        let mut command = self.rig.containerd.ctr_command(&[
            "tasks",
            "exec",
            "--exec-id",
            "load",
            "replaced",
            "cgpu-burn",
            "--json",
            "mallocs",
            "--count",
            "100000000",
        ])?;
        let mut load = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the load")?;
        let mut pauses = Vec::new();
        for _turn in 0..turns {
            let reply = self
                .rig
                .node
                .cgpu(&["upgrade", "replaced", "--json"])?
                .success()?
                .json()?;
            let row = &reply["containers"][0];
            let pause = row["pause_us"]
                .as_f64()
                .with_context(|| format!("no pause in {reply}"))?;
            pauses.push(pause / 1e3);
        }
        self.rig
            .containerd
            .exec("replaced", &["killall", "-9", "cgpu-burn"])?
            .success()?;
        load.wait().context("waiting for the load")?;
        self.rig.containerd.remove("replaced")?;
        let pauses = sorted(pauses);
        self.add(
            "pause of calls while a broker is replaced under load",
            "ms",
            Value::of_turns(pauses.clone()),
            quantile(&pauses, 0.99),
            Some(50.0),
        );
        Ok(())
    }
}
