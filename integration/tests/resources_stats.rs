//! Our numbers beside those of containerd's own shim, on one machine, of one control group.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use integration::command::{LIMIT, wait_until};
use integration::containerd::{CGPU, RUNC};
use integration::crictl::{PodContainer, Processes};
use integration::packages::Suite;
use integration::pods::BY_TYPE;
use integration::rig::{self, PodRig, Rig};
use serde_json::Value;

fn with(suite: Suite, test: &str, body: fn(&mut Rig) -> Result<()>) -> Result<()> {
    let mut rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(test, "{reason}"),
    };
    body(&mut rig)?;
    rig.finish()
}

mod host {
    use super::*;

    #[test]
    fn two_shims_count_the_same() -> Result<()> {
        with(Suite::Host, "host::two_shims_count_the_same", same_numbers)
    }

    #[test]
    fn two_shims_are_as_likely_to_be_killed() -> Result<()> {
        with(
            Suite::Host,
            "host::two_shims_are_as_likely_to_be_killed",
            same_score,
        )
    }
}

mod newer {
    use super::*;

    #[test]
    fn two_shims_count_the_same() -> Result<()> {
        with(
            Suite::Newer,
            "newer::two_shims_count_the_same",
            same_numbers,
        )
    }
}

/// `crictl statsp`: the same figures are there for a pod of either shim.
#[test]
fn two_shims_tell_the_same_of_a_pod() -> Result<()> {
    const TEST: &str = "two_shims_tell_the_same_of_a_pod";
    let rig = match PodRig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(TEST, "{reason}"),
    };
    let reported = pods_of_both(&rig);
    rig.finish()?;
    let reported = reported?;
    let leaves: Vec<BTreeSet<String>> = reported.iter().map(|stats| leaves_of(stats, "")).collect();
    assert_eq!(leaves[0], leaves[1], "ours, theirs: {reported:#?}");
    Ok(())
}

/// Starts a pod under our shim and one under containerd's: what is told of each.
fn pods_of_both(rig: &PodRig) -> Result<Vec<Value>> {
    let (crictl, engine) = (&rig.crictl, rig.engine.as_ref());
    let mut reported = Vec::new();
    for handler in [BY_TYPE, "runc"] {
        let pod = crictl.pod(handler, &[], Processes::OfTheContainer)?;
        let sandbox = crictl.run_pod(engine, &pod, handler)?;
        let main = PodContainer {
            name: "main",
            memory_bytes: Some(64 << 20),
            program: &["sleep", "100000"],
            ..PodContainer::default()
        };
        crictl.run_container(engine, &sandbox, &pod, &rig.image.name, &main)?;
        let mut stats = Value::Null;
        // containerd gathers them every ten seconds at first, and has a container's rate from the second time on.
        let gathered = wait_until("statistics of the pod", LIMIT, || {
            let args = ["statsp", "-o", "json", "--id", &sandbox];
            stats = crictl.crictl(engine, &args)?.success()?.json()?;
            let of_container = |what: &str| {
                let path = format!("/stats/0/linux/containers/0/{what}/value");
                stats.pointer(&path).and_then(Value::as_str)
            };
            Ok(
                of_container("memory/workingSetBytes").is_some_and(|used| used != "0")
                    && of_container("cpu/usageNanoCores").is_some(),
            )
        });
        gathered.with_context(|| format!("{handler}: {stats:#}"))?;
        reported.push(stats);
    }
    Ok(reported)
}

/// The names of all values of a document.
fn leaves_of(value: &Value, at: &str) -> BTreeSet<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| leaves_of(value, &format!("{at}/{name}")))
            .collect(),
        Value::Array(values) => values
            .iter()
            .flat_map(|value| leaves_of(value, &format!("{at}/*")))
            .collect(),
        _ => BTreeSet::from([at.to_owned()]),
    }
}

const SHIMS: [(&str, &str); 2] = [("ours", CGPU), ("theirs", RUNC)];

/// Works, writes, is throttled, and then waits.
const WORK: &str = "n=0; while [ $n -lt 30000 ]; do n=$((n+1)); done; \
    dd if=/dev/zero of=/written bs=4k count=64 conv=fsync 2>/dev/null; touch /done; exec sleep 100000";

/// Both containers are in one group, which is frozen: whoever reads it reads the same.
fn same_numbers(rig: &mut Rig) -> Result<()> {
    let group = format!("/{}/shared", rig.containerd.namespace());
    for (id, kind) in SHIMS {
        let options = [
            "--runtime",
            kind,
            "--cgroup",
            &group,
            "--memory-limit",
            "67108864",
            "--cpu-quota",
            "20000",
            "--cpu-period",
            "100000",
        ];
        rig.containerd
            .run_detached(&rig.image, id, &options, &["sh", "-c", WORK])?
            .success()?;
    }
    for (id, _) in SHIMS {
        wait_until("the work to be done", LIMIT, || {
            Ok(rig
                .containerd
                .exec(id, &["test", "-e", "/done"])?
                .succeeded())
        })?;
    }
    rig.containerd.pause("ours")?;
    let metrics = |id: &str| -> Result<Value> {
        rig.containerd
            .ctr(&["tasks", "metrics", "--format", "json", id])?
            .success()?
            .json()
    };
    // What was still in processors' own counters when the group was frozen is added up in a moment.
    let mut read = (Value::Null, Value::Null);
    let equal = wait_until("equal numbers", LIMIT, || {
        read = (metrics("ours")?, metrics("theirs")?);
        Ok(read.0 == read.1)
    });
    let (ours, theirs) = &read;
    equal.with_context(|| format!("ours: {ours:#}\ntheirs: {theirs:#}"))?;
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        assert_eq!(ours["memory"]["usage"]["limit"], 67_108_864, "{ours:#}");
        for counted in ["/cpu/usage/total", "/cpu/usage/user"] {
            let number = ours.pointer(counted).and_then(Value::as_u64);
            assert!(
                number.is_some_and(|number| number > 0),
                "{counted}: {ours:#}"
            );
        }
    }
    rig.containerd
        .ctr(&["tasks", "resume", "ours"])?
        .success()?;
    // The group goes when it is empty, so both end before either is deleted.
    for (id, _) in SHIMS {
        rig.containerd
            .ctr(&["tasks", "kill", "-s", "KILL", id])?
            .success()?;
    }
    for (id, _) in SHIMS {
        wait_until("its end", LIMIT, || {
            let listed = rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout;
            let line = listed.lines().find(|line| line.starts_with(id));
            Ok(line.is_some_and(|line| line.contains("STOPPED")))
        })?;
    }
    for (id, _) in SHIMS {
        rig.containerd.remove(id)?;
    }
    Ok(())
}

/// The kernel kills containers before shims, and shims before containerd.
fn same_score(rig: &mut Rig) -> Result<()> {
    let score = |pid: i32| -> Result<i32> {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
        Ok(text.trim().parse()?)
    };
    let mut scores = Vec::new();
    for (id, kind) in SHIMS {
        rig.containerd
            .run_detached(&rig.image, id, &["--runtime", kind], &["sleep", "100000"])?
            .success()?;
        let program = match kind {
            CGPU => "containerd-shim-cgpu-v2",
            _ => "containerd-shim-runc-v2",
        };
        let running = rig.node.running(program);
        let [shim] = running[..] else {
            anyhow::bail!("one {program}, not {running:?}");
        };
        scores.push(score(shim)?);
        rig.containerd.remove(id)?;
    }
    assert_eq!(scores[0], scores[1], "ours, theirs");
    Ok(())
}
