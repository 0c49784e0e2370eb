//! Happenings to events: one per object, reason and five minutes, with the number of times; whose turn it is to be written. Pure.
//!
//! A tenant whose container is refused a million times takes one event and two writes a minute. Of namespaces that have something to write each
//! has its turn, and in a namespace each object: a neighbour's one event waits for one write of each other namespace at most, whatever the
//! number of their pods and claims. What is known is bounded, and where it is too much the namespace that has most loses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::object::{ObjectRef, Reason, Report};
use crate::names::{DRIVER, NodeName};

/// What one event counts.
const WINDOW: Duration = Duration::from_secs(5 * 60);
/// From one count that is written to the next.
const BETWEEN_COUNTS: Duration = Duration::from_secs(30);
/// Events of all objects that are known, and of one: a node has no more pods and cards.
const ENTRIES_MAX: usize = 1024;
const OF_OBJECT_MAX: usize = 64;
/// As the API has it.
const TEXT_BYTES_MAX: usize = 1024;
const INSTANCE_BYTES_MAX: usize = 128;
/// Names of objects have 253 bytes at most, and an event's has 17 more behind its object's.
const OBJECT_NAME_BYTES_MAX: usize = 253 - 17;
/// Objects without a namespace have their events in this one.
const NAMESPACE: &str = "default";

/// What makes one event.
pub(super) type Key = (ObjectRef, Reason, String);

/// What is known of each.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    entries: BTreeMap<Key, Entry>,
    /// When each namespace had its turn, and each object.
    namespaces: BTreeMap<String, u64>,
    turns: BTreeMap<ObjectRef, u64>,
    turn: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    related: Option<ObjectRef>,
    text: String,
    first_unix_ms: u64,
    last_unix_ms: u64,
    count: u64,
    /// Of these, what the API server has.
    written: u64,
    written_at: Option<Instant>,
}

/// What is to be written.
#[derive(Debug)]
pub(super) enum Write {
    /// A new event.
    Create(Box<Event>),
    /// How often it happened since.
    Series {
        namespace: String,
        name: String,
        series: EventSeries,
        count: u64,
    },
}

impl Aggregate {
    /// Counts a happening.
    pub(super) fn add(&mut self, report: Report, now: Instant) {
        let key = (report.object, report.reason, report.about);
        if let Some(entry) = self.entries.get_mut(&key) {
            if now.duration_since(entry.since) < WINDOW {
                entry.count = entry.count.saturating_add(1);
                entry.last_unix_ms = report.at_unix_ms;
                return;
            }
            self.forget(&key);
        }
        let is_bounded = self.of_object(&key.0) < OF_OBJECT_MAX;
        if !is_bounded || !self.has_place_for(&key.0.namespace) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let entry = Entry {
            since: now,
            related: report.related,
            text: clean(&report.text),
            first_unix_ms: report.at_unix_ms,
            last_unix_ms: report.at_unix_ms,
            count: 1,
            written: 0,
            written_at: None,
        };
        self.entries.insert(key, entry);
    }

    fn of_object(&self, object: &ObjectRef) -> usize {
        let first = (object.clone(), Reason::PrepareFailed, String::new());
        let from = self.entries.range(first..);
        from.take_while(|((other, _, _), _)| other == object)
            .count()
    }

    /// Whether a namespace can have one more; where there are too many, the one that has most loses its latest.
    fn has_place_for(&mut self, namespace: &str) -> bool {
        if self.entries.len() < ENTRIES_MAX {
            return true;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (object, _, _) in self.entries.keys() {
            *counts.entry(&object.namespace).or_default() += 1;
        }
        let own = counts.get(namespace).copied().unwrap_or(0);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let Some((greedy, _)) = most.filter(|(_, count)| *count > own + 1) else {
            return false;
        };
        let of_greedy = self
            .entries
            .iter()
            .filter(|(key, _)| key.0.namespace == greedy);
        let latest = of_greedy.max_by_key(|(_, entry)| entry.since);
        if let Some(key) = latest.map(|(key, _)| key.clone()) {
            self.forget(&key);
        }
        true
    }

    /// What is written next: of the namespaces that have something the one whose last turn is longest ago, and of its objects likewise.
    pub(super) fn next(&mut self, node: &NodeName, now: Instant) -> Option<(Key, Write)> {
        let is_due = |entry: &Entry| {
            let since = entry.written_at.map(|at| now.duration_since(at));
            entry.written < entry.count && since.is_none_or(|since| since >= BETWEEN_COUNTS)
        };
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let turns = &self.turns;
        let namespaces = &self.namespaces;
        let turn = |object: &ObjectRef| {
            let of_namespace = namespaces.get(&object.namespace).copied().unwrap_or(0);
            (of_namespace, turns.get(object).copied().unwrap_or(0))
        };
        let (key, entry) =
            due.min_by_key(|(key, entry)| (turn(&key.0), entry.written > 0, entry.since))?;
        let (key, write) = (key.clone(), entry.write(key, node));
        self.turn += 1;
        self.turns.insert(key.0.clone(), self.turn);
        self.namespaces.insert(key.0.namespace.clone(), self.turn);
        Some((key, write))
    }

    /// The API server has it.
    pub(super) fn written(&mut self, key: &Key, write: &Write, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.written = match write {
                Write::Create(_) => 1,
                Write::Series { count, .. } => *count,
            };
            entry.written_at = Some(now);
        }
    }

    /// The API server never takes it: what happens further in its window is not tried.
    pub(super) fn drop_window(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            self.dropped = self.dropped.saturating_add(entry.count - entry.written);
            entry.written = u64::MAX;
        }
    }

    /// It is as if it had never been.
    pub(super) fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            let left = entry.count.saturating_sub(entry.written);
            self.dropped = self.dropped.saturating_add(left);
        }
    }

    /// Forgets windows that are over.
    pub(super) fn expire(&mut self, now: Instant) {
        let over = self.entries.iter();
        let over = over.filter(|(_, entry)| now.duration_since(entry.since) >= WINDOW);
        let over: Vec<Key> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.forget(&key);
        }
        let there: BTreeSet<&ObjectRef> =
            self.entries.keys().map(|(object, _, _)| object).collect();
        self.turns.retain(|object, _| there.contains(object));
        let there: BTreeSet<&str> = there
            .iter()
            .map(|object| object.namespace.as_str())
            .collect();
        self.namespaces
            .retain(|namespace, _| there.contains(namespace.as_str()));
    }

    /// Happenings that are in no event, since this was called last.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

impl Entry {
    fn write(&self, key: &Key, node: &NodeName) -> Write {
        let (object, reason, _) = key;
        let namespace = match object.namespace.as_str() {
            "" => NAMESPACE.to_owned(),
            namespace => namespace.to_owned(),
        };
        let name = name(key, self.first_unix_ms);
        if self.written > 0 {
            return Write::Series {
                namespace,
                name,
                series: EventSeries {
                    count: i32::try_from(self.count).unwrap_or(i32::MAX),
                    last_observed_time: moment(self.last_unix_ms),
                },
                count: self.count,
            };
        }
        let kind = if reason.is_warning() {
            "Warning"
        } else {
            "Normal"
        };
        Write::Create(Box::new(Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            event_time: Some(moment(self.first_unix_ms)),
            reporting_controller: Some(format!("{DRIVER}/agent")),
            reporting_instance: Some(cut(node.as_str(), INSTANCE_BYTES_MAX).to_owned()),
            action: Some(reason.action().to_owned()),
            reason: Some(reason.name().to_owned()),
            regarding: Some(reference(object)),
            related: self.related.as_ref().map(reference),
            note: Some(self.text.clone()),
            type_: Some(kind.to_owned()),
            ..Event::default()
        }))
    }
}

/// The same happening has the same event, whichever agent of the node reports it.
fn name(key: &Key, first_unix_ms: u64) -> String {
    let (object, reason, about) = key;
    let mut bytes = Vec::new();
    for part in [
        object.kind,
        object.uid.as_deref().unwrap_or_default(),
        reason.name(),
        about,
    ] {
        bytes.extend(part.as_bytes());
        bytes.push(0);
    }
    bytes.extend(first_unix_ms.to_be_bytes());
    let digest = cards::digest(bytes);
    let kept = cut(&object.name, OBJECT_NAME_BYTES_MAX).trim_end_matches(['.', '-']);
    format!("{kept}.{digest:.16}")
}

fn reference(object: &ObjectRef) -> ObjectReference {
    ObjectReference {
        api_version: Some(object.api_version.to_owned()),
        kind: Some(object.kind.to_owned()),
        namespace: Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: Some(object.name.clone()),
        uid: object.uid.clone(),
        ..ObjectReference::default()
    }
}

fn moment(unix_ms: u64) -> MicroTime {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    MicroTime(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// In one line without hidden characters, and as long as the API takes it.
fn clean(text: &str) -> String {
    cut(&view::printable(text), TEXT_BYTES_MAX).to_owned()
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
