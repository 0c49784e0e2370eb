//! `cgpu events`: what went wrong, container by container, also of those that have ended.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use cards::events::{self, Event};
use cards::{ContainerKey, Names};
use clap::Args;
use host_config::Config;
use view::events::{Line, Subject};
use view::names::{Named, every};

use crate::output::Reader;

/// How often `--follow` looks.
const PERIOD: Duration = Duration::from_millis(250);

/// Below the help of `cgpu events`.
pub(super) const EXAMPLES: &str = "\
Examples:
  cgpu events            All containers, also ended ones, and all cards
  cgpu events web        One container
  cgpu events --follow   What happens from now on as well
  cgpu events --history  What happened before the last boot as well, where cgpu-agent runs";

/// The options of `cgpu events`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show the events of this container alone: its name, POD/CONTAINER, or an id as `cgpu ps` shows it.
    container: Option<String>,
    /// Print JSON, one event a line.
    #[arg(long)]
    json: bool,
    /// Wait for more events, until interrupted.
    #[arg(long)]
    follow: bool,
    /// Show the events before the last boot and of containers that ended long ago as well, which cgpu-agent has copied to DIR.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = events::history::DIR)]
    history: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let named = options.container.as_deref();
    let history = options.history.as_deref();
    let named = named.map(|name| find(&config, history, name));
    let named = named.transpose()?;
    let mut last: HashMap<Subject, Vec<Event>> = HashMap::new();
    loop {
        let mut found = Vec::new();
        for subject in named
            .clone()
            .map_or_else(|| Subject::all(&config, history), Ok)?
        {
            let (all, names) = subject.log(&config, history)?;
            let seen = last.insert(subject.clone(), all.clone());
            let new = all
                .into_iter()
                .skip(already(&seen.unwrap_or_default(), &last[&subject]));
            found.extend(new.map(|event| (subject.clone(), names.clone(), event)));
        }
        found.sort_by_key(|(_, _, event)| event.at_unix_ms);
        for (subject, names, event) in &found {
            let line = Line::new(subject, names, event);
            let line = if options.json {
                serde_json::to_string(&line)?
            } else {
                line.text()
            };
            if crate::output::print(&line).context("write to standard output")? == Reader::Gone {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if !options.follow {
            if found.is_empty() && !options.json {
                crate::output::print("No events").context("write to standard output")?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(PERIOD);
    }
}

/// The containers of this name, among those that have a log or hold a vGPU: what was started again and again under one name has a
/// log of each time.
fn find(config: &Config, history: Option<&Path>, name: &str) -> anyhow::Result<Vec<Subject>> {
    let mut known: BTreeMap<ContainerKey, Names> = vgpu::named(config)?.into_iter().collect();
    for dir in [config.state_dir.as_path()].into_iter().chain(history) {
        for key in events::containers(dir).context("read the events")? {
            let ended = || events::names_of(dir, &key);
            known.entry(key.clone()).or_insert_with(ended);
        }
    }
    let known: Vec<Named> = known.into_iter().collect();
    let found = every(&known, name, "has a vGPU or events here")?;
    Ok(found.into_iter().map(Subject::Container).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reported_is_not_reported_again_when_the_oldest_have_gone() {
        let events: Vec<Event> = (0..9_u8)
            .map(|number| Event::now("xid", &number.to_string()))
            .collect();
        assert_eq!(already(&[], &events), 0);
        assert_eq!(already(&events[..4], &events), 4);
        assert_eq!(already(&events[..4], &events[2..]), 2);
        assert_eq!(already(&events[..2], &events[5..]), 0);
        assert_eq!(already(&events, &events), 9);
    }
}
