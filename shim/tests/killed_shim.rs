//! A served shim that is killed at each moment of Create and of the life after, and what `delete` then leaves: nothing.

mod harness;
#[path = "harness/held_program.rs"]
mod held_program;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::{Client, TaskClient};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};
use ttrpc::context::with_duration;

use harness::{NAMESPACE, cgroup, need_runc, runc_state};
use held_program::{HeldProgram, Hold};
use shim::runtime::{Runc, orphans};
use shim::task::{ContainerId, RuncOptions};

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cgpu-v2");

/// A moment relative to `runc create`, as a wrapper of runc or a hook that says when it is reached and then waits.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Before,
    Within,
    After,
    /// Before another command of runc.
    Of(&'static str),
    Never,
    /// As [`Moment::Never`], but runc deletes nothing while the file `refuse` is there.
    Refused,
}

struct Fixture {
    dir: tempfile::TempDir,
    id: &'static str,
    bundle: PathBuf,
}

impl Fixture {
    fn new(id: &'static str, moment: Moment) -> Self {
        Self::with(id, moment, "sleep 1000")
    }

    /// `program` is the container's, for a shell.
    fn with(id: &'static str, moment: Moment, program: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let bundle = harness::bundle(dir.path(), id, program, false);
        // The engine's snapshot is what was the root; the shim mounts it.
        fs::rename(bundle.join("rootfs"), dir.path().join("snapshot")).expect("a snapshot");
        fs::create_dir(bundle.join("rootfs")).expect("a mount point");
        for name in ["reached", "gate"] {
            let mode = nix::sys::stat::Mode::S_IRWXU;
            nix::unistd::mkfifo(&dir.path().join(name), mode).expect("a FIFO");
        }
        let stop = format!(
            "echo > {0}/reached; read x < {0}/gate",
            dir.path().display()
        );
        let (before, after) = match moment {
            Moment::Before => (stop.as_str(), ""),
            Moment::Within | Moment::Of(_) | Moment::Never | Moment::Refused => ("", ""),
            Moment::After => ("", stop.as_str()),
        };
        let other = match moment {
            // Once: what `delete` itself calls goes on.
            Moment::Of(verb) => format!(
                "*' {verb} '*) if mkdir {0}/once; then read x < {0}/gate; fi;;",
                dir.path().display()
            ),
            Moment::Refused => format!(
                "*' delete '*) if [ -e {}/refuse ]; then exit 1; fi;;",
                dir.path().display()
            ),
            _ => String::new(),
        };
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *' create '*) {before}\n runc \"$@\" || exit 1\n {after}\n exit 0;;\n{other} esac\nexec runc \"$@\"\n"
        );
        let wrapper = dir.path().join("runc");
        fs::write(&wrapper, script).expect("a wrapper");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("an executable");
        if matches!(moment, Moment::Within) {
            let config = bundle.join("config.json");
            let text = fs::read(&config).expect("the spec");
            let mut spec: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            let hook = serde_json::json!({"path": "/bin/sh", "args": ["sh", "-c", stop]});
            spec["hooks"] = serde_json::json!({"createRuntime": [hook]});
            fs::write(config, spec.to_string()).expect("the spec");
        }
        let state = dir.path().join("state");
        fs::write(
            dir.path().join("cgpu.toml"),
            format!("state_dir = {state:?}\n"),
        )
        .expect("a file");
        Self { dir, id, bundle }
    }

    fn shim(&self, verb: &str) -> Output {
        let output = self.called(verb);
        assert!(output.status.success(), "{verb}: {output:?}");
        output
    }

    fn called(&self, verb: &str) -> Output {
        let containerd = self
            .dir
            .path()
            .join("containerd.sock")
            .display()
            .to_string();
        let mut command = Command::new(SHIM);
        command.args([
            "-namespace",
            &NAMESPACE,
            "-address",
            &containerd,
            "-id",
            self.id,
        ]);
        command.arg("-bundle").arg(&self.bundle).arg(verb);
        command
            .env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"))
            .current_dir(&self.bundle)
            .stdin(Stdio::null());
        command.output().expect("the shim")
    }

    /// A shim that serves: its address, its client and its number.
    async fn served(&self) -> (String, TaskClient, nix::unistd::Pid) {
        let address = String::from_utf8(self.shim("start").stdout).expect("an address");
        let task = TaskClient::new(Client::connect(&address).await.expect("a connection"));
        let connect = api::ConnectRequest {
            id: self.id.into(),
            ..Default::default()
        };
        let connected = task
            .connect(with_duration(Duration::from_secs(60)), &connect)
            .await;
        let shim = i32::try_from(connected.expect("connect").shim_pid).expect("a process");
        (address, task, nix::unistd::Pid::from_raw(shim))
    }

    /// What a release finds and removes.
    fn share(&self) -> PathBuf {
        let state = self.dir.path().join("state");
        let share = state.join("vgpus").join(NAMESPACE.as_str()).join(self.id);
        fs::create_dir_all(&share).expect("a share");
        fs::set_permissions(state, fs::Permissions::from_mode(0o700)).expect("a mode");
        share
    }

    fn create_request(&self, runc: &Path) -> api::CreateTaskRequest {
        let options = Options {
            binary_name: runc.display().to_string(),
            ..Options::default()
        };
        let mount = containerd_shim_protos::types::mount::Mount {
            type_: "bind".into(),
            source: self.dir.path().join("snapshot").display().to_string(),
            options: vec!["rbind".into()],
            ..Default::default()
        };
        api::CreateTaskRequest {
            id: self.id.into(),
            bundle: self.bundle.display().to_string(),
            rootfs: vec![mount],
            options: MessageField::some(Any {
                type_url: "containerd.runc.v1.Options".into(),
                value: options.write_to_bytes().expect("options"),
                ..Any::default()
            }),
            ..Default::default()
        }
    }

    /// Processes of the container or of runc on its behalf.
    fn processes(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let ours = |entry: fs::DirEntry| {
            let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
            let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
            let runc = line.contains("--root") && line.contains(self.dir.path().to_str()?);
            (runc || groups.contains(&cgroup(self.id))).then_some(line)
        };
        entries.filter_map(ours).collect()
    }
}

fn within_a_minute(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn killed_at(id: &'static str, moment: Moment) {
    let fixture = Fixture::new(id, moment);
    let address = String::from_utf8(fixture.shim("start").stdout).expect("an address");
    let socket = address
        .strip_prefix("unix://")
        .expect("an address")
        .to_owned();
    let task = TaskClient::new(Client::connect(&address).await.expect("a connection"));
    let connect = api::ConnectRequest {
        id: id.into(),
        ..Default::default()
    };
    let limit = || with_duration(Duration::from_secs(30));
    let shim = task
        .connect(limit(), &connect)
        .await
        .expect("connect")
        .shim_pid;
    let request = fixture.create_request(&fixture.dir.path().join("runc"));
    let creating = tokio::spawn(async move { task.create(limit(), &request).await });
    let reached = fixture.dir.path().join("reached");
    let read = move || File::open(reached).and_then(|mut fifo| fifo.read(&mut [0]));
    let read = tokio::task::spawn_blocking(read).await.expect("no panic");
    assert_eq!(read.expect("the moment"), 1);
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let rootfs = fixture.bundle.join("rootfs").display().to_string();
    assert!(mounts().contains(&rootfs), "the shim had mounted the root");

    let shim_pid = nix::unistd::Pid::from_raw(i32::try_from(shim).expect("a process"));
    nix::sys::signal::kill(shim_pid, nix::sys::signal::Signal::SIGKILL).expect("kill -9");
    creating
        .await
        .expect("no panic")
        .expect_err("nobody answers any more");
    let share = fixture.share();
    fixture.shim("delete");

    assert!(!runc_state(id).exists(), "{moment:?}: runc knows it still");
    assert!(
        !mounts().contains(&rootfs),
        "{moment:?}: the root is mounted still"
    );
    assert!(
        !Path::new(&socket).exists(),
        "{moment:?}: the socket is there still"
    );
    assert!(!share.exists(), "{moment:?}: the share is not given back");
    within_a_minute("a process is left", || fixture.processes().is_empty());
    // A hook is the administrator's own and outlives runc; this one is let go here.
    let gate = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(fixture.dir.path().join("gate"));
    std::io::Write::write_all(&mut gate.expect("the gate"), b"go\n").expect("the gate");
    // Whatever came to life after the kill would show now, and Delete may be repeated.
    fixture.shim("delete");
    assert!(!runc_state(id).exists() && fixture.processes().is_empty());
}

/// Killed while what it had forked is not runc yet, and says by no command line that it will be.
async fn killed_within_exec(id: &'static str, hold: Hold) {
    if let Some(reason) = held_program::missing() {
        println!("SKIP: {reason}");
        return;
    }
    let fixture = Fixture::new(id, Moment::Never);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runc = std::env::split_paths(&path)
        .map(|dir| dir.join("runc"))
        .find(|runc| runc.is_file());
    let folder = fixture.dir.path().join("held");
    fs::create_dir(&folder).expect("a folder");
    let held = HeldProgram::serve(&folder, &runc.expect("runc"), hold);
    let address = String::from_utf8(fixture.shim("start").stdout).expect("an address");
    let task = TaskClient::new(Client::connect(&address).await.expect("a connection"));
    let limit = || with_duration(Duration::from_secs(60));
    let connect = api::ConnectRequest {
        id: id.into(),
        ..Default::default()
    };
    let connected = task.connect(limit(), &connect).await;
    let shim = i32::try_from(connected.expect("connect").shim_pid).expect("a process");
    let request = fixture.create_request(&held.path());
    let creating = tokio::spawn(async move { task.create(limit(), &request).await });
    let held = tokio::task::spawn_blocking(move || {
        held.wait_held();
        held
    });
    let held = held.await.expect("no panic");
    let forked = of_group(shim);
    assert_eq!(forked.len(), 2, "the shim and its child: {forked:?}");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(shim),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("kill -9");
    let line = format!("/proc/{shim}/cmdline");
    within_a_minute("the shim is there still", || {
        fs::read(&line).is_ok_and(|line| line.is_empty()) || !Path::new(&line).exists()
    });
    // Until then its child may have all of its files open: nobody has seen yet that it has ended.
    fixture.shim("delete");
    creating
        .await
        .expect("no panic")
        .expect_err("nobody answers any more");
    let left: Vec<i32> = of_group(shim)
        .into_iter()
        .filter(|pid| *pid != shim)
        .collect();
    assert!(left.is_empty(), "{hold:?}: {left:?} would become runc");
    drop(held);
    assert!(!runc_state(id).exists(), "{hold:?}: runc knows it");
}

/// The processes of a group that have not ended.
fn of_group(group: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let member = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, its) = (fields.next()?, fields.nth(1)?);
        (state != "Z" && its == group.to_string()).then_some(pid)
    };
    entries.filter_map(member).collect()
}

/// Where a container's life stands when its shim is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Created,
    WhileStarting,
    Running,
    WithExecs,
    Paused,
    Ended,
    WhileDeleting,
    /// And the configuration cannot be read any more.
    WithoutConfiguration,
}

/// A life up to `point`; what is left hanging is let go by the kill.
async fn lived_to(fixture: &Fixture, task: &TaskClient, point: Point) {
    let (id, once) = (fixture.id, fixture.dir.path().join("once"));
    let limit = || with_duration(Duration::from_secs(60));
    let hangs = || within_a_minute("runc hangs", || once.exists());
    drop(
        task.create(
            limit(),
            &fixture.create_request(&fixture.dir.path().join("runc")),
        )
        .await
        .expect("create"),
    );
    if point == Point::Created {
        return;
    }
    let start = api::StartRequest {
        id: id.into(),
        ..Default::default()
    };
    if point == Point::WhileStarting {
        let task = task.clone();
        drop(tokio::spawn(
            async move { task.start(limit(), &start).await },
        ));
        return hangs();
    }
    drop(task.start(limit(), &start).await.expect("start"));
    if point == Point::WithExecs {
        for terminal in [false, true] {
            let process = harness::process(&["/bin/sh", "-c", "sleep 1000"], terminal);
            let exec = api::ExecProcessRequest {
                id: id.into(),
                exec_id: format!("terminal-{terminal}"),
                terminal,
                spec: MessageField::some(Any {
                    value: process.to_string().into_bytes(),
                    ..Any::default()
                }),
                ..Default::default()
            };
            drop(task.exec(limit(), &exec).await.expect("exec"));
            let start = api::StartRequest {
                exec_id: exec.exec_id,
                ..start.clone()
            };
            drop(task.start(limit(), &start).await.expect("start"));
        }
    }
    if point == Point::Paused {
        let pause = api::PauseRequest {
            id: id.into(),
            ..Default::default()
        };
        drop(task.pause(limit(), &pause).await.expect("pause"));
    }
    if matches!(point, Point::Ended | Point::WhileDeleting) {
        let kill = api::KillRequest {
            id: id.into(),
            signal: 9,
            ..Default::default()
        };
        drop(task.kill(limit(), &kill).await.expect("kill"));
        let wait = api::WaitRequest {
            id: id.into(),
            ..Default::default()
        };
        drop(task.wait(limit(), &wait).await.expect("wait"));
    }
    if point == Point::WhileDeleting {
        let delete = api::DeleteRequest {
            id: id.into(),
            ..Default::default()
        };
        let task = task.clone();
        drop(tokio::spawn(
            async move { task.delete(limit(), &delete).await },
        ));
        hangs();
    }
}

async fn killed_later(id: &'static str, point: Point) {
    let fixture = Fixture::new(
        id,
        match point {
            Point::WhileStarting => Moment::Of("start"),
            Point::WhileDeleting => Moment::Of("delete"),
            _ => Moment::Never,
        },
    );
    let (address, task, shim) = fixture.served().await;
    let socket = address.strip_prefix("unix://").expect("an address");
    lived_to(&fixture, &task, point).await;
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill -9");
    if point == Point::WithoutConfiguration {
        fs::write(fixture.dir.path().join("cgpu.toml"), "none of it").expect("a file");
    }
    let cleaned = fixture.shim("delete");
    let answer = api::DeleteResponse::parse_from_bytes(&cleaned.stdout).expect("an answer");
    assert_eq!(answer.exit_status, 137);
    assert!(answer.pid > 0 && answer.exited_at.seconds > 0);
    assert!(cleaned.stderr.is_empty() || point == Point::WithoutConfiguration);

    assert!(!runc_state(id).exists(), "{point:?}: runc knows it still");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let rootfs = fixture.bundle.join("rootfs").display().to_string();
    assert!(!mounts.contains(&rootfs), "{point:?}: mounted still");
    assert!(!Path::new(socket).exists(), "{point:?}: a socket is left");
    within_a_minute("a process is left", || fixture.processes().is_empty());
    for hierarchy in fs::read_dir("/sys/fs/cgroup").expect("control groups") {
        let hierarchy = hierarchy.expect("a hierarchy").path();
        let group = hierarchy.join(cgroup(id).trim_start_matches('/'));
        assert!(!group.exists(), "{point:?}: {} is left", group.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_before_runc_has_made_anything() {
    need_runc!();
    killed_at("killed-before", Moment::Before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_its_child_has_the_shim_s_command_line() {
    need_runc!();
    killed_within_exec("killed-forked", Hold::BeforeTheNewMemory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_its_child_has_no_command_line() {
    need_runc!();
    killed_within_exec("killed-in-exec", Hold::BeforeTheArguments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_runc_creates() {
    need_runc!();
    killed_at("killed-within", Moment::Within).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_after_runc_has_created() {
    need_runc!();
    killed_at("killed-after", Moment::After).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_when_the_container_waits_to_be_started() {
    need_runc!();
    killed_later("killed-created", Point::Created).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_runc_starts() {
    need_runc!();
    killed_later("killed-starting", Point::WhileStarting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_the_container_runs() {
    need_runc!();
    killed_later("killed-running", Point::Running).await;
}

/// An engine keeps a bundle whose shim's `delete` fails for ever, and refuses another container of that name.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_cannot_be_released_keeps_no_bundle() {
    need_runc!();
    killed_later("killed-unreleased", Point::WithoutConfiguration).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_execs_run() {
    need_runc!();
    killed_later("killed-execs", Point::WithExecs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_the_container_is_paused() {
    need_runc!();
    killed_later("killed-paused", Point::Paused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_when_the_container_has_ended() {
    need_runc!();
    killed_later("killed-ended", Point::Ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn killed_while_runc_deletes() {
    need_runc!();
    killed_later("killed-deleting", Point::WhileDeleting).await;
}

/// A tenant's processes may have the command line of a call of runc on their own container or on another one, and be there again
/// as soon as they are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_runs_in_containers_is_no_call_of_runc() {
    need_runc!();
    let id = "killed-hostile";
    let root = Path::new("/run/containerd/runc").join(NAMESPACE.as_str());
    let line = ["runc", "--root", root.to_str().expect("text"), "create", id];
    let storm = format!(
        "for n in 1 2 3 4; do while :; do sh -c 'while :; do sleep 1; done' {}; done & done; wait",
        line.join(" ")
    );
    let fixture = Fixture::with(id, Moment::Never, &storm);
    let (_, task, shim) = fixture.served().await;
    lived_to(&fixture, &task, Point::Running).await;
    let stormers = || {
        let all = fixture.processes();
        all.iter().filter(|line| line.contains("--root")).count()
    };
    within_a_minute("the storm", || stormers() >= 9);
    // In another container, with the host's process numbers.
    let mut accomplice = Command::new("unshare")
        .args(["--mount", "/bin/sh", "-c", "read x"])
        .args(line)
        .stdin(Stdio::piped())
        .spawn()
        .expect("an accomplice");
    let shell = format!("/proc/{}/exe", accomplice.id());
    let shell_runs = || fs::read_link(&shell).is_ok_and(|program| !program.ends_with("unshare"));
    let own = fs::read_link("/proc/self/ns/mnt").expect("mounts");
    let mounts = format!("/proc/{}/ns/mnt", accomplice.id());
    within_a_minute("the accomplice", || {
        shell_runs() && fs::read_link(&mounts).is_ok_and(|mounts| mounts != own)
    });
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill -9");
    let share = fixture.share();
    let deleted = fixture.called("delete");
    let lives = accomplice.try_wait().expect("its state").is_none();
    accomplice.kill().expect("its end");
    accomplice.wait().expect("its end");

    assert!(deleted.status.success(), "{deleted:?}");
    assert!(lives, "another container's process was taken for a call");
    assert!(!runc_state(id).exists() && !share.exists());
    within_a_minute("a process is left", || fixture.processes().is_empty());
}

/// Its processes hold the card's memory still.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_container_that_could_not_be_ended_keeps_its_vgpu() {
    need_runc!();
    let fixture = Fixture::new("killed-unended", Moment::Refused);
    let (_, task, shim) = fixture.served().await;
    lived_to(&fixture, &task, Point::Running).await;
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("kill -9");
    let share = fixture.share();
    let refuse = fixture.dir.path().join("refuse");
    fs::write(&refuse, "").expect("a file");
    // An engine that hears of a success would forget the container.
    let failed = fixture.called("delete");
    assert!(!failed.status.success(), "{failed:?}");
    assert!(!fixture.processes().is_empty() && share.exists());

    fs::remove_file(refuse).expect("no file");
    fixture.shim("delete");
    within_a_minute("a process is left", || fixture.processes().is_empty());
    assert!(!runc_state(fixture.id).exists() && !share.exists());
}

/// Neither runc nor this program may know how it came there, or may end it: it can be another engine's.
#[test]
fn a_process_in_the_container_s_group_keeps_the_vgpu() {
    need_runc!();
    let fixture = Fixture::new("killed-populated", Moment::Never);
    let group = make_group(fixture.id);
    let mut child = Command::new("/bin/sleep")
        .arg("1000")
        .spawn()
        .expect("a process");
    fs::write(group.join("cgroup.procs"), child.id().to_string()).expect("a member");
    let share = fixture.share();
    fixture.shim("delete");
    let kept = share.exists();
    child.kill().expect("its end");
    child.wait().expect("its end");
    assert!(kept, "its memory is given to others");

    fixture.shim("delete");
    assert!(!share.exists() && !group.exists());
}

/// The container's control group, in one of the trees.
fn make_group(id: &str) -> PathBuf {
    let roots = ["pids", "unified", ""].map(|name| Path::new("/sys/fs/cgroup").join(name));
    let root = roots.iter().find(|root| root.join("cgroup.procs").exists());
    let group = root
        .expect("control groups")
        .join(cgroup(id).trim_start_matches('/'));
    fs::create_dir_all(&group).expect("a group");
    group
}

#[test]
fn a_group_goes_with_a_child_of_runc_that_is_not_init_yet() {
    need_runc!();
    let id = "killed-child";
    let group = make_group(id);
    let runc = Runc::new(&NAMESPACE, &RuncOptions::default(), None);
    let mut child = Command::new("/bin/sh")
        .args(["-c", "read x", "--root"])
        .arg(Path::new("/run/containerd/runc").join(NAMESPACE.as_str()))
        .args(["create", id])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    fs::write(group.join("cgroup.procs"), child.id().to_string()).expect("a member");
    let removed =
        orphans::remove_cgroups(&runc, &ContainerId::new(id).expect("a name"), &cgroup(id));
    removed.expect("the group goes");
    assert!(!group.exists());
    assert!(!child.wait().expect("its end").success());
}
