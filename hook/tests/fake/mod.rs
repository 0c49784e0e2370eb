//! A host with one simulated card in a file, a broker that is played by the test program, and a runtime that is a script.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod one_card;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use cards::Grant;
use cards::lock::FileLock;
use serde_json::{Value, json};

const PLAY_BROKER: &str = "CGPU_TEST_PLAY_BROKER";

/// The test program as a broker: it serves nobody and ends when it is told to. To be called by a test named `play_broker`.
pub(crate) fn broker() {
    let Some(dir) = std::env::var_os(PLAY_BROKER).map(PathBuf::from) else {
        return;
    };
    let _lock = FileLock::take(&dir.join("broker.lock")).unwrap();
    // As the frontend hands it over: standard input.
    let socket = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    fs::write("/proc/self/fd/3", "ready\n").unwrap();
    for connection in socket.incoming() {
        drop(connection.unwrap());
    }
}

pub(crate) const STATE: &str = "s";

pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
}

impl Host {
    /// `None`, aloud, for a user who cannot run it.
    pub(crate) fn find() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        // Below it stand sockets, whose paths end at 107 bytes, under an identity of 64 digits.
        let dir = tempfile::Builder::new()
            .prefix("c")
            .rand_bytes(5)
            .tempdir_in("/tmp")
            .unwrap();
        let state = dir.path().join(STATE);
        one_card::simulate(&state);
        let host = Self { dir };
        let me = std::env::current_exe().unwrap();
        let broker = host.script(
            "broker",
            &format!(
                "exec 3>&1 >/dev/null; {PLAY_BROKER}=\"$2\" exec '{}' --exact play_broker",
                me.display()
            ),
        );
        let runtime = host.script("runtime", &features("exit 0"));
        host.configure(&format!(
            "state_dir = \"{}\"\nrunc = \"{}\"\n[driver]\nkind = \"sim\"\n[broker]\npath = \"{}\"\n",
            state.display(),
            runtime.display(),
            broker.display()
        ));
        Some(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.path("cgpu.toml"), text).unwrap();
    }

    /// Written by another process: one that this one starts meanwhile would hold it open, and it could not be run.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let written = Command::new("sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#,
                "sh",
                text,
            ])
            .arg(&path)
            .status()
            .unwrap();
        assert!(written.success());
        path
    }

    pub(crate) fn bundle(&self, id: &str, annotations: Value) -> PathBuf {
        let bundle = self.path("bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        fs::write(bundle.join("config.json"), spec(annotations).to_string()).unwrap();
        bundle
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CGPU_CONFIG", self.path("cgpu.toml"));
        command
    }

    pub(crate) fn grant(&self, namespace: &str, id: &str) -> Option<Grant> {
        Grant::read(&self.path(STATE).join("vgpus").join(namespace).join(id)).ok()
    }

    pub(crate) fn assert_clean(&self) {
        let vgpus = self.path(STATE).join("vgpus");
        assert!(!vgpus.exists() || fs::read_dir(vgpus).unwrap().next().is_none());
    }
}

/// A runtime that says it can hand over a listener, and does `body` with everything else.
pub(crate) fn features(body: &str) -> String {
    format!(
        r#"if [ "$1" = features ]; then echo '{{"linux":{{"seccomp":{{"actions":["SCMP_ACT_NOTIFY"]}}}}}}'; exit 0; fi
{body}"#
    )
}

pub(crate) fn spec(annotations: Value) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "annotations": annotations,
        "process": {"args": ["true"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["SECRET=of the container"]},
        "root": {"path": "rootfs"},
        "mounts": [],
        "linux": {
            "cgroupsPath": format!("/libpod_parent/libpod-{ID}"),
            "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

pub(crate) const ID: &str = "d194c488155e11a710462b409db425778947bcd3d939c1eb085ab42f4eca7b48";

/// A vGPU of 4 GiB.
pub(crate) fn slice() -> Value {
    json!({"cgpu.io/memory": "4Gi"})
}
