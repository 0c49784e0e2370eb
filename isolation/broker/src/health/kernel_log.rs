//! `/dev/kmsg`, where NVIDIA's driver writes its Xids.
//!
//! A successor reads the log from its beginning on and leaves out what came before the container or was seen by a former broker: nothing that the driver
//! writes while a broker is replaced is lost or counted twice.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use driver::xid::{self, Line, Record};
use driver::{Incident, IncidentKind};
use journal::counters::{Counter, Counters};
use nix::time::{ClockId, clock_gettime};
use sys::sync;

use supervisor::topology::{CARDS, functions};

/// A record is a line of 1 KiB at most, with its dictionary.
const RECORD_BYTES: usize = 8192;
/// One look reads no more: the rest comes with the next.
const MOST_RECORDS: usize = 1024;
/// The log's times are of another clock, which was started somewhat earlier or later.
const CLOCKS_DIFFER_US: u64 = 1_000_000;

/// The open log.
#[derive(Debug)]
pub struct KernelLog {
    file: Mutex<File>,
    /// Records from before, microseconds of the machine's running time, are from before the container; 0: none are.
    since_us: AtomicU64,
    /// PCI address and UUID of each of the container's cards.
    cards: Vec<(String, String)>,
}

impl KernelLog {
    /// Opens the host's log at its beginning. It needs CAP_SYSLOG where `dmesg_restrict` is set; reading needs nothing.
    ///
    /// # Errors
    /// The system's: there is no log, or it may not be read.
    pub fn open(uuids: &[String]) -> io::Result<Self> {
        let cards = addresses(Path::new(CARDS), uuids);
        Self::open_at(Path::new("/dev/kmsg"), cards)
    }

    fn open_at(path: &Path, cards: Vec<(String, String)>) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)?;
        Ok(Self {
            file: Mutex::new(file),
            since_us: AtomicU64::new(0),
            cards,
        })
    }

    /// Before the first look of a broker: what was written before the container began does not concern it.
    pub(crate) fn begin(&self, counters: &Counters, is_first: bool) {
        let since_us = counters.value(Counter::LogSince);
        if !is_first && since_us > 0 {
            let since_us = since_us.saturating_sub(CLOCKS_DIFFER_US);
            return self.since_us.store(since_us, Ordering::Relaxed);
        }
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map(std::time::Duration::from);
        let now_us = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(0));
        counters.raise(Counter::LogSince, now_us);
        if let Err(error) = sync::lock(&self.file).seek(SeekFrom::End(0)) {
            tracing::warn!(%error, "the kernel's log is read from its beginning");
        }
    }

    /// What was written since the last look and concerns the container's cards; `is_own`: whether a process is the container's.
    pub(crate) fn read(&self, counters: &Counters, is_own: impl Fn(i32) -> bool) -> Vec<Incident> {
        let mut file = sync::lock(&self.file);
        let mut buffer = [0; RECORD_BYTES];
        let mut incidents = Vec::new();
        for _ in 0..MOST_RECORDS {
            let length = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                // Records were overwritten before they were read; the next read goes on behind them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => continue,
                Err(_nothing_new) => break,
            };
            let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
            let record = xid::record(&text).filter(|record| self.is_news(counters, record));
            let Some(incident) = record.and_then(|record| self.incident(&record, &is_own)) else {
                continue;
            };
            counters.raise(Counter::NextRecord, incident.sequence.saturating_add(1));
            incidents.push(incident);
        }
        incidents
    }

    fn is_news(&self, counters: &Counters, record: &Record<'_>) -> bool {
        record.sequence >= counters.value(Counter::NextRecord)
            && record.at_us >= self.since_us.load(Ordering::Relaxed)
    }

    fn incident(&self, record: &Record<'_>, is_own: impl Fn(i32) -> bool) -> Option<Incident> {
        let (pci, kind, pid) = match xid::line(record.text)? {
            Line::Xid {
                pci,
                number,
                pid,
                detail,
            } => (pci, IncidentKind::Xid { number, detail }, pid),
            Line::CardLost { pci } => (pci, IncidentKind::CardLost, None),
        };
        // Before the process is looked for: what happens on the cards of others costs nothing here.
        let (_, uuid) = self.cards.iter().find(|(address, _)| *address == pci)?;
        let own = pid.map(is_own);
        Some(Incident {
            sequence: record.sequence,
            uuid: uuid.clone(),
            pci,
            kind,
            own,
        })
    }
}

/// The PCI addresses of these cards as the kernel's log has them, from the driver's own folder.
fn addresses(folder: &Path, uuids: &[String]) -> Vec<(String, String)> {
    let functions = functions(folder, uuids).into_iter();
    functions
        .filter_map(|(function, uuid)| Some((xid::address(&function)?, uuid)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use journal::shared_state::SharedState;

    use super::*;

    #[test]
    fn an_xid_is_the_container_s_own_by_its_process_and_only_on_its_cards() {
        let folder = tempfile::tempdir().unwrap();
        for (pci, uuid) in [("0000:01:00.0", "GPU-1"), ("0000:02:00.0", "GPU-2")] {
            let card = folder.path().join(pci);
            fs::create_dir(&card).unwrap();
            let text = format!("Model: \t\t RTX\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n");
            fs::write(card.join("information"), text).unwrap();
        }
        let cards = addresses(folder.path(), &["GPU-1".to_owned()]);
        assert_eq!(cards, [("0000:01:00".to_owned(), "GPU-1".to_owned())]);
        let file = folder.path().join("kmsg");
        fs::write(&file, "").unwrap();
        let log = KernelLog::open_at(&file, cards).unwrap();
        let of = |text: &str| {
            let text = format!("4,9,1,-;NVRM: {text}");
            log.incident(&xid::record(&text)?, |pid| pid == 42)
        };
        let own = of("Xid (PCI:0000:01:00): 31, pid=42, name=python, MMU Fault").unwrap();
        assert_eq!(
            (own.own, own.uuid.as_str(), own.sequence),
            (Some(true), "GPU-1", 9)
        );
        let neighbours = of("Xid (PCI:0000:01:00): 31, pid=43, name=python, MMU Fault");
        assert_eq!(neighbours.unwrap().own, Some(false));
        assert_eq!(of("Xid (PCI:0000:02:00): 31, pid=42"), None);
        let lost = of("GPU 0000:01:00.0: GPU has fallen off the bus.").unwrap();
        assert_eq!((lost.kind, lost.own), (IncidentKind::CardLost, None));
    }
    /// Each message of a socket is read by itself, as each record of the log is.
    #[test]
    fn a_successor_misses_nothing_and_counts_nothing_twice() {
        let counters = Counters::on(SharedState::open(SharedState::memfd().unwrap()).unwrap());
        let opened = |records: &[(u64, u64)]| {
            let (writer, reader) = std::os::unix::net::UnixDatagram::pair().unwrap();
            reader.set_nonblocking(true).unwrap();
            for (sequence, at_us) in records {
                let text = format!("4,{sequence},{at_us},-;NVRM: Xid (PCI:0000:01:00): 31, MMU");
                writer.send(text.as_bytes()).unwrap();
            }
            let log = KernelLog {
                file: Mutex::new(File::from(std::os::fd::OwnedFd::from(reader))),
                since_us: AtomicU64::new(0),
                cards: vec![("0000:01:00".to_owned(), "GPU-1".to_owned())],
            };
            (log, writer)
        };
        let (log, _writer) = opened(&[]);
        log.begin(&counters, true);
        let since_us = counters.value(Counter::LogSince);
        assert!(since_us > 0);
        let sequences = |records: &[(u64, u64)]| -> Vec<u64> {
            let (log, _writer) = opened(records);
            log.begin(&counters, false);
            let incidents = log.read(&counters, |_| false).into_iter();
            incidents.map(|incident| incident.sequence).collect()
        };
        // Written while nobody had a broker that looked, and before there was one.
        let before = since_us.saturating_sub(10 * CLOCKS_DIFFER_US);
        assert_eq!(sequences(&[(7, before), (8, since_us + 5)]), [8]);
        assert_eq!(
            sequences(&[(7, before), (8, since_us + 5), (9, since_us + 6)]),
            [9]
        );
        assert_eq!(sequences(&[(8, since_us + 5), (9, since_us + 6)]), [0; 0]);
    }
}
