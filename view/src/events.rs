//! What happened to containers and cards, also to those that have ended.

use anyhow::Context;
use cards::events::{self, Event};
use cards::{ContainerKey, GpuUuid};
use host_config::Config;
use serde::Serialize;

use crate::{JSON_VERSION, moment};

/// Whose log it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A container's.
    Container(ContainerKey),
    /// A card's.
    Card(GpuUuid),
}

impl Subject {
    /// The containers that have a log, and the cards.
    ///
    /// # Errors
    /// A state folder that cannot be read.
    pub fn all(config: &Config) -> anyhow::Result<Vec<Self>> {
        let containers = events::containers(&config.state_dir).context("read the events")?;
        let cards = events::cards(&config.state_dir).context("read the events")?;
        let containers = containers.into_iter().map(Self::Container);
        Ok(containers
            .chain(cards.into_iter().map(Self::Card))
            .collect())
    }

    /// Its events that are kept, oldest first.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn events(&self, config: &Config) -> anyhow::Result<Vec<Event>> {
        let folder = match self {
            Self::Container(key) => events::of_container(&config.state_dir, key),
            Self::Card(uuid) => events::of_card(&config.state_dir, uuid),
        };
        events::read(&folder).context("read the events")
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
    /// `GPU-…`; absent for a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<&'a str>,
    /// What happened.
    #[serde(flatten)]
    pub event: &'a Event,
}

impl<'a> Line<'a> {
    /// An event and whose it is.
    #[must_use]
    pub fn new(subject: &'a Subject, event: &'a Event) -> Self {
        let (namespace, container, card) = match subject {
            Subject::Container(key) => (Some(key.namespace()), Some(key.id()), None),
            Subject::Card(uuid) => (None, None, Some(uuid.as_str())),
        };
        Self {
            version: JSON_VERSION,
            namespace,
            container,
            card,
            event,
        }
    }

    /// For people, on one line without control characters: a driver or a process may have named itself.
    #[must_use]
    pub fn text(&self) -> String {
        let whose = match (self.namespace, self.container, self.card) {
            (Some(namespace), Some(container), _) => format!("{namespace}/{container}"),
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

fn printable(line: &str) -> String {
    line.replace(|character: char| character.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_reported_with_its_moment_as_people_read_it() {
        let event = Event {
            at_unix_ms: 1_795_331_784_991,
            ..Event::now("xid", "Xid 31")
        };
        let container = Subject::Container(ContainerKey::new("default", "c1").unwrap());
        assert_eq!(
            Line::new(&container, &event).text(),
            "2026-11-22T07:16:24.991Z  default/c1  xid  Xid 31"
        );
        assert_eq!(
            Line::new(&container, &event).brief(),
            "07:16:24  xid  Xid 31"
        );
        let loud = Event {
            text: "\u{1b}[2J\nXid".to_owned(),
            ..event.clone()
        };
        let text = Line::new(&container, &loud).text();
        assert!(text.ends_with("xid   [2J Xid"), "{text}");
        let card = Subject::Card(GpuUuid::new("GPU-1").unwrap());
        let line = Line::new(&card, &event);
        assert!(line.text().contains("  card GPU-1  "));
        let document = serde_json::to_value(line).unwrap();
        assert_eq!(document["card"], "GPU-1");
        assert_eq!(document.get("container"), None);
        assert_eq!(document["at_unix_ms"], 1_795_331_784_991_u64);
    }
}
