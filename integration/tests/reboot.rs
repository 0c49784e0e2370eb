//! A host that loses its power under containers, and boots: what engines start again by policy has what it asks for, what they do not
//! has nothing, and nothing of before is left. Processes, mounts, control groups and `/run` go; what is on disks stays.

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, wait_until};
use integration::docker::Docker;
use integration::leftovers::own_groups;
use integration::node::Node;
use integration::packages::Suite;
use integration::podman::Frontend;
use integration::programs::NO_MEMORY;
use integration::rig::{self, PodmanKind, PodmanRig};
use integration::skip;

const GIB: u64 = 1 << 30;
/// Twice: what the first one leaves must not be in the second one's way.
const LOSSES: usize = 2;

/// The names and quotas of the vGPUs that a node has, sorted.
fn vgpus(node: &Node) -> Result<Vec<(String, u64)>> {
    let ps = node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let listed = ps["vgpus"].as_array().context("vgpus in the document")?;
    let vgpu = |vgpu: &serde_json::Value| -> Result<(String, u64)> {
        ensure!(vgpu["state"] == "running", "{vgpu}");
        let name = vgpu["name"].as_str().context("a name")?;
        let quota = vgpu["cards"][0]["quota_bytes"].as_u64();
        Ok((
            name.to_owned(),
            quota.with_context(|| format!("a quota: {vgpu}"))?,
        ))
    };
    let mut all = listed.iter().map(vgpu).collect::<Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

/// Each of these vGPUs has one control group in each tree, and nobody else has one.
fn groups_are_of(node: &Node, vgpus: usize) -> Result<()> {
    let groups = own_groups(&[node.state_dir()]);
    let mut by_tree = std::collections::BTreeMap::<_, usize>::new();
    for group in &groups {
        *by_tree.entry(group.parent()).or_default() += 1;
    }
    ensure!(
        by_tree.values().all(|number| *number == vgpus),
        "{groups:?}"
    );
    ensure!(!groups.is_empty(), "no groups");
    Ok(())
}

#[test]
fn docker_starts_containers_again_with_what_they_ask_for() -> Result<()> {
    let mut rig = match rig::start(Suite::Trixie)? {
        Ok(rig) => rig,
        Err(reason) => skip!(
            "docker_starts_containers_again_with_what_they_ask_for",
            "{reason}"
        ),
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    let image = rig.image.name.clone();
    for (name, runtime, policy, request) in [
        ("shim", "cgpu-type", "always", Some("cgpu.io/memory=4Gi")),
        (
            "wrapper",
            "cgpu",
            "unless-stopped",
            Some("cgpu.io/memory=2Gi"),
        ),
        ("plain", "cgpu-type", "always", None),
        ("by-hand", "cgpu-type", "no", Some("cgpu.io/memory=1Gi")),
        (
            "stopped",
            "cgpu-type",
            "unless-stopped",
            Some("cgpu.io/memory=1Gi"),
        ),
    ] {
        let mut args = vec![
            "run",
            "-d",
            "--name",
            name,
            "--network=none",
            "--runtime",
            runtime,
        ];
        args.extend(["--restart", policy]);
        args.extend(request.iter().flat_map(|request| ["--annotation", request]));
        args.extend([image.as_str(), "sleep", "100000"]);
        docker.docker(&args)?.success()?;
    }
    docker.docker(&["stop", "-t", "0", "stopped"])?.success()?;
    for loss in 1..=LOSSES {
        // What is set lives as long as the container does.
        rig.node
            .cgpu(&["set", "shim", "--memory", "6Gi"])?
            .success()?;
        ensure!(vgpus(&rig.node)?.contains(&("shim".to_owned(), 6 * GIB)));

        docker.kill()?;
        rig.containerd.kill()?;
        rig.node.lose_power()?;
        ensure!(
            rig.node.leftovers().is_empty(),
            "{:?}",
            rig.node.leftovers()
        );
        rig.node.start_sim()?;
        rig.containerd.boot()?;
        docker.boot()?;

        let running = || -> Result<Vec<String>> {
            let listed = docker
                .docker(&["ps", "--format", "{{.Names}}"])?
                .success()?;
            let mut names: Vec<_> = listed.stdout.lines().map(str::to_owned).collect();
            names.sort();
            Ok(names)
        };
        let again = ["plain", "shim", "wrapper"];
        wait_until("what is started by policy", LIMIT, || {
            Ok(running()? == again)
        })?;
        let expected = [
            ("shim".to_owned(), 4 * GIB),
            ("wrapper".to_owned(), 2 * GIB),
        ];
        ensure!(
            vgpus(&rig.node)? == expected,
            "{loss}: {:?}",
            vgpus(&rig.node)?
        );
        groups_are_of(&rig.node, 2)?;
        for (name, within, above) in [("shim", "3Gi", "5Gi"), ("wrapper", "1Gi", "3Gi")] {
            let alloc = |bytes| docker.docker(&["exec", name, "cgpu-burn", "alloc", bytes]);
            alloc(within)?.success()?;
            let above = alloc(above)?;
            ensure!(above.code == NO_MEMORY, "{above:?}");
        }
        let nodes = docker.docker(&["exec", "plain", "sh", "-c", "ls /dev | grep -c nvidia"])?;
        ensure!(nodes.stdout.trim() == "0", "{nodes:?}");
        // What is set now is of this life.
        rig.node
            .cgpu(&["set", "wrapper", "--memory", "3Gi"])?
            .success()?;
        docker.docker(&["start", "by-hand"])?.success()?;
        groups_are_of(&rig.node, 3)?;
        let over = docker.docker(&["exec", "by-hand", "cgpu-burn", "alloc", "2Gi"])?;
        ensure!(over.code == NO_MEMORY, "{over:?}");
        let doctor = rig.node.cgpu(&["doctor", "--repair", "--json"])?.json()?;
        ensure!(doctor["reclaimed"] == serde_json::json!([]), "{doctor}");
        // The next loss finds it stopped, as at first.
        docker.docker(&["stop", "-t", "0", "by-hand"])?.success()?;
    }
    docker.stop()?;
    drop(docker);
    rig.finish()
}

/// podman has no daemon: its unit `podman-restart` is one command after a boot.
#[test]
fn podman_starts_containers_again_with_what_they_ask_for() -> Result<()> {
    const TEST: &str = "podman_starts_containers_again_with_what_they_ask_for";
    for frontend in [Frontend::Wrapper, Frontend::Precreate] {
        let mut rig = match PodmanRig::start(&PodmanKind::of(frontend))? {
            Ok(rig) => rig,
            Err(reason) => skip!(TEST, "{reason}"),
        };
        for (name, policy) in [("again", "always"), ("by-hand", "no")] {
            let mut options = vec!["-d", "--name", name, "--restart", policy];
            options.extend(["--annotation", "cgpu.io/memory=4Gi"]);
            let started = rig.podman.run(&rig.image, &options, &["sleep", "100000"]);
            started?.success()?;
        }
        for _loss in 0..LOSSES {
            let set = ["set", "again", "--memory", "6Gi"];
            rig.node.cgpu(&set)?.success()?;
            rig.node.lose_power()?;
            ensure!(
                rig.node.leftovers().is_empty(),
                "{:?}",
                rig.node.leftovers()
            );
            rig.podman.boot()?;
            rig.node.start_sim()?;
            let start = ["start", "--all", "--filter", "restart-policy=always"];
            rig.podman.podman(&start)?.success()?;
            let again = vgpus(&rig.node)?;
            ensure!(again == [("again".to_owned(), 4 * GIB)], "{again:?}");
            groups_are_of(&rig.node, 1)?;
            let alloc = |bytes| {
                let args = ["exec", "again", "cgpu-burn", "alloc", bytes];
                rig.podman.podman(&args)
            };
            let over = alloc("5Gi")?;
            ensure!(over.code == NO_MEMORY, "{over:?}");
            alloc("3Gi")?.success()?;
        }
        rig.finish()?;
    }
    Ok(())
}
