//! A state folder with brokers that this process plays, an agent on it, and an HTTP client that can do without manners.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cards::ContainerKey;
use cards::lock::{Attempt, FileLock};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The card.
pub(crate) const UUID: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// A host; its containers end with it.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    containers: Vec<(FileLock, UnixListener)>,
    /// Questions that brokers were asked.
    pub(crate) questions: Arc<AtomicU64>,
}

impl Host {
    /// With one simulated card, and no container.
    pub(crate) fn new() -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            containers: Vec::new(),
            questions: Arc::default(),
        };
        std::fs::create_dir_all(host.state_dir().join("sim")).unwrap();
        let inventory = json!({
            "version": 1,
            "driver_version": "570.195.03",
            "cards": [{
                "uuid": UUID, "name": "Simulated L4", "memory_bytes": 24_u64 << 30,
                "minor": 0, "index": 0, "pci": "00000000:01:00.0",
            }],
        });
        let file = host.state_dir().join("sim/cards.json");
        std::fs::write(file, inventory.to_string()).unwrap();
        let config = format!(
            "state_dir = {:?}\n[driver]\nkind = \"sim\"\n",
            host.state_dir()
        );
        std::fs::write(host.path("cgpu.toml"), config).unwrap();
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    /// The folder of a container, with its grant.
    pub(crate) fn grant(&self, id: &str) -> PathBuf {
        let key = ContainerKey::new("default", id).unwrap();
        let dir = self.state_dir().join("vgpus").join(key.relative_dir());
        std::fs::create_dir_all(&dir).unwrap();
        let grant = json!({
            "version": 1,
            "key": {"namespace": "default", "id": id},
            "driver": {"kind": "kernel"},
            "driver_version": "570.195.03",
            "cards": [{"uuid": UUID, "minor": 0, "quota_bytes": 1 << 30}],
            "compute": {"policy": null, "percent": null, "weight": null, "priority": "normal"},
            "frontend": {"kind": "shim", "pid": 7},
            "bundle": null,
            "created_at_unix_ms": 1,
        });
        std::fs::write(dir.join("grant.json"), grant.to_string()).unwrap();
        dir
    }

    /// A container whose broker lives, and is stopped: it takes connections and answers none.
    pub(crate) fn silent(&mut self, id: &str) -> UnixListener {
        let dir = self.grant(id);
        let Attempt::Taken(lock) = FileLock::attempt(&dir.join("broker.lock")).unwrap() else {
            panic!("{id} is there twice");
        };
        let listener = UnixListener::bind(dir.join("control.sock")).unwrap();
        let ours = listener.try_clone().unwrap();
        self.containers.push((lock, listener));
        ours
    }

    /// A container whose broker answers.
    pub(crate) fn container(&mut self, id: &str) {
        let listener = self.silent(id);
        let questions = Arc::clone(&self.questions);
        let status = status(id).to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                questions.fetch_add(1, Ordering::Relaxed);
                drop(writeln!(stream, "{status}"));
            }
        });
    }

    /// What starts an agent on this host.
    pub(crate) fn command(&self, listen: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-agent"));
        command
            .args(["--listen", listen, "--runtime-dir"])
            .arg(self.path("run"))
            .arg("--history-dir")
            .arg(self.path("history"))
            .env("CGPU_CONFIG", self.path("cgpu.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped());
        command
    }

    /// An agent that serves.
    pub(crate) fn agent(&self) -> Agent {
        Agent::start(&mut self.command("127.0.0.1:0"))
    }
}

fn status(id: &str) -> Value {
    json!({
        "version": 2,
        "container": format!("default/{id}"),
        "driver": "kernel 570.195.03",
        "cards": [{
            "uuid": UUID, "minor": 0, "quota_bytes": 1 << 30, "used_bytes": 4096, "peak_bytes": 8192, "refused": 1,
        }],
        "processes": [],
        "calls": {"total": 3, "executed": 3},
        "listeners": 1,
        "broker": {"supervisor_pid": 2, "pid": 3, "replaced": 0, "started_at_unix_ms": 1},
    })
}

/// An agent.
pub(crate) struct Agent {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl Agent {
    /// Waits until it says where it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    /// One that was started, once it says where it listens.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended: {seen}");
            if let Some((_, address)) = line.split_once("address=\"") {
                break address.trim_end().trim_end_matches('"').to_owned();
            }
            seen.push_str(&line);
        };
        // It must not wait for a reader.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// An answer to any request, and how long it took.
    pub(crate) fn ask(&self, method: &str, path: &str, accept: &str) -> (Answer, Duration) {
        let began = Instant::now();
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (Answer::of(&text), began.elapsed())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "*/*").0
    }

    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// The value of the sample of this name that has all of these labels.
    pub(crate) fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let line = self.body.lines().find(|line| {
            let is_named = line
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_named && labels.iter().all(|label| line.contains(label))
        })?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// How many samples of this name there are.
    pub(crate) fn count(&self, name: &str) -> usize {
        let start = format!("{name}{{");
        self.body
            .lines()
            .filter(|line| line.starts_with(&start))
            .count()
    }
}

/// Waits for something that happens soon.
pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The text of a file, empty where there is none.
pub(crate) fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
