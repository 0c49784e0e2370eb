//! The reservations under faults: the N-th operation fails, or is the last one before a crash, for every N.

mod claimed;
mod overcommitted;

use std::cell::Cell;
use std::fs;
use std::io;

use super::*;
use crate::grant::{self, CardGrant, ComputeTerms, DriverSpec, Frontend, FrontendKind};
use crate::reserved_time::TimeRefusal;
use crate::store::DiskStore;

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{index}")).unwrap()
}

fn cards() -> Vec<Card> {
    (0..2)
        .map(|index| Card {
            uuid: uuid(index),
            name: "card".to_owned(),
            memory_bytes: 100,
            minor: index,
            index,
            pci: String::new(),
            modes: crate::Modes::default(),
        })
        .collect()
}

fn grant(id: &str, quota_bytes: u64) -> Grant {
    Grant {
        version: grant::VERSION,
        key: ContainerKey::new("default", id).unwrap(),
        driver: DriverSpec::Kernel,
        driver_version: "570.195.03".to_owned(),
        layouts: None,
        cards: (0..2)
            .map(|minor| CardGrant {
                uuid: uuid(minor),
                minor,
                quota_bytes,
            })
            .collect(),
        compute: ComputeTerms::default(),
        claims: Vec::new(),
        backend: crate::Backend::Broker,
        backend_reason: String::new(),
        isolation: crate::Isolation::default(),
        frontend: Frontend {
            kind: FrontendKind::Shim,
            pid: 1,
        },
        bundle: None,
        created_at_unix_ms: 0,
    }
}

fn defaults(policy: ComputePolicy) -> Defaults {
    Defaults {
        rules: CardRules {
            policy,
            ..CardRules::default()
        },
        kind: CardKind::Simulated,
    }
}

/// The disk, until the operation of a given number: that one fails, and with `crashed` set all later ones too.
#[derive(Debug)]
struct Faulty {
    left: Cell<u32>,
    after: After,
    done: Cell<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// One failure, then the disk works again.
    Works,
    /// The machine is off; half of the failing write reached the disk.
    Crashed,
}

impl Faulty {
    fn new(at: u32, after: After) -> Self {
        Self {
            left: Cell::new(at),
            after,
            done: Cell::new(false),
        }
    }

    fn step(&self, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.done.get() {
            return match self.after {
                After::Works => operation(),
                After::Crashed => Err(io::Error::other("crashed")),
            };
        }
        if self.left.get() == 0 {
            self.done.set(true);
            return Err(io::Error::other("injected"));
        }
        self.left.set(self.left.get() - 1);
        operation()
    }
}

impl Store for Faulty {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step(|| DiskStore.create_dir(path))
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let result = self.step(|| DiskStore.write(path, bytes));
        if result.is_err() && self.after == After::Crashed {
            DiskStore.write(path, &bytes[..bytes.len() / 2])?;
        }
        result
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.step(|| DiskStore.sync(path))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|| DiskStore.rename(from, to))
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step(|| DiskStore.remove_file(path))
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.step(|| DiskStore.remove_dir(path))
    }
}

fn free(state_dir: &Path) -> Vec<u64> {
    let lock = StateLock::take(state_dir).unwrap();
    let store = DiskStore;
    Reservations::open(&lock, state_dir, &store)
        .candidates(&cards(), &defaults(ComputePolicy::Native))
        .unwrap()
        .iter()
        .map(|candidate| candidate.free_bytes)
        .collect()
}

#[test]
fn what_is_added_is_missing_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(free(dir.path()), [100, 100]);
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    reservations.add(&grant("a", 30)).unwrap();
    reservations.add(&grant("b", 60)).unwrap();
    assert!(matches!(
        reservations.add(&grant("a", 1)),
        Err(Error::AlreadyReserved { .. })
    ));
    drop(lock);
    assert_eq!(free(dir.path()), [10, 10]);
    let lock = StateLock::take(dir.path()).unwrap();
    Reservations::open(&lock, dir.path(), &store)
        .remove(&grant("a", 0).key)
        .unwrap();
    drop(lock);
    assert_eq!(free(dir.path()), [40, 40]);
}

#[test]
fn every_failure_and_every_crash_leaves_readable_reservations_that_can_be_undone() {
    for after in [After::Works, After::Crashed] {
        let mut succeeded = false;
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            {
                let lock = StateLock::take(dir.path()).unwrap();
                let store = DiskStore;
                Reservations::open(&lock, dir.path(), &store)
                    .add(&grant("before", 10))
                    .unwrap();
                let faulty = Faulty::new(at, after);
                let added = Reservations::open(&lock, dir.path(), &faulty).add(&grant("new", 30));
                if !faulty.done.get() {
                    added.unwrap();
                    succeeded = true;
                }
            }
            // Whatever happened, each file is whole: with the new grant or without it.
            for free_bytes in free(dir.path()) {
                assert!(
                    [60, 90].contains(&free_bytes),
                    "{after:?} {at}: {free_bytes}"
                );
            }
            let lock = StateLock::take(dir.path()).unwrap();
            let store = DiskStore;
            Reservations::open(&lock, dir.path(), &store)
                .remove(&grant("new", 0).key)
                .unwrap();
            drop(lock);
            assert_eq!(free(dir.path()), [90, 90], "{after:?} {at}");
            if succeeded {
                // Two cards, each: two folders, then write, sync, rename, sync.
                assert_eq!(at, 12);
                break;
            }
        }
    }
}

#[test]
fn a_removal_that_fails_anywhere_can_be_repeated() {
    for at in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::take(dir.path()).unwrap();
        let store = DiskStore;
        let reservations = Reservations::open(&lock, dir.path(), &store);
        reservations.add(&grant("a", 30)).unwrap();
        let faulty = Faulty::new(at, After::Crashed);
        Reservations::open(&lock, dir.path(), &faulty)
            .remove(&grant("a", 0).key)
            .unwrap_err();
        reservations.remove(&grant("a", 0).key).unwrap();
        drop(lock);
        assert_eq!(free(dir.path()), [100, 100], "{at}");
    }
}

#[test]
fn newer_broken_and_foreign_reservations_are_errors_and_stay() {
    for text in [
        r#"{"version": 2}"#.to_owned(),
        r#"{"version": 1, "uuid": "GPU-0", "gra"#.to_owned(),
        r#"{"version": 1, "uuid": "GPU-1", "grants": []}"#.to_owned(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cards/GPU-0/reservations.json");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
        let lock = StateLock::take(dir.path()).unwrap();
        let store = DiskStore;
        let reservations = Reservations::open(&lock, dir.path(), &store);
        reservations
            .candidates(&cards(), &defaults(ComputePolicy::Native))
            .unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn version_1_as_it_was_first_written_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cards/GPU-0/reservations.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, include_str!("../../tests/data/reservations-v1.json")).unwrap();
    assert_eq!(free(dir.path()), [70, 100]);
}

fn with(id: &str, compute: ComputeTerms) -> Grant {
    Grant {
        compute,
        ..grant(id, 10)
    }
}

fn percent(percent: u32) -> ComputeTerms {
    ComputeTerms {
        percent: Some(percent),
        ..ComputeTerms::default()
    }
}

/// A newcomer as a frontend makes it: promised, pinned, reserved.
fn start(
    reservations: &Reservations<'_>,
    grant: &Grant,
    defaults: &Defaults,
) -> Result<Terms, TimeRefusal> {
    let mut last = Terms::NATIVE;
    for slice in &grant.cards {
        let reserved = reservations.reserved_time(&slice.uuid, defaults).unwrap();
        last = reserved.admit(&grant.compute)?;
        reservations
            .pin(&slice.uuid, &reserved.rules, &last)
            .unwrap();
    }
    reservations.add(grant).unwrap();
    Ok(last)
}

#[test]
fn rules_come_with_the_first_terms_and_stay_while_anybody_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    let (native, soft, fair) = (
        defaults(ComputePolicy::Native),
        defaults(ComputePolicy::Soft),
        defaults(ComputePolicy::FairShare),
    );
    let plain = with("plain", ComputeTerms::default());
    assert_eq!(start(&reservations, &plain, &native), Ok(Terms::NATIVE));
    assert_eq!(rules::of(dir.path(), &uuid(0)).unwrap(), None);
    // The configuration has changed since: who is there was promised nothing, and a newcomer's percentage is no soft floor.
    assert_eq!(
        reservations.reserved_time(&uuid(0), &soft).unwrap().holders,
        [Terms::NATIVE]
    );
    reservations.remove(&plain.key).unwrap();
    let first = start(&reservations, &with("first", percent(30)), &soft).unwrap();
    assert_eq!(
        (first.policy, first.percent),
        (ComputePolicy::Soft, Some(30))
    );
    assert_eq!(
        rules::of(dir.path(), &uuid(0)).unwrap(),
        Some(soft.rules.clone())
    );
    let second = start(
        &reservations,
        &with("second", ComputeTerms::default()),
        &fair,
    )
    .unwrap();
    assert_eq!(second.policy, ComputePolicy::Soft);
    assert_eq!(
        rules::terms_on(dir.path(), &uuid(1), &ComputeTerms::default()).unwrap(),
        second
    );
    // On an empty card the configuration holds again, unless somebody gave the card its rules.
    for id in ["first", "second"] {
        reservations.remove(&with(id, percent(1)).key).unwrap();
    }
    assert_eq!(
        reservations.reserved_time(&uuid(0), &fair).unwrap().rules,
        fair.rules
    );
    let own = OwnRules {
        rules: soft.rules.clone(),
        stay: Stay::ForGood,
    };
    reservations.set_rules(&uuid(0), Some(&own)).unwrap();
    assert_eq!(
        reservations.reserved_time(&uuid(0), &fair).unwrap().rules,
        soft.rules
    );
    assert_eq!(reservations.rules(&uuid(0)).unwrap(), Some(own));
    reservations.set_rules(&uuid(0), None).unwrap();
    assert_eq!(reservations.rules(&uuid(0)).unwrap(), None);
    // A plain container comes to a card with rules that are out of date.
    start(&reservations, &with("third", percent(30)), &soft).unwrap();
    reservations.remove(&with("third", percent(1)).key).unwrap();
    assert_eq!(start(&reservations, &plain, &native), Ok(Terms::NATIVE));
    assert_eq!(
        rules::terms_on(dir.path(), &uuid(0), &plain.compute).unwrap(),
        Terms::NATIVE
    );
}

#[test]
fn a_change_of_terms_is_measured_without_the_former_ones() {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    let native = defaults(ComputePolicy::Native);
    let (a, b) = (with("a", percent(30)), with("b", percent(60)));
    start(&reservations, &a, &native).unwrap();
    start(&reservations, &b, &native).unwrap();
    let set = |compute: &ComputeTerms| reservations.set_compute(&a.key, &uuid(0), compute, &native);
    assert_eq!(set(&percent(40)).unwrap().percent, Some(40));
    let error = set(&percent(41)).unwrap_err();
    assert!(matches!(error, Error::Time { .. }), "{error}");
    assert!(error.to_string().contains("40 % left"), "{error}");
    let held = reservations.reserved_time(&uuid(0), &native).unwrap();
    assert_eq!(held.reserved_ppm(), 1_000_000);
    assert_eq!(held.tenants(), 2);
    // The order of the reservations is who came first, which a change leaves.
    let order: Vec<String> = reservations.all().unwrap()[0]
        .grants
        .iter()
        .map(|entry| entry.key.id().to_owned())
        .collect();
    assert_eq!(order, ["a", "b"]);
    let stranger = ContainerKey::new("default", "c").unwrap();
    let error = reservations
        .set_compute(&stranger, &uuid(0), &percent(1), &native)
        .unwrap_err();
    assert!(matches!(error, Error::NotReserved { .. }), "{error}");
}

#[test]
fn who_is_in_the_way_of_other_terms_is_named_with_what_would_fit() {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    let defaults = defaults(ComputePolicy::Native);
    let ids = ["a", "b", "c", "d", "e", "f"];
    for id in ids {
        let native = with(id, ComputeTerms::default());
        start(&reservations, &native, &defaults).unwrap();
    }
    let key = |id: &str| with(id, ComputeTerms::default()).key;
    let folder = dir.path().join("vgpus").join(key("b").relative_dir());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("names.json"), r#"{"name":"web"}"#).unwrap();
    let set = |id: &str, compute: &ComputeTerms| {
        reservations.set_compute(&key(id), &uuid(0), compute, &defaults)
    };
    let error = set("a", &percent(99)).unwrap_err().to_string();
    for part in [
        "Native here: web (default/b), default/c, default/d and 2 more. ",
        "What fits now: policy soft with at most 95 %, policy preemptive, policy weighted. ",
        "`cgpu set CONTAINER --policy weighted`",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // All that it names as fitting does.
    let of = |policy| ComputeTerms {
        policy: Some(policy),
        ..ComputeTerms::default()
    };
    set(
        "a",
        &ComputeTerms {
            percent: Some(95),
            ..of(ComputePolicy::Soft)
        },
    )
    .unwrap();
    set("a", &of(ComputePolicy::Preemptive)).unwrap();
    for id in ids {
        set(id, &of(ComputePolicy::Weighted)).unwrap();
    }
    set("a", &percent(95)).unwrap();
    let error = set("b", &of(ComputePolicy::Native))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Reserved time here: default/a. What fits now: "),
        "{error}"
    );
}

#[test]
fn other_rules_are_judged_for_everybody_and_name_who_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    let native = defaults(ComputePolicy::Native);
    start(
        &reservations,
        &with("plain", ComputeTerms::default()),
        &native,
    )
    .unwrap();
    let weighted = ComputeTerms {
        weight: Some(3),
        ..ComputeTerms::default()
    };
    start(&reservations, &with("heavy", weighted), &native).unwrap();
    let under = |rules: CardRules| reservations.under(&uuid(0), &rules, CardKind::Simulated);
    let fair = under(defaults(ComputePolicy::FairShare).rules).unwrap();
    let policies: Vec<ComputePolicy> = fair.iter().map(|(_, terms)| terms.policy).collect();
    assert_eq!(
        policies,
        [ComputePolicy::FairShare, ComputePolicy::Weighted]
    );
    let one = CardRules {
        max_tenants: 1,
        ..defaults(ComputePolicy::Preemptive).rules
    };
    let error = under(one).unwrap_err().to_string();
    for part in ["GPU-0", "default/heavy", "max_tenants"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
}

#[test]
fn rules_that_are_newer_broken_or_out_of_range_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cards/GPU-0/rules.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let rules = |change: &str| {
        let mut value = serde_json::to_value(CardRules::default()).unwrap();
        let change: serde_json::Value = serde_json::from_str(change).unwrap();
        for (key, new) in change.as_object().unwrap() {
            value[key] = new.clone();
        }
        value.to_string()
    };
    for (text, part) in [
        (rules(r#"{"version": 2}"#), "newer"),
        (rules(r#"{"max_tenant": 3}"#), "max_tenant"),
        (rules(r#"{"max_tenants": 101}"#), "max_tenants = 101"),
        (rules(r#"{"prio_ratio_percent": 5}"#), "20 to 99"),
        (rules(r#"{"policy": "greedy"}"#), "greedy"),
        ("{\"version\": 1, \"pol".to_owned(), "EOF"),
        (rules(r#"{"version": 0}"#), "version 0"),
    ] {
        fs::write(&path, &text).unwrap();
        let error = rules::of(dir.path(), &uuid(0)).unwrap_err();
        let mut reply = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            reply.push_str(&cause.to_string());
            source = cause.source();
        }
        assert!(
            reply.contains(part) && reply.contains("rules.json"),
            "{reply}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn rules_are_the_old_or_the_new_ones_wherever_their_writing_stops() {
    let rules_of = |policy| OwnRules {
        rules: defaults(policy).rules,
        stay: Stay::ForGood,
    };
    let (old, new) = (
        rules_of(ComputePolicy::Soft),
        rules_of(ComputePolicy::Weighted),
    );
    for after in [After::Works, After::Crashed] {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let lock = StateLock::take(dir.path()).unwrap();
            let store = DiskStore;
            let reservations = Reservations::open(&lock, dir.path(), &store);
            reservations.set_rules(&uuid(0), Some(&old)).unwrap();
            let faulty = Faulty::new(at, after);
            let set =
                Reservations::open(&lock, dir.path(), &faulty).set_rules(&uuid(0), Some(&new));
            let found = reservations.rules(&uuid(0)).unwrap();
            if !faulty.done.get() {
                set.unwrap();
                assert_eq!(found.as_ref(), Some(&new));
                // Two folders, then write, sync, rename, sync of the mark and of the rules.
                assert_eq!(at, 10);
                break;
            }
            set.unwrap_err();
            assert!(
                found.as_ref() == Some(&old) || found.as_ref() == Some(&new),
                "{after:?} {at}: {found:?}"
            );
            reservations.set_rules(&uuid(0), Some(&old)).unwrap();
            assert_eq!(reservations.rules(&uuid(0)).unwrap().as_ref(), Some(&old));
        }
    }
}
