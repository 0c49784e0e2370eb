//! The same slice through every engine that a user may have.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use integration::command::{LIMIT, Outcome, capture};
use integration::containerd::CGPU;
use integration::docker::Docker;
use integration::nerdctl::{self, Nerdctl};
use integration::packages::Suite;
use integration::rig::{self, Rig, TWO_CARDS};
use integration::{freezer, node, skip};
use serde_json::Value;

const GIB: u64 = 1 << 30;

/// What every engine must do with a slice of 4 GiB; `prefix` starts a container up to its runtime options.
fn slice_by(run: impl Fn(&[&str], &[&str]) -> Result<Outcome>, ask: &[&str]) -> Result<()> {
    let smi = run(ask, &["cgpu", "smi", "--json"])?.success()?.json()?;
    assert_eq!(totals(&smi)?, [4 * GIB], "{smi}");
    let over = run(ask, &["cgpu-burn", "--json", "alloc", "4097Mi"])?;
    assert_eq!(over.code, Some(3), "{over:?}");
    run(ask, &["cgpu-burn", "alloc", "4000Mi"])?.success()?;
    // The exit code of the program, and a plain container under the same runtime.
    assert_eq!(run(ask, &["sh", "-c", "exit 9"])?.code, Some(9));
    let nodes = run(&[], &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    assert_eq!(nodes.stdout.trim(), "0", "{nodes:?}");
    Ok(())
}

fn totals(smi: &Value) -> Result<Vec<u64>> {
    smi["cards"]
        .as_array()
        .context("cards in the document")?
        .iter()
        .map(|card| card["memory_total_bytes"].as_u64().context("a total"))
        .collect()
}

const ALIYUN: [&str; 4] = [
    "-e",
    "ALIYUN_COM_GPU_MEM_CONTAINER=4",
    "-e",
    "ALIYUN_COM_GPU_MEM_DEV=24",
];

fn docker(suite: Suite, test: &str, body: fn(&Rig, &Docker) -> Result<()>) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    body(&rig, &docker)?;
    docker.stop()?;
    drop(docker);
    rig.finish()
}

fn docker_runs(rig: &Rig, docker: &Docker, runtime: &str) -> Result<()> {
    slice_by(
        |ask, program| {
            let mut args = vec!["run", "--rm", "--network=none", "--runtime", runtime];
            args.extend(ask);
            args.push(&rig.image.name);
            args.extend(program);
            docker.docker(&args)
        },
        &ALIYUN,
    )?;
    // Docker's own life cycle: detached, exec, top, stats, pause, restart, stop, logs.
    let mut run = vec![
        "run",
        "-d",
        "--name",
        "long",
        "--network=none",
        "--runtime",
        runtime,
    ];
    run.extend(ALIYUN);
    run.extend([
        rig.image.name.as_str(),
        "sh",
        "-c",
        "echo started; exec sleep 100000",
    ]);
    docker.docker(&run)?.success()?;
    let smi = docker
        .docker(&["exec", "long", "cgpu", "smi", "--json"])?
        .success()?;
    assert_eq!(totals(&smi.json()?)?, [4 * GIB]);
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    assert_eq!(ps["vgpus"][0]["name"], "long", "{ps}");
    let over = docker.docker(&["exec", "long", "cgpu-burn", "alloc", "5Gi"])?;
    assert_eq!(over.code, Some(3), "{over:?}");
    assert!(
        docker
            .docker(&["top", "long"])?
            .success()?
            .stdout
            .contains("sleep")
    );
    docker
        .docker(&["stats", "--no-stream", "long"])?
        .success()?;
    docker
        .docker(&["update", "--memory", "64m", "--memory-swap", "64m", "long"])?
        .success()?;
    freezer::pause(|| docker.docker(&["pause", "long"]))?;
    docker.docker(&["unpause", "long"])?.success()?;
    docker.docker(&["restart", "-t", "0", "long"])?.success()?;
    let smi = docker
        .docker(&["exec", "long", "cgpu", "smi", "--json"])?
        .success()?;
    assert_eq!(totals(&smi.json()?)?, [4 * GIB], "after a restart");
    let logs = docker.docker(&["logs", "long"])?.success()?;
    assert_eq!(logs.stdout, "started\nstarted\n");
    docker.docker(&["stop", "-t", "0", "long"])?.success()?;
    assert_eq!(
        rig.node.grants(),
        Vec::<String>::new(),
        "a stopped container holds no card"
    );
    docker.docker(&["rm", "long"])?.success()?;
    security_options(rig, docker, runtime)
}

/// The default profile, none, and privileged: the filter must be in place under each. Privileged, a container is refused
/// unless the configuration lets it through, and then everybody is told.
fn security_options(rig: &Rig, docker: &Docker, runtime: &str) -> Result<()> {
    let run = |security: &[&str], program: &[&str]| {
        let mut args = vec!["run", "--rm", "--network=none", "--runtime", runtime];
        args.extend(security);
        args.extend(ALIYUN);
        args.push(&rig.image.name);
        args.extend(program);
        docker.docker(&args)
    };
    for security in [
        &["--security-opt", "seccomp=unconfined"][..],
        &["--user", "1000"],
    ] {
        let over = run(security, &["cgpu-burn", "alloc", "5Gi"])?;
        assert_eq!(over.code, Some(3), "{security:?}: {over:?}");
    }
    for (security, named) in [
        (&["--privileged"][..], "cap-sys-admin"),
        (&["--cap-add", "SYS_ADMIN"], "cap-sys-admin"),
        (&["--cap-add", "SYS_PTRACE"], "cap-sys-ptrace"),
        (&["--pid", "host"], "host-pid"),
        (&["--device-cgroup-rule", "a *:* rwm"], "host-devices"),
        (&["-v", "/dev:/host/dev"], "host-dev"),
        (&["-v", "/:/host:ro"], "host-root"),
    ] {
        let refused = run(security, &["true"])?.failure()?;
        for part in [named, "[isolation] allow", "together with a quota"] {
            assert!(refused.contains(part), "{security:?}: {refused}");
        }
        assert_eq!(rig.node.grants(), Vec::<String>::new(), "{security:?}");
    }
    let exec_is_refused = |container: &str| -> Result<()> {
        let refused = docker
            .docker(&["exec", "--privileged", container, "true"])?
            .failure()?;
        assert!(refused.contains("process.capabilities"), "{refused}");
        Ok(())
    };
    let mut sleeper = vec![
        "run",
        "-d",
        "--name",
        "held",
        "--network=none",
        "--runtime",
        runtime,
    ];
    sleeper.extend(ALIYUN);
    sleeper.extend([rig.image.name.as_str(), "sleep", "100000"]);
    docker.docker(&sleeper)?.success()?;
    exec_is_refused("held")?;
    docker.docker(&["rm", "-f", "held"])?.success()?;
    // Where the machine itself lacks a capability, docker 20.10 cannot start any privileged container.
    let plain = docker.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--privileged",
        &rig.image.name,
        "true",
    ])?;
    if !plain.succeeded() {
        let reason = format!("plain docker cannot run it either: {}", plain.stderr.trim());
        skip::record("docker run --privileged", &reason);
        return Ok(());
    }
    let before = std::fs::read_to_string(rig.node.config())?;
    rig.node
        .edit_config(|text| text + "\n[isolation]\nallow = [\"privileged\"]\n")?;
    let over = run(&["--privileged"], &["cgpu-burn", "alloc", "5Gi"])?;
    assert_eq!(over.code, Some(3), "{over:?}");
    sleeper.insert(2, "--privileged");
    docker.docker(&sleeper)?.success()?;
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let reply = ps["vgpus"][0]["isolation"].as_str().unwrap_or_default();
    assert!(reply.starts_with("off (cap-sys-admin"), "{ps}");
    docker.docker(&["rm", "-f", "held"])?.success()?;
    rig.node.edit_config(|_| before)
}

#[test]
fn docker_of_the_host_release_by_the_oci_wrapper() -> Result<()> {
    docker(
        Suite::Host,
        "docker_of_the_host_release_by_the_oci_wrapper",
        |rig, docker| docker_runs(rig, docker, "cgpu"),
    )
}

#[test]
fn newer_docker_by_the_oci_wrapper() -> Result<()> {
    docker(
        Suite::Newer,
        "newer_docker_by_the_oci_wrapper",
        |rig, docker| docker_runs(rig, docker, "cgpu"),
    )
}

#[test]
fn newer_docker_takes_the_shim_by_name() -> Result<()> {
    docker(
        Suite::Newer,
        "newer_docker_takes_the_shim_by_name",
        |rig, docker| {
            docker_runs(rig, docker, CGPU)?;
            // Annotations reach the shim as well.
            let reply = docker
                .docker(&[
                    "run",
                    "--rm",
                    "--network=none",
                    "--runtime",
                    CGPU,
                    "--annotation",
                    "cgpu.io/memory=6Gi",
                    "--annotation",
                    "cgpu.io/cards=2",
                    &rig.image.name,
                    "cgpu",
                    "smi",
                    "--json",
                ])?
                .success()?;
            assert_eq!(totals(&reply.json()?)?, [3 * GIB, 3 * GIB]);
            Ok(())
        },
    )
}

#[test]
fn nerdctl_takes_the_shim_by_name() -> Result<()> {
    let test = "nerdctl_takes_the_shim_by_name";
    if let Err(error) = nerdctl::program() {
        skip!(test, "{error:#}");
    }
    let rig = match rig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let nerdctl = Nerdctl::new(&rig.node, &rig.containerd)?;
    nerdctl.load(&rig.image)?;
    slice_by(
        |ask, program| {
            let mut args = vec!["run", "--rm", "--network=none", "--runtime", CGPU];
            args.extend(ask);
            args.push(&rig.image.name);
            args.extend(program);
            nerdctl.nerdctl(&args)
        },
        &["--annotation", "cgpu.io/memory=4Gi"],
    )?;
    let held = [
        "run",
        "-d",
        "--name",
        "held",
        "--network=none",
        "--runtime",
        CGPU,
        "--annotation",
        "cgpu.io/memory=4Gi",
        &rig.image.name,
        "sleep",
        "100000",
    ];
    nerdctl.nerdctl(&held)?.success()?;
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    assert_eq!(ps["vgpus"][0]["name"], "held", "{ps}");
    nerdctl.nerdctl(&["rm", "-f", "held"])?.success()?;
    rig.finish()
}

#[test]
fn a_plain_process_by_cgpu_run() -> Result<()> {
    let test = "a_plain_process_by_cgpu_run";
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let burn = rig
        .node
        .command("cgpu-burn")?
        .get_program()
        .to_string_lossy()
        .into_owned();
    let cgpu = rig
        .node
        .command("cgpu")?
        .get_program()
        .to_string_lossy()
        .into_owned();
    let run = |options: &[&str], program: &[&str]| -> Result<Outcome> {
        let mut args = vec!["run"];
        args.extend(options);
        args.push("--");
        args.extend(program);
        rig.node.cgpu(&args)
    };
    let smi = run(&["--memory", "4Gi"], &[&cgpu, "smi", "--json"])?.success()?;
    assert_eq!(totals(&smi.json()?)?, [4 * GIB]);
    let smi = run(
        &["--memory", "8Gi", "--cards", "2"],
        &[&cgpu, "smi", "--json"],
    )?
    .success()?;
    assert_eq!(totals(&smi.json()?)?, [4 * GIB, 4 * GIB]);
    let over = run(&["--memory", "1Gi"], &[&burn, "alloc", "1025Mi"])?;
    assert_eq!(over.code, Some(3), "{over:?}");
    assert_eq!(
        run(&["--memory", "1Gi"], &["sh", "-c", "exit 11"])?.code,
        Some(11)
    );
    run(&["--memory", "0"], &["true"])?.failure()?;
    assert_eq!(rig.node.grants(), Vec::<String>::new());
    rig.finish()
}

#[test]
fn a_plain_process_on_cards_simulated_for_it() -> Result<()> {
    let test = "a_plain_process_on_cards_simulated_for_it";
    if let Some(reason) = skip::lacks_root() {
        skip!(test, "{reason}");
    }
    let programs = integration::programs::Programs::for_tests()?;
    let node = node::Node::bare()?;
    let profile = node.root().join("cards.toml");
    std::fs::write(&profile, TWO_CARDS)?;
    let config = node.root().join("cgpu.toml");
    std::fs::write(
        &config,
        format!("state_dir = \"{}\"\n", node.state_dir().display()),
    )?;
    let cgpu = programs.program("cgpu")?;
    let reply = capture(
        Command::new(&cgpu)
            .args(["run", "--memory", "4Gi", "--simulate"])
            .arg(&profile)
            .arg("--")
            .arg(Path::new(&cgpu))
            .args(["smi", "--json"])
            .env("CGPU_CONFIG", &config),
        LIMIT,
    )?
    .success()?;
    assert_eq!(totals(&reply.json()?)?, [4 * GIB]);
    node.finish()
}
