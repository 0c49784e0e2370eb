//! What happened, for people: the last ones in memory, all of them in the container's log ([`cards::events`]).

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use cards::events as log;
pub(crate) use cards::events::now_unix_ms;
use control::{Event, EventKind};
use sys::sync;

/// As many are in the status.
const KEPT: usize = 32;
/// So many may come at once; then one a second.
const BURST: u32 = 64;
const PERIOD_SECONDS: u64 = 1;

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
    /// Those of a log's folder; what a former broker has written there is taken up.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join(log::NAME)).unwrap_or_default();
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
        sync::lock(&self.inner).last.iter().cloned().collect()
    }

    /// Adds one; `false` when there were too many lately, and this one is left out.
    pub fn add(&self, kind: EventKind, text: &str) -> bool {
        let mut inner = sync::lock(&self.inner);
        let periods = inner.refilled_at.elapsed().as_secs() / PERIOD_SECONDS;
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(BURST);
            inner.tokens = inner.tokens.saturating_add(more).min(BURST);
            inner.refilled_at = Instant::now();
        }
        let Some(tokens) = inner.tokens.checked_sub(1) else {
            inner.left_out = inner.left_out.saturating_add(1);
            return false;
        };
        inner.tokens = tokens;
        let mut text = log::cut(text).to_owned();
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
        sync::lock(&self.inner).failure.clone()
    }

    /// Tries again to write what could not be written.
    pub fn retry(&self) -> Option<Recovered> {
        let mut inner = sync::lock(&self.inner);
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
            if let Err(error) = log::append(folder, event) {
                inner.failure = Some(error.to_string());
                return;
            }
            inner.unwritten = inner.unwritten.saturating_sub(1);
        }
        inner.failure = None;
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        if self.last.len() >= KEPT {
            self.last.pop_front();
            if self.unwritten >= KEPT {
                self.unwritten = self.unwritten.saturating_sub(1);
                self.lost = self.lost.saturating_add(1);
            }
        }
        self.last.push_back(event);
        self.unwritten = self.unwritten.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let text = fs::read_to_string(folder.path().join(log::NAME)).unwrap();
        assert_eq!(text.lines().count(), 41);
        assert!(text.contains(r#""kind":"quota_changed""#), "{text}");
    }

    #[test]
    fn a_flood_is_cut_and_the_next_one_reports_so() {
        let events = Events::default();
        let reported = (0..200)
            .filter(|_| events.add(EventKind::HungCall, "hangs"))
            .count();
        assert!((64..=66).contains(&reported), "{reported}");
        sync::lock(&events.inner).refilled_at -= Duration::from_secs(3);
        assert!(events.add(EventKind::HungCall, "hangs"));
        let last = events.last().pop().unwrap();
        assert!(
            last.text.contains("events before it were left out"),
            "{last:?}"
        );
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let parent = tempfile::tempdir().unwrap();
        // A file where the folder should be.
        let folder = parent.path().join("log");
        fs::write(&folder, "").unwrap();
        let events = Events::in_folder(&folder);
        let count = u64::try_from(KEPT).unwrap() + 8;
        for number in 0..count {
            assert!(events.add(EventKind::Xid, &format!("number {number}")));
        }
        assert!(events.trouble().is_some());
        assert_eq!(events.retry(), None);
        fs::remove_file(&folder).unwrap();
        let recovered = events.retry().unwrap();
        assert!(recovered.why.contains("Not a directory"), "{recovered:?}");
        assert_eq!(recovered.lost, 8);
        assert_eq!((events.trouble(), events.retry()), (None, None));
        assert!(events.add(EventKind::Xid, "after"));
        let text = fs::read_to_string(folder.join(log::NAME)).unwrap();
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
