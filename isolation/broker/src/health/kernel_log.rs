//! `/dev/kmsg`, where NVIDIA's driver writes its Xids.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use driver::xid::{self, Line};
use driver::{Incident, IncidentKind};
use sys::sync;

use supervisor::topology::{CARDS, functions};

/// A record is a line of 1 KiB at most, with its dictionary.
const RECORD_BYTES: usize = 8192;
/// One look reads no more: the rest comes with the next.
const MOST_RECORDS: usize = 1024;

/// The open log, from when it was opened on.
#[derive(Debug)]
pub struct KernelLog {
    file: Mutex<File>,
    /// PCI address and UUID of each of the container's cards.
    cards: Vec<(String, String)>,
}

impl KernelLog {
    /// Opens the host's log at its end. It needs CAP_SYSLOG where `dmesg_restrict` is set; reading needs nothing.
    ///
    /// # Errors
    /// The system's: there is no log, or it may not be read.
    pub fn open(uuids: &[String]) -> io::Result<Self> {
        let cards = addresses(Path::new(CARDS), uuids);
        Self::open_at(Path::new("/dev/kmsg"), cards)
    }

    fn open_at(path: &Path, cards: Vec<(String, String)>) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self {
            file: Mutex::new(file),
            cards,
        })
    }

    /// What was written since the last look and concerns the container's cards; `is_own`: whether a process is the container's.
    pub(crate) fn read(&self, is_own: impl Fn(i32) -> bool) -> Vec<Incident> {
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
            incidents.extend(self.incident(&text, &is_own));
        }
        incidents
    }

    fn incident(&self, record: &str, is_own: impl Fn(i32) -> bool) -> Option<Incident> {
        let record = xid::record(record)?;
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
        let of = |text: &str| log.incident(&format!("4,9,1,-;NVRM: {text}"), |pid| pid == 42);
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
}
