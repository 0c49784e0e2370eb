//! `cgpu events`: what went wrong, container by container, also of those that have ended.

use std::collections::{BTreeSet, HashMap};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use cards::events::{self, Event};
use cards::{ContainerKey, GpuUuid};
use clap::Args;
use host_config::Config;
use serde::Serialize;

use super::set::pick;
use crate::model::JSON_VERSION;
use crate::output::moment;

/// How often `--follow` looks.
const PERIOD: Duration = Duration::from_millis(250);

/// Below the help of `cgpu events`.
pub(super) const EXAMPLES: &str = "\
Examples:
  cgpu events            All containers, also ended ones, and all cards
  cgpu events web        One container
  cgpu events --follow   What happens from now on as well";

/// The options of `cgpu events`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show the events of this container alone: its id, as `cgpu ps` shows it, or the id's beginning.
    container: Option<String>,
    /// Print JSON, one event a line.
    #[arg(long)]
    json: bool,
    /// Wait for more events, until interrupted.
    #[arg(long)]
    follow: bool,
}

/// Whose log it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Container(ContainerKey),
    Card(GpuUuid),
}

/// One line of `cgpu events --json`.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<&'a str>,
    #[serde(flatten)]
    event: &'a Event,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let named = options.container.as_deref();
    let named = named.map(|name| find(&config, name)).transpose()?;
    let mut last: HashMap<Subject, Vec<Event>> = HashMap::new();
    loop {
        let mut found = Vec::new();
        for subject in named
            .clone()
            .map_or_else(|| all(&config), |one| Ok(vec![one]))?
        {
            let folder = match &subject {
                Subject::Container(key) => events::of_container(&config.state_dir, key),
                Subject::Card(uuid) => events::of_card(&config.state_dir, uuid),
            };
            let all = events::read(&folder)?;
            let seen = last.insert(subject.clone(), all.clone());
            let new = all
                .into_iter()
                .skip(already(&seen.unwrap_or_default(), &last[&subject]));
            found.extend(new.map(|event| (subject.clone(), event)));
        }
        found.sort_by_key(|(_, event)| event.at_unix_ms);
        for (subject, event) in &found {
            let line = if options.json {
                serde_json::to_string(&printed(subject, event))?
            } else {
                text(subject, event)
            };
            crate::output::print(&line)?;
        }
        if !options.follow {
            if found.is_empty() && !options.json {
                crate::output::print("No events")?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(PERIOD);
    }
}

/// The containers that have a log, and the cards.
fn all(config: &Config) -> anyhow::Result<Vec<Subject>> {
    let containers = events::containers(&config.state_dir).context("read the events")?;
    let cards = events::cards(&config.state_dir).context("read the events")?;
    let containers = containers.into_iter().map(Subject::Container);
    Ok(containers
        .chain(cards.into_iter().map(Subject::Card))
        .collect())
}

/// The container of this name, among those that have a log or hold a vGPU.
fn find(config: &Config, name: &str) -> anyhow::Result<Subject> {
    let logged = events::containers(&config.state_dir).context("read the events")?;
    let mut known: BTreeSet<ContainerKey> = logged.into_iter().collect();
    known.extend(vgpu::list(config)?.into_iter().map(|state| state.grant.key));
    let known: Vec<ContainerKey> = known.into_iter().collect();
    pick(&known, name, "has a vGPU or events here").map(Subject::Container)
}

/// How many of the events of now were there before: a log that has become long has lost its oldest ones.
fn already(before: &[Event], now: &[Event]) -> usize {
    (0..=before.len().min(now.len()))
        .rev()
        .find(|count| {
            let tail = before.len() - count;
            before.get(tail..) == now.get(..*count)
        })
        .unwrap_or(0)
}

fn printed<'a>(subject: &'a Subject, event: &'a Event) -> Printed<'a> {
    let (namespace, container, card) = match subject {
        Subject::Container(key) => (Some(key.namespace()), Some(key.id()), None),
        Subject::Card(uuid) => (None, None, Some(uuid.as_str())),
    };
    Printed {
        version: JSON_VERSION,
        namespace,
        container,
        card,
        event,
    }
}

fn text(subject: &Subject, event: &Event) -> String {
    let whose = match subject {
        Subject::Container(key) => key.to_string(),
        Subject::Card(uuid) => format!("card {uuid}"),
    };
    let line = format!(
        "{}  {whose}  {}  {}",
        moment(event.at_unix_ms),
        event.kind,
        event.text
    );
    // A driver or a process may have named itself.
    line.replace(|character: char| character.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event {
            at_unix_ms: 1_795_331_784_991 + number,
            ..Event::now("xid", "Xid 31")
        }
    }

    #[test]
    fn an_event_is_reported_with_its_moment_as_people_read_it() {
        let container = Subject::Container(ContainerKey::new("default", "c1").unwrap());
        assert_eq!(
            text(&container, &event(0)),
            "2026-11-22T07:16:24.991Z  default/c1  xid  Xid 31"
        );
        let loud = Event {
            text: "\u{1b}[2J\nXid".to_owned(),
            ..event(0)
        };
        assert!(text(&container, &loud).ends_with("xid   [2J Xid"));
        let card = Subject::Card(GpuUuid::new("GPU-1").unwrap());
        assert!(text(&card, &event(0)).contains("  card GPU-1  "));
        let document = serde_json::to_value(printed(&card, &event(0))).unwrap();
        assert_eq!(document["card"], "GPU-1");
        assert_eq!(document.get("container"), None);
        assert_eq!(document["at_unix_ms"], 1_795_331_784_991_u64);
    }

    #[test]
    fn what_was_reported_is_not_reported_again_when_the_oldest_have_gone() {
        let events: Vec<Event> = (0..9).map(event).collect();
        assert_eq!(already(&[], &events), 0);
        assert_eq!(already(&events[..4], &events), 4);
        assert_eq!(already(&events[..4], &events[2..]), 2);
        assert_eq!(already(&events[..2], &events[5..]), 0);
        assert_eq!(already(&events, &events), 9);
    }
}
