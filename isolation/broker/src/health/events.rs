//! What happened, for people: the last ones in memory, all of them in `events.jsonl`, which is held short.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// As many are in the status.
const KEPT: usize = 32;
/// A file that is longer becomes `events.1.jsonl`, of which there is one.
const FILE_BYTES: u64 = 256 << 10;
/// So many may come at once; then one a second.
const BURST: u32 = 64;
const PERIOD: Duration = Duration::from_secs(1);
/// Of one event's text.
const TEXT_BYTES: usize = 1024;
const NAME: &str = "events.jsonl";
const FORMER_NAME: &str = "events.1.jsonl";

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What.
    pub kind: EventKind,
    /// For people.
    pub text: String,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The driver counts more than the ledger.
    Violation,
    /// The ledger cannot be compared with what the driver counts.
    NotReconciled,
    /// It can again.
    Reconciled,
    /// The driver reported an Xid.
    Xid,
    /// A card is lost.
    CardLost,
    /// A call does not come back from the driver.
    HungCall,
    /// It has come back.
    HungCallOver,
    /// Another broker serves.
    BrokerReplaced,
    /// A quota was changed.
    QuotaChanged,
    /// The share of a card's time: other terms, or a driver that does not let it be held.
    Share,
    /// Log or events cannot be written to the container's folder.
    StateUnwritten,
    /// They can again.
    StateWritten,
    /// The system gives the broker no descriptors or threads.
    Shortage,
    /// It does again.
    ShortageOver,
    /// The process that makes the calls, the executor or the simulator, does not answer.
    DriverUnreachable,
    /// It does again.
    DriverReachable,
}

impl EventKind {
    /// As the status and the file spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Violation => "violation",
            Self::NotReconciled => "not_reconciled",
            Self::Reconciled => "reconciled",
            Self::Xid => "xid",
            Self::CardLost => "card_lost",
            Self::HungCall => "hung_call",
            Self::HungCallOver => "hung_call_over",
            Self::BrokerReplaced => "broker_replaced",
            Self::QuotaChanged => "quota_changed",
            Self::Share => "share",
            Self::StateUnwritten => "state_unwritten",
            Self::StateWritten => "state_written",
            Self::Shortage => "shortage",
            Self::ShortageOver => "shortage_over",
            Self::DriverUnreachable => "driver_unreachable",
            Self::DriverReachable => "driver_reachable",
        }
    }
}

/// Events can be written again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Why they could not.
    pub why: String,
    /// So many never will be.
    pub lost: u64,
}

/// The events of one container.
#[derive(Debug, Default)]
pub struct Events {
    folder: Option<PathBuf>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    last: VecDeque<Event>,
    tokens: u32,
    refilled_at: Instant,
    left_out: u64,
    /// How many of the last ones are not in the file yet.
    unwritten: usize,
    /// How many more were not written and are not in memory any more.
    lost: u64,
    /// Why.
    failure: Option<String>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            last: VecDeque::new(),
            tokens: BURST,
            refilled_at: Instant::now(),
            left_out: 0,
            unwritten: 0,
            lost: 0,
            failure: None,
        }
    }
}

impl Events {
    /// Those of a container's folder; what a former broker has written there is taken up.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join(NAME)).unwrap_or_default();
        let mut inner = Inner::default();
        for event in text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            inner.push(event);
        }
        inner.unwritten = 0;
        Self {
            folder: Some(folder.to_owned()),
            inner: Mutex::new(inner),
        }
    }

    /// The last ones, oldest first.
    #[must_use]
    pub fn last(&self) -> Vec<Event> {
        self.lock().last.iter().cloned().collect()
    }

    /// Adds one; `false` when there were too many lately, and this one is left out.
    pub fn add(&self, kind: EventKind, text: &str) -> bool {
        let mut inner = self.lock();
        let periods = inner.refilled_at.elapsed().as_secs() / PERIOD.as_secs();
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(BURST);
            inner.tokens = inner.tokens.saturating_add(more).min(BURST);
            inner.refilled_at = Instant::now();
        }
        let Some(tokens) = inner.tokens.checked_sub(1) else {
            inner.left_out += 1;
            return false;
        };
        inner.tokens = tokens;
        let mut text = cut(text).to_owned();
        let left_out = std::mem::take(&mut inner.left_out);
        if left_out > 0 {
            text.push_str(&format!(" ({left_out} events before it were left out)"));
        }
        inner.push(Event {
            at_unix_ms: now_unix_ms(),
            kind,
            text,
        });
        self.write(&mut inner);
        true
    }

    /// Why the last event is not in the file; `None`: it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Tries again to write what could not be written.
    pub fn retry(&self) -> Option<Recovered> {
        let mut inner = self.lock();
        let why = inner.failure.clone()?;
        self.write(&mut inner);
        if inner.failure.is_some() {
            return None;
        }
        let lost = std::mem::take(&mut inner.lost);
        Some(Recovered { why, lost })
    }

    fn write(&self, inner: &mut Inner) {
        let Some(folder) = &self.folder else {
            inner.unwritten = 0;
            return;
        };
        while let Some(event) = inner.last.iter().rev().nth(inner.unwritten.wrapping_sub(1)) {
            if let Err(error) = append(folder, event) {
                inner.failure = Some(error.to_string());
                return;
            }
            inner.unwritten -= 1;
        }
        inner.failure = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        if self.last.len() >= KEPT {
            self.last.pop_front();
            if self.unwritten >= KEPT {
                self.unwritten -= 1;
                self.lost += 1;
            }
        }
        self.last.push_back(event);
        self.unwritten += 1;
    }
}

fn append(folder: &Path, event: &Event) -> io::Result<()> {
    let path = folder.join(NAME);
    let is_long = fs::symlink_metadata(&path).is_ok_and(|file| file.len() > FILE_BYTES);
    if is_long {
        fs::rename(&path, folder.join(FORMER_NAME))?;
    }
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    let before = file.metadata()?.len();
    let written = file.write_all(&line);
    if written.is_err() {
        // Half a line would make one with the next event.
        file.set_len(before)?;
    }
    written
}

/// No event is longer, whatever a driver or a process calls itself.
fn cut(text: &str) -> &str {
    let end = (0..=TEXT_BYTES.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

pub(super) fn now_unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let first = Events::in_folder(folder.path());
        for number in 0..40 {
            assert!(first.add(EventKind::Xid, &format!("number {number}")));
        }
        let second = Events::in_folder(folder.path());
        assert_eq!(second.last(), first.last());
        assert_eq!(second.last().len(), KEPT);
        assert_eq!(second.last()[0].text, "number 8");
        assert!(second.add(EventKind::QuotaChanged, "more"));
        let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert_eq!(text.lines().count(), 41);
        assert!(text.contains(r#""kind":"quota_changed""#), "{text}");
    }

    #[test]
    fn a_flood_is_cut_and_the_next_one_says_so() {
        let events = Events::default();
        let told = (0..200)
            .filter(|_| events.add(EventKind::HungCall, "hangs"))
            .count();
        assert!((64..=66).contains(&told), "{told}");
        events.lock().refilled_at -= Duration::from_secs(3);
        assert!(events.add(EventKind::HungCall, "hangs"));
        let last = events.last().pop().unwrap();
        assert!(
            last.text.contains("events before it were left out"),
            "{last:?}"
        );
    }

    #[test]
    fn the_file_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(4096);
        for _ in 0..200 {
            let event = Event {
                at_unix_ms: 1,
                kind: EventKind::Violation,
                text: long.clone(),
            };
            append(folder.path(), &event).unwrap();
        }
        for name in [NAME, FORMER_NAME] {
            let bytes = fs::metadata(folder.path().join(name)).unwrap().len();
            assert!((1..FILE_BYTES + 8192).contains(&bytes), "{name}: {bytes}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn no_event_is_longer_than_its_bound() {
        let events = Events::default();
        assert!(events.add(EventKind::Xid, &"ä".repeat(TEXT_BYTES)));
        let last = events.last().pop().unwrap();
        assert_eq!(last.text.len(), TEXT_BYTES);
        assert!(events.add(EventKind::Xid, &format!("x{}", "ä".repeat(TEXT_BYTES))));
        let last = events.last().pop().unwrap();
        assert_eq!(last.text.len(), TEXT_BYTES - 1);
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("not there yet");
        let events = Events::in_folder(&folder);
        let count = u64::try_from(KEPT).unwrap() + 8;
        for number in 0..count {
            assert!(events.add(EventKind::Xid, &format!("number {number}")));
        }
        assert!(events.trouble().is_some());
        assert_eq!(events.retry(), None);
        fs::create_dir(&folder).unwrap();
        let recovered = events.retry().unwrap();
        assert!(recovered.why.contains("No such file"), "{recovered:?}");
        assert_eq!(recovered.lost, 8);
        assert_eq!((events.trouble(), events.retry()), (None, None));
        assert!(events.add(EventKind::Xid, "after"));
        let text = fs::read_to_string(folder.join(NAME)).unwrap();
        let texts: Vec<Event> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(texts.len(), KEPT + 1);
        assert_eq!(texts[0].text, "number 8");
        assert_eq!(texts.last().unwrap().text, "after");
        assert_eq!(Events::in_folder(&folder).last(), events.last());
    }
}
