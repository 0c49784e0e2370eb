//! What is asked of engines that serve pods.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{LIMIT, wait_until};
use crate::crictl::{PodContainer, Processes};
use crate::programs::NO_MEMORY;

use super::cri::Cri;
use super::engine::Engine;
use super::vgpu::{TELL_TO_END, UNTIL_REPORTED_TO_END};

const GIB: u64 = 1 << 30;
/// Ends with 7 on SIGTERM.
const MINDS: &str = "trap 'exit 7' TERM; echo ready; while true; do sleep 0.05; done";
/// Goes on.
const IGNORES: &str = "trap '' TERM; echo ready; while true; do sleep 0.05; done";
pub(super) const SLEEP: &[&str] = &["sleep", "100000"];

pub(super) fn container<'a>(name: &'a str, program: &'a [&'a str]) -> PodContainer<'a> {
    PodContainer {
        name,
        program,
        ..PodContainer::default()
    }
}

/// Totals of the cards that a container sees.
pub(super) fn totals(cri: &Cri, id: &str) -> Result<Vec<u64>> {
    let smi = cri
        .exec_in(id, &["cgpu", "smi", "--json"])?
        .success()?
        .json()?;
    smi["cards"]
        .as_array()
        .with_context(|| format!("cards in {smi}"))?
        .iter()
        .map(|card| card["memory_total_bytes"].as_u64().context("a total"))
        .collect()
}

pub(super) fn has_no_card(cri: &Cri, id: &str) -> Result<()> {
    let nodes = cri.exec_in(id, &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    ensure!(nodes.stdout.trim() == "0", "{nodes:?}");
    Ok(())
}

/// Containers that hold a vGPU, as the host sees them.
pub(super) fn holders(cri: &Cri) -> Result<Vec<String>> {
    let ps = cri.node().cgpu(&["ps", "--json"])?.success()?.json()?;
    let listed = ps["vgpus"].as_array().context("vgpus in the document")?;
    let name = |vgpu: &Value| vgpu["container"].as_str().map(str::to_owned);
    listed
        .iter()
        .map(|vgpu| name(vgpu).with_context(|| format!("a name in {vgpu}")))
        .collect()
}

pub(super) fn ensure_free(cri: &Cri) -> Result<()> {
    let left = cri.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

pub(super) fn requests_of_containers(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("two", &[])?;
    ensure!(holders(cri)?.is_empty(), "the sandbox holds a card");
    let small = pod.run(&PodContainer {
        annotations: &["cgpu.io/memory.small=2Gi"],
        ..container("small", SLEEP)
    })?;
    let large = pod.run(&PodContainer {
        annotations: &["cgpu.io/memory.large=8Gi"],
        ..container("large", SLEEP)
    })?;
    ensure!(totals(cri, &small)? == [2 * GIB], "the small one");
    ensure!(totals(cri, &large)? == [8 * GIB], "the large one");
    let of_small = ["ps", "-q", "--filter", "name=small"];
    let listed = cri.node().cgpu(&of_small)?.success()?.stdout;
    ensure!(
        listed.trim().ends_with(&small),
        "a container is found by its name: {listed}"
    );
    let table = cri.node().cgpu(&["ps"])?.success()?.stdout;
    ensure!(
        table.contains("two/small") && table.contains("two/large"),
        "{table}"
    );
    let change = ["set", "two/small", "--memory", "2Gi"];
    cri.node().cgpu(&change)?.success()?;
    let over = cri.exec_in(&small, &["cgpu-burn", "alloc", "3Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    cri.exec_in(&large, &["cgpu-burn", "alloc", "3Gi"])?
        .success()?;
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn request_of_the_pod(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("whole", &["cgpu.io/memory=4Gi"])?;
    ensure!(holders(cri)?.is_empty(), "the sandbox holds a card");
    let id = pod.run(&container("app", SLEEP))?;
    ensure!(totals(cri, &id)? == [4 * GIB], "its total");
    ensure!(holders(cri)? == [id], "who holds a card");
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn init_then_app(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("init", &[])?;
    let whole_card = ["cgpu.io/memory=20Gi"];
    let init = pod.run(&PodContainer {
        annotations: &whole_card,
        ..container(
            "init",
            &["sh", "-c", "cgpu-burn alloc 10Gi && echo prepared; exit 0"],
        )
    })?;
    let (code, reason) = cri.end(&init)?;
    ensure!(code == 0, "init ended with {code}, {reason}");
    let reply = pod.log("init")?;
    ensure!(reply.contains("prepared"), "{reply:?}");
    // Both cards' memory is not enough for three times 20 GiB: each must have given its own back.
    let mut last = String::new();
    for number in 0..3 {
        let name = format!("app{number}");
        if !last.is_empty() {
            cri.reported(&["stop", "--timeout", "0", &last])?;
            cri.reported(&["rm", &last])?;
        }
        last = pod.run(&PodContainer {
            annotations: &whole_card,
            ..container(&name, SLEEP)
        })?;
        ensure!(totals(cri, &last)? == [20 * GIB], "its total");
    }
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn sidecar(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("side", &[])?;
    let side = pod.run(&container("side", SLEEP))?;
    let main = pod.run(&PodContainer {
        annotations: &["cgpu.io/memory=2Gi"],
        ..container("main", &["sh", "-c", "cgpu-burn alloc 1Gi; exit 5"])
    })?;
    let (code, _) = cri.end(&main)?;
    ensure!(code == 5, "main ended with {code}");
    has_no_card(cri, &side)?;
    let state = cri.status(&side)?;
    ensure!(state["state"] == "CONTAINER_RUNNING", "{state}");
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn request_by_environment(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("env", &[])?;
    let id = pod.run(&PodContainer {
        environment: &[
            "ALIYUN_COM_GPU_MEM_CONTAINER=3",
            "ALIYUN_COM_GPU_MEM_DEV=24",
        ],
        ..container("app", SLEEP)
    })?;
    ensure!(totals(cri, &id)? == [3 * GIB], "its total");
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn stop_signals(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("stop-signals", &[])?;
    let minds = pod.run(&container("minds", &["sh", "-c", MINDS]))?;
    let ignores = pod.run(&container("ignores", &["sh", "-c", IGNORES]))?;
    for name in ["minds", "ignores"] {
        wait_until("the program to be ready", LIMIT, || {
            Ok(pod.log(name).is_ok_and(|reply| reply.contains("ready")))
        })?;
    }
    for (id, seconds, expected) in [(&minds, "50", 7), (&ignores, "1", 137)] {
        cri.reported(&["stop", "--timeout", seconds, id])?;
        let (code, _) = cri.end(id)?;
        ensure!(code == expected, "{code} instead of {expected}");
    }
    pod.remove()
}

pub(super) fn statistics(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("statistics", &[])?;
    let id = pod.run(&container("main", SLEEP))?;
    let mut stats = Value::Null;
    // containerd gathers them every ten seconds at first.
    let gathered = wait_until("statistics of the pod", LIMIT, || {
        let reply = cri.reported(&["statsp", "-o", "json", "--id", &pod.sandbox])?;
        stats = serde_json::from_str(&reply)?;
        let number = |path: &str| {
            let value = stats.pointer(path).and_then(Value::as_str);
            value.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(number("/stats/0/linux/memory/workingSetBytes/value") > 0
            && number("/stats/0/linux/cpu/usageCoreNanoSeconds/value") > 0)
    });
    gathered.with_context(|| format!("{stats:#}"))?;
    let listed = stats.pointer("/stats/0/linux/containers");
    let mut listed = listed.and_then(Value::as_array).into_iter().flatten();
    ensure!(
        listed.any(|one| one["attributes"]["id"] == id.as_str()),
        "{stats:#}"
    );
    pod.remove()
}

pub(super) fn exec_sync(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod("sync", &[])?;
    let id = pod.run(&container("app", SLEEP))?;
    let reply = cri.exec_sync(&id, &["seq", "1", "1000"])?.success()?;
    ensure!(reply.stdout.trim().lines().count() == 1000, "{reply:?}");
    let reply = cri.exec_sync(&id, &["sh", "-c", "echo why >&2; exit 8"])?;
    ensure!(
        reply.code == Some(8) && reply.stderr.contains("why"),
        "{reply:?}"
    );
    pod.remove()
}

pub(super) fn shared_processes(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let pod = cri.pod_with("shared", &[], Processes::OfThePod)?;
    let one = pod.run(&container("one", &["sleep", "100001"]))?;
    let two = pod.run(&container("two", &["sleep", "100002"]))?;
    let seen = cri.exec_in(&one, &["ps"])?.success()?.stdout;
    ensure!(seen.contains("sleep 100002"), "{seen}");
    // The end of one is not the other's.
    cri.reported(&["stop", "--timeout", "0", &one])?;
    cri.exec_in(&two, &["true"])?.success()?;
    let held = pod.run(&PodContainer {
        annotations: &["cgpu.io/memory=2Gi"],
        ..container("held", SLEEP)
    })?;
    ensure!(totals(cri, &held)? == [2 * GIB], "its total");
    pod.remove()?;
    ensure_free(cri)
}

pub(super) fn stop_and_remove(engine: &mut dyn Engine) -> Result<()> {
    let cri = engine.pods()?;
    let terms = [
        "cgpu.io/memory.one=4Gi",
        "cgpu.io/memory.two=4Gi",
        "cgpu.io/memory.three=4Gi",
    ];
    let pod = cri.pod("stop", &terms)?;
    for name in ["one", "two", "three"] {
        pod.run(&container(name, SLEEP))?;
    }
    ensure!(holders(cri)?.len() == 3, "three vGPUs");
    pod.stop_and_remove()?;
    ensure_free(cri)?;
    let listed = cri.reported(&["ps", "-a", "-q"])?;
    ensure!(listed.is_empty(), "left: {listed}");
    Ok(())
}

pub(super) fn engine_restart(engine: &mut dyn Engine) -> Result<()> {
    let program = ["sh", "-c", UNTIL_REPORTED_TO_END];
    let (held, plain) = {
        let cri = engine.pods()?;
        let pod = cri.pod("restart", &[])?;
        let held = pod.run(&PodContainer {
            annotations: &["cgpu.io/memory=4Gi"],
            ..container("held", &program)
        })?;
        (held, pod.run(&container("plain", &program))?)
    };
    engine.crash_and_restart()?;
    let cri = engine.pods()?;
    ensure!(totals(cri, &held)? == [4 * GIB], "its total");
    for id in [&held, &plain] {
        cri.exec_in(id, TELL_TO_END)?.success()?;
        let (code, reason) = cri.end(id)?;
        ensure!(code == 6, "ended with {code}, {reason}");
    }
    cri.crictl.remove_all(cri.server.as_ref())?;
    ensure_free(cri)
}
