//! Containers with a vGPU under an enforced AppArmor profile, and our own processes under one. Where the kernel has no AppArmor these
//! tests are left out: `cargo xtask guest --long --only apparmor` has a kernel with it, and `--kernel noble` one that restricts user namespaces.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::apparmor::{self, Profile, label, lacks_apparmor};
use integration::command::{LIMIT, Outcome, capture, find, wait_until};
use integration::containerd::CGPU;
use integration::crictl::{PodContainer, Processes};
use integration::docker::Docker;
use integration::node::Node;
use integration::packages::Suite;
use integration::pods::BY_TYPE;
use integration::programs::{NO_MEMORY, Programs};
use integration::rig::{self, PodRig, Rig};
use integration::skip;

const GIB: u64 = 1 << 30;
/// Executors' users begin here (`executor::confine`).
const OWN_USERS: u32 = 0x7e00_0000;
const SLEEP: &[&str] = &["sleep", "100000"];
const QUOTA: &str = "cgpu.io/memory=1Gi";
/// What `ctr run --apparmor-default-profile` loads as.
const OF_CTR: &str = "cgpu-test-default";

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    if let Some(reason) = lacks_apparmor() {
        skip!(test, "{reason}");
    }
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

/// A container by its engine: a program that is run in it, and its first process.
struct Confined<'a> {
    node: &'a Node,
    id: &'a str,
    pid: i32,
    /// The profile and its mode.
    label: String,
    exec: &'a dyn Fn(&[&str]) -> Result<Outcome>,
}

impl Confined<'_> {
    /// The profile is enforced, and everything that a vGPU is works as without one.
    fn keeps_its_quota(&self) -> Result<()> {
        let found = label(self.pid)?;
        ensure!(found == self.label, "{found}, not {}", self.label);
        let inside = (self.exec)(&["cat", "/proc/self/attr/current"])?.success()?;
        let inside = inside
            .stdout
            .trim_end_matches(['\0', '\n', '\r'])
            .to_owned();
        ensure!(inside == self.label, "an exec: {inside}");
        self.holds(GIB, "512Mi", "1025Mi")?;
        let resize = ["set", self.id, "--memory", "2Gi"];
        self.node.cgpu(&resize)?.success()?;
        self.holds(2 * GIB, "1500Mi", "2049Mi")?;
        brokers_have(self.node, "unconfined")
    }

    fn holds(&self, total: u64, below: &str, above: &str) -> Result<()> {
        let smi = (self.exec)(&["cgpu", "smi", "--json"])?.success()?.json()?;
        ensure!(smi["cards"][0]["memory_total_bytes"] == total, "{smi}");
        (self.exec)(&["cgpu-burn", "alloc", below])?.success()?;
        let reply = (self.exec)(&["cgpu-burn", "alloc", above])?;
        ensure!(reply.code == NO_MEMORY, "{reply:?}");
        Ok(())
    }
}

/// A broker runs, and each that does has this profile.
fn brokers_have(node: &Node, expected: &str) -> Result<()> {
    let running = node.running("cgpu-broker");
    // One of a container that was removed may end meanwhile.
    let labels: Vec<String> = running.iter().filter_map(|pid| label(*pid).ok()).collect();
    ensure!(!labels.is_empty(), "no broker");
    let others = labels.iter().find(|label| *label != expected);
    ensure!(others.is_none(), "{labels:?}");
    Ok(())
}

/// The executor of strict mode as its broker starts it, which simulated cards have no use for: it gives up its rights, and keeps the
/// profile.
fn executor_gives_up_its_rights(expected: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let listener = UnixListener::bind(folder.path().join("socket"))?;
    let (watched, _lifeline) = std::io::pipe()?;
    let mut executor = Command::new(Programs::for_tests()?.program("cgpu-executor")?)
        .stdin(OwnedFd::from(listener))
        .stdout(watched)
        .spawn()?;
    let pid = i32::try_from(executor.id())?;
    let line = |key: &str| -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with(key));
        let words = line.unwrap_or_default().split_whitespace();
        Ok(words.skip(1).collect::<Vec<&str>>().join(" "))
    };
    // The filter is its last step.
    let confined = wait_until("the executor's filter", LIMIT, || {
        Ok(line("Seccomp:")? == "2")
    });
    let found = [line("CapEff:")?, line("CapBnd:")?, line("NoNewPrivs:")?];
    let (uid, label) = (line("Uid:")?, label(pid)?);
    executor.kill()?;
    executor.wait()?;
    confined?;
    let none = "0000000000000000";
    ensure!(found == [none, none, "1"], "{found:?}");
    let own = OWN_USERS + executor.id();
    ensure!(uid == [own.to_string().as_str(); 4].join(" "), "{uid}");
    ensure!(label == expected, "{label}");
    Ok(())
}

/// The first process of ctr's container.
fn first_process(rig: &Rig, id: &str) -> Result<i32> {
    let listed = rig.containerd.ctr(&["tasks", "ls"])?.success()?.stdout;
    let mut lines = listed.lines().map(|line| line.split_whitespace());
    let line = lines.find_map(|mut words| (words.next() == Some(id)).then(|| words.next()));
    let pid = line.flatten().with_context(|| listed.clone())?;
    Ok(pid.parse()?)
}

#[test]
fn a_quota_holds_under_containerds_default_profile() -> Result<()> {
    with("a_quota_holds_under_containerds_default_profile", |rig| {
        // The second starts when the profile is loaded.
        for id in ["first", "second"] {
            let options = ["--runtime", CGPU, "--annotation", QUOTA];
            let profile = ["--apparmor-default-profile", OF_CTR];
            let options = [&options[..], &profile[..]].concat();
            let started = rig.containerd.run_detached(&rig.image, id, &options, SLEEP);
            started?.success()?;
            let confined = Confined {
                node: &rig.node,
                id,
                pid: first_process(rig, id)?,
                label: format!("{OF_CTR} (enforce)"),
                exec: &|program| rig.containerd.exec(id, program),
            };
            confined.keeps_its_quota()?;
            rig.containerd.remove(id)?;
        }
        Ok(())
    })
}

#[test]
fn a_quota_holds_under_docker_default() -> Result<()> {
    with("a_quota_holds_under_docker_default", |rig| {
        let mut docker = Docker::start(&rig.node, &rig.containerd)?;
        docker.load(&rig.image)?;
        let mut args = vec!["run", "-d", "--network=none", "--runtime", "cgpu"];
        args.extend(["-e", "ALIYUN_COM_GPU_MEM_CONTAINER=1"]);
        args.extend(["-e", "ALIYUN_COM_GPU_MEM_DEV=24", &rig.image.name]);
        args.extend(SLEEP);
        let id = docker.docker(&args)?.success()?.stdout.trim().to_owned();
        let format = ["inspect", "--format", "{{.State.Pid}} {{.AppArmorProfile}}"];
        let found = docker.docker(&[&format[..], &[&id]].concat())?.success()?;
        let words: Vec<&str> = found.stdout.split_whitespace().collect();
        let [pid, "docker-default"] = words.as_slice() else {
            anyhow::bail!("{found:?}");
        };
        let exec = |program: &[&str]| docker.docker(&[&["exec", &id], program].concat());
        let confined = Confined {
            node: &rig.node,
            id: &id,
            pid: pid.parse()?,
            label: "docker-default (enforce)".to_owned(),
            exec: &exec,
        };
        confined.keeps_its_quota()?;
        // The signal comes from a process without a profile, which the profile allows.
        docker.docker(&["stop", "-t", "0", &id])?.success()?;
        docker.docker(&["rm", &id])?.success()?;
        docker.stop()
    })
}

#[test]
fn a_quota_holds_under_the_default_profile_of_pods() -> Result<()> {
    const TEST: &str = "a_quota_holds_under_the_default_profile_of_pods";
    if let Some(reason) = lacks_apparmor() {
        skip!(TEST, "{reason}");
    }
    let rig = match PodRig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let pod = rig.crictl.pod("confined", &[], Processes::OfTheContainer)?;
    let sandbox = rig.crictl.run_pod(rig.engine.as_ref(), &pod, BY_TYPE)?;
    let container = PodContainer {
        name: "main",
        annotations: &[QUOTA],
        program: SLEEP,
        ..PodContainer::default()
    };
    let image = &rig.image.name;
    let started = rig
        .crictl
        .run_container(rig.engine.as_ref(), &sandbox, &pod, image, &container);
    let id = started?;
    let inspected = rig.crictl.inspect(rig.engine.as_ref(), &id)?;
    let pid = inspected["info"]["pid"].as_i64().context("info.pid")?;
    let found = label(i32::try_from(pid)?)?;
    ensure!(found == "cri-containerd.apparmor.d (enforce)", "{found}");
    let exec = |program: &[&str]| {
        let args = [&["exec", "-s", &id], program].concat();
        rig.crictl.crictl(rig.engine.as_ref(), &args)
    };
    let smi = exec(&["cgpu", "smi", "--json"])?.success()?.json()?;
    ensure!(smi["cards"][0]["memory_total_bytes"] == GIB, "{smi}");
    rig.finish()
}

/// The program's own text has the file, and nothing is left of the container. Its first program is started before its profile holds:
/// a shell starts the second one.
#[test]
fn what_a_profile_denies_is_named() -> Result<()> {
    with("what_a_profile_denies_is_named", |rig| {
        for (name, rules, program, parts) in [
            (
                "cgpu-test-no-nodes",
                "deny /dev/nvidia* rwklm,",
                &["cgpu-burn", "alloc", "512Mi"][..],
                &["/dev/nvidiactl", "Permission denied"][..],
            ),
            (
                "cgpu-test-no-smi",
                "deny /usr/bin/cgpu mrx,",
                &["sh", "-c", "cgpu smi"],
                &["cgpu: Permission denied"],
            ),
        ] {
            let profile = Profile::load(name, rules)?;
            let options = ["--runtime", CGPU, "--annotation", QUOTA];
            let options = [&options[..], &["--apparmor-profile", name]].concat();
            let reply = rig
                .containerd
                .run_once(&rig.image, name, &options, program)?;
            println!("{name}: {reply:?}");
            ensure!(!reply.succeeded(), "{name}: {reply:?}");
            let text = format!("{}{}", reply.stdout, reply.stderr);
            for part in parts {
                ensure!(text.contains(part), "{name}: no {part:?} in: {text}");
            }
            drop(profile);
        }
        Ok(())
    })
}

/// An engine, its shims and with them our broker and executor may be confined, as those of a snap are. What such a profile must allow
/// is to read a container's memory and descriptors, which are ptrace's rights: the container's own profile must name it too.
#[test]
fn a_quota_holds_under_a_confined_engine() -> Result<()> {
    const TEST: &str = "a_quota_holds_under_a_confined_engine";
    const ENGINE: &str = "cgpu-test-engine";
    const INSIDE: &str = "cgpu-test-inside";
    const CLOSED: &str = "cgpu-test-closed";
    if let Some(reason) = lacks_apparmor() {
        skip!(TEST, "{reason}");
    }
    let _engine = Profile::load(
        ENGINE,
        "mount, pivot_root, change_profile -> **, unix, dbus,",
    )?;
    let _inside = Profile::load(INSIDE, "")?;
    let _closed = Profile::load(CLOSED, &format!("deny ptrace peer={ENGINE},"))?;
    apparmor::enter(ENGINE)?;
    if UnixDatagram::unbound().is_err() {
        skip!(
            TEST,
            "this parser's rules for sockets are not this kernel's"
        );
    }
    executor_gives_up_its_rights(&format!("{ENGINE} (enforce)"))?;
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let options = ["--runtime", CGPU, "--annotation", QUOTA];
    // Without new privileges a program keeps its profile: an engine that is confined changes it only where they are allowed.
    let other = ["--allow-new-privs", "--apparmor-profile", INSIDE];
    for (id, profile, expected) in [("same", &[][..], ENGINE), ("other", &other[..], INSIDE)] {
        let options = [&options[..], profile].concat();
        let started = rig.containerd.run_detached(&rig.image, id, &options, SLEEP);
        started?.success()?;
        let found = label(first_process(&rig, id)?)?;
        ensure!(found == format!("{expected} (enforce)"), "{id}: {found}");
        brokers_have(&rig.node, &format!("{ENGINE} (enforce)"))?;
        let exec = |size| rig.containerd.exec(id, &["cgpu-burn", "alloc", size]);
        exec("512Mi")?.success()?;
        let above = exec("2Gi")?;
        ensure!(above.code == NO_MEMORY, "{id}: {above:?}");
        rig.containerd.remove(id)?;
    }
    // This one keeps the broker out: nothing is allocated, and the program gets an error.
    let closed = [
        &options[..],
        &["--allow-new-privs", "--apparmor-profile", CLOSED],
    ]
    .concat();
    let program = ["cgpu-burn", "alloc", "512Mi"];
    let reply = rig
        .containerd
        .run_once(&rig.image, "closed", &closed, &program)?;
    println!("closed: {reply:?}\n{}", rig.containerd.log());
    ensure!(!reply.succeeded(), "{reply:?}");
    rig.finish()
}

/// `kernel.apparmor_restrict_unprivileged_userns`: none of ours makes a user namespace without privilege.
#[test]
fn a_quota_holds_where_user_namespaces_are_restricted() -> Result<()> {
    const TEST: &str = "a_quota_holds_where_user_namespaces_are_restricted";
    if let Some(reason) = lacks_apparmor() {
        skip!(TEST, "{reason}");
    }
    if !apparmor::restrict_user_namespaces()? {
        skip!(
            TEST,
            "this kernel does not restrict user namespaces by AppArmor"
        );
    }
    if find("setpriv").is_none() || find("unshare").is_none() {
        skip!(TEST, "no setpriv or no unshare");
    }
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    nobody.args(["unshare", "--user", "--map-root-user", "true"]);
    let refused = capture(&mut nobody, LIMIT)?.failure()?;
    println!("nobody: {refused}");
    executor_gives_up_its_rights("unconfined")?;
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    let maps = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    for (id, more) in [("plain", &[][..]), ("mapped", &maps[..])] {
        let options = ["--runtime", CGPU, "--annotation", QUOTA];
        let profile = ["--apparmor-default-profile", OF_CTR];
        let options = [&options[..], &profile[..], more].concat();
        let started = rig.containerd.run_detached(&rig.image, id, &options, SLEEP);
        started?.success()?;
        let confined = Confined {
            node: &rig.node,
            id,
            pid: first_process(&rig, id)?,
            label: format!("{OF_CTR} (enforce)"),
            exec: &|program| rig.containerd.exec(id, program),
        };
        confined.keeps_its_quota()?;
        rig.containerd.remove(id)?;
    }
    rig.finish()
}
