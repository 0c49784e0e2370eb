//! The book under faults: the N-th operation fails, or is the last one before a crash, for every N.

use std::cell::Cell;
use std::fs;
use std::io;

use super::*;
use crate::grant::{self, CardGrant, ComputeTerms, Door, DoorKind, DriverSpec};
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
        })
        .collect()
}

fn grant(id: &str, quota_bytes: u64) -> Grant {
    Grant {
        version: grant::VERSION,
        key: ContainerKey::new("default", id).unwrap(),
        driver: DriverSpec::Kernel,
        driver_version: "570.195.03".to_owned(),
        cards: (0..2)
            .map(|minor| CardGrant {
                uuid: uuid(minor),
                minor,
                quota_bytes,
            })
            .collect(),
        compute: ComputeTerms::default(),
        backend: crate::Backend::Broker,
        backend_reason: String::new(),
        isolation: crate::Isolation::default(),
        door: Door {
            kind: DoorKind::Shim,
            pid: 1,
        },
        bundle: None,
        created_at_unix_ms: 0,
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
    Books::open(&lock, state_dir, &store)
        .rooms(&cards())
        .unwrap()
        .iter()
        .map(|room| room.free_bytes)
        .collect()
}

#[test]
fn what_is_added_is_missing_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(free(dir.path()), [100, 100]);
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let books = Books::open(&lock, dir.path(), &store);
    books.add(&grant("a", 30)).unwrap();
    books.add(&grant("b", 60)).unwrap();
    assert!(matches!(
        books.add(&grant("a", 1)),
        Err(Error::AlreadyBooked { .. })
    ));
    drop(lock);
    assert_eq!(free(dir.path()), [10, 10]);
    let lock = StateLock::take(dir.path()).unwrap();
    Books::open(&lock, dir.path(), &store)
        .remove(&grant("a", 0).key)
        .unwrap();
    drop(lock);
    assert_eq!(free(dir.path()), [40, 40]);
}

#[test]
fn every_failure_and_every_crash_leaves_readable_books_that_can_be_undone() {
    for after in [After::Works, After::Crashed] {
        let mut succeeded = false;
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            {
                let lock = StateLock::take(dir.path()).unwrap();
                let store = DiskStore;
                Books::open(&lock, dir.path(), &store)
                    .add(&grant("before", 10))
                    .unwrap();
                let faulty = Faulty::new(at, after);
                let added = Books::open(&lock, dir.path(), &faulty).add(&grant("new", 30));
                if !faulty.done.get() {
                    added.unwrap();
                    succeeded = true;
                }
            }
            // Whatever happened, each book is whole: with the new grant or without it.
            for free_bytes in free(dir.path()) {
                assert!(
                    [60, 90].contains(&free_bytes),
                    "{after:?} {at}: {free_bytes}"
                );
            }
            let lock = StateLock::take(dir.path()).unwrap();
            let store = DiskStore;
            Books::open(&lock, dir.path(), &store)
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
        let books = Books::open(&lock, dir.path(), &store);
        books.add(&grant("a", 30)).unwrap();
        let faulty = Faulty::new(at, After::Crashed);
        Books::open(&lock, dir.path(), &faulty)
            .remove(&grant("a", 0).key)
            .unwrap_err();
        books.remove(&grant("a", 0).key).unwrap();
        drop(lock);
        assert_eq!(free(dir.path()), [100, 100], "{at}");
    }
}

#[test]
fn a_newer_a_broken_a_foreign_and_an_overbooked_book_are_errors_and_stay() {
    let entry =
        r#"{"key": {"namespace": "a", "id": "b"}, "quota_bytes": 101, "created_at_unix_ms": 0}"#;
    for text in [
        r#"{"version": 2}"#.to_owned(),
        r#"{"version": 1, "uuid": "GPU-0", "gra"#.to_owned(),
        r#"{"version": 1, "uuid": "GPU-1", "grants": []}"#.to_owned(),
        format!(r#"{{"version": 1, "uuid": "GPU-0", "grants": [{entry}]}}"#),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cards/GPU-0/book.json");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
        let lock = StateLock::take(dir.path()).unwrap();
        let store = DiskStore;
        let books = Books::open(&lock, dir.path(), &store);
        books.rooms(&cards()).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn version_1_as_it_was_first_written_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cards/GPU-0/book.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, include_str!("../../tests/data/book-v1.json")).unwrap();
    assert_eq!(free(dir.path()), [70, 100]);
}
