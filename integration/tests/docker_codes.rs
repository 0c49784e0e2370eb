//! What `docker run` and `docker exec` exit with where the program is not what it should be, and what is mounted read-only: the
//! same as with docker's own runtime, on the same dockerd.

use std::fs;

use anyhow::{Context, Result};
use integration::containerd::{CGPU, RUNC};
use integration::docker::Docker;
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A program that is not there; one that is none; a container that runc refuses for another reason.
const NOT_FOUND: Option<i32> = Some(127);
const NOT_EXECUTABLE: Option<i32> = Some(126);
const REFUSED: Option<i32> = Some(125);

/// The codes under one runtime, by what was asked for.
fn codes(rig: &Rig, docker: &Docker, runtime: &str) -> Result<Vec<(String, Option<i32>)>> {
    let image = rig.image.name.as_str();
    let name = format!("codes-{}", runtime.replace('.', "-"));
    docker
        .docker(&[
            "run",
            "-d",
            "--name",
            &name,
            "--network=none",
            "--runtime",
            runtime,
            image,
            "sleep",
            "1000",
        ])?
        .success()?;
    let run = |options: &[&str], program: &[&str]| {
        let mut args = vec!["run", "--rm", "--network=none", "--runtime", runtime];
        args.extend(options);
        args.push(image);
        args.extend(program);
        docker.docker(&args)
    };
    let mut codes = Vec::new();
    for (what, options, program) in [
        ("its own code", &[][..], &["sh", "-c", "exit 42"][..]),
        ("no program by this path", &[], &["/no/such/program"]),
        ("no program by this name", &[], &["nosuchprogram"]),
        ("a file that is no program", &[], &["/etc/hostname"]),
        ("a folder", &[], &["/etc"]),
        (
            "a value that the kernel refuses",
            &["--sysctl", "kernel.msgmax=many"],
            &["true"],
        ),
    ] {
        codes.push((format!("run: {what}"), run(options, program)?.code));
    }
    for (what, program) in [
        ("its own code", &["sh", "-c", "exit 42"][..]),
        ("no program by this path", &["/no/such/program"]),
        ("no program by this name", &["nosuchprogram"]),
        ("a file that is no program", &["/etc/hostname"]),
    ] {
        let mut args = vec!["exec", &name];
        args.extend(program);
        codes.push((format!("exec: {what}"), docker.docker(&args)?.code));
    }
    // The container has suffered none of it.
    let reply = docker
        .docker(&["inspect", "--format", "{{.State.Running}}", &name])?
        .success()?;
    assert_eq!(reply.stdout.trim(), "true", "{reply:?}");
    docker.docker(&["rm", "-f", &name])?.success()?;
    Ok(codes)
}

fn compared(suite: Suite, test: &str, ours: &str, theirs: &str) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    let by_ours = codes(&rig, &docker, ours)?;
    assert_eq!(
        by_ours,
        codes(&rig, &docker, theirs)?,
        "{ours} and {theirs}"
    );
    // Of an exec's missing program docker 20.10 says 126 under either runtime, later ones 127.
    let code = |what: &str| -> Result<Option<i32>> {
        let found = by_ours.iter().find(|(name, _)| name == what);
        Ok(found.with_context(|| what.to_owned())?.1)
    };
    for (what, needed) in [
        ("run: its own code", Some(42)),
        ("run: no program by this path", NOT_FOUND),
        ("run: no program by this name", NOT_FOUND),
        ("run: a file that is no program", NOT_EXECUTABLE),
        ("run: a folder", NOT_EXECUTABLE),
        ("run: a value that the kernel refuses", REFUSED),
        ("exec: its own code", Some(42)),
        ("exec: a file that is no program", NOT_EXECUTABLE),
    ] {
        assert_eq!(code(what)?, needed, "{what}");
    }
    // What only ours refuses is no fault of the program either.
    let refused = docker.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--runtime",
        ours,
        "-e",
        "ALIYUN_COM_GPU_MEM_CONTAINER=much",
        "-e",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        &rig.image.name,
        "true",
    ])?;
    assert_eq!(refused.code, REFUSED, "{refused:?}");
    assert!(
        refused.stderr.contains("ALIYUN_COM_GPU_MEM_CONTAINER") && refused.stderr.contains("much"),
        "{refused:?}"
    );
    docker.stop()?;
    drop(docker);
    rig.finish()
}

#[test]
fn docker_of_the_host_release_exits_as_with_runc() -> Result<()> {
    // This docker knows no other shim than its own: ours is there by the OCI wrapper.
    let test = "docker_of_the_host_release_exits_as_with_runc";
    compared(Suite::Host, test, "cgpu", "runc")
}

#[test]
fn docker_exits_with_our_shim_as_with_runc_s() -> Result<()> {
    let test = "docker_exits_with_our_shim_as_with_runc_s";
    compared(Suite::Newer, test, CGPU, RUNC)
}

/// docker asks runtimes that it has by a path for their features, and its own names of containerd's shim. Of all other shims it
/// knows none, and leaves what is mounted below a read-only mount writable.
#[test]
fn read_only_mounts_of_docker_are_recursive_where_it_asks_for_features() -> Result<()> {
    const TEST: &str = "read_only_mounts_of_docker_are_recursive_where_it_asks_for_features";
    let rig = match rig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let outer = rig.node.root().join("outer");
    let below = outer.join("below");
    fs::create_dir_all(&below)?;
    mount(
        Some("tmpfs"),
        &below,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )?;
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    let bind = format!("{}:/outer:ro", outer.display());
    let script = "while read what where kind how rest; do \
        case $where in /outer*) echo $where ${how%%,*};; esac; done </proc/mounts";
    let seen = |runtime: &str| -> Result<String> {
        let mut args = vec!["run", "--rm", "--network=none", "--runtime", runtime];
        args.extend(["-v", &bind, &rig.image.name, "sh", "-c", script]);
        Ok(docker.docker(&args)?.success()?.stdout)
    };
    let seen: Vec<Result<String>> = ["runc", "cgpu", "runc-type", "cgpu-type"].map(seen).into();
    docker.stop()?;
    drop(docker);
    umount2(&below, MntFlags::empty())?;
    rig.finish()?;
    let seen: Vec<String> = seen.into_iter().collect::<Result<_>>()?;
    let recursive = "/outer ro\n/outer/below ro\n";
    let shallow = "/outer ro\n/outer/below rw\n";
    assert_eq!(seen, [recursive, recursive, shallow, shallow]);
    Ok(())
}

/// What `cgpu set` has changed ends with a `docker restart`, and is said to.
#[test]
fn a_restart_begins_with_what_was_requested() -> Result<()> {
    let test = "a_restart_begins_with_what_was_requested";
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    let image = rig.image.name.as_str();
    let mut args = vec!["run", "-d", "--name", "again", "--network=none"];
    args.extend(["--runtime", "cgpu", "-e", "ALIYUN_COM_GPU_MEM_CONTAINER=4"]);
    args.extend(["-e", "ALIYUN_COM_GPU_MEM_DEV=24", image, "sleep", "1000"]);
    let id = docker.docker(&args)?.success()?.stdout.trim().to_owned();
    let quota = || -> Result<u64> {
        let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
        let quota = ps["vgpus"][0]["cards"][0]["quota_bytes"].as_u64();
        quota.context("no quota")
    };
    assert_eq!(quota()?, 4 << 30);
    let reply = rig.node.cgpu(&["set", &id, "--memory", "6Gi"])?.success()?;
    assert!(
        reply.stdout.contains("until the container ends"),
        "{reply:?}"
    );
    assert_eq!(quota()?, 6 << 30);
    docker.docker(&["restart", "-t", "0", "again"])?.success()?;
    assert_eq!(quota()?, 4 << 30);
    let reply = rig.node.cgpu(&["events", &id])?.success()?.stdout;
    let restarted = reply.lines().find(|line| line.contains("restarted"));
    let restarted = restarted.with_context(|| reply.clone())?;
    assert!(restarted.contains("4096 MiB on card GPU-"), "{restarted}");
    docker.docker(&["rm", "-f", "again"])?.success()?;
    docker.stop()?;
    drop(docker);
    rig.finish()
}
