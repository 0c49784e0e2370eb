//! User namespaces. Containers in one of their own: their root file system belongs to them, under our shim as under containerd's, and
//! a quota holds by every engine. And engines in one, a user's without privileges: they run what asks for nothing, and get no vGPU.

use std::path::Path;

use anyhow::{Result, ensure};
use integration::command::Outcome;
use integration::containerd::{CGPU, RUNC};
use integration::crictl::{PodContainer, Users};
use integration::docker::{Docker, Settings};
use integration::engines::Engines;
use integration::image::{self, Image};
use integration::node::Node;
use integration::oci::OciRuntime;
use integration::packages::Suite;
use integration::podman::{Frontend, Release};
use integration::pods::BY_PATH;
use integration::programs::{NO_MEMORY, Programs};
use integration::rig::{self, PodRig, PodmanKind, PodmanRig, TWO_CARDS};
use integration::rootless::{self, By, RootlessDocker, RootlessEngine, RootlessPodman, User};
use integration::skip;

const MAPS: [&str; 4] = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];

/// Who the program is outside, who it and a file of the image are inside, and that it may write.
const ASKS: &str = "cat /proc/self/uid_map /proc/self/gid_map; id -u; ls -ln /bin/busybox | tr -s ' ' | cut -d' ' -f3,4; \
    touch /new && ls -ln /new | tr -s ' ' | cut -d' ' -f3,4";

fn same(suite: Suite, test: &str, more: &[&str]) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    let mut reply = Vec::new();
    for (id, kind) in [("ours", CGPU), ("theirs", RUNC)] {
        let mut options = vec!["--runtime", kind];
        options.extend(MAPS);
        options.extend(more);
        let outcome = rig
            .containerd
            .run_once(&rig.image, id, &options, &["sh", "-c", ASKS])?;
        reply.push(outcome.success()?.stdout);
    }
    assert_eq!(reply[0], reply[1], "ours, theirs");
    let lines: Vec<Vec<&str>> = reply[0]
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let map = vec!["0", "100000", "65536"];
    let root = vec!["0", "0"];
    assert_eq!(lines, [map.clone(), map, vec!["0"], root.clone(), root]);
    rig.finish()
}

/// containerd gives the files their owners by writing them.
#[test]
fn a_copied_root_belongs_to_the_container() -> Result<()> {
    same(Suite::Host, "a_copied_root_belongs_to_the_container", &[])
}

/// The snapshotter leaves it to the shim: `uidmap=` and `gidmap=` among the mount's options.
#[test]
fn a_mapped_root_belongs_to_the_container() -> Result<()> {
    let test = "a_mapped_root_belongs_to_the_container";
    same(Suite::Newer, test, &["--remap-labels"])
}

/// The container's root is nobody's on the host, and its calls are the broker's as any other's: the quota holds, and what it says of
/// itself is the slice.
#[test]
fn a_quota_holds_in_a_user_namespace() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_quota_holds_in_a_user_namespace", "{reason}"),
    };
    let run = |program: &[&str]| {
        let mut options = vec!["--runtime", CGPU, "--annotation", "cgpu.io/memory=1Gi"];
        options.extend(MAPS);
        rig.containerd
            .run_once(&rig.image, "users", &options, program)
    };
    a_gibibyte_holds(100_000, run)?;
    run(&["cgpu-burn", "views"])?.success()?;
    rig.finish()
}

/// Of `run`, which runs a program to its end in a container of 1 GiB whose users begin at `first`.
fn a_gibibyte_holds(first: u32, run: impl Fn(&[&str]) -> Result<Outcome>) -> Result<()> {
    let map = run(&["cat", "/proc/self/uid_map"])?.success()?.stdout;
    let map: Vec<&str> = map.split_whitespace().collect();
    ensure!(
        map.first() == Some(&"0") && map.get(1) == Some(&first.to_string().as_str()),
        "{map:?}"
    );
    let above = run(&["cgpu-burn", "alloc", "2Gi"])?;
    // crictl has a code of its own, and says the program's.
    let is_refused = above.code == NO_MEMORY || above.stderr.contains("exited with 3:");
    ensure!(is_refused, "{above:?}");
    run(&["cgpu-burn", "alloc", "512Mi"])?.success()?;
    let smi = run(&["cgpu", "smi", "--json"])?.success()?.json()?;
    ensure!(smi["cards"][0]["memory_total_bytes"] == 1u64 << 30, "{smi}");
    Ok(())
}

/// dockerd gives every container the user's subordinate ids, and its own folders to the first of them.
#[test]
fn a_quota_holds_under_docker_s_remapped_users() -> Result<()> {
    const TEST: &str = "a_quota_holds_under_docker_s_remapped_users";
    let rig = match rig::start(Suite::Trixie)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    if let Err(reason) = User::on(&rig.node)? {
        rig.finish()?;
        skip!(TEST, "{reason}");
    }
    let settings = Settings {
        remapped_to: Some(rootless::NAME),
        ..Settings::default()
    };
    let mut docker = Docker::start_with(&rig.node, &rig.containerd, &settings)?;
    docker.load(&rig.image)?;
    for runtime in ["cgpu", "cgpu-type"] {
        a_gibibyte_holds(rootless::SUBORDINATE, |program| {
            let mut args = vec!["run", "--rm", "--network=none", "--runtime", runtime];
            args.extend(["--annotation", "cgpu.io/memory=1Gi", &rig.image.name]);
            args.extend(program);
            docker.docker(&args)
        })?;
    }
    docker.stop()?;
    drop(docker);
    rig.finish()
}

/// By the wrapper and by the hook.
#[test]
fn a_quota_holds_under_podman_in_a_user_namespace() -> Result<()> {
    const TEST: &str = "a_quota_holds_under_podman_in_a_user_namespace";
    for frontend in [Frontend::Wrapper, Frontend::Precreate] {
        let rig = match PodmanRig::start(&PodmanKind::of(frontend))? {
            Ok(rig) => rig,
            Err(reason) => skip!(TEST, "{reason}"),
        };
        a_gibibyte_holds(100_000, |program| {
            let mut options = vec!["--rm", "--annotation", "cgpu.io/memory=1Gi"];
            options.extend(MAPS);
            rig.podman.run(&rig.image, &options, program)
        })?;
        rig.finish()?;
    }
    Ok(())
}

/// What a kubelet says to CRI for a pod with `hostUsers: false`.
#[test]
fn a_quota_holds_in_a_pod_with_users_of_its_own() -> Result<()> {
    const TEST: &str = "a_quota_holds_in_a_pod_with_users_of_its_own";
    // runc maps mounts from 1.2 on.
    let rig = match PodRig::start_by(Suite::Newer, OciRuntime::NewerRunc)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let (server, crictl, users) = (rig.engine.as_ref(), &rig.crictl, Users::From(300_000));
    let pod = crictl.pod_of_users("users", &["cgpu.io/memory=1Gi"], users)?;
    let sandbox = crictl.run_pod(server, &pod, BY_PATH)?;
    let container = PodContainer {
        name: "held",
        users,
        program: &["sleep", "100000"],
        ..PodContainer::default()
    };
    let id = crictl.run_container(server, &sandbox, &pod, &rig.image.name, &container)?;
    a_gibibyte_holds(300_000, |program| {
        let mut args = vec!["exec", "-s", &id];
        args.extend(program);
        crictl.crictl(server, &args)
    })?;
    rig.finish()
}

/// A node with two simulated cards.
fn node(engines: &Engines) -> Result<(Node, Image)> {
    let programs = Programs::for_tests()?;
    let image = image::busybox(Some(programs))?;
    Ok((Node::simulated(programs, engines, TWO_CARDS)?, image))
}

/// What a user's engine must do on a node whose root's engines would get a vGPU.
fn plain_alone(engine: &dyn RootlessEngine, node: &Node, image: &Image, ours: &[By]) -> Result<()> {
    let asks = [
        "sh",
        "-c",
        "id -u; cat /proc/self/uid_map; ls /dev | grep -c nvidia",
    ];
    let theirs = engine.run(By::Runc, image, &["--rm"], &asks)?;
    ensure!(theirs.stdout.starts_with("0\n"), "{theirs:?}");
    for by in ours {
        let plain = engine.run(*by, image, &["--rm"], &asks)?;
        ensure!(
            (plain.code, &plain.stdout) == (theirs.code, &theirs.stdout),
            "{plain:?}, {theirs:?}"
        );
        let fails = engine.run(*by, image, &["--rm"], &["sh", "-c", "exit 9"])?;
        ensure!(fails.code == Some(9), "{fails:?}");
        let held = ["-d", "--name", "held"];
        engine
            .run(*by, image, &held, &["sleep", "100000"])?
            .success()?;
        let inside = engine
            .client(&["exec", "held", "echo", "inside"])?
            .success()?;
        ensure!(inside.stdout == "inside\n", "{inside:?}");
        engine.client(&["stop", "-t", "0", "held"])?.success()?;
        engine.client(&["start", "held"])?.success()?;
        engine.client(&["rm", "-f", "held"])?.success()?;
        let environment = [
            "-e",
            "ALIYUN_COM_GPU_MEM_CONTAINER=1",
            "-e",
            "ALIYUN_COM_GPU_MEM_DEV=24",
        ];
        let options: Vec<&str> = ["--rm"].into_iter().chain(environment).collect();
        let refused = engine.run(*by, image, &options, &["echo", "ran"])?;
        ensure!(!refused.stdout.contains("ran"), "{refused:?}");
        let text = refused.failure()?;
        for sentence in [
            "its engine runs in a user namespace",
            "by an engine of root's",
        ] {
            ensure!(text.contains(sentence), "{by:?}: {text}");
        }
    }
    let left = engine.client(&["ps", "-aq"])?.success()?.stdout;
    ensure!(left.is_empty(), "{left}");
    ensure!(node.grants().is_empty(), "{:?}", node.grants());
    Ok(())
}

#[test]
fn a_user_s_podman_runs_plain_containers_and_gets_no_vgpu() -> Result<()> {
    const TEST: &str = "a_user_s_podman_runs_plain_containers_and_gets_no_vgpu";
    if let Some(reason) = skip::lacks_root() {
        skip!(TEST, "{reason}");
    }
    let fetched = (Engines::fetch(Suite::Host), Release::fetch(Suite::Host));
    let (engines, release) = match fetched {
        (Ok(engines), Ok(release)) => (engines, release),
        (Err(error), _) | (_, Err(error)) => skip!(TEST, "{error:#}"),
    };
    let (node, image) = node(&engines)?;
    let user = match a_user(&node, release.program())? {
        Ok(user) => user,
        Err(reason) => {
            node.finish()?;
            skip!(TEST, "{reason}");
        }
    };
    let mut podman = RootlessPodman::start(&user, &node, &engines, &release, &image)?;
    let done = plain_alone(&podman, &node, &image, &[By::Wrapper]);
    podman.stop()?;
    done?;
    node.finish()
}

/// One of before there were runtimes by type, and one of after.
#[test]
fn a_user_s_docker_runs_plain_containers_and_gets_no_vgpu() -> Result<()> {
    const TEST: &str = "a_user_s_docker_runs_plain_containers_and_gets_no_vgpu";
    if let Some(reason) = skip::lacks_root() {
        skip!(TEST, "{reason}");
    }
    for (suite, ours) in [
        (Suite::Host, &[By::Wrapper][..]),
        (Suite::Trixie, &[By::Wrapper, By::Shim]),
    ] {
        let engines = match Engines::fetch(suite) {
            Ok(engines) => engines,
            Err(error) => skip!(TEST, "{error:#}"),
        };
        let (node, image) = node(&engines)?;
        let user = match a_user(&node, &engines.program("dockerd")?)? {
            Ok(user) => user,
            Err(reason) => {
                node.finish()?;
                skip!(TEST, "{reason}");
            }
        };
        let mut docker = RootlessDocker::start(&user, &node, &engines, &image)?;
        let done = plain_alone(&docker, &node, &image, ours);
        docker.stop()?;
        done?;
        drop(docker);
        node.finish()?;
    }
    Ok(())
}

/// The user who starts an engine, or why there is none.
fn a_user(node: &Node, engine: &Path) -> Result<Result<User, String>> {
    let user = match User::on(node)? {
        Ok(user) => user,
        Err(reason) => return Ok(Err(reason)),
    };
    let runtime = node.command("cgpu-runtime")?;
    for program in [engine, Path::new(runtime.get_program())] {
        if let Some(reason) = user.lacks(program)? {
            return Ok(Err(reason));
        }
    }
    Ok(Ok(user))
}
