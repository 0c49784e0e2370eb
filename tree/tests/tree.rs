//! A real mount over real brokers with simulated cards, and over brokers that the test plays.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

#[path = "../../agent/tests/host/mod.rs"]
#[expect(dead_code, reason = "the fixture of the agent's tests")]
mod host;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cards::lock::StateLock;
use host::{Host, soon};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROFILE: &str = r#"
[driver]
version = "570.195.03"

[[card]]
name = "Simulated L4"
memory_mib = 24576
architecture = "ada"
count = 2
"#;

/// A file that is late is so by no more.
const LATE: Duration = Duration::from_secs(10);

/// Whether a mount can be made here; says aloud why not.
fn can_mount(test: &str) -> bool {
    let lacks = if !nix::unistd::geteuid().is_root() {
        "needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "needs /dev/fuse"
    } else if !Path::new("/usr/bin/setpriv").exists() {
        "needs setpriv"
    } else {
        return true;
    };
    println!("SKIP: {test}: {lacks}");
    false
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_cgpu-tree")).with_file_name(name)
}

/// A process of the test's, which ends with it.
struct Ended(Child);

impl Ended {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    fn end(mut self, signal: Signal) -> ExitStatus {
        kill(self.pid(), signal).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = kill(self.pid(), Signal::SIGTERM);
        drop(self.0.wait());
    }
}

/// Starts a program and waits for its first line.
fn started(command: &mut Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_ne!(line, "", "{command:?} ended");
    Ended(child)
}

/// A program that serves a host's tree.
struct Tree {
    program: Option<Ended>,
    folder: PathBuf,
}

impl Tree {
    /// With the rights that its unit has.
    fn command(host: &Host) -> Command {
        let unit = include_str!("../../configs/systemd/cgpu-tree.service");
        let mut rights = unit
            .lines()
            .filter_map(|line| line.strip_prefix("CapabilityBoundingSet=CAP_"));
        let rights = rights.next().unwrap().to_lowercase().replace(" cap_", ",+");
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--bounding-set=-all,+{rights}"))
            .arg("--no-new-privs")
            .arg(env!("CARGO_BIN_EXE_cgpu-tree"))
            .env("CGPU_CONFIG", host.path("cgpu.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped());
        command
    }

    /// Waits until it serves.
    fn start(host: &Host) -> Self {
        let mut child = Self::command(host).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("serving") {
            assert_ne!(log.read_line(&mut seen).unwrap(), 0, "it ended: {seen}");
        }
        // It must not wait for a reader.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::stderr()));
        Self {
            program: Some(Ended(child)),
            folder: host.state_dir().join("cgpu_km"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn read(&self, name: &str) -> Result<String, Errno> {
        in_time(|| self.read_once(name))
    }

    /// With ETIMEDOUT where who knows it has not answered.
    fn read_once(&self, name: &str) -> Result<String, Errno> {
        fs::read_to_string(self.path(name)).map_err(|error| errno(&error))
    }

    /// As `echo TEXT > name` does it.
    fn write(&self, name: &str, text: &str) -> Result<(), Errno> {
        let file = fs::File::options()
            .write(true)
            .truncate(true)
            .open(self.path(name));
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| errno(&error))
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let once = || fs::read_dir(self.path(folder))?.collect::<Result<Vec<_>, _>>();
        let entries = in_time(|| once().map_err(|error| errno(&error))).unwrap();
        let names = entries
            .iter()
            .map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        self.program.take().unwrap().end(signal)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        drop(self.program.take());
        // Of a program that was killed.
        let _gone = nix::mount::umount2(&self.folder, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// What is read again while it is late: on a busy host a look at many brokers may end without one's figures, and says so.
fn in_time<T>(read_once: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let until = Instant::now() + LATE;
    loop {
        match read_once() {
            Err(Errno::ETIMEDOUT) if Instant::now() < until => {}
            read => return read,
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap())
}

/// A host with simulated cards and one container that holds 64 MiB of its 1 GiB.
struct Node {
    host: Host,
    _sim: Ended,
    container: Option<Ended>,
    /// Its folder.
    folder: String,
}

impl Node {
    /// `None`, said aloud, where it cannot be made.
    fn find(test: &str) -> Option<Self> {
        for program in ["cgpu", "cgpu-sim", "cgpu-broker", "cgpu-burn"] {
            if !beside(program).is_file() {
                println!("SKIP: {test}: {program} is not built beside cgpu-tree");
                return None;
            }
        }
        if !can_mount(test) {
            return None;
        }
        let host = Host::new();
        let profile = host.path("cards.toml");
        fs::write(&profile, PROFILE).unwrap();
        let mut sim = Command::new(beside("cgpu-sim"));
        sim.arg("--state-dir").arg(host.state_dir());
        let sim = started(sim.arg("--profile").arg(&profile));
        let mut run = Self::cgpu(&host);
        run.args(["run", "--memory", "1Gi", "--"]);
        let container = started(run.arg(beside("cgpu-burn")).args(["hold", "64Mi"]));
        let folder = format!("0/cgpu-run:{}", container.0.id());
        Some(Self {
            host,
            _sim: sim,
            container: Some(container),
            folder,
        })
    }

    fn cgpu(host: &Host) -> Command {
        let mut cgpu = Command::new(beside("cgpu"));
        cgpu.env("CGPU_CONFIG", host.path("cgpu.toml"));
        cgpu
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Namespace and id.
    fn ps_key(&self) -> String {
        let ps = self.ps();
        let text = |field: &str| ps[field].as_str().unwrap().to_owned();
        format!("{}/{}", text("namespace"), text("container"))
    }

    /// What `cgpu ps` says of the container.
    fn ps(&self) -> Value {
        let ps = Self::cgpu(&self.host).args(["ps", "--json"]).output();
        let mut ps: Value = serde_json::from_slice(&ps.unwrap().stdout).unwrap();
        ps["vgpus"][0].take()
    }
}

#[test]
fn scripts_read_and_resize_a_container_and_its_folder_ends_with_it() {
    const TEST: &str = "scripts_read_and_resize_a_container_and_its_folder_ends_with_it";
    let Some(mut node) = Node::find(TEST) else {
        return;
    };
    let tree = Tree::start(&node.host);
    assert_eq!(tree.names(""), ["0", "1", "major", "version"]);
    assert_eq!(tree.read("major").unwrap(), "195\n");
    let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(tree.read("version").unwrap(), version);
    let files = ["highprio", "id", "meminfo", "memsize", "weight"];
    assert_eq!(tree.names(&node.folder), files);
    let memsize = node.file("memsize");
    assert_eq!(tree.read(&memsize).unwrap(), format!("{}\n", 1 << 30));
    let meminfo = tree.read(&node.file("meminfo")).unwrap();
    let used = node.ps()["cards"][0]["used_bytes"].as_u64().unwrap();
    let mut lines = meminfo.lines();
    let free = (1 << 30) - used;
    assert_eq!(lines.next(), Some(&*format!("Free: {free}")));
    let process = lines.next().unwrap();
    let pid = node.ps()["processes"][0]["pid"].as_i64().unwrap();
    assert_eq!(process, format!("PID: {pid} Mem: {}", 64 << 20));
    assert_eq!(lines.next(), None);

    // A write is seen at once, here and by `cgpu ps`.
    tree.write(&memsize, "2147483648\n").unwrap();
    assert_eq!(tree.read(&memsize).unwrap(), "2147483648\n");
    assert_eq!(node.ps()["cards"][0]["quota_bytes"], 2_u64 << 30);
    let script = "echo 3Gi > memsize && cat memsize && head -n 1 meminfo && grep -r Mem: . | wc -l";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .current_dir(tree.path(&node.folder));
    let shown = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    assert_eq!(
        shown,
        format!("{}\nFree: {}\n1\n", 3_u64 << 30, (3 << 30) - used)
    );
    tree.write("0/policy", "2").unwrap();
    assert_eq!(tree.read("0/policy").unwrap(), "2\n");
    tree.write(&node.file("weight"), "7\n").unwrap();
    tree.write(&node.file("highprio"), "1\n").unwrap();
    assert_eq!(node.ps()["cards"][0]["share"]["weight"], 7);
    assert_eq!(node.ps()["cards"][0]["share"]["priority"], "high");
    // What the container itself sees of it.
    let record = format!("vgpus/{}/slice.json", node.ps_key());
    let record = fs::read_to_string(node.host.state_dir().join(record)).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["cards"][0]["terms"]["weight"], 7, "{record}");

    for (file, text, why) in [
        (&*memsize, "4", Errno::EINVAL),
        (&memsize, "much", Errno::EINVAL),
        (&memsize, "25Gi", Errno::ENOSPC),
        (&memsize, &"1".repeat(5000), Errno::EINVAL),
        (&node.file("weight"), "0", Errno::EINVAL),
        (&node.file("highprio"), "high", Errno::EINVAL),
        ("0/policy", "6", Errno::EINVAL),
        ("0/max_inst", "many", Errno::EINVAL),
        ("0/prio_ratio", "100", Errno::EINVAL),
        ("version", "1", Errno::EACCES),
        (&node.file("meminfo"), "1", Errno::EACCES),
        ("2/policy", "1", Errno::ENOENT),
    ] {
        assert_eq!(tree.write(file, text), Err(why), "{file}: {text}");
    }
    assert_eq!(tree.read(&memsize).unwrap(), format!("{}\n", 3_u64 << 30));

    let mut open = fs::File::open(tree.path(&memsize)).unwrap();
    drop(node.container.take());
    soon("its folder is gone", || !tree.path(&node.folder).exists());
    let read = open.read(&mut [0; 16]);
    assert_eq!(read.map_err(|error| errno(&error)), Err(Errno::ENOENT));
}

#[test]
fn a_broker_that_hangs_makes_one_file_fail_and_no_other() {
    const TEST: &str = "a_broker_that_hangs_makes_one_file_fail_and_no_other";
    let Some(node) = Node::find(TEST) else {
        return;
    };
    let tree = Tree::start(&node.host);
    let meminfo = node.file("meminfo");
    let before = tree.read(&meminfo).unwrap();
    let ps = node.ps();
    let processes = ["supervisor_pid", "broker_pid"].map(|process| {
        let pid = ps[process].as_i64().unwrap();
        Pid::from_raw(pid.try_into().unwrap())
    });
    // The supervisor would replace a broker that does not answer.
    for pid in processes {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    soon("meminfo fails", || {
        let began = Instant::now();
        let read = tree.read_once(&meminfo);
        assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
        read == Err(Errno::ETIMEDOUT)
    });
    assert_eq!(
        tree.read(&node.file("memsize")).unwrap(),
        format!("{}\n", 1 << 30)
    );
    // A change that the broker does not make is none.
    assert_eq!(tree.write(&node.file("memsize"), "2Gi"), Err(Errno::EIO));
    for pid in processes {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    soon("it is back", || tree.read(&meminfo).as_ref() == Ok(&before));
    assert_eq!(
        tree.read(&node.file("memsize")).unwrap(),
        format!("{}\n", 1 << 30)
    );
}

#[test]
fn the_mount_ends_with_its_program_and_a_killed_one_s_is_taken_away() {
    const TEST: &str = "the_mount_ends_with_its_program_and_a_killed_one_s_is_taken_away";
    if !can_mount(TEST) {
        return;
    }
    let mut host = Host::new();
    host.container("c1");
    let mut first = Tree::start(&host);
    assert_eq!(first.read("0/default:c1/id").unwrap(), "default/c1\n");
    let second = Tree::command(&host).output().unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(error.contains("another cgpu-tree runs"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(first.read("version").is_ok(), "the first one goes on");

    let mut open = fs::File::open(first.path("0/default:c1/id")).unwrap();
    first.end(Signal::SIGKILL);
    assert_eq!(first.read("version"), Err(Errno::ENOTCONN));
    let read = open.read(&mut [0; 16]);
    assert_eq!(read.map_err(|error| errno(&error)), Err(Errno::ENOTCONN));
    let mut third = Tree::start(&host);
    assert_eq!(third.read("0/default:c1/id").unwrap(), "default/c1\n");
    // Somebody who stays inside is no reason for the mount to stay.
    let open = fs::File::open(third.path("0/default:c1/id")).unwrap();
    assert!(third.end(Signal::SIGTERM).success());
    assert!(!third.folder.exists());
    drop(open);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(third.folder.to_str().unwrap()), "{mounts}");
}

#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    const TEST: &str = "what_cannot_be_served_is_refused_with_its_reason";
    if !can_mount(TEST) {
        return;
    }
    let host = Host::new();
    fs::create_dir(host.path("full")).unwrap();
    fs::write(host.path("full/file"), "").unwrap();
    fs::write(host.path("plain"), "").unwrap();
    let (full, plain) = (host.path("full"), host.path("plain"));
    for (folder, part) in [
        (full.to_str().unwrap(), "is not empty"),
        (plain.to_str().unwrap(), "is no folder"),
        ("/proc", "something else is mounted at /proc"),
        ("cgpu_km", "not an absolute path"),
    ] {
        let refused = Tree::command(&host).args(["--mount", folder]).output();
        let error = String::from_utf8(refused.unwrap().stderr).unwrap();
        assert!(error.contains(part), "{folder}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn files_that_need_nobody_are_there_while_the_host_hangs() {
    const TEST: &str = "files_that_need_nobody_are_there_while_the_host_hangs";
    if !can_mount(TEST) {
        return;
    }
    let mut host = Host::new();
    host.container("c1");
    let tree = Tree::start(&host);
    // Who places a container has it, and may hang.
    let held = StateLock::take(&host.state_dir()).unwrap();
    soon("cards are not known", || {
        let began = Instant::now();
        let read = tree.read_once("0/policy");
        assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
        read == Err(Errno::ETIMEDOUT)
    });
    assert_eq!(tree.read("major").unwrap(), "195\n");
    let began = Instant::now();
    assert_eq!(tree.read_once("0/policy"), Err(Errno::ETIMEDOUT));
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    drop(held);
    soon("cards are known", || tree.read("0/policy").is_ok());
}

#[test]
fn many_containers_have_a_folder_each() {
    const TEST: &str = "many_containers_have_a_folder_each";
    if !can_mount(TEST) {
        return;
    }
    let mut host = Host::new();
    for number in 0..50 {
        host.container(&format!("c{number}"));
    }
    let tree = Tree::start(&host);
    assert_eq!(tree.names("0").len(), 50 + 3);
    for number in 0..50 {
        let meminfo = tree.read(&format!("0/default:c{number}/meminfo"));
        assert_eq!(meminfo.unwrap(), format!("Free: {}\n", (1 << 30) - 4096));
    }
}
