//! A container whose broker is the real program, with its supervisor, in front of a driver that outlives it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use driver::FileKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::fake::{Fake, UUID};
use crate::fake_server;
use crate::fixture::until;
use crate::launch::{self, WITH_FILTER};
use crate::tenant::{Process, Tenant};

pub(crate) struct Kept {
    pub(crate) fake: Arc<Fake>,
    // Goes before the folder that it is mounted on.
    disk: Option<Disk>,
    /// The state folder.
    folder: tempfile::TempDir,
    dir: PathBuf,
    supervisor: Child,
    // Held as a frontend holds it.
    _frontend: File,
}

pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_cgpu-broker"))
}

impl Kept {
    pub(crate) fn new(quota_bytes: u64) -> Self {
        Self::with_environment(quota_bytes, &[])
    }

    pub(crate) fn with_environment(quota_bytes: u64, environment: &[(&str, &str)]) -> Self {
        let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
        match Self::started(quota_bytes, environment, &native, |_| {}) {
            Ok(kept) => kept,
            Err((reply, log)) => panic!("{reply}: {log}"),
        }
    }

    /// With a share of its card's time; `prepare` is given the state folder.
    pub(crate) fn sharing(
        compute: &Value,
        prepare: impl FnOnce(&Path),
    ) -> Result<Self, (String, String)> {
        Self::started(1 << 30, &[], compute, prepare)
    }

    /// The same; `prepare` is given the driver as well.
    pub(crate) fn sharing_with(
        compute: &Value,
        prepare: impl FnOnce(&Path, &Fake),
    ) -> Result<Self, (String, String)> {
        let fake = Fake::new();
        let driver = Arc::clone(&fake);
        Self::behind(fake, 1 << 30, &[], compute, |folder| {
            prepare(folder, &driver);
        })
    }

    /// Of a share group.
    pub(crate) fn in_group(quota_bytes: u64, group: &str) -> Self {
        let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
        let kept = Self::granted(Fake::new(), quota_bytes, &[], &native, |_, grant| {
            grant["isolation"] = json!({ "share_group": group });
        });
        match kept {
            Ok(kept) => kept,
            Err((reply, log)) => panic!("{reply}: {log}"),
        }
    }

    /// In front of a driver of this version, which a file of the operator's has shown to have these layouts.
    pub(crate) fn with_layouts(
        version: &'static str,
        layouts: &Value,
    ) -> Result<Self, (String, String)> {
        let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
        let fake = Fake::of_version(Some(version));
        Self::granted(fake, 1 << 30, &[], &native, |_, grant| {
            grant["driver_version"] = version.into();
            grant["layouts"] = layouts.clone();
        })
    }

    /// With a state folder on a disk of its own, of this many bytes.
    pub(crate) fn on_a_disk_of(bytes: u64) -> Self {
        let native = json!({"policy": null, "percent": null, "weight": null, "priority": "normal"});
        let mut disk = None;
        let kept = Self::behind(Fake::new(), 1 << 30, &[], &native, |folder| {
            disk = Some(Disk::mounted_below(folder, bytes));
        });
        match kept {
            Ok(mut kept) => {
                kept.disk = disk;
                kept
            }
            Err((reply, log)) => panic!("{reply}: {log}"),
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        self.disk.as_ref().unwrap()
    }

    /// Or what it said instead of being ready, and its log.
    fn started(
        quota_bytes: u64,
        environment: &[(&str, &str)],
        compute: &Value,
        prepare: impl FnOnce(&Path),
    ) -> Result<Self, (String, String)> {
        Self::behind(Fake::new(), quota_bytes, environment, compute, prepare)
    }

    fn behind(
        fake: Arc<Fake>,
        quota_bytes: u64,
        environment: &[(&str, &str)],
        compute: &Value,
        prepare: impl FnOnce(&Path),
    ) -> Result<Self, (String, String)> {
        Self::granted(fake, quota_bytes, environment, compute, |folder, _| {
            prepare(folder);
        })
    }

    fn granted(
        fake: Arc<Fake>,
        quota_bytes: u64,
        environment: &[(&str, &str)],
        compute: &Value,
        prepare: impl FnOnce(&Path, &mut Value),
    ) -> Result<Self, (String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let nodes = folder.path().join("sim/dev");
        std::fs::create_dir_all(&nodes).unwrap();
        for (name, kind) in [
            ("nvidiactl", FileKind::Ctl),
            ("nvidia0", FileKind::Card { minor: 0 }),
            ("nvidia-uvm", FileKind::Uvm),
        ] {
            std::fs::write(nodes.join(name), [0; 64]).unwrap();
            fake.add_node(&nodes.join(name), kind);
        }
        let socket = folder.path().join("sim/sim.sock");
        fake_server::start(Arc::clone(&fake), &socket);
        let mut grant = json!({
            "version": 1,
            "key": {"namespace": "tests", "id": "kept"},
            "driver": {"kind": "sim", "socket": socket},
            "driver_version": "570.195.03",
            "cards": [{"uuid": UUID, "minor": 0, "quota_bytes": quota_bytes}],
            "compute": compute,
            "frontend": {"kind": "run", "pid": std::process::id()},
            "bundle": null,
            "created_at_unix_ms": 1,
        });
        prepare(folder.path(), &mut grant);
        let dir = folder.path().join("vgpus/tests/kept");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("grant.json"), grant.to_string()).unwrap();
        let frontend = File::create(dir.join("frontend.lock")).unwrap();
        assert!(sys::lock::try_exclusive(&frontend).unwrap());
        let log = File::options()
            .append(true)
            .create(true)
            .open(dir.join("broker.log"))
            .unwrap();
        let mut supervisor = Command::new(program())
            .arg("--dir")
            .arg(&dir)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut reply = String::new();
        let mut stdout = supervisor.stdout.take().unwrap();
        stdout.read_to_string(&mut reply).unwrap();
        let kept = Self {
            fake,
            disk: None,
            folder,
            dir,
            supervisor,
            _frontend: frontend,
        };
        if reply == "ready\n" {
            Ok(kept)
        } else {
            let log = kept.log();
            Err((reply, log))
        }
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The container's share record on its card.
    pub(crate) fn share_record(&self) -> PathBuf {
        let shares = self.folder.path().join("cards").join(UUID).join("shares");
        shares.join(compute::files::file_name("tests/kept"))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("broker.log")).unwrap()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its events are.
    pub(crate) fn log_dir(&self) -> PathBuf {
        let container = self
            .dir
            .strip_prefix(self.folder.path().join("vgpus"))
            .unwrap();
        self.folder.path().join("events/containers").join(container)
    }

    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.folder.path().join("sim/dev").join(name)
    }

    /// A process under the filter, whose listener is handed over as runc does it.
    pub(crate) fn tenant(&self) -> (Tenant, Process) {
        let (child, socket) = launch::start(WITH_FILTER).unwrap();
        let process = Process(child);
        let listener = launch::listener(&socket).unwrap();
        self.hand_over(&listener, process.0.id());
        (Tenant::new(socket), process)
    }

    pub(crate) fn hand_over(&self, listener: &OwnedFd, pid: u32) {
        let stream = UnixStream::connect(self.dir.join("notify.sock")).unwrap();
        let state = json!({"ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": pid}).to_string();
        sys::fd_passing::send(stream.as_fd(), state.as_bytes(), &[listener.as_fd()]).unwrap();
    }

    /// Who watches over the broker: the process that was started here, until another one has taken its place.
    pub(crate) fn supervisor_pid(&self) -> i32 {
        self.named_pid()
            .unwrap_or_else(|| self.supervisor.id().cast_signed())
    }

    /// The process that `broker.pid` names.
    pub(crate) fn named_pid(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.dir.join("broker.pid")).ok()?;
        let named: Value = serde_json::from_str(&text).ok()?;
        i32::try_from(named["pid"].as_i64()?).ok()
    }

    /// The broker that runs now, if one does: the supervisor's child, or its parent.
    pub(crate) fn broker_pid(&self) -> Option<i32> {
        let supervisor = self.supervisor_pid();
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        let child = children.ok()?.split_whitespace().next().map(str::parse);
        if let Some(child) = child {
            return child.ok();
        }
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).ok()?;
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:\t"))?;
        let command = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
        let serves = command
            .split(|byte| *byte == 0)
            .any(|arg| arg == b"--serve");
        parent.parse().ok().filter(|_| serves)
    }

    /// Waits for a supervisor that is not `former`, and says which.
    pub(crate) fn next_supervisor(&self, former: i32) -> i32 {
        let mut pid = 0;
        until("another supervisor watches", || {
            let now = &self.status()["broker"]["supervisor_pid"];
            pid = i32::try_from(now.as_i64().unwrap()).unwrap();
            pid != 0 && pid != former
        });
        pid
    }

    pub(crate) fn signal(&self, pid: i32, signal: Signal) {
        // It may be gone in this moment.
        let _gone = kill(Pid::from_raw(pid), signal);
    }

    pub(crate) fn ask(&self, request: &Value) -> std::io::Result<Value> {
        let mut stream = UnixStream::connect(self.dir.join("control.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    pub(crate) fn status(&self) -> Value {
        let mut status = Value::Null;
        until("a broker answers", || {
            status = self.ask(&json!({"op": "status"})).unwrap_or_default();
            status.is_object()
        });
        status
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.status()["cards"][0]["used_bytes"].as_u64().unwrap()
    }

    /// What the supervisor holds open, when it has taken all that its broker gave it: a message needs no answer, but all are read
    /// before the next broker is started.
    pub(crate) fn settled_descriptors(&self) -> Vec<String> {
        let broker = self.broker_pid().unwrap();
        self.signal(broker, Signal::SIGKILL);
        assert_ne!(self.status()["broker"]["pid"], broker);
        self.descriptors()
    }

    /// What the supervisor holds open now.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.supervisor_pid())).unwrap();
        let what = |entry: std::fs::DirEntry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            format!("{} {}", entry.file_name().display(), target.display())
        };
        entries.flatten().map(what).collect()
    }

    /// Waits until the supervisor holds as many as it then did.
    pub(crate) fn until_as_many(&self, as_then: &[String]) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.descriptors();
            if now.len() == as_then.len() {
                return;
            }
            assert!(
                Instant::now() < until,
                "the supervisor has {now:#?}, and had {as_then:#?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.log());
        }
        self.signal(self.supervisor_pid(), Signal::SIGTERM);
        // Another one may have taken its place.
        if self.supervisor_pid() != self.supervisor.id().cast_signed() {
            until("its successor has ended", || {
                let lock = File::open(self.dir.join("broker.lock")).unwrap();
                !sys::lock::is_held(&lock).unwrap()
            });
        }
        self.supervisor.wait().unwrap();
    }
}

/// A small file system below a state folder, on which the containers' folders lie.
pub(crate) struct Disk {
    path: PathBuf,
    mounts: AtomicU32,
}

impl Disk {
    fn mounted_below(state_dir: &Path, bytes: u64) -> Self {
        let path = state_dir.join("vgpus");
        std::fs::create_dir(&path).unwrap();
        mount(
            &["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"],
            &path,
        );
        // The containers' logs are on the same disk.
        let events = path.join("events");
        std::fs::create_dir(&events).unwrap();
        std::os::unix::fs::symlink(&events, state_dir.join("events")).unwrap();
        Self {
            path,
            mounts: AtomicU32::new(1),
        }
    }

    /// Until it is emptied, nothing more can be written to it.
    pub(crate) fn fill(&self) {
        let mut filler = File::create(self.path.join("filler")).unwrap();
        for piece in [4096, 1] {
            while filler.write_all(&vec![1; piece]).is_ok() {}
        }
    }

    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.path.join("filler")).unwrap();
    }

    /// Whoever looks a path up from now on finds it read-only. What is open stays as it is.
    pub(crate) fn make_read_only(&self) {
        mount(&["--bind", self.path.to_str().unwrap()], &self.path);
        self.mounts.fetch_add(1, Ordering::SeqCst);
        mount(&["-o", "remount,bind,ro"], &self.path);
    }

    pub(crate) fn make_writable(&self) {
        self.unmount();
    }

    fn unmount(&self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.path).status();
        assert!(unmounted.unwrap().success());
        self.mounts.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        while self.mounts.load(Ordering::SeqCst) > 0 {
            self.unmount();
        }
    }
}

fn mount(arguments: &[&str], on: &Path) {
    let mounted = Command::new("mount").args(arguments).arg(on).status();
    assert!(mounted.unwrap().success(), "{arguments:?}");
}
