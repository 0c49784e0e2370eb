//! Claims of Kubernetes, on engines that serve pods: a container gets what its claim's record says, whatever its author writes.

use anyhow::{Context, Result, ensure};

use crate::claims::PreparedClaim;
use crate::crictl::PodContainer;
use crate::programs::NO_MEMORY;

use super::cri::{Cri, Pod};
use super::engine::{Engine, Lacks};
use super::pods::{SLEEP, container, ensure_free, has_no_card, holders, totals};

const GIB: u64 = 1 << 30;

/// A container that does not start, and why.
fn refused(pod: &Pod<'_>, container: &PodContainer<'_>, parts: &[&str]) -> Result<()> {
    let error = pod.run(container).err();
    let error = error.with_context(|| format!("{} has started", container.name))?;
    let text = format!("{error:#}");
    for part in parts {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}

fn with_cdi(engine: &mut dyn Engine) -> Result<&Cri> {
    let cri = engine.pods()?;
    if !cri.has_cdi() {
        return Err(Lacks("no CDI devices in CRI before containerd 2.0 unless configured").into());
    }
    Ok(cri)
}

pub(super) fn of_a_container(engine: &mut dyn Engine) -> Result<()> {
    let cri = with_cdi(engine)?;
    let claim = PreparedClaim::new(
        cri.node(),
        "0d8e-1",
        &["claimed"],
        &[("one", &[(0, 4096)]), ("two", &[(0, 3072), (1, 3072)])],
    )?;
    let pod = cri.pod("claimed", &[])?;
    let (one, two) = (claim.devices("one"), claim.devices("two"));
    // What an image or the pod's author says of amounts is not read.
    let environment = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=20",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=100",
        "ALIYUN_COM_GPU_HIGH_PRIO=true",
        "CGPU_DISABLE=true",
        "NVIDIA_VISIBLE_DEVICES=all",
    ];
    let app = pod.run(&PodContainer {
        devices: &one,
        environment: &environment,
        ..container("app", SLEEP)
    })?;
    ensure!(totals(cri, &app)? == [4 * GIB], "what the claim gives");
    let over = cri.exec_in(&app, &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    cri.exec_in(&app, &["cgpu-burn", "alloc", "3Gi"])?
        .success()?;
    let beside = pod.run(&container("beside", SLEEP))?;
    has_no_card(cri, &beside)?;
    let second = PodContainer {
        devices: &one,
        ..container("second", SLEEP)
    };
    refused(&pod, &second, &[&app, "a request of its own"])?;
    let both = pod.run(&PodContainer {
        devices: &two,
        ..container("both", SLEEP)
    })?;
    ensure!(totals(cri, &both)? == [3 * GIB, 3 * GIB], "both cards");
    let set = cri.node().cgpu(&["set", &app, "--memory", "5Gi"])?;
    ensure!(
        set.code != Some(0) && set.stderr.contains("more than the container's claim gives"),
        "{set:?}"
    );
    cri.node()
        .cgpu(&["set", &app, "--memory", "1Gi"])?
        .success()?;
    // The agent takes the claim back too early: who runs goes on, nobody new starts.
    drop(claim);
    cri.exec_in(&both, &["cgpu-burn", "alloc", "1Gi"])?
        .success()?;
    let late = PodContainer {
        environment: &["CGPU_CLAIM_00000000=0d8e-1/one/one-0"],
        ..container("late", SLEEP)
    };
    refused(&pod, &late, &["claim 0d8e-1 is not prepared on this node"])?;
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn restarted(engine: &mut dyn Engine) -> Result<()> {
    let cri = with_cdi(engine)?;
    let claim = PreparedClaim::new(cri.node(), "0d8e-2", &["again"], &[("vgpu", &[(0, 20480)])])?;
    let pod = cri.pod("again", &[])?;
    let devices = claim.devices("vgpu");
    let init = pod.run(&PodContainer {
        devices: &devices,
        ..container("init", &["cgpu-burn", "alloc", "10Gi"])
    })?;
    ensure!(cri.end(&init)?.0 == 0, "the init container's end");
    // The card has no 20 GiB beside it: each has the share of the one before.
    for name in ["app0", "app1"] {
        let id = pod.run(&PodContainer {
            devices: &devices,
            ..container(name, SLEEP)
        })?;
        ensure!(totals(cri, &id)? == [20 * GIB], "its total");
        cri.reported(&["stop", "--timeout", "0", &id])?;
    }
    pod.remove()?;
    drop(claim);
    ensure_free(cri)
}

pub(super) fn forged(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let claim = PreparedClaim::new(cri.node(), "0d8e-3", &["victim"], &[("vgpu", &[(0, 4096)])])?;
    let pointer = format!("CGPU_CLAIM_00000000={}", claim.pointer("vgpu", 0));
    let pointing = PodContainer {
        environment: &[&pointer],
        ..container("thief", SLEEP)
    };
    let foreign = "is reserved for other pods: pod thief";
    let thief = cri.pod(
        "thief",
        &[
            "io.kubernetes.cri.sandbox-uid=victim",
            "io.kubernetes.pod.uid=victim",
        ],
    )?;
    // CRI-O passes on what the pod's author wrote, which then is of two engines.
    let why = if cri.is_crio() {
        "of two engines"
    } else {
        foreign
    };
    refused(&thief, &pointing, &[why])?;
    thief.remove()?;
    let thief = cri.pod("thief", &[])?;
    refused(&thief, &pointing, &[foreign])?;
    // A name that was refused once is containerd's for a while.
    for (name, value, part) in [
        (
            "absent",
            "0d8e-9/vgpu/vgpu-0",
            "is not prepared on this node",
        ),
        ("path", "../../../etc/passwd", "names no share"),
        ("amount", "200Gi", "<uid of the claim>/<request>/<share>"),
    ] {
        let variable = format!("CGPU_CLAIM_00000000={value}");
        let container = PodContainer {
            environment: &[&variable],
            ..container(name, SLEEP)
        };
        refused(&thief, &container, &[part])?;
    }
    thief.remove()?;
    // The pod that it is for asks for more beside it.
    let greedy = cri.pod("victim", &["cgpu.io/memory.thief=20Gi"])?;
    refused(
        &greedy,
        &pointing,
        &["cgpu.io/memory", "20Gi", "beside claim"],
    )?;
    greedy.remove()?;
    ensure!(holders(cri)?.is_empty(), "{:?}", holders(cri)?);
    drop(claim);
    ensure_free(cri)
}

/// Under plain runc the claim's devices give no card: the CDI spec has no nodes.
pub(super) fn without_our_handler(engine: &mut dyn Engine) -> Result<()> {
    let cri = with_cdi(engine)?;
    let pod = cri.pod_of_runc("plain")?;
    let claim = PreparedClaim::new(cri.node(), "0d8e-4", &["plain"], &[("vgpu", &[(0, 4096)])])?;
    let devices = claim.devices("vgpu");
    let id = pod.run(&PodContainer {
        devices: &devices,
        ..container("app", SLEEP)
    })?;
    has_no_card(cri, &id)?;
    pod.remove()?;
    drop(claim);
    ensure_free(cri)
}
