//! What a container causes in its vGPU's own processes is limited and shown as the container's own, outside its groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::containerd::CGPU;
use integration::control_groups::{Driver, are_version_2_alone, slice};
use integration::crictl::{PodContainer, Processes};
use integration::docker::Docker;
use integration::node::Node;
use integration::packages::Suite;
use integration::pods::{BY_PATH, BY_TYPE};
use integration::rig::{self, PodRig};
use integration::{freezer, leftovers};
use serde_json::Value;

/// Reads the first of these files that is there.
fn value(folder: &Path, names: &[&str]) -> Result<String> {
    names
        .iter()
        .find_map(|name| fs::read_to_string(folder.join(name)).ok())
        .map(|text| text.trim().to_owned())
        .with_context(|| format!("none of {names:?} is in {}", folder.display()))
}

/// The group in the tree of a controller.
fn group(node: &Node, controller: &str) -> Result<PathBuf> {
    let all = leftovers::own_groups(&[node.state_dir()]);
    let of_tree = |path: &&PathBuf| {
        !Path::new("/sys/fs/cgroup").join(controller).is_dir()
            || path.starts_with(Path::new("/sys/fs/cgroup").join(controller))
    };
    let found = all.iter().find(of_tree).cloned();
    found.with_context(|| format!("no group for {controller} among {all:?}"))
}

/// What the only vGPU's broker is told of its container's CPU time.
fn reported(node: &Node) -> Result<Value> {
    let mut folder = node.state_dir().join("vgpus");
    for _namespace_and_container in 0..2 {
        let mut entries = fs::read_dir(&folder)?;
        folder = entries.next().context("no vGPU")??.path();
    }
    Ok(serde_json::from_slice(&fs::read(
        folder.join("cpu-time.json"),
    )?)?)
}

fn pids_in(group: &Path) -> Result<Vec<i32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// All of a node's brokers and supervisors are inside, in each tree, and in none that freezes or filters devices.
fn all_are_inside(node: &Node) -> Result<()> {
    let ours = node.running("cgpu-broker");
    ensure!(ours.len() == 2, "{ours:?}");
    for controller in ["memory", "cpu", "pids"] {
        let inside = pids_in(&group(node, controller)?)?;
        ensure!(
            ours.iter().all(|pid| inside.contains(pid)),
            "{controller}: {inside:?}, {ours:?}"
        );
    }
    for pid in ours {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        for tree in [":freezer:", ":devices:"] {
            let line = groups.lines().find(|line| line.contains(tree));
            ensure!(line.is_none_or(|line| !line.contains("cgpu/")), "{groups}");
        }
    }
    Ok(())
}

/// CAP_SYS_RESOURCE, without which a score is never lowered.
fn may_protect() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(effective.context("no CapEff")?.trim(), 16)?;
    Ok(effective & 1 << 24 != 0)
}

#[test]
fn own_processes_pay_with_the_containers_cpu_time() -> Result<()> {
    let rig = match rig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => {
            integration::skip!("own_processes_pay_with_the_containers_cpu_time", "{reason}")
        }
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    let arguments = |text: &'static str| text.split(' ');
    let mut run: Vec<&str> =
        arguments("run -d --name held --network=none --cpu-shares 512 --cpu-quota 50000").collect();
    run.extend(arguments(
        "-e ALIYUN_COM_GPU_MEM_CONTAINER=4 -e ALIYUN_COM_GPU_MEM_DEV=24 --runtime",
    ));
    run.extend([CGPU, &rig.image.name, "sleep", "100000"]);
    docker.docker(&run)?.success()?;
    all_are_inside(&rig.node)?;
    let cpu = group(&rig.node, "cpu")?;
    let weight = || value(&cpu, &["cpu.shares", "cpu.weight"]);
    // The broker is told of the quota, and keeps below it.
    let quota = || reported(&rig.node);
    let kernels = || value(&cpu, &["cpu.cfs_quota_us", "cpu.max"]);
    let first = weight()?;
    ensure!(quota()?["quota_ppm"] == 500_000, "{}", quota()?);
    let usage = quota()?["usage"]["path"].clone();
    ensure!(
        usage.as_str().is_some_and(|path| Path::new(path).exists()),
        "{usage}"
    );
    ensure!(kernels()?.starts_with("50000"), "{}", kernels()?);
    docker
        .docker(&arguments("update --cpu-shares 256 --cpu-quota 30000 held").collect::<Vec<_>>())?
        .success()?;
    ensure!(quota()?["quota_ppm"] == 300_000, "{}", quota()?);
    ensure!(kernels()?.starts_with("30000"), "{}", kernels()?);
    ensure!(weight()? != first, "{first}");
    let top = docker
        .docker(&["top", "held", "-o", "pid,args"])?
        .success()?;
    ensure!(!top.stdout.contains("cgpu"), "{top:?}");

    // A frozen container's broker answers, and its successors are where it was.
    freezer::pause(|| docker.docker(&["pause", "held"]))?;
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let shown = &ps["vgpus"][0];
    ensure!(shown["state"] == "running", "{shown}");
    let memory = shown["own_processes"]["memory_bytes"].as_u64();
    ensure!(memory.is_some_and(|bytes| bytes > 0), "{shown}");
    rig.node.cgpu(&["upgrade"])?.success()?;
    all_are_inside(&rig.node)?;
    docker.docker(&["unpause", "held"])?.success()?;
    let metrics = rig.node.cgpu(&["metrics"])?.success()?;
    ensure!(
        metrics.stdout.contains("cgpu_process_cpu_seconds_total{"),
        "{metrics:?}"
    );

    let mut scores: Vec<String> = Vec::new();
    for pid in rig.node.running("cgpu-broker") {
        scores.push(value(
            Path::new("/proc"),
            &[&format!("{pid}/oom_score_adj")],
        )?);
    }
    scores.sort();
    ensure!(scores.contains(&"500".to_owned()), "{scores:?}");
    if may_protect()? {
        ensure!(scores.contains(&"-1000".to_owned()), "{scores:?}");
    } else {
        println!("SKIP: this machine lets nobody be protected from the OOM killer");
    }

    docker.docker(&["rm", "-f", "held"])?.success()?;
    ensure!(!cpu.exists(), "{}", cpu.display());
    docker.stop()?;
    drop(docker);
    rig.finish()
}

#[test]
fn a_group_that_kills_have_left_is_repaired() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!("a_group_that_kills_have_left_is_repaired", "{reason}"),
    };
    rig.hold("c", &["cgpu.io/memory=1Gi"])?.success()?;
    let cpu = group(&rig.node, "cpu")?;
    all_are_inside(&rig.node)?;
    for program in ["containerd-shim-cgpu-v2", "cgpu-broker"] {
        for pid in rig.node.running(program) {
            capture(Command::new("kill").args(["-9", &pid.to_string()]), LIMIT)?;
        }
    }
    wait_until("the group to be repaired", LIMIT, || {
        rig.node.cgpu(&["doctor", "--repair"])?;
        Ok(!cpu.exists())
    })?;
    rig.containerd.remove("c")?;
    rig.finish()
}

/// The group that a kubelet makes for a pod, with its limit, before it asks for the sandbox.
struct PodGroup {
    /// As it is named to CRI.
    path: String,
    /// Its folder in the tree that has the controller of CPU time.
    folder: PathBuf,
    kind: GroupKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    /// A folder in each tree.
    Version1,
    /// A folder, below others that hand its controllers down.
    Version2,
    /// A slice of systemd's, of version 2.
    Slice,
}

impl PodGroup {
    /// One below the node's own.
    fn make(namespace: &str, pod: &str, quota_us: u32) -> Result<Self> {
        let kind = match (Driver::of_this_machine(), are_version_2_alone()) {
            (Driver::Systemd, _) => GroupKind::Slice,
            (Driver::Cgroupfs, true) => GroupKind::Version2,
            (Driver::Cgroupfs, false) => GroupKind::Version1,
        };
        let parent = slice(namespace);
        let path = match kind {
            GroupKind::Slice => format!("/{parent}/{}", slice_below(&parent, pod)),
            GroupKind::Version1 | GroupKind::Version2 => {
                format!("/{namespace}/burstable/pod{pod}")
            }
        };
        let root = match kind {
            GroupKind::Version1 => "/sys/fs/cgroup/cpu",
            GroupKind::Version2 | GroupKind::Slice => "/sys/fs/cgroup",
        };
        let folder = Path::new(root).join(path.trim_start_matches('/'));
        let made = Self { path, folder, kind };
        match kind {
            GroupKind::Slice => made.systemctl(&["start"], &[])?,
            GroupKind::Version1 | GroupKind::Version2 => fs::create_dir_all(&made.folder)?,
        }
        if kind == GroupKind::Version2 {
            let above = made.folder.ancestors().skip(1).take(2);
            for folder in above.collect::<Vec<_>>().into_iter().rev() {
                let file = folder.join("cgroup.subtree_control");
                fs::write(&file, "+cpu +memory +pids")
                    .with_context(|| format!("{}", file.display()))?;
            }
        }
        made.limit(quota_us)?;
        Ok(made)
    }

    /// The slice's own name is the last part of its path.
    fn systemctl(&self, before: &[&str], after: &[&str]) -> Result<()> {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let args = [before, &[name], after].concat();
        capture(Command::new("systemctl").args(args), LIMIT)?.success()?;
        Ok(())
    }

    /// In a period of 100 ms.
    fn limit(&self, quota_us: u32) -> Result<()> {
        let (file, value) = match self.kind {
            GroupKind::Slice => {
                let quota = format!("CPUQuota={}%", quota_us / 1000);
                return self.systemctl(&["set-property", "--runtime"], &[&quota]);
            }
            GroupKind::Version1 => ("cpu.cfs_quota_us", quota_us.to_string()),
            GroupKind::Version2 => ("cpu.max", format!("{quota_us} 100000")),
        };
        let file = self.folder.join(file);
        fs::write(&file, value).with_context(|| format!("{}", file.display()))
    }
}

/// A slice's name has those of all above it.
fn slice_below(parent: &str, pod: &str) -> String {
    format!("{}-pod{pod}.slice", parent.trim_end_matches(".slice"))
}

impl Drop for PodGroup {
    /// runc makes the group in the other trees of version 1, and leaves all of them to the kubelet.
    fn drop(&mut self) {
        if self.kind == GroupKind::Slice {
            if let Err(error) = self.systemctl(&["stop"], &[]) {
                eprintln!("{error:#}");
            }
            return;
        }
        let trees = fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
        let trees = trees.flatten().map(|tree| tree.path());
        for tree in trees.chain([PathBuf::from("/sys/fs/cgroup")]) {
            let folder = tree.join(self.path.trim_start_matches('/'));
            for empty in folder.ancestors().take(2) {
                // What is left of a pod keeps its group, and the node's end reports that.
                drop(fs::remove_dir(empty));
            }
        }
    }
}

/// As a kubelet has it, by the driver of this machine.
#[test]
fn own_processes_of_a_pods_container_keep_the_pods_quota() -> Result<()> {
    const TEST: &str = "own_processes_of_a_pods_container_keep_the_pods_quota";
    let rig = match PodRig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(TEST, "{reason}"),
    };
    let handlers = [BY_PATH, BY_TYPE].into_iter();
    let kept = handlers
        .map(|handler| pod_keeps_its_quota(&rig, handler).context(handler))
        .collect::<Result<Vec<()>>>();
    let ended = rig.finish();
    kept?;
    ended
}

fn pod_keeps_its_quota(rig: &PodRig, handler: &str) -> Result<()> {
    let pods = PodGroup::make(rig.node.namespace(), handler, 40_000)?;
    let kept = quota_of_a_pod_is_kept(rig, handler, &pods);
    // The group can go when the pod has gone.
    rig.crictl.remove_all(rig.engine.as_ref())?;
    kept?;
    ensure!(group(&rig.node, "cpu").is_err(), "the vGPU's own group");
    Ok(())
}

fn quota_of_a_pod_is_kept(rig: &PodRig, handler: &str, pods: &PodGroup) -> Result<()> {
    let pod = rig
        .crictl
        .pod_in(&pods.path, handler, &[], Processes::OfTheContainer)?;
    let sandbox = rig.crictl.run_pod(rig.engine.as_ref(), &pod, handler)?;
    let container = PodContainer {
        name: "main",
        annotations: &["cgpu.io/memory=1Gi"],
        program: &["sleep", "100000"],
        ..PodContainer::default()
    };
    let id = rig.crictl.run_container(
        rig.engine.as_ref(),
        &sandbox,
        &pod,
        &rig.image.name,
        &container,
    )?;

    all_are_inside(&rig.node)?;
    for pid in rig.node.running("cgpu-broker") {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!(!groups.contains(&pods.path), "{groups}");
    }
    let cpu = group(&rig.node, "cpu")?;
    // In a period of 100 ms: what the broker is told, and what the kernel holds the group to.
    let is = |quota_us: u32| -> Result<()> {
        let reported = reported(&rig.node)?["quota_ppm"].clone();
        let kernels = value(&cpu, &["cpu.cfs_quota_us", "cpu.max"])?;
        ensure!(reported == quota_us * 10, "{reported}, not of {quota_us}");
        let quota = kernels.split(' ').next();
        ensure!(quota == Some(&quota_us.to_string()), "{kernels}");
        Ok(())
    };
    let update = |quota_us: &str| -> Result<()> {
        let mut args: Vec<&str> = "update --cpu-period 100000 --cpu-quota"
            .split(' ')
            .collect();
        args.extend([quota_us, &id]);
        rig.crictl.crictl(rig.engine.as_ref(), &args)?.success()?;
        Ok(())
    };
    // The container has no quota of its own.
    is(40_000)?;
    update("30000")?;
    is(30_000)?;
    // A pod that is resized in place: first its group, then its container.
    pods.limit(90_000)?;
    update("80000")?;
    is(80_000)?;
    Ok(())
}
