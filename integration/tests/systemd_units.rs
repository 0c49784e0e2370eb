//! An engine as a unit of systemd's, and cgpu's own unit: neither a restart, nor a stop, nor systemd's reload touches a broker.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, capture, find};
use integration::control_groups::Driver;
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::rig::{self, Rig};
use integration::skip;
use nix::unistd::gettid;

const TEST: &str = "brokers_live_on_through_restarts_and_stops_of_units";
/// The unit that delegates the group of vGPUs' own processes.
const OWN_UNIT: &str = "cgpu.service";

fn systemctl(args: &[&str]) -> Result<()> {
    capture(Command::new("systemctl").args(args), LIMIT)?.success()?;
    Ok(())
}

/// systemd's.
fn version() -> Result<u32> {
    let reply = capture(Command::new("systemctl").arg("--version"), LIMIT)?.success()?;
    let number = reply.stdout.split_whitespace().nth(1);
    Ok(number.context("systemctl --version says none")?.parse()?)
}

/// A node's containerd as a unit, with what matters here as containerd's own unit has it. It is in the node's mount namespace.
struct Unit {
    file: PathBuf,
    name: String,
}

impl Unit {
    fn start(rig: &Rig) -> Result<Self> {
        let name = format!("cgpu-test-{}.service", std::process::id());
        let containerd = &rig.containerd;
        let socket = containerd.socket();
        let folder = socket.parent().context("a socket has a folder")?;
        let text = format!(
            "[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\nKillMode=process\nDelegate=yes\nRestart=always\n\
             StandardOutput=append:{folder}/unit.log\nStandardError=inherit\n\
             Environment=\"PATH={path}\" \"CGPU_CONFIG={config}\"\n\
             ExecStart={nsenter} --mount=/proc/{pid}/task/{thread}/ns/mnt -- {program} --config {folder}/config.toml\n",
            path = containerd.search_path().to_string_lossy(),
            config = rig.node.config().display(),
            nsenter = find("nsenter").context("no nsenter in PATH")?.display(),
            pid = std::process::id(),
            thread = gettid(),
            program = containerd.engines().program("containerd")?.display(),
            folder = folder.display(),
        );
        let file = PathBuf::from("/run/systemd/system").join(&name);
        fs::write(&file, text)?;
        let unit = Self { file, name };
        systemctl(&["daemon-reload"])?;
        systemctl(&["start", &unit.name])?;
        Ok(unit)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        drop(systemctl(&["stop", &self.name]));
        drop(fs::remove_file(&self.file));
        drop(systemctl(&["daemon-reload"]));
    }
}

/// Brokers and supervisors, each with its control group.
fn own_processes(rig: &Rig) -> Result<Vec<(i32, String)>> {
    let mut ours = rig.node.running("cgpu-broker");
    ours.sort_unstable();
    let group = |pid: i32| -> Result<(i32, String)> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        Ok((pid, groups))
    };
    ours.into_iter().map(group).collect()
}

fn quota_is_held(rig: &Rig, id: &str) -> Result<()> {
    let smi = rig.smi(id)?;
    ensure!(
        smi["cards"][0]["memory_total_bytes"] == 4_u64 << 30,
        "{smi}"
    );
    let over = rig.containerd.exec(id, &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    rig.containerd
        .exec(id, &["cgpu-burn", "alloc", "3Gi"])?
        .success()?;
    Ok(())
}

/// Why the tests cannot be run here.
fn lacks() -> Option<&'static str> {
    if Driver::of_this_machine() != Driver::Systemd {
        return Some("systemd does not manage control groups of version 2 here");
    }
    if systemctl(&["is-active", OWN_UNIT]).is_err() {
        return Some("configs/systemd/cgpu.service is not active");
    }
    None
}

#[test]
fn own_processes_are_in_the_group_that_systemd_delegates() -> Result<()> {
    const TEST: &str = "own_processes_are_in_the_group_that_systemd_delegates";
    if let Some(reason) = lacks() {
        skip!(TEST, "{reason}");
    }
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    rig.hold("c", &["cgpu.io/memory=4Gi"])?.success()?;
    let ours = own_processes(&rig)?;
    rig.containerd.remove("c")?;
    rig.finish()?;
    for (pid, groups) in ours {
        ensure!(
            groups.contains(&format!("/{OWN_UNIT}/")),
            "{pid} is in {}",
            groups.trim()
        );
    }
    Ok(())
}

#[test]
fn brokers_live_on_through_restarts_and_stops_of_units() -> Result<()> {
    if let Some(reason) = lacks() {
        skip!(TEST, "{reason}");
    }
    let mut rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    rig.containerd.kill()?;
    let unit = Unit::start(&rig)?;
    rig.hold("first", &["cgpu.io/memory=4Gi"])?.success()?;
    let before = own_processes(&rig)?;
    ensure!(before.len() == 2, "{before:?}");
    for step in [
        &["restart", unit.name.as_str()][..],
        &["daemon-reload"],
        &["stop", OWN_UNIT],
        &["daemon-reload"],
        &["start", OWN_UNIT],
        &["restart", OWN_UNIT],
    ] {
        let done = systemctl(step);
        // Before systemd 254 its process cannot be put beside those of containers.
        if !(step.contains(&OWN_UNIT) && step[0] != "stop" && version()? < 254) {
            done?;
        }
        let now = own_processes(&rig)?;
        ensure!(now == before, "{step:?}: {before:?} became {now:?}");
        quota_is_held(&rig, "first").with_context(|| step.join(" "))?;
    }
    // A container that starts while cgpu's own unit is stopped has all of it too.
    systemctl(&["stop", OWN_UNIT])?;
    rig.hold("second", &["cgpu.io/memory=4Gi"])?.success()?;
    quota_is_held(&rig, "second")?;
    for id in ["first", "second"] {
        quota_is_held(&rig, id)?;
        rig.containerd.remove(id)?;
    }
    ensure!(own_processes(&rig)?.is_empty(), "brokers are left");
    systemctl(&["start", OWN_UNIT])?;
    drop(unit);
    rig.containerd.restart()?;
    rig.finish()
}
