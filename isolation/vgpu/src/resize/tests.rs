//! A container of two cards whose broker is played on its control socket.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread;

use cards::lock::{Attempt, FileLock};
use cards::{Card, CardGrant, ComputeTerms, GpuUuid, SimulatedInventory};
use control::{CardStatus, Status};
use host_config::Config;
use serde_json::{Value, json};

use super::*;
use crate::lifecycle::tests::container;

const GIB: u64 = 1 << 30;

fn resize_memory(config: &Config, key: &ContainerKey, memory: &str) -> Result<Vec<Resized>, Error> {
    let requested = Requested {
        memory: Some(memory),
        ..Requested::default()
    };
    Ok(change(&container(config, key), &requested)?.memory)
}

/// What the played broker does with the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Obeys,
    Refuses,
    /// And obeys from then on.
    RefusesOnce,
    Hangs,
}

pub(super) struct Fixture {
    pub(super) dir: tempfile::TempDir,
    pub(super) config: Config,
    pub(super) key: ContainerKey,
    used_bytes: Arc<Mutex<u64>>,
    quota_bytes: Arc<Mutex<u64>>,
    pub(super) mood: Arc<Mutex<Mood>>,
    pub(super) heard: Arc<Mutex<Vec<Value>>>,
    first: Option<Fake>,
}

/// A container's broker.
pub(super) struct Fake {
    pub(super) key: ContainerKey,
    used_bytes: Arc<Mutex<u64>>,
    /// Of each card, as its status has it.
    quota_bytes: Arc<Mutex<u64>>,
    pub(super) mood: Arc<Mutex<Mood>>,
    pub(super) heard: Arc<Mutex<Vec<Value>>>,
    _alive: FileLock,
}

impl Fixture {
    fn new() -> Self {
        let mut fixture = Self::empty();
        let first = fixture.join("c1", &ComputeTerms::default(), 2);
        fixture.used_bytes = Arc::clone(&first.used_bytes);
        fixture.quota_bytes = Arc::clone(&first.quota_bytes);
        fixture.mood = Arc::clone(&first.mood);
        fixture.heard = Arc::clone(&first.heard);
        fixture.first = Some(first);
        fixture
    }

    /// A host with two cards.
    pub(super) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            state_dir: dir.path().join("state"),
            ..Config::default()
        };
        fs::create_dir_all(config.state_dir.join("sim/dev")).unwrap();
        fs::set_permissions(&config.state_dir, fs::Permissions::from_mode(0o700)).unwrap();
        let cards = (0..2)
            .map(|index| Card {
                uuid: uuid(index),
                name: "Simulated".to_owned(),
                memory_bytes: 24 * GIB,
                minor: index,
                index,
                pci: String::new(),
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
        Self {
            dir,
            config,
            key: ContainerKey::new("default", "c1").unwrap(),
            used_bytes: Arc::default(),
            quota_bytes: Arc::default(),
            mood: Arc::new(Mutex::new(Mood::Obeys)),
            heard: Arc::default(),
            first: None,
        }
    }

    /// A container on the first cards, with terms that fit there.
    pub(super) fn join(&self, id: &str, compute: &ComputeTerms, cards: u32) -> Fake {
        let key = ContainerKey::new("default", id).unwrap();
        let folder = ContainerDir::of(&self.config.state_dir, &key);
        fs::create_dir_all(folder.path()).unwrap();
        let grant: Grant = serde_json::from_value(json!({
            "version": 1,
            "key": {"namespace": "default", "id": id},
            "driver": {"kind": "sim", "socket": "/run/cgpu/sim/sim.sock"},
            "driver_version": "570.195.03",
            "cards": [],
            "compute": compute,
            "frontend": {"kind": "shim", "pid": 7},
            "bundle": null,
            "created_at_unix_ms": 1,
        }))
        .unwrap();
        let grant = Grant {
            cards: (0..cards)
                .map(|minor| CardGrant {
                    uuid: uuid(minor),
                    minor,
                    quota_bytes: 4 * GIB,
                })
                .collect(),
            ..grant
        };
        grant.write(&DiskStore, folder.path()).unwrap();
        {
            let lock = StateLock::take(&self.config.state_dir).unwrap();
            let reservations = Reservations::open(&lock, &self.config.state_dir, &DiskStore);
            let defaults = Host::find(&self.config).unwrap().defaults(&self.config);
            for slice in &grant.cards {
                let reserved = reservations.reserved_time(&slice.uuid, &defaults).unwrap();
                let terms = reserved.admit(compute).unwrap();
                reservations
                    .pin(&slice.uuid, &reserved.rules, &terms)
                    .unwrap();
            }
            reservations.add(&grant).unwrap();
        }
        let Attempt::Taken(alive) = FileLock::attempt(&folder.broker_lock()).unwrap() else {
            panic!("the lock is new");
        };
        let fake = Fake {
            key,
            used_bytes: Arc::new(Mutex::new(GIB)),
            quota_bytes: Arc::new(Mutex::new(4 * GIB)),
            mood: Arc::new(Mutex::new(Mood::Obeys)),
            heard: Arc::default(),
            _alive: alive,
        };
        let listener = UnixListener::bind(folder.control_socket()).unwrap();
        let (held, mood, heard) = (
            [&fake.used_bytes, &fake.quota_bytes].map(Arc::clone),
            Arc::clone(&fake.mood),
            Arc::clone(&fake.heard),
        );
        let lock = self.config.state_dir.join("lock");
        thread::spawn(move || play(&listener, &held, &mood, &heard, &lock));
        fake
    }

    fn resize(&self, memory: &str) -> Result<Vec<Resized>, Error> {
        resize_memory(&self.config, &self.key, memory)
    }

    /// Quota by the grant, and what the reservations keep from others, GiB of the first card.
    fn granted_and_reserved(&self) -> (u64, u64) {
        let folder = ContainerDir::of(&self.config.state_dir, &self.key);
        let grant = Grant::read(folder.path()).unwrap();
        let lock = StateLock::take(&self.config.state_dir).unwrap();
        let reservations = Reservations::open(&lock, &self.config.state_dir, &DiskStore)
            .all()
            .unwrap();
        (
            grant.cards[0].quota_bytes / GIB,
            reservations[0].reserved_bytes() / GIB,
        )
    }
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{index}")).unwrap()
}

/// Answers until the test process ends.
fn play(
    listener: &UnixListener,
    [used, quota]: &[Arc<Mutex<u64>>; 2],
    mood: &Mutex<Mood>,
    heard: &Mutex<Vec<Value>>,
    lock: &std::path::Path,
) {
    let mut kept = Vec::new();
    for stream in listener.incoming().map_while(Result::ok) {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let mut request: Value = serde_json::from_str(&line).unwrap();
        if request["op"] == "status" {
            request["under_lock"] = FileLock::is_held(lock).unwrap().into();
        }
        let used_bytes = *used.lock().unwrap();
        let now = *mood.lock().unwrap();
        if now == Mood::RefusesOnce {
            *mood.lock().unwrap() = Mood::Obeys;
        }
        let mood = now;
        let shares = request["op"] == "set_compute";
        let changes = shares || request["op"] == "set_quota";
        let answer = if shares && mood == Mood::Obeys {
            json!({"cards": request["cards"]})
        } else if changes && matches!(mood, Mood::Refuses | Mood::RefusesOnce) {
            json!({"error": "not today"})
        } else if changes {
            if mood == Mood::Obeys {
                *quota.lock().unwrap() = request["cards"][0]["quota_bytes"].as_u64().unwrap();
            }
            let cards: Vec<Value> = request["cards"]
                .as_array()
                .unwrap()
                .iter()
                .map(|card| json!({"uuid": card["uuid"], "quota_bytes": card["quota_bytes"], "used_bytes": used_bytes}))
                .collect();
            json!({"version": 1, "cards": cards})
        } else {
            let cards = ["GPU-0", "GPU-1"].map(|uuid| CardStatus {
                uuid: uuid.to_owned(),
                used_bytes,
                quota_bytes: *quota.lock().unwrap(),
                ..CardStatus::default()
            });
            json!(Status {
                cards: cards.to_vec(),
                ..Status::default()
            })
        };
        heard.lock().unwrap().push(request);
        if changes && mood == Mood::Hangs {
            // Open and silent.
            kept.push(stream);
            continue;
        }
        // A client that gave up has closed its end.
        let _gone = (&stream).write_all(format!("{answer}\n").as_bytes());
    }
}

#[test]
fn a_slice_grows_and_shrinks_with_its_reservations() {
    let fixture = Fixture::new();
    let grown = fixture.resize("12Gi").unwrap();
    assert_eq!(grown.len(), 2);
    assert_eq!(
        (grown[0].before_bytes, grown[0].quota_bytes),
        (4 * GIB, 6 * GIB)
    );
    assert_eq!(fixture.granted_and_reserved(), (6, 6));
    fixture.resize("4Gi").unwrap();
    assert_eq!(fixture.granted_and_reserved(), (2, 2));
}

#[test]
fn what_is_held_above_a_shrunken_quota_stays_reserved_until_it_is_given_up() {
    let fixture = Fixture::new();
    *fixture.used_bytes.lock().unwrap() = 3 * GIB;
    let shrunk = fixture.resize("2Gi").unwrap();
    assert_eq!(
        (shrunk[0].quota_bytes, shrunk[0].used_bytes),
        (GIB, 3 * GIB)
    );
    assert_eq!(fixture.granted_and_reserved(), (1, 3));
    let settled = |used_bytes: u64| {
        *fixture.used_bytes.lock().unwrap() = used_bytes;
        settle(&fixture, &Unsettled::ask(&fixture.config));
    };
    settled(2 * GIB);
    assert_eq!(fixture.granted_and_reserved(), (1, 2));
    // It can hold no more than it did: its quota is below that.
    settled(3 * GIB);
    assert_eq!(fixture.granted_and_reserved(), (1, 2));
    settled(GIB);
    assert_eq!(fixture.granted_and_reserved(), (1, 1));
}

#[test]
fn what_is_held_above_a_shrunken_quota_stays_reserved_through_failures() {
    let shrunk = || {
        let fixture = Fixture::new();
        *fixture.used_bytes.lock().unwrap() = 3 * GIB;
        fixture.resize("2Gi").unwrap();
        assert_eq!(fixture.granted_and_reserved(), (1, 3));
        fixture
    };
    // Too large for the card.
    let fixture = shrunk();
    fixture.resize("50Gi").unwrap_err();
    assert_eq!(fixture.granted_and_reserved(), (1, 3));
    // The broker's refusal, and its silence.
    for mood in [Mood::Refuses, Mood::Hangs] {
        let fixture = shrunk();
        *fixture.mood.lock().unwrap() = mood;
        fixture.resize("4Gi").unwrap_err();
        assert_eq!(fixture.granted_and_reserved(), (1, 3), "{mood:?}");
    }
    // Terms that do not fit beside a quota that does.
    let fixture = shrunk();
    let requested = Requested {
        memory: Some("4Gi"),
        compute: Some("40%"),
        ..Requested::default()
    };
    // A neighbour without terms lets nobody have any.
    let other = fixture.join("c2", &ComputeTerms::default(), 2);
    change(&container(&fixture.config, &fixture.key), &requested).unwrap_err();
    let others_gib = 4;
    assert_eq!(fixture.granted_and_reserved(), (1, 3 + others_gib));
    drop(other);
}

#[test]
fn a_quota_that_a_silent_broker_may_have_stays_reserved_beside_the_next_change() {
    let fixture = Fixture::new();
    let set = |mood| *fixture.mood.lock().unwrap() = mood;
    set(Mood::Hangs);
    fixture.resize("12Gi").unwrap_err();
    assert_eq!(fixture.granted_and_reserved(), (4, 6));
    *fixture.quota_bytes.lock().unwrap() = 6 * GIB;
    fixture.resize("10Gi").unwrap_err();
    assert_eq!(fixture.granted_and_reserved(), (4, 6));
    set(Mood::Obeys);
    fixture.resize("10Gi").unwrap();
    assert_eq!(fixture.granted_and_reserved(), (5, 5));
}

#[test]
fn no_status_is_fetched_under_the_lock_that_every_start_needs() {
    let fixture = Fixture::new();
    *fixture.used_bytes.lock().unwrap() = 3 * GIB;
    let other = fixture.join("c2", &ComputeTerms::default(), 2);
    fixture.resize("2Gi").unwrap();
    // Another container's change comes past what the first one still holds.
    resize_memory(&fixture.config, &other.key, "4Gi").unwrap();
    let heard = fixture.heard.lock().unwrap();
    let requested: Vec<&Value> = heard
        .iter()
        .filter(|request| request["op"] == "status")
        .collect();
    assert!(!requested.is_empty());
    assert!(
        requested
            .iter()
            .all(|request| request["under_lock"] == false),
        "{requested:?}"
    );
}

#[test]
fn what_was_seen_before_a_quota_changed_settles_nothing() {
    let fixture = Fixture::new();
    *fixture.used_bytes.lock().unwrap() = 3 * GIB;
    fixture.resize("2Gi").unwrap();
    *fixture.used_bytes.lock().unwrap() = GIB;
    let seen = Unsettled::ask(&fixture.config);
    // Between the question and the lock the container gets more, takes it, and is shrunk to something else.
    *fixture.used_bytes.lock().unwrap() = 4 * GIB;
    fixture.resize("8Gi").unwrap();
    fixture.resize("4Gi").unwrap();
    settle(&fixture, &seen);
    assert_eq!(fixture.granted_and_reserved(), (2, 4));
}

#[test]
fn a_card_without_so_much_free_leaves_all_as_it_was_and_reports_what_can_be_had() {
    let fixture = Fixture::new();
    let error = chain(&fixture.resize("50Gi").unwrap_err());
    assert!(
        error.contains("25 GiB") && error.contains("at most 24 GiB"),
        "{error}"
    );
    assert_eq!(fixture.granted_and_reserved(), (4, 4));
    assert!(
        fixture
            .heard
            .lock()
            .unwrap()
            .iter()
            .all(|request| request["cards"][0]["quota_bytes"] != 25 * GIB)
    );
}

#[test]
fn a_broker_that_refuses_or_hangs_leaves_all_as_it_was() {
    for mood in [Mood::Refuses, Mood::Hangs] {
        let fixture = Fixture::new();
        *fixture.mood.lock().unwrap() = mood;
        let error = chain(&fixture.resize("12Gi").unwrap_err());
        assert!(error.contains("default/c1"), "{error}");
        let (granted, reserved) = fixture.granted_and_reserved();
        assert_eq!(granted, 4);
        // Whether a silent broker has heard of it is not known: then nobody else gets the difference.
        assert!(reserved == 6 || reserved == 4, "{reserved}");
    }
}

#[test]
fn what_a_grant_that_cannot_be_put_back_gives_stays_reserved() {
    let fixture = Fixture::new();
    *fixture.mood.lock().unwrap() = Mood::RefusesOnce;
    let folder = ContainerDir::of(&fixture.config.state_dir, &fixture.key);
    let granted = || Grant::read(folder.path()).unwrap().cards[0].quota_bytes;
    thread::scope(|scope| {
        // The broker's answer waits for that.
        let heard = fixture.heard.lock().unwrap();
        let (config, key) = (&fixture.config, &fixture.key);
        let changing = scope.spawn(move || resize_memory(config, key, "12Gi"));
        while granted() != 6 * GIB {
            thread::yield_now();
        }
        // No grant can be written from now on.
        fs::create_dir(folder.path().join("grant.json.tmp")).unwrap();
        drop(heard);
        changing.join().unwrap().unwrap_err();
    });
    // A broker follows its grant within a second.
    assert_eq!(fixture.granted_and_reserved(), (6, 6));
}

#[test]
fn bad_values_and_absent_containers_are_named() {
    let fixture = Fixture::new();
    for (memory, parts) in [
        ("12", &["--memory", "12", "a number with a unit"][..]),
        ("3Mi", &["--memory", "3Mi", "2 cards", "whole MiB"]),
    ] {
        let error = chain(&fixture.resize(memory).unwrap_err());
        for part in parts {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
    let other = ContainerKey::new("default", "other").unwrap();
    let error = resize_memory(&fixture.config, &other, "4Gi").unwrap_err();
    assert!(matches!(error, Error::NoVgpu { .. }), "{error}");
    assert!(fixture.dir.path().exists());
}

/// What a command that is killed after so many of its steps has done to the first card: reserved the larger quota, written the grant.
fn kill_after(fixture: &Fixture, quota_gib: u64, steps: u32) {
    let dir = ContainerDir::of(&fixture.config.state_dir, &fixture.key);
    let host = Host::find(&fixture.config).unwrap();
    let lock = StateLock::take(&fixture.config.state_dir).unwrap();
    let reservations = Reservations::open(&lock, &fixture.config.state_dir, &DiskStore);
    let mut grant = Grant::read(dir.path()).unwrap();
    for slice in &mut grant.cards {
        let card = host.inventory.cards.iter().find(|it| it.uuid == slice.uuid);
        let larger = slice.quota_bytes.max(quota_gib * GIB);
        reservations
            .reserve_at_least(&fixture.key, card.unwrap(), larger)
            .unwrap();
        slice.quota_bytes = quota_gib * GIB;
    }
    if steps > 1 {
        grant.write(&DiskStore, dir.path()).unwrap();
    }
}

fn settle(fixture: &Fixture, seen: &Unsettled) {
    let lock = StateLock::take(&fixture.config.state_dir).unwrap();
    let reservations = Reservations::open(&lock, &fixture.config.state_dir, &DiskStore);
    let host = Host::find(&fixture.config).unwrap();
    seen.settle(&fixture.config, &reservations, &host.inventory)
        .unwrap();
}

#[test]
fn what_a_killed_command_has_reserved_is_given_up_once_broker_and_grant_agree() {
    for (quota_gib, steps, granted_gib, larger_gib, held_gib) in [
        (6, 1, 4, 6, 1),
        (6, 2, 6, 6, 1),
        (2, 1, 4, 4, 1),
        (2, 2, 2, 4, 1),
        (2, 2, 2, 4, 3),
    ] {
        let fixture = Fixture::new();
        *fixture.used_bytes.lock().unwrap() = held_gib * GIB;
        kill_after(&fixture, quota_gib, steps);
        // Before the broker has followed the grant.
        settle(&fixture, &Unsettled::ask(&fixture.config));
        let reserved_gib = if steps == 1 { 4 } else { larger_gib };
        assert_eq!(fixture.granted_and_reserved(), (granted_gib, reserved_gib));
        *fixture.quota_bytes.lock().unwrap() = granted_gib * GIB;
        settle(&fixture, &Unsettled::ask(&fixture.config));
        let settled_gib = granted_gib.max(held_gib);
        assert_eq!(fixture.granted_and_reserved(), (granted_gib, settled_gib));
    }
}

#[test]
fn a_grant_that_was_touched_after_its_broker_answered_is_settled_the_next_time() {
    let fixture = Fixture::new();
    kill_after(&fixture, 6, 1);
    let seen = Unsettled::ask(&fixture.config);
    // A command that fails has the same written in the end, and its broker may have got more meanwhile.
    *fixture.mood.lock().unwrap() = Mood::Hangs;
    fixture.resize("12Gi").unwrap_err();
    assert_eq!(fixture.granted_and_reserved(), (4, 6));
    settle(&fixture, &seen);
    assert_eq!(fixture.granted_and_reserved(), (4, 6));
}
