//! The shim beside containerd's own: starts, many at once, memory, size.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration::claims::PreparedClaim;
use integration::command::progress;
use integration::containerd::{CGPU, RUNC};
use integration::programs::Programs;
use integration::rig::Rig;

use super::value::Value;
use super::{Bench, VGPU, pairs, quantile, sorted};

const SHIM: &str = "containerd-shim-cgpu-v2";
const RUNC_SHIM: &str = "containerd-shim-runc-v2";

/// `run --rm` takes both shims through all of a container's life.
const LIVES: usize = 30;

/// How many containers start at once.
const AT_ONCE: usize = 10;

/// What a shim has at work goes to sleep within a second; Go collects its garbage now and then.
const IDLE: Duration = Duration::from_secs(3);

/// What containerd's CRI writes into a container of a pod.
const IN_POD: [&str; 6] = [
    "io.kubernetes.cri.container-type=container",
    "io.kubernetes.cri.sandbox-id=of-the-bench",
    "io.kubernetes.cri.sandbox-name=bench",
    "io.kubernetes.cri.sandbox-namespace=default",
    "io.kubernetes.cri.sandbox-uid=bench",
    "io.kubernetes.cri.container-name=app",
];

/// A hundred claims, the first of as much memory as a container by an annotation has.
fn prepared(rig: &Rig) -> Result<Vec<PreparedClaim>> {
    let one = |number: u64| {
        let mib = if number == 0 { 1024 } else { 1 };
        let uid = format!("bench-{number}");
        PreparedClaim::new(&rig.node, &uid, &["bench"], &[("vgpu", &[(0, mib)])])
    };
    (0..100).map(one).collect()
}

impl Bench {
    /// Detached starts of all four kinds and whole lives of two, turn by turn.
    pub(super) fn starts(&mut self, rounds: usize) -> Result<()> {
        progress("container starts");
        // As a pod's container has it, beside others that wait for theirs.
        let claims = prepared(&self.rig)?;
        let pointer = claims.first().context("a claim")?.pointer("vgpu", 0);
        let pointer = format!("CGPU_CLAIM_00000000={pointer}");
        let mut by_claim = vec!["--runtime", CGPU, "--env", &pointer];
        for annotation in &IN_POD {
            by_claim.extend(["--annotation", annotation]);
        }
        let kinds: [&[&str]; 4] = [&VGPU, &["--runtime", CGPU], &["--runtime", RUNC], &by_claim];
        let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (kind, (options, times)) in kinds.iter().zip(&mut times).enumerate() {
                let id = format!("start-{kind}-{round}");
                let reply = self
                    .rig
                    .containerd
                    .run_detached(&self.rig.image, &id, options, &["sleep", "1000"])?
                    .success()?;
                self.rig.containerd.remove(&id)?;
                // The first of each kind warms the caches.
                if round > 0 {
                    times.push(reply.took.as_secs_f64() * 1000.0);
                }
            }
        }
        drop(claims);
        let [vgpu, plain, runc, claimed] = times;
        let more = pairs(&claimed, &vgpu, |claimed, vgpu| claimed - vgpu);
        let p99 = quantile(&sorted(more.clone()), 0.99);
        self.add(
            "container start by a claim beside 99 others, more than by an annotation",
            "ms",
            Value::of_turns(more),
            p99,
            Some(50.0),
        );
        let more = pairs(&vgpu, &plain, |vgpu, plain| vgpu - plain);
        let p99 = quantile(&sorted(more.clone()), 0.99);
        self.add(
            "container start with a vGPU, more than without",
            "ms",
            Value::of_turns(more),
            p99,
            None,
        );
        self.add_ratio(
            "container start with a vGPU, to without",
            (&vgpu, &plain),
            1.2,
        );
        self.add_ratio(
            "container start without a vGPU, to containerd-shim-runc-v2",
            (&plain, &runc),
            1.0,
        );

        let mut lives = [Vec::new(), Vec::new()];
        for round in 0..=rounds.min(LIVES) {
            for (kind, (runtime, times)) in [CGPU, RUNC].iter().zip(&mut lives).enumerate() {
                let id = format!("life-{kind}-{round}");
                let reply = self
                    .rig
                    .containerd
                    .run_once(&self.rig.image, &id, &["--runtime", runtime], &["true"])?
                    .success()?;
                if round > 0 {
                    times.push(reply.took.as_secs_f64() * 1000.0);
                }
            }
        }
        let [plain, runc] = lives;
        self.add_ratio(
            "container from start to removal (run --rm), to containerd-shim-runc-v2",
            (&plain, &runc),
            1.0,
        );
        Ok(())
    }

    fn add_ratio(&mut self, name: &'static str, (ours, theirs): (&[f64], &[f64]), most: f64) {
        let ratio = pairs(ours, theirs, |ours, theirs| ours / theirs);
        let p99 = quantile(&sorted(ratio.clone()), 0.99);
        self.add(name, "×", Value::of_turns(ratio), p99, Some(most));
    }

    /// Containers that start [`AT_ONCE`] at a time, every other one with a vGPU, and go in the same way; what is left then.
    pub(super) fn many_at_once(&mut self, containers: usize) -> Result<()> {
        progress("many containers at once");
        // What containerd opens once and keeps.
        self.rig.hold("many-first", &[])?.success()?;
        self.rig.containerd.remove("many-first")?;
        let daemon = self.rig.containerd.pid().context("a running containerd")?;
        let files = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{daemon}/fd"))?.count()) };
        let before = files()?;

        let ids: Vec<String> = (0..containers).map(|one| format!("many-{one}")).collect();
        let rig = &self.rig;
        let started = at_once(&ids, |number, id| {
            let annotations: &[&str] = match number % 2 {
                0 => &[],
                _ => &["cgpu.io/memory=512Mi"],
            };
            let reply = rig.hold(id, annotations)?.success()?;
            Ok(reply.took.as_secs_f64() * 1000.0)
        });
        let removed = at_once(&ids, |_, id| rig.containerd.remove(id));
        let mut failures = Vec::new();
        let times = sorted(kept(started, &mut failures));
        let _removed: Vec<()> = kept(removed, &mut failures);
        let left = rig
            .node
            .settled(|line| line.contains("containerd --config"));
        // It closes what it had of a shim after it has said that the container is gone.
        let until = Instant::now() + Duration::from_secs(10);
        let mut more = files()?.saturating_sub(before);
        while more > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            more = files()?.saturating_sub(before);
        }
        for trouble in failures.iter().chain(&left) {
            progress(trouble);
        }
        let (median, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
        self.add(
            "container start, 10 at a time, every other one with a vGPU",
            "ms",
            Value::timed(median),
            p99,
            None,
        );
        for (name, count) in [
            ("many containers, 10 at a time: failures", failures.len()),
            (
                "many containers, 10 at a time: processes, mounts, groups, sockets, state left",
                left.len(),
            ),
            (
                "many containers, 10 at a time: descriptors of containerd, more than before",
                more,
            ),
        ] {
            let count = f64::from(u32::try_from(count)?);
            self.add(name, "", Value::counted(count), count, Some(0.0));
        }
        Ok(())
    }

    /// Five containers with a vGPU and five of containerd's own shim, each after twenty execs.
    pub(super) fn memory(&mut self) -> Result<()> {
        progress("memory of shim and broker");
        let ids = |kind: &str| -> Vec<String> {
            (0..5)
                .map(|number| format!("memory-{kind}-{number}"))
                .collect()
        };
        let (ours, theirs) = (ids("cgpu"), ids("runc"));
        let containerd = &self.rig.containerd;
        for (id, other) in ours.iter().zip(&theirs) {
            self.rig.hold(id, &["cgpu.io/memory=1Gi"])?.success()?;
            let runtime = ["--runtime", RUNC];
            containerd
                .run_detached(&self.rig.image, other, &runtime, &["sleep", "100000"])?
                .success()?;
            containerd
                .exec(id, &["cgpu-burn", "alloc", "512Mi"])?
                .success()?;
            for _ in 0..20 {
                for id in [id, other] {
                    containerd.exec(id, &["true"])?.success()?;
                }
            }
        }
        std::thread::sleep(IDLE);
        let all = |program| -> Result<Vec<f64>> { Ok(sorted(self.private_mb(program)?)) };
        let (shim, broker) = (all(SHIM)?, all("cgpu-broker")?);
        let runc = all(RUNC_SHIM)?;
        for (name, values, target) in [
            ("shim, private memory after 20 execs", &shim, Some(5.0)),
            ("containerd-shim-runc-v2, the same", &runc, None),
            ("broker, private memory", &broker, Some(3.0)),
        ] {
            self.add(
                name,
                "MB",
                Value::counted(quantile(values, 0.5)),
                quantile(values, 0.99),
                target,
            );
        }
        let ratio = sorted(pairs(&shim, &runc, |ours, theirs| ours / theirs));
        self.add(
            "shim, private memory, to containerd-shim-runc-v2",
            "×",
            Value::counted(quantile(&ratio, 0.5)),
            quantile(&ratio, 0.99),
            Some(0.6),
        );
        for id in ours.iter().chain(&theirs) {
            self.rig.containerd.remove(id)?;
        }
        Ok(())
    }

    /// The program's file, as it is shipped: stripped.
    pub(super) fn size(&mut self, programs: &Programs) -> Result<()> {
        let path = programs.program(SHIM)?;
        let bytes = u32::try_from(fs::metadata(&path)?.len())
            .with_context(|| format!("the size of {}", path.display()))?;
        let megabytes = f64::from(bytes) / 1e6;
        self.add(
            "shim, size of the program",
            "MB",
            Value::counted(megabytes),
            megabytes,
            Some(8.0),
        );
        Ok(())
    }
}

/// Does the same with all, [`AT_ONCE`] at a time.
pub(super) fn at_once<T: Send>(
    ids: &[String],
    work: impl Fn(usize, &str) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let numbered: Vec<(usize, &String)> = ids.iter().enumerate().collect();
    let batch = |batch: &[(usize, &String)]| -> Vec<Result<T>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = batch
                .iter()
                .map(|(number, id)| {
                    let work = &work;
                    scope
                        .spawn(move || work(*number, id).with_context(|| format!("container {id}")))
                })
                .collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => done,
                Err(_panic) => bail!("a thread panicked"),
            });
            joined.collect()
        })
    };
    numbered.chunks(AT_ONCE).flat_map(batch).collect()
}

/// What went well; the rest becomes text.
fn kept<T>(all: Vec<Result<T>>, failures: &mut Vec<String>) -> Vec<T> {
    let mut kept = Vec::new();
    for one in all {
        match one {
            Ok(one) => kept.push(one),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    kept
}
