use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use super::*;

fn log_in(folder: &Path) -> Log {
    let log = open_for_append(&folder.join("broker.log")).unwrap();
    Log::new(Sink::of(OwnedFd::from(log), folder.join("broker.1.log")))
}

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// Without the buckets, which have tests of their own.
fn write(log: &Log, line: &str) -> bool {
    log.inner().write(line.as_bytes())
}

#[test]
fn two_files_bound_the_log_and_hold_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_in(folder.path());
    let lines = 20_000_u64;
    for number in 0..lines {
        assert!(write(
            &log,
            &format!("line {number:06} {}\n", "x".repeat(50))
        ));
    }
    let (now, former) = (
        text(folder.path(), "broker.log"),
        text(folder.path(), "broker.1.log"),
    );
    for text in [&now, &former] {
        assert!(text.len() as u64 <= MOST_BYTES, "{}", text.len());
    }
    // One follows the other, and nothing between them is missing.
    let numbers: Vec<u64> = former
        .lines()
        .chain(now.lines())
        .map(|line| line[5..11].parse().unwrap())
        .collect();
    assert_eq!(numbers.last(), Some(&(lines - 1)));
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    assert!(numbers.len() > 4_000, "{}", numbers.len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn no_line_of_several_writers_is_lost_while_they_rotate() {
    let folder = tempfile::tempdir().unwrap();
    // Each has opened the file for itself, as supervisor and brokers do.
    let writers: Vec<_> = (0..3_u64)
        .map(|writer| {
            let log = log_in(folder.path());
            std::thread::spawn(move || {
                let mut written = Vec::new();
                for number in 0..2_000_u64 {
                    if write(&log, &format!("{writer} {number:05} {}\n", "x".repeat(50))) {
                        written.push((writer, number));
                    }
                }
                written
            })
        })
        .collect();
    let mut written: Vec<_> = writers
        .into_iter()
        .flat_map(|writer| writer.join().unwrap())
        .collect();
    let mut found: Vec<(u64, u64)> = ["broker.1.log", "broker.log"]
        .iter()
        .flat_map(|name| {
            text(folder.path(), name)
                .lines()
                .map(|line| (line[..1].parse().unwrap(), line[2..7].parse().unwrap()))
                .collect::<Vec<_>>()
        })
        .collect();
    written.sort_unstable();
    found.sort_unstable();
    // 6000 lines of 59 bytes are more than one file, and less than two.
    assert!(!text(folder.path(), "broker.1.log").is_empty());
    assert_eq!(found, written);
}

#[test]
fn a_full_log_that_another_process_keeps_locked_grows_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_in(folder.path());
    let other = open_for_append(&folder.path().join("broker.log")).unwrap();
    sys::lock::exclusive(&other).unwrap();
    other.set_len(HARD_BYTES - 10).unwrap();
    assert!(write(&log, "short\n"));
    assert!(!write(&log, "too long for the rest\n"));
    assert!(log.trouble().unwrap().contains("cannot be rotated"));
    sys::lock::unlock(&other).unwrap();
    log.inner().line(b"after\n");
    assert_eq!(log.trouble(), None);
    assert_eq!(text(folder.path(), "broker.log"), "after\n");
}

#[test]
fn what_cannot_be_written_is_counted_and_reported_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_in(folder.path());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let disk = std::mem::replace(&mut log.inner().sink, Sink::Plain(Some(full.into())));
    for _ in 0..3 {
        log.inner().line(b"lost\n");
    }
    assert!(
        log.trouble().unwrap().contains("No space left"),
        "{:?}",
        log.trouble()
    );
    log.settle();
    assert!(log.trouble().is_some());
    log.inner().sink = disk;
    // Without another line as well.
    log.settle();
    assert_eq!(log.trouble(), None);
    log.inner().line(b"kept\n");
    let text = text(folder.path(), "broker.log");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("3 log lines were left out: No space left on device"),
        "{text}"
    );
    assert_eq!(lines[1..], ["kept"]);
}

#[test]
fn a_pipe_that_nobody_reads_is_not_waited_for() {
    let (mut reader, writer) = io::pipe().unwrap();
    let log = Log::new(Sink::Plain(Some(writer.into())));
    // More than any pipe takes.
    for _ in 0..BURST {
        log.inner().line("x".repeat(LINE_BYTES - 1).as_bytes());
    }
    assert!(log.inner().left_out > 0);
    assert_eq!(log.trouble().as_deref(), Some("nobody reads the log"));
    let mut some = vec![0; 1 << 20];
    assert!(io::Read::read(&mut reader, &mut some).unwrap() > 0);
    log.settle();
    assert_eq!(log.trouble(), None);
}

#[test]
fn a_tenants_text_makes_one_line_of_bounded_length() {
    assert_eq!(one_line(b"a\nERROR b\x1b[31m\r\n"), b"a ERROR b [31m \n");
    let long = "ä".repeat(LINE_BYTES);
    let line = one_line(long.as_bytes());
    assert!(line.len() <= LINE_BYTES);
    std::str::from_utf8(&line).unwrap();
}

#[test]
fn a_process_that_logs_too_much_is_cut_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_in(folder.path());
    for _ in 0..10 * BURST {
        log.inner().line(b"again\n");
    }
    let written = text(folder.path(), "broker.log").lines().count();
    let burst = usize::try_from(BURST).unwrap();
    assert!((burst..2 * burst).contains(&written), "{written}");
    log.inner().bucket = Bucket::new(BURST, PERIOD);
    log.inner().line(b"more\n");
    let text = text(folder.path(), "broker.log");
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(
        last[0] == "more" && last[1].contains("there were too many"),
        "{last:?}"
    );
}

#[test]
fn one_loud_place_leaves_the_others_audible() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_in(folder.path());
    let subscriber = subscriber(LevelFilter::INFO, &log);
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..1000 {
            tracing::warn!(number, "loud");
            tracing::debug!("below the level");
        }
        tracing::warn!("another place");
        for suppressed in 0..20 {
            tracing::info!(suppressed, "counts itself");
        }
    });
    let text = text(folder.path(), "broker.log");
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    let burst = usize::try_from(BURST_BY_PLACE).unwrap();
    assert_eq!(count("loud"), burst, "{text}");
    assert_eq!(count("another place"), 1);
    assert_eq!(count("counts itself"), 20);
    assert_eq!(count("below"), 0);
}

#[test]
fn a_bucket_is_refilled_with_time() {
    let mut bucket = Bucket::new(3, Duration::from_secs(10));
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let taken = (0..5).filter(|_| bucket.take(start)).count();
    assert_eq!(taken, 3);
    assert!(!bucket.take(at(9)));
    assert!(bucket.take(at(10)));
    assert!(!bucket.take(at(11)));
    let later = (0..5).filter(|_| bucket.take(at(1000))).count();
    assert_eq!(later, 3);
}
