//! What is new in the logs of pods' containers (`cards::events`): bounded files, which brokers and frontends write.
//!
//! A log is believed about its own container alone: whose it is comes from the folder and from what the frontend has recorded, never from a line.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cards::events::{self, Event, history};

use super::object::{ObjectRef, Reason, Report};
use crate::names::NodeName;
use crate::node::{Node, PodOfLog};

/// Of a log, what is kept to know where it goes on.
const KEPT: usize = 8;
/// Of one look, reports of one log: whoever makes more happen in two seconds has them counted as so many.
const REPORTS_MAX: usize = 2048;

/// How far each log is read.
#[derive(Debug)]
pub(super) struct Logs {
    /// What happened before is a former agent's.
    since_unix_ms: u64,
    read: HashMap<PathBuf, Place>,
}

#[derive(Debug, Default)]
struct Place {
    /// File number and length.
    state: (u64, u64),
    /// The last events that were read.
    last: Vec<Event>,
    /// Whose container it is: the folder of a container that has ended does not say it any more.
    pod: Option<PodOfLog>,
}

impl Logs {
    pub(super) fn new(since_unix_ms: u64) -> Self {
        Self {
            since_unix_ms,
            read: HashMap::new(),
        }
    }

    /// What happened since the last look. A log that cannot be read costs no other.
    pub(super) fn look(&mut self, node: &dyn Node, name: &NodeName) -> Vec<Report> {
        let logs = match node.logs() {
            Ok(logs) => logs,
            Err(error) => {
                tracing::debug!(error = %host_config::chain(&*error), "containers' events are not read");
                return Vec::new();
            }
        };
        self.read
            .retain(|folder, _| logs.iter().any(|(there, _)| there == folder));
        let mut reports = Vec::new();
        for (folder, pod) in logs {
            let place = self.read.entry(folder.clone()).or_default();
            if pod.is_some() {
                place.pod = pod;
            }
            let Some(pod) = place.pod.clone() else {
                continue;
            };
            let new = place.read(&folder, self.since_unix_ms);
            let new = new.iter().filter_map(|event| report(event, &pod, name));
            reports.extend(new.take(REPORTS_MAX));
        }
        reports
    }
}

impl Place {
    fn read(&mut self, folder: &std::path::Path, since_unix_ms: u64) -> Vec<Event> {
        let Ok(file) = fs::symlink_metadata(folder.join(events::NAME)) else {
            return Vec::new();
        };
        let state = (file.ino(), file.len());
        if self.state == state {
            return Vec::new();
        }
        let Ok(log) = events::read(folder) else {
            return Vec::new();
        };
        let mut new = history::not_in(&self.last, log);
        self.state = state;
        let from = new.len().saturating_sub(KEPT);
        self.last
            .extend(new.get(from..).unwrap_or_default().iter().cloned());
        let excess = self.last.len().saturating_sub(KEPT);
        self.last.drain(..excess);
        new.retain(|event| event.at_unix_ms >= since_unix_ms);
        new
    }
}

fn report(event: &Event, pod: &PodOfLog, node: &NodeName) -> Option<Report> {
    let reason = Reason::of_kind(&event.kind)?;
    let claim = pod.claim.as_ref();
    let claim = claim.map(|(name, uid)| ObjectRef::claim(&pod.namespace, name, uid));
    Some(Report {
        object: ObjectRef::pod(&pod.namespace, &pod.name, pod.uid.as_deref()),
        related: match reason {
            Reason::QuotaExceeded => claim,
            Reason::Xid => Some(ObjectRef::node(node.as_str())),
            _ => None,
        },
        reason,
        about: pod.container.clone(),
        text: format!("container {}: {}", pod.container, event.text),
        at_unix_ms: event.at_unix_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happens(folder: &std::path::Path, at_unix_ms: u64, kind: &str, text: &str) {
        let event = Event {
            at_unix_ms,
            ..Event::now(kind, text)
        };
        events::append(folder, &event).unwrap();
    }

    #[test]
    fn each_line_is_read_once_whatever_becomes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut place = Place::default();
        happens(folder.path(), 5, "xid", "before");
        happens(folder.path(), 100, "xid", "first");
        let texts = |place: &mut Place| -> Vec<String> {
            let new = place.read(folder.path(), 50);
            new.into_iter().map(|event| event.text).collect()
        };
        assert_eq!(texts(&mut place), ["first"]);
        assert!(texts(&mut place).is_empty());
        for number in 0..3 {
            happens(folder.path(), 101, "over_quota", &format!("{number}"));
        }
        assert_eq!(texts(&mut place), ["0", "1", "2"]);
        // It is long, and becomes the former one.
        let mut seen = 0;
        for round in 0..200 {
            happens(
                folder.path(),
                200 + round,
                "xid",
                &format!("{round}{}", "x".repeat(1000)),
            );
            if round % 7 == 0 {
                seen += texts(&mut place).len();
            }
        }
        seen += texts(&mut place).len();
        assert_eq!(seen, 200);
        assert_eq!(place.last.len(), KEPT);
    }
}
