//! Requests that are missed are reported, or refused where the host says so; and a host's default is for containers that make none.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use integration::command::Outcome;
use integration::containerd::CGPU;
use integration::crictl::{PodContainer, Processes};
use integration::docker::Docker;
use integration::packages::Suite;
use integration::pods::BY_TYPE;
use integration::programs::NO_MEMORY;
use integration::rig::{self, PodRig, Rig};
use integration::skip;
use serde_json::Value;

const SLEEP: &[&str] = &["sleep", "100000"];

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

/// The events of one container: kinds and texts.
fn events(rig: &Rig, id: &str) -> Result<Vec<(String, String)>> {
    let reply = rig.node.cgpu(&["events", "--json", id])?;
    if reply.code == Some(1) && reply.stderr.contains("no container") {
        return Ok(Vec::new());
    }
    let of = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    reply
        .success()?
        .stdout
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line)?;
            Ok((of(&event, "kind"), of(&event, "text")))
        })
        .collect()
}

/// The one event of a container, of this kind and with these parts.
fn reported(rig: &Rig, id: &str, kind: &str, parts: &[&str]) -> Result<()> {
    let events = events(rig, id)?;
    let [(is, text)] = &events[..] else {
        anyhow::bail!("{id}: {events:?}");
    };
    ensure!(is == kind, "{id}: {events:?}");
    for part in parts {
        ensure!(text.contains(part), "{id}: no {part:?} in: {text}");
    }
    Ok(())
}

/// Runs something on a host whose `[request]` says this.
fn configured(rig: &Rig, lines: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let good = fs::read_to_string(rig.node.config())?;
    ensure!(!good.contains("[request]"), "{good}");
    rig.node
        .edit_config(|text| format!("{text}\n[request]\n{lines}\n"))?;
    let done = body().with_context(|| lines.to_owned());
    fs::write(rig.node.config(), good)?;
    done
}

/// By ctr, through one of the frontends.
struct Ctr<'a> {
    rig: &'a Rig,
    frontend: Vec<&'a str>,
    /// Names are its own: what has happened to a container outlives it.
    name: &'a str,
}

impl Ctr<'_> {
    fn start(&self, id: &str, options: &[&str]) -> Result<Outcome> {
        let all = [self.frontend.as_slice(), options].concat();
        self.rig
            .containerd
            .run_detached(&self.rig.image, id, &all, SLEEP)
    }

    fn has_no_card(&self, id: &str) -> Result<()> {
        let grants = self.rig.node.grants();
        ensure!(grants.is_empty(), "{id}: {grants:?}");
        self.rig.containerd.remove(id)
    }

    fn all(&self) -> Result<()> {
        let rig = self.rig;
        for (name, options, parts) in [
            (
                "misspelt",
                &[
                    "--env",
                    "ALIYUN_COM_GPU_MEM_CONTAINR=4",
                    "--env",
                    "ALIYUN_COM_GPU_MEM_DEV=24",
                ][..],
                &[
                    "starts without a card",
                    "ALIYUN_COM_GPU_MEM_CONTAINR = \"4\"",
                    "write ALIYUN_COM_GPU_MEM_CONTAINER",
                ][..],
            ),
            (
                "hami",
                &["--annotation", "nvidia.com/gpumem=4096"],
                &["HAMi", "cgpu.io/memory=4096Mi"],
            ),
            (
                "visible",
                &["--env", "NVIDIA_VISIBLE_DEVICES=all"],
                &["NVIDIA_VISIBLE_DEVICES = \"all\"", "cgpu.io/memory"],
            ),
        ] {
            let id = format!("{}-{name}", self.name);
            self.start(&id, options)?.success()?;
            reported(rig, &id, "near_miss", parts)?;
            self.has_no_card(&id)?;
            // Once, and it outlives its container.
            reported(rig, &id, "near_miss", parts)?;
        }
        let plain = format!("{}-plain", self.name);
        self.start(&plain, &["--env", "NVIDIA_VISIBLE_DEVICES=void"])?
            .success()?;
        self.has_no_card(&plain)?;
        ensure!(events(rig, &plain)?.is_empty());
        configured(rig, "strict = true", || self.strict())?;
        configured(rig, "default = \"2Gi\"", || self.default())
    }

    fn strict(&self) -> Result<()> {
        let rig = self.rig;
        let id = format!("{}-strict", self.name);
        let reply = self.start(&id, &["--env", "CGPU_MEMORY=4Gi"])?.failure()?;
        rig.containerd.ctr(&["containers", "rm", &id])?;
        for part in [
            "CGPU_MEMORY = \"4Gi\"",
            "cgpu.io/memory=4Gi",
            "[request] strict",
            "CGPU_DISABLE=1",
        ] {
            ensure!(reply.contains(part), "no {part:?} in: {reply}");
        }
        reported(rig, &id, "refused", &["cgpu.io/memory=4Gi"])?;
        let plain = format!("{}-strict-plain", self.name);
        self.start(&plain, &[])?.success()?;
        self.has_no_card(&plain)
    }

    fn default(&self) -> Result<()> {
        let rig = self.rig;
        let id = format!("{}-default", self.name);
        self.start(&id, &[])?.success()?;
        for (size, code) in [("1Gi", Some(0)), ("3Gi", NO_MEMORY)] {
            let reply = rig.containerd.exec(&id, &["cgpu-burn", "alloc", size])?;
            ensure!(reply.code == code, "{reply:?}");
        }
        rig.containerd.remove(&id)?;
        let declined = format!("{}-declined", self.name);
        self.start(&declined, &["--env", "CGPU_DISABLE=1"])?
            .success()?;
        self.has_no_card(&declined)
    }
}

#[test]
fn by_the_shim() -> Result<()> {
    with("by_the_shim", |rig| {
        let ctr = Ctr {
            rig,
            frontend: vec!["--runtime", CGPU],
            name: "s",
        };
        ctr.all()
    })
}

#[test]
fn by_the_runtime() -> Result<()> {
    with("by_the_runtime", |rig| {
        let found = rig.node.command("cgpu-runtime")?;
        let ctr = Ctr {
            rig,
            frontend: vec![
                "--runc-binary",
                found.get_program().to_str().context("a path")?,
            ],
            name: "r",
        };
        ctr.all()
    })
}

/// One container of docker's that waits; its id.
fn docker_start(docker: &Docker, rig: &Rig, options: &[&str]) -> Result<String> {
    let mut args = vec!["run", "-d", "--network=none", "--runtime", "cgpu"];
    args.extend(options);
    args.push(&rig.image.name);
    args.extend(SLEEP);
    let reply = docker.docker(&args)?.success()?;
    Ok(reply.stdout.trim().to_owned())
}

#[test]
fn by_docker() -> Result<()> {
    with("by_docker", |rig| {
        // For `--gpus` dockerd looks for NVIDIA's hook when it starts; this one does nothing.
        let hook = rig
            .node
            .own_programs()
            .join("nvidia-container-runtime-hook");
        fs::create_dir_all(rig.node.own_programs())?;
        fs::write(&hook, "#!/bin/sh\nexit 0\n")?;
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755))?;
        let mut docker = Docker::start(&rig.node, &rig.containerd)?;
        docker.load(&rig.image)?;
        for (options, parts) in [
            (
                &[
                    "-e",
                    "ALIYUN_COM_GPU_MEM_POD=4",
                    "-e",
                    "ALIYUN_COM_GPU_MEM_DEV=24",
                ][..],
                &["sum over a pod", "ALIYUN_COM_GPU_MEM_CONTAINER"][..],
            ),
            (
                &["-e", "CUDA_DEVICE_MEMORY_LIMIT=4g"],
                &["HAMi", "cgpu.io/memory=4g"],
            ),
            (
                &["--gpus", "all"],
                &["nvidia-container-runtime-hook", "docker --gpus"],
            ),
        ] {
            let id = docker_start(&docker, rig, options)?;
            reported(rig, &id, "near_miss", parts)?;
            docker.docker(&["rm", "-f", &id])?.success()?;
        }
        // Labels are docker's own: nothing of them is in the bundle.
        let id = docker_start(&docker, rig, &["--label", "cgpu.io/memory=4Gi"])?;
        ensure!(events(rig, &id)?.is_empty());
        docker.docker(&["rm", "-f", &id])?.success()?;
        let run = |options: &[&str], program: &[&str]| {
            let mut args = vec!["run", "--rm", "--network=none", "--runtime", "cgpu"];
            args.extend(options);
            args.push(&rig.image.name);
            args.extend(program);
            docker.docker(&args)
        };
        configured(rig, "strict = true", || {
            let reply = run(&["-e", "NVIDIA_VISIBLE_DEVICES=all"], &["true"])?;
            ensure!(reply.code == Some(125), "{reply:?}");
            for part in [
                "NVIDIA_VISIBLE_DEVICES",
                "[request] strict",
                "cgpu.io/memory",
            ] {
                ensure!(reply.stderr.contains(part), "no {part:?} in: {reply:?}");
            }
            run(&["-e", "NVIDIA_VISIBLE_DEVICES=void"], &["true"])?.success()?;
            Ok(())
        })?;
        configured(
            rig,
            "default = { memory = \"25%\", cards = \"1,\" }",
            || {
                let smi = run(&[], &["cgpu", "smi", "--json"])?.success()?.json()?;
                let gib_6 = smi["cards"][0]["memory_total_bytes"].as_u64() == Some(6 << 30);
                ensure!(gib_6, "{smi}");
                Ok(())
            },
        )?;
        docker.stop()
    })
}

/// What a pod's author writes is the pod's only where the host says so.
#[test]
fn a_pod_s_author_is_refused_where_claims_alone_count() -> Result<()> {
    const TEST: &str = "a_pod_s_author_is_refused_where_claims_alone_count";
    let rig = match PodRig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let done = pods_of_an_author(&rig);
    rig.finish()?;
    done
}

fn pods_of_an_author(rig: &PodRig) -> Result<()> {
    let (crictl, engine) = (&rig.crictl, rig.engine.as_ref());
    let authority = |who: &str| {
        rig.node.edit_config(|text| {
            let rest = text.split("\n[kubernetes]").next().unwrap_or_default();
            format!("{rest}\n[kubernetes]\nauthority = \"{who}\"\n")
        })
    };
    let asking = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    let annotated = crictl.pod(
        "annotated",
        &["cgpu.io/memory=4Gi"],
        Processes::OfTheContainer,
    )?;
    let classic = crictl.pod("classic", &[], Processes::OfTheContainer)?;
    for (pod, environment, key) in [
        (&annotated, &[][..], "cgpu.io/memory"),
        (&classic, &asking[..], "ALIYUN_COM_GPU_MEM_CONTAINER"),
    ] {
        authority("claims")?;
        let sandbox = crictl.run_pod(engine, pod, BY_TYPE)?;
        let container = |name| PodContainer {
            name,
            environment,
            program: SLEEP,
            ..PodContainer::default()
        };
        let start =
            |name| crictl.run_container(engine, &sandbox, pod, &rig.image.name, &container(name));
        let refused = format!("{:#}", start("refused").err().context("it has started")?);
        for part in [key, "asks for a vGPU in a pod", "by claims alone"] {
            ensure!(refused.contains(part), "no {part:?} in {refused}");
        }
        ensure!(rig.node.grants().is_empty(), "{:?}", rig.node.grants());
        authority("annotations")?;
        start("granted")?;
        ensure!(!rig.node.grants().is_empty(), "nothing is granted");
        crictl.remove_all(engine)?;
    }
    Ok(())
}
