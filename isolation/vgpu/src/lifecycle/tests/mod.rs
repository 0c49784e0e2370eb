//! Frontends that succeed, fail and are killed, with a played broker and a played runc.
//!
//! The test program plays other programs: started with [`PLAY_BROKER`] it is a broker that holds its lock until its frontend is
//! gone, with [`PLAY_FRONTEND`] a frontend that is killed at a step.

mod claims;
mod life;
mod pod;
mod real_cards;
mod refused;
mod release;
mod terms;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cards::lock::{FileLock, StateLock};
use cards::placement::MIB;
use cards::reservations::Reservations;
use cards::store::DiskStore;
use cards::{Card, ContainerKey, FrontendKind, GpuUuid, SimulatedInventory};
use host_config::Config;
use serde_json::{Value, json};

use super::making::{Step, Watch};
use super::{Create, Created, Source};
use crate::host::Host;
use crate::{Container, Error, own_group, state};

const PLAY_BROKER: &str = "CGPU_TEST_PLAY_BROKER";
const PLAY_FRONTEND: &str = "CGPU_TEST_PLAY_FRONTEND";

const STEPS: [Step; 8] = [
    Step::Locked,
    Step::Reclaimed,
    Step::FolderMade,
    Step::FrontendLocked,
    Step::GrantWritten,
    Step::Reserved,
    Step::SpecReplaced,
    Step::BrokerReady,
];

/// A host of two cards of 24 GiB in a folder of its own.
struct TestHost {
    dir: tempfile::TempDir,
    config: Config,
}

impl TestHost {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config_in(dir.path());
        fs::create_dir(&config.state_dir).unwrap();
        fs::set_permissions(&config.state_dir, fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir_all(config.state_dir.join("sim/dev")).unwrap();
        for name in [
            "nvidiactl",
            "nvidia0",
            "nvidia1",
            "nvidia-uvm",
            "nvidia-uvm-tools",
        ] {
            fs::write(config.state_dir.join("sim/dev").join(name), "").unwrap();
        }
        let cards = (0..2)
            .map(|index| Card {
                uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
                name: "Simulated Ada".to_owned(),
                memory_bytes: 24 << 30,
                minor: index,
                index,
                pci: format!("00000000:0{index}:00.0"),
                modes: cards::Modes::default(),
            })
            .collect();
        SimulatedInventory {
            version: 1,
            driver_version: "570.195.03".to_owned(),
            cards,
        }
        .write(&DiskStore, &config.state_dir)
        .unwrap();
        program(
            &dir.path().join("runc"),
            "echo ran >> \"$(dirname \"$0\")/runc.calls\"; echo '{\"linux\":{\"seccomp\":{\"actions\":[\"SCMP_ACT_NOTIFY\"]}}}'",
        );
        let me = std::env::current_exe().unwrap();
        // The test harness talks on standard output; the broker's pipe becomes descriptor 3.
        program(
            &dir.path().join("broker"),
            &format!(
                "exec 3>&1 >/dev/null; {PLAY_BROKER}=\"$2\" exec '{}' --exact lifecycle::tests::play_broker",
                me.display()
            ),
        );
        Self { dir, config }
    }

    fn bundle(&self, id: &str, annotations: Value) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        fs::create_dir_all(&bundle).unwrap();
        let spec = json!({"ociVersion": "1.0.2", "vendor": {"kept": [1, 2]}, "annotations": annotations, "process": {"args": ["x"], "env": ["A=b"]}, "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}});
        fs::write(
            bundle.join("config.json"),
            serde_json::to_vec_pretty(&spec).unwrap(),
        )
        .unwrap();
        bundle
    }

    fn create(&self, id: &str, memory: &str) -> Result<Option<Created>, Error> {
        let bundle = self.bundle(id, json!({"cgpu.io/memory": memory}));
        create(&self.config, &key(id), &bundle, FrontendKind::Shim)
    }

    fn reserved_mib(&self) -> u64 {
        let lock = StateLock::take(&self.config.state_dir).unwrap();
        let store = DiskStore;
        let reservations = Reservations::open(&lock, &self.config.state_dir, &store)
            .all()
            .unwrap();
        reservations
            .iter()
            .map(cards::reservations::CardReservations::reserved_bytes)
            .sum::<u64>()
            / MIB
    }

    /// Nothing of any container is left.
    fn assert_clean(&self, context: &dyn std::fmt::Debug) {
        assert_eq!(self.reserved_mib(), 0, "{context:?}");
        assert_eq!(
            state::containers(&self.config.state_dir).unwrap(),
            [],
            "{context:?}"
        );
        assert_eq!(
            brokers(self.dir.path()),
            Vec::<String>::new(),
            "{context:?}"
        );
        let vgpus = state::vgpus_dir(&self.config.state_dir);
        assert!(
            !vgpus.exists() || fs::read_dir(vgpus).unwrap().next().is_none(),
            "{context:?}"
        );
        assert_eq!(
            own_group::all(&self.config),
            Vec::<PathBuf>::new(),
            "{context:?}"
        );
    }
}

fn config_in(dir: &Path) -> Config {
    Config {
        state_dir: dir.join("state"),
        runc: Some(dir.join("runc")),
        broker: host_config::config::BrokerConfig {
            path: Some(dir.join("broker")),
            ..Default::default()
        },
        ..Config::default()
    }
}

fn program(path: &Path, body: &str) {
    // By another process: a file that this one writes is busy in whatever another test forks meanwhile.
    let written = Command::new("sh")
        .args([
            "-c",
            "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\"",
            "sh",
            body,
        ])
        .arg(path)
        .status();
    assert!(written.unwrap().success());
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn key(id: &str) -> ContainerKey {
    ContainerKey::new("default", id).unwrap()
}

fn spec_bytes(bundle: &Path) -> Vec<u8> {
    fs::read(bundle.join("config.json")).unwrap()
}

/// Played brokers of a host that still live: their environment names their folder.
fn brokers(host: &Path) -> Vec<String> {
    let needed = format!("{PLAY_BROKER}={}", host.display());
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().into_string().ok()?;
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            String::from_utf8_lossy(&environment)
                .contains(&needed)
                .then_some(pid)
        })
        .collect()
}

/// A container as later commands find it.
pub(crate) fn container(config: &Config, key: &ContainerKey) -> Container {
    Container::new(config.clone(), key.clone())
}

fn create(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    frontend: FrontendKind,
) -> Result<Option<Created>, Error> {
    let container = container(config, key);
    super::create(&Create::new(&container, Source::Bundle(bundle), frontend))
}

/// A frontend that fails, or is killed, at a step.
fn create_watched(
    config: &Config,
    key: &ContainerKey,
    bundle: &Path,
    watch: &dyn Watch,
) -> Result<Option<Created>, Error> {
    let container = container(config, key);
    let order = Create::new(&container, Source::Bundle(bundle), FrontendKind::Shim);
    super::create(&order.watched(watch))
}

/// On a host that is played.
pub(crate) fn create_on_host(
    config: &Config,
    host: &Host,
    key: &ContainerKey,
    bundle: &Path,
) -> Result<Created, Error> {
    let container = container(config, key);
    let order = Create::new(&container, Source::Bundle(bundle), FrontendKind::Runtime);
    Ok(super::create(&order.on(host))?.unwrap())
}

pub(crate) fn release(config: &Config, key: &ContainerKey) -> Result<(), Error> {
    match container(config, key).reopen() {
        Some(running) => running.ended().release(),
        None => Ok(()),
    }
}

pub(crate) fn verify_filter(config: &Config, key: &ContainerKey, init: i32) -> Result<(), Error> {
    let prepared = container(config, key).reopen_prepared().unwrap();
    prepared
        .verify_filter(init)
        .map(drop)
        .map_err(|rejected| rejected.error)
}

pub(crate) fn teardown(config: &Config, key: &ContainerKey) -> Result<(), Error> {
    container(config, key).reopen().unwrap().teardown()
}

fn edit_exec(config: &Config, key: &ContainerKey, process: &mut Value) -> Result<(), Error> {
    match container(config, key).reopen() {
        Some(running) => running.edit_exec(process),
        None => Ok(()),
    }
}

#[test]
fn play_broker() {
    let Some(dir) = std::env::var_os(PLAY_BROKER).map(PathBuf::from) else {
        return;
    };
    let _lock = FileLock::take(&dir.join("broker.lock")).unwrap();
    fs::write("/proc/self/fd/3", "ready\n").unwrap();
    // The frontend's death is the only event that this broker waits for.
    let frontend = FileLock::take(&dir.join("frontend.lock"));
    drop(frontend);
}

#[test]
fn play_frontend() {
    let Some(play) = std::env::var_os(PLAY_FRONTEND) else {
        return;
    };
    let play = play.into_string().unwrap();
    let [host, bundle, step] = play.split(':').collect::<Vec<_>>().try_into().unwrap();
    let step = STEPS[step.parse::<usize>().unwrap()];
    drop(create_watched(
        &config_in(Path::new(host)),
        &key("killed"),
        Path::new(bundle),
        &KilledAt(step),
    ));
}

struct KilledAt(Step);

impl Watch for KilledAt {
    fn reached(&self, step: Step) -> Result<(), Error> {
        if step == self.0 {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        Ok(())
    }
}

struct FailsAt(Step);

impl Watch for FailsAt {
    fn reached(&self, step: Step) -> Result<(), Error> {
        if step == self.0 {
            Err(Error::NothingRequested)
        } else {
            Ok(())
        }
    }
}

/// In a frontend's name, of a container that asks for 1 GiB.
fn created(host: &TestHost, id: &str, frontend: FrontendKind) -> Result<Option<Created>, Error> {
    let bundle = host.bundle(id, json!({"cgpu.io/memory": "1Gi"}));
    create(&host.config, &key(id), &bundle, frontend)
}

/// Puts capabilities into the bounding set of a bundle's process.
fn with_capabilities(bundle: &Path, capabilities: Value) {
    let path = bundle.join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    spec["process"]["capabilities"] = json!({ "bounding": capabilities });
    fs::write(&path, spec.to_string()).unwrap();
}
