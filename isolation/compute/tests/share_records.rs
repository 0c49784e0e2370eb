//! The table on disk: owners that are killed, and files that are no records.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use compute::{Changes, FileTable, Table, TableError, files};
use plan::share_record::SIZE_BYTES;
use plan::{Claim, ShareRecord, Terms};

const DIR: &str = "CGPU_TEST_SHARES";

/// Not a test of its own: the process that [`holder`] starts.
#[test]
fn held_by_a_child() {
    let Ok(dir) = std::env::var(DIR) else {
        return;
    };
    let mut table = FileTable::take(Path::new(&dir), "ns/child").unwrap();
    table.publish(&record("ns/child", 3)).unwrap();
    println!("held");
    // Until it is killed, or its parent ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn holder(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("the test's own files"))
        .args(["--exact", "held_by_a_child", "--nocapture"])
        .env(DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test's own files");
    let reply = BufReader::new(child.stdout.as_mut().expect("the test's own files"))
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("held"));
    assert!(reply, "the child holds no share record");
    child
}

fn record(key: &str, groups: u32) -> ShareRecord {
    let mut record = ShareRecord::new(key, std::process::id(), 1, 7);
    record.now = Some(Claim {
        terms: Terms::NATIVE,
        groups,
        gang: None,
        place_ppm: None,
    });
    record
}

/// Another process that is just being started shares our open files until it executes its program: what it closes is seen a moment later.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if holds() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

fn keys(table: &mut FileTable) -> Vec<String> {
    table.refresh().expect("the test's own files");
    table
        .peers()
        .iter()
        .map(|record| record.key.clone())
        .collect()
}

#[test]
fn a_killed_owner_is_dead_at_once_and_its_record_is_its_successors() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("GPU-1/shares");
    let mut child = holder(&records);
    let mut table = FileTable::take(&records, "ns/own").unwrap();
    assert_eq!(keys(&mut table), ["ns/child"]);
    assert!(matches!(
        FileTable::take(&records, "ns/child"),
        Err(TableError::Held { .. })
    ));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(eventually(|| keys(&mut table).is_empty()));
    let dead = files::dead(&records).unwrap();
    assert_eq!((dead.len(), dead[0].key.as_str()), (1, "ns/child"));
    let mut successor = FileTable::take(&records, "ns/child").unwrap();
    let left = successor.left_behind().unwrap().clone();
    assert_eq!(left.now.unwrap().groups, 3);
    // It counts again as soon as it is held, and anew as soon as it says something new.
    assert_eq!(keys(&mut table), ["ns/child"]);
    assert_eq!(table.refresh().unwrap().changes, Changes::None);
    successor.publish(&record("ns/child", 5)).unwrap();
    assert_eq!(table.refresh().unwrap().changes, Changes::Some);
    assert_eq!(table.peers()[0].now.unwrap().groups, 5);
    assert!(files::dead(&records).unwrap().is_empty());
    successor.withdraw().unwrap();
    assert!(keys(&mut table).is_empty());
    assert!(!records.join(files::file_name("ns/child")).exists());
}

#[test]
fn records_are_roots_alone_and_named_after_their_container() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("GPU-1/shares");
    let _one = FileTable::take(&records, "a.b/c").unwrap();
    let _other = FileTable::take(&records, "a/b.c").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&records), 0o700);
    let names: Vec<_> = fs::read_dir(&records)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|path| mode(path) == 0o600));
    let long = format!("{}/{}", "n".repeat(128), "c".repeat(128));
    let longer = format!("{}/{}", "n".repeat(128), "c".repeat(127) + "d");
    assert_ne!(files::file_name(&long), files::file_name(&longer));
    FileTable::take(&records, &long).unwrap();
}

/// A live file with these bytes, as a broken or hostile owner has it.
fn scribble(dir: &Path, name: &str, bytes: &[u8]) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(dir.join(name))
        .expect("the test's own files");
    assert!(sys::lock::try_exclusive(&file).expect("the test's own files"));
    file.write_all_at(bytes, 0).expect("the test's own files");
    file
}

#[test]
fn records_that_are_none_harm_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = FileTable::take(dir.path(), "ns/own").unwrap();
    let mut good = FileTable::take(dir.path(), "ns/good").unwrap();
    good.publish(&record("ns/good", 1)).unwrap();
    let whole = record("ns/bad", 2).encode(2).unwrap();
    let mut torn = whole.clone();
    torn[100] ^= 1;
    let mut version = whole.clone();
    version[8] = 9;
    let other = record("ns/good", 9).encode(2).unwrap();
    let cases: [&[u8]; 8] = [
        &[],
        &[0; SIZE_BYTES],
        &[0xff; SIZE_BYTES],
        &whole[..100],
        torn.as_slice(),
        version.as_slice(),
        // Someone else's name.
        other.as_slice(),
        &[1; 3 * SIZE_BYTES],
    ];
    for bytes in cases {
        let file = scribble(dir.path(), "ns+bad", bytes);
        assert_eq!(keys(&mut table), ["ns/good"]);
        assert_eq!(table.refresh().unwrap().bad_records, 1);
        drop(file);
        fs::remove_file(dir.path().join("ns+bad")).unwrap();
    }
    // What was a record, and is cut short, still counts while its owner lives.
    let file = scribble(dir.path(), "ns+bad", whole.as_slice());
    assert_eq!(keys(&mut table), ["ns/bad", "ns/good"]);
    file.set_len(10).unwrap();
    assert_eq!(keys(&mut table), ["ns/bad", "ns/good"]);
    drop(file);
    assert!(eventually(|| keys(&mut table) == ["ns/good"]));
}

#[test]
fn nobody_joins_beside_a_record_of_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = record("ns/new", 2).encode(2).unwrap();
    bytes[8] = 9;
    let file = scribble(dir.path(), "ns+new", bytes.as_slice());
    let refused = FileTable::take(dir.path(), "ns/own").unwrap_err();
    assert!(matches!(refused, TableError::Version { .. }), "{refused}");
    let text = format!(
        "{refused}: {}",
        std::error::Error::source(&refused).unwrap()
    );
    assert!(
        text.contains("ns+new") && text.contains("version 9"),
        "{text}"
    );
    drop(file);
    assert!(eventually(|| FileTable::take(dir.path(), "ns/own").is_ok()));
}

#[test]
fn folders_links_and_pipes_are_no_records_and_nobody_waits_for_them() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("link")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut table = FileTable::take(dir.path(), "ns/own").unwrap();
    assert!(keys(&mut table).is_empty());
    std::os::unix::fs::symlink("elsewhere", dir.path().join("ns+linked")).unwrap();
    assert!(matches!(
        FileTable::take(dir.path(), "ns/linked"),
        Err(TableError::Io(_))
    ));
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn a_record_that_comes_is_announced_and_one_that_is_made_anew_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = FileTable::take(dir.path(), "ns/own").unwrap();
    table.refresh().unwrap();
    let mut other = FileTable::take(dir.path(), "ns/other").unwrap();
    other.publish(&record("ns/other", 1)).unwrap();
    let mut ready = [nix::poll::PollFd::new(
        table.watch().unwrap(),
        nix::poll::PollFlags::POLLIN,
    )];
    assert_eq!(nix::poll::poll(&mut ready, 10_000_u16).unwrap(), 1);
    assert_eq!(keys(&mut table), ["ns/other"]);
    other.withdraw().unwrap();
    drop(other);
    let mut again = FileTable::take(dir.path(), "ns/other").unwrap();
    again.publish(&record("ns/other", 2)).unwrap();
    assert_eq!(keys(&mut table), ["ns/other"]);
    assert_eq!(table.peers()[0].now.unwrap().groups, 2);
}

#[test]
fn a_reader_never_sees_half_of_two_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = FileTable::take(dir.path(), "ns/writer").unwrap();
    let mut reader = FileTable::take(dir.path(), "ns/reader").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for groups in 1..4_000_u32 {
                let mut record = record("ns/writer", groups);
                record.used_ns = Some(groups.into());
                record.recovery.channels = vec![
                    plan::share_record::RecoveryChannel {
                        client: groups,
                        handle: groups
                    };
                    200
                ];
                writer.publish(&record).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let (mut seen, mut last) = (0, 0);
        while !done.load(Ordering::Acquire) || seen == 0 {
            reader.refresh().unwrap();
            for record in reader.peers() {
                let groups = record.now.unwrap().groups;
                assert!(groups >= last, "{groups} after {last}");
                assert_eq!(record.used_ns, Some(groups.into()));
                assert!(
                    record
                        .recovery
                        .channels
                        .iter()
                        .all(|channel| channel.handle == groups)
                );
                (seen, last) = (seen + 1, groups);
            }
        }
    });
}

#[test]
fn a_look_at_a_full_card_costs_little() {
    let dir = tempfile::tempdir().unwrap();
    let mut others: Vec<FileTable> = (0..25)
        .map(|at| FileTable::take(dir.path(), &format!("ns/c{at}")).unwrap())
        .collect();
    for (at, table) in others.iter_mut().enumerate() {
        table.publish(&record(&format!("ns/c{at}"), 1)).unwrap();
    }
    let mut table = FileTable::take(dir.path(), "ns/own").unwrap();
    table.refresh().unwrap();
    let took = (0..20)
        .map(|_| {
            let since = Instant::now();
            table.refresh().unwrap();
            since.elapsed()
        })
        .min()
        .unwrap();
    assert_eq!(table.peers().len(), 25);
    let mut out = std::io::stderr();
    writeln!(out, "a look at 25 share records: {took:?}").unwrap();
    // 20 looks a second at this price are 2 % of a core in an unoptimised build.
    assert!(took < Duration::from_millis(1), "{took:?}");
}
