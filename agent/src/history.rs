//! Copies what happened to containers and cards to a disk: the logs in the state folder are gone after a reboot.
//!
//! A log's copy says by its last events where it goes on, so that nothing is copied twice, whenever the agent was ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use cards::events::{self, Event, history};
use cards::store::{self, DiskStore};
use serde::{Deserialize, Serialize};
use sys::sync::lock;
use view::events::Subject;
use view::{moment, printable};

/// How often is looked. A log stays when its container has ended.
const PERIOD: Duration = Duration::from_secs(2);
/// Of all copies together.
const MOST_BYTES: u64 = 16 << 20;
/// So many lines of one container or card are logged a round at most; its log and the copy have all.
const MOST_LOGGED: usize = 16;
/// So many of all together: the journal has a limit for the whole service, which one tenant's containers must not reach. Each container and
/// card has one line at least.
const MOST_LOGGED_OF_ALL: usize = 256;
/// The version of the counts that this agent writes.
const VERSION: u32 = 1;
/// In the folder of the copies.
const COUNTS: &str = "counts.json";
/// Of [`COUNTS`].
const COUNTS_BYTES: u64 = 64 << 10;
/// Of an event of a container that did not start (`vgpu::events::REFUSED`).
const REFUSED: &str = "refused";
/// Why it did not, as events name it. A log is written by a container's broker too, and a label has no other values.
const REASONS: [&str; 3] = ["request", "full", "host"];
/// Kinds of events that are counted (`control::EventKind`, `vgpu::events`), with those of containers that end before anybody asks
/// their broker.
const KINDS: [&str; 7] = [
    "xid",
    "card_lost",
    "hung_call",
    "violation",
    "over_quota",
    "broker_gone",
    "driver_unreachable",
];
/// Another reason, or none.
const OTHER: &str = "other";

/// What is counted of events, over the agent's restarts.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    version: u32,
    /// Containers that did not start, by reason.
    pub(crate) starts_refused: BTreeMap<String, u64>,
    /// What happened, by kind.
    #[serde(default)]
    events: BTreeMap<String, u64>,
}

/// The counts, for pages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted(Arc<Mutex<Counts>>);

impl Counted {
    /// As they are now. A reason that never occurred is 0.
    pub(crate) fn starts_refused(&self) -> Vec<(String, u64)> {
        let counts = lock(&self.0);
        let reasons = REASONS.into_iter().chain([OTHER]);
        let counted = |reason: &str| counts.starts_refused.get(reason).copied().unwrap_or(0);
        reasons
            .map(|reason| (reason.to_owned(), counted(reason)))
            .collect()
    }

    /// The same of what happened, by kind.
    pub(crate) fn events(&self) -> Vec<(&'static str, u64)> {
        let counts = lock(&self.0);
        KINDS
            .map(|kind| (kind, counts.events.get(kind).copied().unwrap_or(0)))
            .to_vec()
    }
}

/// Logs what was copied, with what systemd's journal can be searched for.
fn report(subject: &Subject, copied: &[Event], most: usize) {
    let (container, card) = match subject {
        Subject::Container(key) => (Some(key.to_string()), None),
        Subject::Card(uuid) => (None, Some(uuid.to_string())),
    };
    let (container, card) = (container.as_deref(), card.as_deref());
    for event in copied.iter().take(most) {
        let name = event.names.text();
        let (name, reason) = (name.as_deref(), event.reason.as_deref());
        // Part of it is a tenant's.
        let text = printable(&event.text);
        let (event, time) = (event.kind.as_str(), moment(event.at_unix_ms));
        if event == REFUSED || KINDS.contains(&event) {
            tracing::warn!(event, container, card, name, reason, time, "{text}");
        } else {
            tracing::info!(event, container, card, name, reason, time, "{text}");
        }
    }
    let more = copied.len().saturating_sub(most);
    if more > 0 {
        tracing::warn!(
            container,
            card,
            "{more} more events of {subject}: `cgpu events` has them"
        );
    }
}

/// Logs and their copies.
#[derive(Debug)]
struct History {
    state_dir: PathBuf,
    dir: PathBuf,
    /// File number and length of each log when it was copied last.
    seen: HashMap<PathBuf, (u64, u64)>,
    /// Events of each log that are reported and counted, and not in its copy, which could not be written.
    uncopied: HashMap<PathBuf, Vec<Event>>,
    counted: Counted,
    /// Whether the counts are not in their file, which could not be written.
    unsaved: bool,
    /// Whether something was copied since old copies were removed.
    untrimmed: bool,
    /// The last failure, which is logged once.
    trouble: Option<String>,
}

/// Starts the thread that copies. It ends with the process.
///
/// # Errors
/// The system has no thread.
pub(crate) fn start(state_dir: &Path, dir: &Path) -> anyhow::Result<Counted> {
    let mut history = History::new(state_dir, dir);
    let counted = history.counted.clone();
    let copying = move || {
        loop {
            history.round_or_report();
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new()
        .name("history".to_owned())
        .stack_size(512 << 10)
        .spawn(copying)
        .context("start a thread")?;
    Ok(counted)
}

impl History {
    fn new(state_dir: &Path, dir: &Path) -> Self {
        let counts = read_counts(dir).unwrap_or_else(|error| {
            tracing::warn!("counts begin at 0: {error:#}");
            Counts::default()
        });
        Self {
            state_dir: state_dir.to_owned(),
            dir: dir.to_owned(),
            seen: HashMap::new(),
            uncopied: HashMap::new(),
            counted: Counted(Arc::new(Mutex::new(counts))),
            unsaved: false,
            untrimmed: false,
            trouble: None,
        }
    }

    fn round_or_report(&mut self) {
        let trouble = self.round().err().map(|error| format!("{error:#}"));
        match &trouble {
            Some(why) if trouble != self.trouble => {
                tracing::warn!("events are not copied: {why}");
            }
            None if self.trouble.is_some() => tracing::info!("events are copied again"),
            _ => {}
        }
        self.trouble = trouble;
    }

    /// Copies, reports and counts what is new. A log that cannot be copied costs no other, and is reported and counted all the same.
    fn round(&mut self) -> anyhow::Result<()> {
        let subjects = Subject::below(&self.state_dir)?;
        let folders = subjects.iter();
        let there: HashSet<PathBuf> = folders.map(|of| of.folder(&self.state_dir)).collect();
        self.seen.retain(|log, _| there.contains(log));
        self.uncopied.retain(|log, _| there.contains(log));
        let most_logged = most_logged(subjects.len());
        let (mut found, mut result) = (Vec::new(), Ok(()));
        for subject in &subjects {
            let before = found.len();
            if let Err(error) = self.copy(subject, &mut found) {
                result = Err(error.context(format!("copy the events of {subject}")));
            }
            let new = found.get(before..).unwrap_or_default();
            report(subject, new, most_logged);
        }
        // First: what is copied is never new again.
        let counted = self.count(&found);
        if self.untrimmed {
            history::keep_within(&self.dir, &self.state_dir, MOST_BYTES)
                .context("remove old copies")?;
            self.untrimmed = false;
        }
        result.and(counted)
    }

    /// Copies a log's events; those that are new are added to `found`, also where they cannot be copied.
    fn copy(&mut self, subject: &Subject, found: &mut Vec<Event>) -> anyhow::Result<()> {
        let (log, copy) = (&subject.folder(&self.state_dir), &subject.folder(&self.dir));
        let Ok(file) = fs::symlink_metadata(log.join(events::NAME)) else {
            // It has just gone, or been moved.
            return Ok(());
        };
        let state = (file.ino(), file.len());
        if self.seen.get(log) == Some(&state) {
            return Ok(());
        }
        let (copied, logged) = (events::read(copy)?, events::read(log)?);
        let mut reported = copied.clone();
        reported.extend(self.uncopied.remove(log).unwrap_or_default());
        let new = history::not_in(&reported, logged.clone()).len();
        let mut missing = history::not_in(&copied, logged);
        if !missing.is_empty() {
            let names = subject.names(&self.state_dir);
            // After a reboot nothing else says what the container was called.
            for event in missing.iter_mut().filter(|event| event.names.is_empty()) {
                event.names = names.clone();
            }
        }
        let from = missing.len().saturating_sub(new);
        found.extend_from_slice(missing.get(from..).unwrap_or_default());
        for (at, event) in missing.iter().enumerate() {
            if let Err(error) = events::append(copy, event) {
                let rest = missing.get(at..).unwrap_or_default();
                self.uncopied.insert(log.clone(), rest.to_vec());
                return Err(error).with_context(|| format!("write {}", copy.display()));
            }
            self.untrimmed = true;
        }
        self.seen.insert(log.clone(), state);
        Ok(())
    }

    fn count(&mut self, found: &[Event]) -> anyhow::Result<()> {
        if found.is_empty() && !self.unsaved {
            return Ok(());
        }
        let mut counts = lock(&self.counted.0);
        let before = counts.clone();
        for event in found.iter().filter(|event| event.kind == REFUSED) {
            let named = event.reason.as_deref().unwrap_or(OTHER);
            let known = REASONS.into_iter().find(|reason| *reason == named);
            let reason = known.unwrap_or(OTHER).to_owned();
            *counts.starts_refused.entry(reason).or_default() += 1;
        }
        for event in found {
            if let Some(kind) = KINDS.into_iter().find(|kind| *kind == event.kind) {
                *counts.events.entry(kind.to_owned()).or_default() += 1;
            }
        }
        counts.version = VERSION;
        if *counts == before && !self.unsaved {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&*counts)?;
        let saved = store::replace(&DiskStore, &self.dir.join(COUNTS), &text);
        self.unsaved = saved.is_err();
        Ok(saved?)
    }
}

/// How many lines of each are logged a round, where there are so many containers and cards.
fn most_logged(subjects: usize) -> usize {
    let each = MOST_LOGGED_OF_ALL.checked_div(subjects);
    each.unwrap_or(MOST_LOGGED).clamp(1, MOST_LOGGED)
}

fn read_counts(dir: &Path) -> anyhow::Result<Counts> {
    let path = dir.join(COUNTS);
    if !path.exists() {
        return Ok(Counts::default());
    }
    let text = store::read_capped("counts", &path, COUNTS_BYTES)?;
    let counts: Counts =
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    anyhow::ensure!(
        counts.version <= VERSION,
        "{} has version {}, this cgpu-agent knows {VERSION}",
        path.display(),
        counts.version
    );
    Ok(counts)
}

#[cfg(test)]
mod tests;
