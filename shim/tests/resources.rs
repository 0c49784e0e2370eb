//! What a container is made of and held by, through the Task service with the real runc: root file systems, checkpoints,
//! signals, process lists, statistics. criu is played by a runc that records what it is asked for.

mod harness;
#[path = "harness/refusal.rs"]
mod refusal;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use containerd_shim_protos::cgroups::metrics::Metrics;
use containerd_shim_protos::shim::oci::{CheckpointOptions, Options, ProcessDetails};
use containerd_shim_protos::shim_async::{Client, TaskClient};
use containerd_shim_protos::types::mount::Mount;
use containerd_shim_protos::{api, cgroups_v2, protobuf};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};
use ttrpc::Code;
use ttrpc::context::with_duration;

use harness::{NAMESPACE, need_runc, process, runc_state};
use refusal::code;

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cgpu-v2");

/// A shim and the folder of its one container.
struct Shim {
    dir: tempfile::TempDir,
    id: String,
    task: TaskClient,
    socket: PathBuf,
}

impl Shim {
    /// A shim for a container whose init runs a script.
    async fn new(id: &str, script: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let bundle = harness::bundle(dir.path(), id, script, false);
        let address = dir.path().join("containerd.sock").display().to_string();
        let mut command = Command::new(SHIM);
        command
            .args(["-namespace", &NAMESPACE, "-address", &address])
            .args(["-publish-binary", "/x", "-id", id, "start"])
            .env_remove("TTRPC_ADDRESS")
            .current_dir(&bundle)
            .stdin(Stdio::null());
        let output = command.output().expect("the shim's start");
        assert!(output.status.success(), "{output:?}");
        let address = String::from_utf8(output.stdout).expect("text");
        let socket = PathBuf::from(address.strip_prefix("unix://").expect("an address"));
        let client = Client::connect(&address).await.expect("a connection");
        Self {
            dir,
            id: id.to_owned(),
            task: TaskClient::new(client),
            socket,
        }
    }

    fn bundle(&self) -> PathBuf {
        self.dir.path().join(&self.id)
    }

    /// Moves the bundle's root file system away, to be mounted from there.
    fn layer(&self) -> PathBuf {
        let layer = self.dir.path().join("layers/1/fs");
        fs::create_dir_all(layer.parent().expect("a parent")).expect("a folder");
        fs::rename(self.bundle().join("rootfs"), &layer).expect("a layer");
        fs::create_dir(self.bundle().join("rootfs")).expect("a mount point");
        layer
    }

    fn create_request(&self, rootfs: Vec<Mount>) -> api::CreateTaskRequest {
        api::CreateTaskRequest {
            id: self.id.clone(),
            bundle: self.bundle().display().to_string(),
            rootfs,
            ..Default::default()
        }
    }

    async fn create(&self, rootfs: Vec<Mount>) -> ttrpc::Result<u32> {
        let created = self
            .task
            .create(limit(), &self.create_request(rootfs))
            .await;
        created.map(|created| created.pid)
    }

    async fn start(&self, exec: &str) -> ttrpc::Result<u32> {
        let request = api::StartRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.task.start(limit(), &request).await.map(|one| one.pid)
    }

    async fn wait(&self, exec: &str) -> u32 {
        let request = api::WaitRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        let ended = self.task.wait(limit(), &request).await;
        ended.expect("wait").exit_status
    }

    async fn kill(&self, exec: &str, signal: u32) -> ttrpc::Result<()> {
        let request = api::KillRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            signal,
            ..Default::default()
        };
        self.task.kill(limit(), &request).await.map(drop)
    }

    async fn state(&self) -> api::StateResponse {
        let request = api::StateRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.task.state(limit(), &request).await.expect("state")
    }

    async fn exec(&self, exec: &str, script: &str) -> u32 {
        let spec = Any {
            value: process(&["/bin/sh", "-c", script], false)
                .to_string()
                .into(),
            ..Any::default()
        };
        let request = api::ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            spec: MessageField::some(spec),
            ..Default::default()
        };
        self.task.exec(limit(), &request).await.expect("exec");
        self.start(exec).await.expect("the exec's start")
    }

    async fn delete(&self) -> api::DeleteResponse {
        let request = api::DeleteRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.task.delete(limit(), &request).await.expect("delete")
    }

    /// Mount points below the test's folder.
    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let below = self.dir.path().display().to_string();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points
            .filter(|point| point.starts_with(&below))
            .map(str::to_owned)
            .collect()
    }

    /// Asks the shim to end and waits until it has.
    async fn end(self) {
        let request = api::ShutdownRequest {
            now: true,
            ..Default::default()
        };
        drop(self.task.shutdown(limit(), &request).await);
        let gone = async {
            while self.socket.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), gone).await;
        ended.expect("the socket is removed");
        assert_eq!(self.mounts(), [""; 0]);
        assert!(!runc_state(&self.id).exists());
    }
}

fn limit() -> ttrpc::context::Context {
    with_duration(Duration::from_secs(20))
}

fn mount(kind: &str, source: &Path, target: &str, options: &[&str]) -> Mount {
    Mount {
        type_: kind.into(),
        source: source.display().to_string(),
        target: target.into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    }
}

fn overlay(shim: &Shim, layer: &Path, more: &[&str]) -> Mount {
    let mut options = vec![format!("lowerdir={}", layer.display())];
    for (name, folder) in [("upperdir", "upper"), ("workdir", "work")] {
        let folder = shim.dir.path().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        options.push(format!("{name}={}", folder.display()));
    }
    options.extend(more.iter().map(|option| (*option).to_owned()));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    mount("overlay", Path::new("overlay"), "", &options)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_mount_that_fails_takes_those_before_it_along() {
    need_runc!();
    let shim = Shim::new("undone", "true").await;
    let layer = shim.layer();
    let good = overlay(&shim, &layer, &[]);
    let below = mount("bind", &layer, "proc", &["rbind", "ro"]);
    let bad = mount("no-such-kind", &layer, "", &[]);
    let (status, text) = code(shim.create(vec![good.clone(), below, bad]).await);
    assert_eq!(status, Code::UNKNOWN, "{text}");
    assert!(text.contains("cannot mount"), "{text}");
    assert_eq!(shim.mounts(), [""; 0]);
    // And the same container can be made afterwards.
    shim.create(vec![good]).await.expect("create");
    shim.start("").await.expect("start");
    assert_eq!(shim.wait("").await, 0);
    shim.delete().await;
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_link_of_the_image_leads_no_mount_out_of_the_root() {
    need_runc!();
    let shim = Shim::new("linked", "true").await;
    let layer = shim.layer();
    let outside = shim.dir.path().join("outside");
    let inside = outside.strip_prefix("/").expect("a path from the root");
    fs::create_dir(&outside).expect("a folder of the host");
    fs::create_dir_all(layer.join(inside)).expect("the image's own");
    std::os::unix::fs::symlink(&outside, layer.join("data")).expect("a link");
    let below = mount("tmpfs", Path::new("tmpfs"), "/data", &["ro"]);
    shim.create(vec![overlay(&shim, &layer, &[]), below])
        .await
        .expect("create");
    let rootfs = shim.bundle().join("rootfs");
    let expected = [rootfs.clone(), rootfs.join(inside)].map(|path| path.display().to_string());
    assert_eq!(shim.mounts(), expected);
    shim.start("").await.expect("start");
    assert_eq!(shim.wait("").await, 0);
    shim.delete().await;
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn layers_with_mapped_owners_belong_to_whom_the_map_reports() {
    need_runc!();
    let shim = Shim::new("mapped", "sleep 1000").await;
    let layer = shim.layer();
    let maps = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];
    shim.create(vec![overlay(&shim, &layer, &maps)])
        .await
        .expect("create");
    let rootfs = shim.bundle().join("rootfs");
    let owner = fs::metadata(rootfs.join("bin/busybox")).expect("busybox");
    assert_eq!((owner.uid(), owner.gid()), (100_000, 200_000));
    // Where the layers were mapped nothing is left but the overlay itself.
    assert_eq!(shim.mounts(), [rootfs.display().to_string()]);
    assert!(!shim.bundle().join("rootfs.layers").exists());
    shim.delete().await;
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn layers_are_not_left_mapped_when_their_mount_fails() {
    need_runc!();
    let shim = Shim::new("unmapped", "true").await;
    let layer = shim.layer();
    let maps = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];
    let no_work = ["workdir=/nonexistent/work"];
    let mut bad = overlay(&shim, &layer, &[&maps[..], &no_work].concat());
    let (status, text) = code(shim.create(vec![bad.clone()]).await);
    assert_eq!(status, Code::UNKNOWN, "{text}");
    assert_eq!(shim.mounts(), [""; 0]);
    assert!(!shim.bundle().join("rootfs.layers").exists());
    // Layers that share nothing but the root of all.
    bad.options = ["lowerdir=/a/b:/c/d"].map(str::to_owned).into();
    bad.options.extend(maps.map(str::to_owned));
    let (status, text) = code(shim.create(vec![bad]).await);
    assert_eq!(status, Code::INVALID_ARGUMENT, "{text}");
    assert!(
        text.contains("directories share one that is not /"),
        "{text}"
    );
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn other_mounts_have_mapped_owners_too() {
    need_runc!();
    let shim = Shim::new("mapped-bind", "sleep 1000").await;
    let layer = shim.layer();
    let maps = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];
    let options = [["rbind", "ro"], maps].concat();
    shim.create(vec![mount("bind", &layer, "", &options)])
        .await
        .expect("create");
    let rootfs = shim.bundle().join("rootfs");
    let owner = fs::metadata(rootfs.join("bin/busybox")).expect("busybox");
    assert_eq!((owner.uid(), owner.gid()), (100_000, 200_000));
    let written = fs::write(rootfs.join("new"), "");
    let refused = written.expect_err("a read-only mount").kind();
    assert_eq!(refused, std::io::ErrorKind::ReadOnlyFilesystem);
    shim.delete().await;
    assert_eq!(shim.mounts(), [""; 0], "both mounts that lay on each other");
    let half = mount("bind", &layer, "", &["rbind", "uidmap=0:1:2"]);
    let (status, text) = code(shim.create(vec![half]).await);
    assert_eq!(status, Code::INVALID_ARGUMENT);
    assert!(text.contains("together with gidmap="), "{text}");
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_with_a_file_system_is_mounted_by_a_loop_device() {
    need_runc!();
    if !Path::new("/dev/loop-control").exists() {
        println!("SKIP: no loop devices");
        return;
    }
    let shim = Shim::new("looped", "sleep 1000").await;
    let layer = shim.layer();
    let image = shim.dir.path().join("image");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-d"])
        .arg(&layer)
        .arg(&image)
        .arg("16M")
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(made) if made.status.success() => {}
        other => {
            println!("SKIP: no file system in a file: {other:?}");
            shim.end().await;
            return;
        }
    }
    shim.create(vec![mount("ext4", &image, "", &["loop", "ro"])])
        .await
        .expect("create");
    assert!(shim.bundle().join("rootfs/bin/busybox").exists());
    let attached = || {
        let devices = fs::read_dir("/sys/block").expect("block devices").flatten();
        devices
            .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok())
            .filter(|file| Path::new(file.trim()) == image)
            .count()
    };
    assert_eq!(attached(), 1);
    shim.delete().await;
    // The kernel detaches the device after the last file on it is closed.
    let detached = async {
        while attached() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), detached).await;
    ended.expect("the device is let go");
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn processes_are_listed_with_their_execs_and_take_real_time_signals() {
    need_runc!();
    let shim = Shim::new("signals", "while true; do sleep 0.05; done").await;
    let init = shim.create(vec![]).await.expect("create");
    shim.start("").await.expect("start");
    let exec = shim.exec("one", "sleep 1000").await;
    let request = api::PidsRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    let listed = shim
        .task
        .pids(limit(), &request)
        .await
        .expect("pids")
        .processes;
    let names: Vec<(u32, Option<String>)> = listed
        .iter()
        .map(|one| {
            let details = one.info.as_ref().map(|info| {
                assert_eq!(info.type_url, "containerd.runc.v1.ProcessDetails");
                let details = ProcessDetails::parse_from_bytes(&info.value);
                details.expect("details").exec_id
            });
            (one.pid, details)
        })
        .collect();
    assert!(names.contains(&(init, None)), "{names:?}");
    assert!(names.contains(&(exec, Some("one".into()))), "{names:?}");
    // No signal asks whether it is there; SIGRTMIN+3 is how systemd is stopped.
    shim.kill("one", 0).await.expect("it is there");
    let (status, text) = code(shim.kill("one", 65).await);
    assert_eq!(status, Code::INVALID_ARGUMENT, "{text}");
    shim.kill("one", 37).await.expect("a signal for an exec");
    assert_eq!(shim.wait("one").await, 128 + 37);
    shim.kill("", 9).await.expect("a signal for init");
    assert_eq!(shim.wait("").await, 137);
    shim.delete().await;
    shim.end().await;
}

/// Where the test of version 2 runs: in a mount namespace that has no other control groups.
const ONLY_V2: &str = "CGPU_TEST_ONLY_CGROUP_V2";

/// On a machine with version 1 few controllers are left for version 2 (here hugetlb): what the memory and process controllers
/// count is tested on a made-up tree, by the unit tests.
#[test]
fn with_version_2_alone_containers_run_and_are_counted() {
    need_runc!();
    let this = std::env::current_exe().expect("this program");
    let script = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(this)
        .args(["--exact", "in_version_2_alone", "--nocapture"])
        .env(ONLY_V2, "1")
        .output()
        .expect("unshare");
    let reply = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{reply}\n{output:?}");
    assert!(reply.contains("counted by version 2"), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn in_version_2_alone() {
    if std::env::var_os(ONLY_V2).is_none() {
        return;
    }
    let script = "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; sleep 1000";
    let shim = Shim::new("second", script).await;
    shim.create(vec![]).await.expect("create");
    shim.start("").await.expect("start");
    let request = api::StatsRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    let stats = async || {
        let answer = shim.task.stats(limit(), &request).await.expect("stats");
        let stats = answer.stats.into_option().expect("numbers");
        assert_eq!(stats.type_url, "io.containerd.cgroups.v2.Metrics");
        cgroups_v2::metrics::Metrics::parse_from_bytes(&stats.value).expect("metrics")
    };
    let worked = async {
        loop {
            let read = stats().await;
            if read.cpu.usage_usec > 0 && read.cpu.user_usec > 0 {
                return read;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let worked = tokio::time::timeout(Duration::from_secs(20), worked).await;
    let read = worked.expect("processor time");
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").map_or(0, Iterator::count);
    assert_eq!(read.hugetlb.len(), sizes);
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").expect("a list");
    for size in &read.hugetlb {
        // No limit is a huge number, and where nobody counts there is none.
        assert_eq!(size.max > 0, controllers.contains("hugetlb"), "{size:?}");
    }
    assert_eq!(read.memory.usage_limit > 0, controllers.contains("memory"));
    let request = api::PauseRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    shim.task.pause(limit(), &request).await.expect("pause");
    let state = shim.state().await.status.enum_value();
    assert_eq!(state, Ok(api::Status::PAUSED));
    let request = api::ResumeRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    shim.task.resume(limit(), &request).await.expect("resume");
    shim.kill("", 9).await.expect("kill");
    assert_eq!(shim.wait("").await, 137);
    stats().await;
    shim.delete().await;
    shim.end().await;
    println!("counted by version 2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn statistics_are_answered_until_the_container_is_deleted() {
    need_runc!();
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        println!("SKIP: control groups of version 2, which the test below reads as version 1");
        return;
    }
    let shim = Shim::new("counted", "sleep 1000").await;
    let request = api::StatsRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    assert_eq!(
        code(shim.task.stats(limit(), &request).await).0,
        Code::NOT_FOUND
    );
    shim.create(vec![]).await.expect("create");
    let stats = async || {
        let answer = shim.task.stats(limit(), &request).await.expect("stats");
        let stats = answer.stats.into_option().expect("numbers");
        assert_eq!(stats.type_url, "io.containerd.cgroups.v1.Metrics");
        Metrics::parse_from_bytes(&stats.value).expect("metrics")
    };
    let before = stats().await;
    assert!(before.memory.usage.usage > 0 && before.pids.current > 0);
    shim.start("").await.expect("start");
    shim.kill("", 9).await.expect("kill");
    shim.wait("").await;
    assert_eq!(stats().await.pids.current, 0);
    shim.delete().await;
    shim.end().await;
}

/// A runc that notes what it is asked of checkpoints, and restores by making the container anew.
fn recording_runc(dir: &Path) -> PathBuf {
    let runc = dir.join("runc-recording");
    let requested = dir.join("requested");
    let script = format!(
        r#"#!/bin/sh
for word; do
    case $word in
    checkpoint | restore)
        echo "$@" >> {requested}
        verb=$word ;;
    esac
    last=$word
done
case $verb in
checkpoint)
    echo "criu says" > "$(echo "$@" | sed 's/.*--work-path \([^ ]*\).*/\1/')/dump.log"
    if [ -e {fails} ]; then
        log=$(echo "$@" | sed 's/.*--log \([^ ]*\).*/\1/')
        echo '{{"level":"error","msg":"criu failed: type NOTIFY","time":"x"}}' > "$log"
        exit 1
    fi
    exit 0 ;;
restore)
    pids=$(echo "$@" | sed 's/.*--pid-file \([^ ]*\).*/\1/')
    bundle=$(echo "$@" | sed 's/.*--bundle \([^ ]*\).*/\1/')
    root=$(echo "$@" | sed 's/.*--root \([^ ]*\).*/\1/')
    runc --root "$root" create --bundle "$bundle" --pid-file "$pids" "$last" &&
        exec runc --root "$root" start "$last" ;;
esac
exec runc "$@"
"#,
        requested = requested.display(),
        fails = dir.join("fails").display(),
    );
    // Written by another process: a file that this one has open for writing while another thread forks cannot be executed.
    let mut writer = Command::new("tee")
        .arg(&runc)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("tee");
    std::io::Write::write_all(&mut writer.stdin.take().expect("input"), script.as_bytes())
        .expect("the script");
    assert!(writer.wait().expect("tee's end").success());
    fs::set_permissions(&runc, fs::Permissions::from_mode(0o755)).expect("a program");
    runc
}

fn runc_options(runc: &Path) -> Any {
    let options = Options {
        binary_name: runc.display().to_string(),
        ..Options::default()
    };
    Any {
        type_url: "containerd.runc.v1.Options".into(),
        value: options.write_to_bytes().expect("options"),
        ..Any::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_checkpoint_is_requested_of_runc_with_all_options() {
    need_runc!();
    let shim = Shim::new("dumped", "sleep 1000").await;
    let runc = recording_runc(shim.dir.path());
    let mut request = shim.create_request(vec![]);
    request.options = MessageField::some(runc_options(&runc));
    shim.task.create(limit(), &request).await.expect("create");
    let options = CheckpointOptions {
        open_tcp: true,
        external_unix_sockets: true,
        terminal: true,
        file_locks: true,
        empty_namespaces: vec!["network".into()],
        cgroups_mode: "soft".into(),
        work_path: shim.dir.path().join("criu").display().to_string(),
        ..CheckpointOptions::default()
    };
    let mut request = api::CheckpointTaskRequest {
        id: shim.id.clone(),
        path: "/images".into(),
        options: MessageField::some(Any {
            type_url: "containerd.runc.v1.CheckpointOptions".into(),
            value: options.write_to_bytes().expect("options"),
            ..Any::default()
        }),
        ..Default::default()
    };
    // Not before it runs.
    let (status, text) = code(shim.task.checkpoint(limit(), &request).await);
    assert_eq!(status, Code::FAILED_PRECONDITION, "{text}");
    shim.start("").await.expect("start");
    let checkpoint = shim.task.checkpoint(limit(), &request).await;
    checkpoint.expect("a checkpoint");
    let requested =
        || fs::read_to_string(shim.dir.path().join("requested")).expect("what was asked");
    let work = shim.dir.path().join("criu");
    let expected = format!(
        "checkpoint --image-path /images --work-path {} --manage-cgroups-mode soft --empty-ns network \
         --tcp-established --ext-unix-sk --shell-job --file-locks --leave-running dumped\n",
        work.display()
    );
    assert!(requested().ends_with(&expected), "{}", requested());
    assert!(work.join("dump.log").exists(), "a given folder stays");

    // Without options: a folder of ours, which goes; and a failure tells where criu's log is.
    fs::write(shim.dir.path().join("fails"), "").expect("a mark");
    request.options = MessageField::none();
    let (status, text) = code(shim.task.checkpoint(limit(), &request).await);
    let log = shim.bundle().join("criu-dump.log");
    assert_eq!(status, Code::UNKNOWN);
    let reports = format!(
        "OCI runtime checkpoint failed: criu failed: type NOTIFY path= {}",
        log.display()
    );
    assert_eq!(text, reports);
    assert_eq!(fs::read_to_string(log).expect("a log"), "criu says\n");
    assert!(!shim.bundle().join("work/criu-work").exists());
    assert_eq!(
        shim.state().await.status.enum_value(),
        Ok(api::Status::RUNNING)
    );
    shim.kill("", 9).await.expect("kill");
    shim.wait("").await;
    shim.delete().await;
    shim.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_container_from_a_checkpoint_is_restored_by_its_start() {
    need_runc!();
    let shim = Shim::new("restored", "sleep 1000").await;
    let runc = recording_runc(shim.dir.path());
    let mut request = shim.create_request(vec![]);
    request.options = MessageField::some(runc_options(&runc));
    request.checkpoint = "/images".into();
    request.parent_checkpoint = "/before".into();
    let created = shim.task.create(limit(), &request).await.expect("create");
    assert_eq!(created.pid, 0, "nothing runs yet");
    let state = shim.state().await;
    assert_eq!(
        (state.pid, state.status.enum_value()),
        (0, Ok(api::Status::CREATED))
    );
    assert_eq!(code(shim.kill("", 9).await).0, Code::FAILED_PRECONDITION);
    let stats = api::StatsRequest {
        id: shim.id.clone(),
        ..Default::default()
    };
    assert_eq!(
        code(shim.task.stats(limit(), &stats).await).0,
        Code::NOT_FOUND
    );
    let pid = shim.start("").await.expect("start");
    assert!(pid > 0);
    let state = shim.state().await;
    assert_eq!(
        (state.pid, state.status.enum_value()),
        (pid, Ok(api::Status::RUNNING))
    );
    let requested = fs::read_to_string(shim.dir.path().join("requested")).expect("what was asked");
    let bundle = shim.bundle();
    let expected = format!(
        "restore --image-path /images --work-path {at}/work --parent-path /before --bundle {at} \
         --pid-file {at}/init.pid --detach --no-subreaper restored\n",
        at = bundle.display()
    );
    assert!(requested.ends_with(&expected), "{requested}");
    shim.task.stats(limit(), &stats).await.expect("numbers");
    shim.kill("", 9).await.expect("kill");
    assert_eq!(shim.wait("").await, 137);
    assert_eq!(shim.delete().await.pid, pid);

    // One that is never started goes without an end.
    shim.task.create(limit(), &request).await.expect("create");
    let deleted = shim.delete().await;
    assert_eq!((deleted.pid, deleted.exit_status), (0, 0));
    shim.end().await;
}
