//! What happened to containers and cards, also to those that have ended.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cards::events::{self, Event};
use cards::{ContainerKey, GpuUuid, Name, Names, PodNames};
use host_config::Config;
use serde::Serialize;

use crate::names::short_id;
use crate::{JSON_VERSION, moment, printable};

/// Every kind of event, as `cgpu events --kind` takes it.
pub const KINDS: [&str; 28] = [
    "violation",
    "not_reconciled",
    "reconciled",
    "xid",
    "card_lost",
    "hung_call",
    "hung_call_over",
    "broker_replaced",
    "supervisor_replaced",
    "over_quota",
    "unknown_call",
    "quota_changed",
    "share",
    "share_changed",
    "state_unwritten",
    "state_written",
    "shortage",
    "shortage_over",
    "driver_unreachable",
    "driver_reachable",
    "refused",
    "broker_gone",
    "ended",
    "restarted",
    "not_served",
    "no_gpudirect_rdma",
    "card_repaired",
    "near_miss",
];

/// Whose log it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A container's.
    Container(ContainerKey),
    /// A card's.
    Card(GpuUuid),
}

impl fmt::Display for Subject {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(key) => key.fmt(to),
            Self::Card(uuid) => uuid.fmt(to),
        }
    }
}

impl Subject {
    /// The containers that have a log, and the cards; also those that only the history's folder knows, where one is given.
    ///
    /// # Errors
    /// A state folder or history that cannot be read.
    pub fn all(config: &Config, history: Option<&Path>) -> anyhow::Result<Vec<Self>> {
        let mut all = Self::below(&config.state_dir)?;
        if let Some(dir) = history {
            all.extend(Self::below(dir)?);
        }
        Ok(all.into_iter().collect())
    }

    /// Those that have a log below one folder.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn below(dir: &Path) -> anyhow::Result<BTreeSet<Self>> {
        let containers = events::containers(dir).context("read the events")?;
        let cards = events::cards(dir).context("read the events")?;
        let containers = containers.into_iter().map(Self::Container);
        Ok(containers
            .chain(cards.into_iter().map(Self::Card))
            .collect())
    }

    /// The folder of its log below the state folder or that of the history.
    #[must_use]
    pub fn folder(&self, dir: &Path) -> PathBuf {
        match self {
            Self::Container(key) => events::of_container(dir, key),
            Self::Card(uuid) => events::of_card(dir, uuid),
        }
    }

    /// What people call it now, or called it last.
    #[must_use]
    pub fn names(&self, state_dir: &Path) -> Names {
        let Self::Container(key) = self else {
            return Names::default();
        };
        let config = Config {
            state_dir: state_dir.to_owned(),
            ..Config::default()
        };
        let now = vgpu::names_of(&config, key);
        if now.is_empty() {
            events::names_of(state_dir, key)
        } else {
            now
        }
    }

    /// Its events that are kept, oldest first, and what people call it, also when it has ended. With a history, those that were
    /// copied to it come first.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn log(
        &self,
        config: &Config,
        history: Option<&Path>,
    ) -> anyhow::Result<(Vec<Event>, Names)> {
        let log = events::read(&self.folder(&config.state_dir)).context("read the events")?;
        let mut events = match history {
            Some(dir) => {
                let mut copy = events::read(&self.folder(dir)).context("read the history")?;
                let not_copied = events::history::not_in(&copy, log);
                copy.extend(not_copied);
                copy
            }
            None => log,
        };
        let mut names = Names::default();
        for event in &mut events {
            let recorded = std::mem::take(&mut event.names);
            if !recorded.is_empty() {
                names = recorded;
            }
        }
        if let Self::Container(key) = self {
            let now = vgpu::names_of(config, key);
            if !now.is_empty() {
                names = now;
            }
        }
        Ok((events, names))
    }
}

/// One line of `cgpu events --json`.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// The engine's namespace; absent for a card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<&'a str>,
    /// The container's id; absent for a card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<&'a str>,
    /// What the engine calls the container; absent where it has no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Its place in a pod; absent where it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<&'a PodNames>,
    /// `GPU-…`; absent for a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<&'a str>,
    /// What happened.
    #[serde(flatten)]
    pub event: &'a Event,
}

impl<'a> Line<'a> {
    /// An event, whose it is, and what people call that.
    #[must_use]
    pub fn new(subject: &'a Subject, names: &'a Names, event: &'a Event) -> Self {
        let (namespace, container, card) = match subject {
            Subject::Container(key) => (Some(key.namespace()), Some(key.id()), None),
            Subject::Card(uuid) => (None, None, Some(uuid.as_str())),
        };
        Self {
            version: JSON_VERSION,
            namespace,
            container,
            name: names.name.as_ref().map(Name::as_str),
            pod: names.pod.as_ref(),
            card,
            event,
        }
    }

    /// For people, on one line without control characters: a driver or a process may have named itself.
    #[must_use]
    pub fn text(&self) -> String {
        let whose = match (self.namespace, self.container, self.card) {
            (Some(namespace), Some(container), _) => {
                let id = format!("{namespace}/{}", short_id(container));
                match (self.pod, self.name) {
                    (Some(pod), _) => format!("{}/{} ({id})", pod.name, pod.container),
                    (None, Some(name)) => format!("{name} ({id})"),
                    (None, None) => format!("{namespace}/{container}"),
                }
            }
            (_, _, card) => format!("card {}", card.unwrap_or("-")),
        };
        let Event {
            at_unix_ms,
            kind,
            text,
            ..
        } = self.event;
        printable(&format!("{}  {whose}  {kind}  {text}", moment(*at_unix_ms)))
    }

    /// The same without whose it is, where that is known: the time of the day, kind and text.
    #[must_use]
    pub fn brief(&self) -> String {
        let moment = moment(self.event.at_unix_ms);
        let time = moment.get(11..19).unwrap_or_default();
        printable(&format!("{time}  {}  {}", self.event.kind, self.event.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page is made from the declarations of kinds, here and in the broker.
    #[test]
    fn every_kind_of_the_documents_can_be_chosen() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/json.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| kind | means |").unwrap();
        let rows = table.lines().skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let kinds: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(kinds, KINDS);
    }

    #[test]
    fn an_event_is_reported_with_its_moment_as_people_read_it() {
        let event = Event {
            at_unix_ms: 1_795_331_784_991,
            ..Event::now("xid", "Xid 31")
        };
        let none = Names::default();
        let container = Subject::Container(ContainerKey::new("default", "c1").unwrap());
        assert_eq!(
            Line::new(&container, &none, &event).text(),
            "2026-11-22T07:16:24.991Z  default/c1  xid  Xid 31"
        );
        assert_eq!(
            Line::new(&container, &Names::default(), &event).brief(),
            "07:16:24  xid  Xid 31"
        );
        let loud = Event {
            text: "\u{1b}[2J\nXid".to_owned(),
            ..event.clone()
        };
        let text = Line::new(&container, &none, &loud).text();
        assert!(text.ends_with("xid   [2J Xid"), "{text}");
        let card = Subject::Card(GpuUuid::new("GPU-1").unwrap());
        let line = Line::new(&card, &none, &event);
        assert!(line.text().contains("  card GPU-1  "));
        let document = serde_json::to_value(line).unwrap();
        assert_eq!(document["card"], "GPU-1");
        assert_eq!(document.get("container"), None);
        assert_eq!(document["at_unix_ms"], 1_795_331_784_991_u64);
    }

    #[test]
    fn an_ended_container_is_still_called_by_its_name() {
        let state = tempfile::tempdir().unwrap();
        let config = Config {
            state_dir: state.path().to_owned(),
            ..Config::default()
        };
        let id = format!("e95e304dafa2{}", "0".repeat(52));
        let key = ContainerKey::new("moby", id.as_str()).unwrap();
        let named = Event {
            names: serde_json::from_value(serde_json::json!({"name": "web"})).unwrap(),
            ..Event::now("ended", "it has ended")
        };
        events::append(&events::of_container(state.path(), &key), &named).unwrap();
        let subject = Subject::Container(key);
        let (kept, names) = subject.log(&config, None).unwrap();
        let line = Line::new(&subject, &names, &kept[0]);
        assert!(
            line.text().contains("  web (moby/e95e304dafa2)  ended  "),
            "{}",
            line.text()
        );
        let document = serde_json::to_value(line).unwrap();
        assert_eq!(document["name"], "web");
        assert_eq!(document["container"], id);
        assert_eq!(document.get("names"), None);
    }
    #[test]
    fn the_history_comes_before_what_is_not_copied_yet() {
        let (state, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = Config {
            state_dir: state.path().to_owned(),
            ..Config::default()
        };
        let key = |id: &str| ContainerKey::new("default", id).unwrap();
        let happens = |dir: &Path, id: &str, text: &str| {
            let event = Event {
                at_unix_ms: 1,
                ..Event::now("xid", text)
            };
            events::append(&events::of_container(dir, &key(id)), &event).unwrap();
        };
        for text in ["before", "copied"] {
            happens(history.path(), "lives", text);
        }
        for text in ["copied", "now"] {
            happens(state.path(), "lives", text);
        }
        happens(history.path(), "ended", "long ago");
        let all = Subject::all(&config, Some(history.path())).unwrap();
        let texts = all.iter().map(|subject| {
            let (events, _) = subject.log(&config, Some(history.path())).unwrap();
            let texts = events.into_iter().map(|event| event.text);
            texts.collect::<Vec<_>>()
        });
        let texts: Vec<_> = texts.collect();
        assert_eq!(texts, [vec!["long ago"], vec!["before", "copied", "now"]]);
        assert_eq!(Subject::all(&config, None).unwrap().len(), 1);
    }
}
