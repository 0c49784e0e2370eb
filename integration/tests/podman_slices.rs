//! The same slice through podman, by both frontends and both runtimes; nothing is left of it.

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, Outcome, wait_until};
use integration::oci::OciRuntime;
use integration::packages::Suite;
use integration::podman::{Cgroups, Frontend};
use integration::rig::{PodmanKind, PodmanRig};
use integration::skip;
use serde_json::Value;

const GIB: u64 = 1 << 30;
const SLICE: &[&str] = &["--annotation", "cgpu.io/memory=4Gi"];

/// What the end of a node does not count against cgpu: [`Podman::stop`] removes it.
#[test]
fn podman_leaves_the_group_of_its_helpers_under_runc_alone() -> Result<()> {
    let host = match PodmanRig::start(&PodmanKind::of(Frontend::Plain))? {
        Ok(host) => host,
        Err(reason) => skip!(
            "podman_leaves_the_group_of_its_helpers_under_runc_alone",
            "{reason}"
        ),
    };
    host.run(&[], &["true"])?.success()?;
    let left = host.podman.podman(&["ps", "-aq"])?.success()?;
    ensure!(left.stdout.is_empty(), "{left:?}");
    let groups = host.podman.helper_groups();
    ensure!(!groups.is_empty(), "no group is left");
    for group in groups {
        // A helper may end after the command whose container it has helped.
        wait_until(&format!("{} to be empty", group.display()), LIMIT, || {
            Ok(std::fs::read_to_string(group.join("cgroup.procs"))?.is_empty())
        })?;
        println!("left by podman and runc: {}", group.display());
    }
    host.finish()
}

/// What the tests ask of a podman.
trait Host {
    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome>;
    fn hold(&self, name: &str, options: &[&str]) -> Result<Outcome>;
    fn in_container(&self, name: &str, program: &[&str]) -> Result<Outcome>;
    fn total(&self, reply: Outcome) -> Result<Vec<u64>>;
    fn left(&self) -> Vec<String>;
}

impl Host for PodmanRig {
    fn run(&self, options: &[&str], program: &[&str]) -> Result<Outcome> {
        let options: Vec<&str> = ["--rm"].iter().chain(options).copied().collect();
        self.podman.run(&self.image, &options, program)
    }

    fn hold(&self, name: &str, options: &[&str]) -> Result<Outcome> {
        let options: Vec<&str> = ["-d", "--name", name]
            .iter()
            .chain(options)
            .copied()
            .collect();
        self.podman.run(&self.image, &options, &["sleep", "100000"])
    }

    fn in_container(&self, name: &str, program: &[&str]) -> Result<Outcome> {
        let args: Vec<&str> = ["exec", name].iter().chain(program).copied().collect();
        self.podman.podman(&args)
    }

    fn total(&self, reply: Outcome) -> Result<Vec<u64>> {
        let smi = reply.success()?.json()?;
        let cards = smi["cards"].as_array().context("cards in the document")?;
        cards
            .iter()
            .map(|card: &Value| card["memory_total_bytes"].as_u64().context("a total"))
            .collect()
    }

    /// What is left of containers that are gone. podman keeps a group for its helpers until it is stopped, and has no shims.
    fn left(&self) -> Vec<String> {
        self.node
            .settled(|line| line.ends_with("/conmon") || line.starts_with("dead shim socket"))
    }
}

/// What every podman must do with a slice of 4 GiB.
fn slices(host: &PodmanRig) -> Result<()> {
    // One that cannot be created. crun calls no hook then: its broker sees that podman is gone, and the next start takes back
    // what it held.
    let reply = host.run(SLICE, &["/no/such/program"])?;
    assert_eq!(reply.code, Some(127), "{reply:?}");
    let processes = host.node.settled(|line| !line.starts_with("process"));
    assert_eq!(processes, Vec::<String>::new());
    // A container that runs to its end: its card, its quota, its exit code; and one without a vGPU.
    assert_eq!(
        host.total(host.run(SLICE, &["cgpu", "smi", "--json"])?)?,
        [4 * GIB]
    );
    let over = host.run(SLICE, &["cgpu-burn", "--json", "alloc", "4097Mi"])?;
    assert_eq!(over.code, Some(3), "{over:?}");
    host.run(SLICE, &["cgpu-burn", "alloc", "4000Mi"])?
        .success()?;
    assert_eq!(host.run(SLICE, &["sh", "-c", "exit 9"])?.code, Some(9));
    let nodes = host.run(&[], &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    assert_eq!(nodes.stdout.trim(), "0", "{nodes:?}");
    assert_eq!(host.left(), Vec::<String>::new());

    // One that is held: exec is in the slice as well, and comes back with it after a restart.
    host.hold("long", SLICE)?.success()?;
    let in_slice = || -> Result<()> {
        assert_eq!(
            host.total(host.in_container("long", &["cgpu", "smi", "--json"])?)?,
            [4 * GIB]
        );
        let over = host.in_container("long", &["cgpu-burn", "alloc", "5Gi"])?;
        assert_eq!(over.code, Some(3), "{over:?}");
        host.in_container("long", &["cgpu-burn", "alloc", "3Gi"])?
            .success()?;
        Ok(())
    };
    in_slice()?;
    // podman keeps those that are removed at their end in another list.
    let once = [SLICE, &["--rm"]].concat();
    host.hold("once", &once)?.success()?;
    for name in ["long", "once"] {
        let listed = ["ps", "-q", "--filter", &format!("name={name}")];
        let listed = host.node.cgpu(&listed)?.success()?.stdout;
        assert_eq!(listed.lines().count(), 1, "{name}: {listed}");
    }
    host.podman
        .podman(&["rm", "--force", "--time", "0", "once"])?
        .success()?;
    // podman's own ways of asking.
    for args in [
        &["top", "long"][..],
        &["stats", "--no-stream", "long"],
        &["logs", "long"],
        &["inspect", "long"],
    ] {
        host.podman.podman(args)?.success()?;
    }
    host.podman
        .podman(&["restart", "--time", "0", "long"])?
        .success()?;
    in_slice()?;
    host.podman.podman(&["kill", "long"])?.success()?;
    host.podman.podman(&["wait", "long"])?.success()?;
    assert_eq!(host.left(), Vec::<String>::new());
    host.podman.podman(&["start", "long"])?.success()?;
    in_slice()?;

    // Two more fill the card's 24 GiB beside it; a fourth of that size is refused with the reason.
    host.hold("second", &["--annotation", "cgpu.io/memory=20Gi"])?
        .success()?;
    host.hold("third", &["--annotation", "cgpu.io/memory=24Gi"])?
        .success()?;
    let full = host.hold("fourth", SLICE)?.failure()?;
    // podman does not tell what a precreate hook says; the system's log has it.
    assert!(
        full.contains("4 GiB") || full.contains("precreate"),
        "{full}"
    );
    // What was refused holds nothing, and what is removed leaves nothing.
    for name in ["long", "second", "third", "fourth"] {
        host.podman
            .podman(&["rm", "--force", "--time", "0", name])?
            .success()?;
    }
    assert_eq!(host.left(), Vec::<String>::new());
    Ok(())
}

fn slices_by(test: &str, kind: &PodmanKind) -> Result<()> {
    let host = match PodmanRig::start(kind)? {
        Ok(host) => host,
        Err(reason) => skip!(test, "{reason}"),
    };
    slices(&host)?;
    host.finish()
}

#[test]
fn a_slice_by_the_runtime_wrapper() -> Result<()> {
    slices_by(
        "a_slice_by_the_runtime_wrapper",
        &PodmanKind::of(Frontend::Wrapper),
    )
}

#[test]
fn a_slice_by_the_precreate_hook() -> Result<()> {
    slices_by(
        "a_slice_by_the_precreate_hook",
        &PodmanKind::of(Frontend::Precreate),
    )
}

#[test]
fn a_slice_by_hook_and_wrapper_at_once_is_one_slice() -> Result<()> {
    let host = match PodmanRig::start(&PodmanKind::of(Frontend::Both))? {
        Ok(host) => host,
        Err(reason) => skip!(
            "a_slice_by_hook_and_wrapper_at_once_is_one_slice",
            "{reason}"
        ),
    };
    host.hold("one", SLICE)?.success()?;
    assert_eq!(
        host.total(host.in_container("one", &["cgpu", "smi", "--json"])?)?,
        [4 * GIB]
    );
    let ps = host.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let vgpus = ps["vgpus"].as_array().context("vgpus in the document")?;
    assert_eq!(vgpus.len(), 1, "{ps}");
    assert_eq!(vgpus[0]["frontend"], "hook", "{ps}");
    assert_eq!(vgpus[0]["name"], "one", "{ps}");
    host.podman
        .podman(&["rm", "--force", "--time", "0", "one"])?
        .success()?;
    assert_eq!(host.left(), Vec::<String>::new());
    host.finish()
}

/// Where podman has no precreate hook, as engines that know only the specification's.
#[test]
fn a_hook_that_comes_too_late_lets_no_container_run_without_its_quota() -> Result<()> {
    let host = match PodmanRig::start(&PodmanKind::of(Frontend::CreateRuntime))? {
        Ok(host) => host,
        Err(reason) => skip!(
            "a_hook_that_comes_too_late_lets_no_container_run_without_its_quota",
            "{reason}"
        ),
    };
    let refused = host.run(SLICE, &["echo", "ran"])?;
    assert!(!refused.stdout.contains("ran"), "{refused:?}");
    assert_eq!(refused.code, Some(126), "{refused:?}");
    assert_eq!(host.run(&[], &["echo", "ran"])?.success()?.stdout, "ran\n");
    assert_eq!(host.left(), Vec::<String>::new());
    host.finish()
}

/// Debian 13's podman and crun, and what version 2 of the control groups alone lets run.
#[test]
fn a_slice_by_a_newer_podman_and_crun() -> Result<()> {
    for frontend in [Frontend::Wrapper, Frontend::Precreate] {
        slices_by(
            "a_slice_by_a_newer_podman_and_crun",
            &PodmanKind {
                release: Suite::Trixie,
                frontend,
                runtime: OciRuntime::NewerCrun,
                cgroups: Cgroups::Unified,
            },
        )?;
    }
    Ok(())
}
