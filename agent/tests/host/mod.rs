//! A state folder with brokers that this process plays.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cards::ContainerKey;
use cards::lock::{Attempt, FileLock};
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
