//! `cgpu events`: what went wrong, container by container.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use vgpu::{Config, ContainerKey};

use super::set::find;
use crate::model::JSON_VERSION;

/// How often `--follow` looks.
const PERIOD: Duration = Duration::from_millis(250);

/// The options of `cgpu events`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The container, as `cgpu ps` shows it; absent: all of them.
    container: Option<String>,
    /// Print one JSON document a line.
    #[arg(long)]
    json: bool,
    /// Go on with what happens from now on, until interrupted.
    #[arg(long)]
    follow: bool,
}

/// One line of `cgpu events --json`.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    version: u32,
    namespace: &'a str,
    container: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

/// One line of a container's `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Event {
    at_unix_ms: u64,
    kind: String,
    text: String,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let mut read: HashMap<ContainerKey, usize> = HashMap::new();
    loop {
        let keys = match &options.container {
            Some(name) => vec![find(&config, name)?],
            None => vgpu::list(&config)?
                .into_iter()
                .map(|state| state.grant.key)
                .collect(),
        };
        let mut events = Vec::new();
        for key in keys {
            let vgpus = config.state_dir.join("vgpus");
            let all = of_folder(&vgpus.join(key.relative_dir()))?;
            let seen = read.insert(key.clone(), all.len()).unwrap_or(0);
            // A file that was begun anew is shorter than what was read of it.
            let seen = if seen > all.len() { 0 } else { seen };
            events.extend(all.into_iter().skip(seen).map(|event| (key.clone(), event)));
        }
        events.sort_by_key(|(_, event)| event.at_unix_ms);
        for (key, event) in &events {
            let line = if options.json {
                serde_json::to_string(&Printed {
                    version: JSON_VERSION,
                    namespace: key.namespace(),
                    container: key.id(),
                    event,
                })?
            } else {
                text(key, event)
            };
            crate::output::say(&line)?;
        }
        if !options.follow {
            if events.is_empty() && !options.json {
                crate::output::say("Nothing has happened")?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(PERIOD);
    }
}

fn text(key: &ContainerKey, event: &Event) -> String {
    format!(
        "{}  {key}  {}  {}",
        moment(event.at_unix_ms),
        event.kind,
        event.text
    )
}

/// Seconds since 1970 with milliseconds: what `date -d @…` reads.
fn moment(at_unix_ms: u64) -> String {
    format!("{}.{:03}", at_unix_ms / 1000, at_unix_ms % 1000)
}

/// What stands in a container's folder; a line that is being written is left for the next look.
fn of_folder(folder: &Path) -> anyhow::Result<Vec<Event>> {
    let path: PathBuf = folder.join("events.jsonl");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("read {}", path.display()))?,
    };
    let complete = text.rfind('\n').and_then(|end| text.get(..end));
    Ok(complete
        .unwrap_or_default()
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_read_and_said() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(folder.path()).unwrap(), []);
        fs::write(
            folder.path().join("events.jsonl"),
            "{\"at_unix_ms\":1500,\"kind\":\"xid\",\"text\":\"Xid 31\"}\nno event\n{\"at_unix_ms\":2",
        )
        .unwrap();
        let events = of_folder(folder.path()).unwrap();
        let key = ContainerKey::new("default", "c1").unwrap();
        assert_eq!(text(&key, &events[0]), "1.500  default/c1  xid  Xid 31");
        assert_eq!(events.len(), 1);
    }
}
