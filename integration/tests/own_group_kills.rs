//! What the kernel does to all of a container's group at once never reaches its vGPU's own processes: control groups of version 2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, wait_until};
use integration::control_groups::are_version_2_alone;
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;

const VGPU: &[&str] = &["--annotation", "cgpu.io/memory=1Gi"];
/// What happens when one of ours was killed or is missing.
const LOSSES: [&str; 3] = ["broker_gone", "broker_replaced", "supervisor_replaced"];

/// A rig, or why the test cannot be run here.
fn start() -> Result<Result<Rig, String>> {
    if !are_version_2_alone() {
        return Ok(Err("control groups are not version 2's alone".to_owned()));
    }
    rig::start(Suite::Host)
}

/// Starts a container with a vGPU and a limit of memory: its group.
fn container(rig: &Rig, id: &str) -> Result<PathBuf> {
    let memory = (64_u64 << 20).to_string();
    let limit = [
        "--runtime",
        "io.containerd.cgpu.v2",
        "--memory-limit",
        &memory,
    ];
    let options = [&limit, VGPU].concat();
    rig.containerd
        .run_detached(&rig.image, id, &options, &["sleep", "100000"])?
        .success()?;
    let listed = rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout;
    let line = listed.lines().find(|line| line.starts_with(id));
    let pid = line.and_then(|line| line.split_whitespace().nth(1));
    let pid: i32 = pid
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("no process of {id} in {listed}"))?;
    let group = group_of(pid)?;
    for ours in own(rig)? {
        let other = group_of(ours)?;
        ensure!(
            !other.starts_with(&group) && !group.starts_with(&other),
            "{} and {}",
            other.display(),
            group.display()
        );
    }
    Ok(group)
}

fn group_of(pid: i32) -> Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.with_context(|| format!("no group of version 2 in {text}"))?;
    Ok(Path::new("/sys/fs/cgroup").join(path))
}

/// Broker and supervisor of the only container.
fn own(rig: &Rig) -> Result<Vec<i32>> {
    let ours = rig.node.running("cgpu-broker");
    ensure!(ours.len() == 2, "a broker and a supervisor, not {ours:?}");
    Ok(ours)
}

/// A number of a file with lines `key number`.
fn counter(file: &Path, key: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let number = line.and_then(|number| number.parse().ok());
    number.with_context(|| format!("no {key} in {text}"))
}

fn has_stopped(rig: &Rig, id: &str) -> Result<()> {
    wait_until("the container's end", LIMIT, || {
        let listed = rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout;
        Ok(listed
            .lines()
            .any(|line| line.starts_with(id) && line.contains("STOPPED")))
    })
}

/// Nobody of ours was killed with the container: those that are there still are the same, and none is missed or replaced.
fn ended_in_order(rig: &Rig, id: &str, before: &[i32]) -> Result<()> {
    let now = rig.node.running("cgpu-broker");
    ensure!(
        now.iter().all(|pid| before.contains(pid)),
        "{before:?} became {now:?}"
    );
    rig.containerd.remove(id)?;
    let events = rig.node.cgpu(&["events", id])?;
    let events = format!("{}{}", events.stdout, events.stderr);
    for kind in LOSSES {
        ensure!(!events.contains(kind), "{events}");
    }
    let left = rig.node.grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

#[test]
fn a_frozen_group_does_not_freeze_its_broker() -> Result<()> {
    let rig = match start()? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_frozen_group_does_not_freeze_its_broker", "{reason}"),
    };
    let group = container(&rig, "frozen")?;
    let before = own(&rig)?;
    let freeze = group.join("cgroup.freeze");
    fs::write(&freeze, "1").with_context(|| format!("{}", freeze.display()))?;
    wait_until("the group to be frozen", LIMIT, || {
        Ok(counter(&group.join("cgroup.events"), "frozen")? == 1)
    })?;
    for pid in &before {
        let events = group_of(*pid)?.join("cgroup.events");
        ensure!(counter(&events, "frozen")? == 0, "{}", events.display());
    }
    // It answers, and takes another quota.
    rig.node
        .cgpu(&["set", "frozen", "--memory", "2Gi"])?
        .success()?;
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    ensure!(ps["vgpus"][0]["health"] == "ok", "{ps}");
    fs::write(&freeze, "0")?;
    let smi = rig.smi("frozen")?;
    ensure!(
        smi["cards"][0]["memory_total_bytes"] == 2_u64 << 30,
        "{smi}"
    );
    ended_in_order(&rig, "frozen", &before)?;
    rig.finish()
}

#[test]
fn a_killed_group_does_not_take_its_broker_along() -> Result<()> {
    let rig = match start()? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_killed_group_does_not_take_its_broker_along", "{reason}"),
    };
    let group = container(&rig, "killed")?;
    let before = own(&rig)?;
    let file = group.join("cgroup.kill");
    fs::write(&file, "1").with_context(|| format!("{}", file.display()))?;
    has_stopped(&rig, "killed")?;
    ended_in_order(&rig, "killed", &before)?;
    rig.finish()
}

#[test]
fn a_group_out_of_memory_as_a_whole_does_not_take_its_broker_along() -> Result<()> {
    const TEST: &str = "a_group_out_of_memory_as_a_whole_does_not_take_its_broker_along";
    let rig = match start()? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let group = container(&rig, "hungry")?;
    let before = own(&rig)?;
    fs::write(group.join("memory.oom.group"), "1")?;
    let events = group.join("memory.events");
    let kills = counter(&events, "oom_group_kill")?;
    // The exec alone wants memory; the group's other processes go with it.
    rig.containerd
        .exec("hungry", &["sh", "-c", "x=y; while true; do x=$x$x; done"])?;
    has_stopped(&rig, "hungry")?;
    // The group stays until the task is removed.
    ensure!(
        counter(&events, "oom_group_kill")? == kills + 1,
        "{}",
        fs::read_to_string(&events)?
    );
    ended_in_order(&rig, "hungry", &before)?;
    rig.finish()
}
