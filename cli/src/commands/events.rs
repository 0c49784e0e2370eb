//! `cgpu events`: what went wrong, container by container, also of those that have ended.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use cards::events::{self, Event};
use cards::{ContainerKey, Names};
use clap::Args;
use clap::builder::PossibleValuesParser;
use host_config::Config;
use view::events::{KINDS, Line, Subject};
use view::names::{Named, every};
use view::parse_moment;

use crate::output::Reader;

/// How often `--follow` looks.
const PERIOD: Duration = Duration::from_millis(250);

/// Below the help of `cgpu events`.
pub(super) const EXAMPLES: &str = "\
Examples:
  cgpu events                        All containers, also ended ones, and all cards
  cgpu events web                    One container
  cgpu events --since 2h --kind xid  Xid errors of the last two hours
  cgpu events -n 20                  The last 20
  cgpu events --follow               The last 10, and what happens from now on
  cgpu events --history              What happened before the last boot as well, where cgpu-agent runs";

/// With `--follow`, where nothing says how many: as `tail` and `journalctl` have it.
const FOLLOWED: usize = 10;

/// What the containers are that one can be named of. Who forgot the runtime looks here for the reason.
const KNOWN: &str =
    "has a vGPU or events here (one that was not started under cgpu's runtime has neither)";

/// The options of `cgpu events`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show the events of this container alone: its name, POD/CONTAINER, or an id as `cgpu ps` shows it.
    container: Option<String>,
    /// Print JSON, one event a line.
    #[arg(long)]
    json: bool,
    /// Print the last 10 events, or as many as --lines or --since say, and wait for more, until interrupted.
    #[arg(long)]
    follow: bool,
    /// Print the last N events alone.
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Leave out what happened before: so long ago (30s, 10m, 2h, 3d), or a moment (2026-11-22T07:16:24Z).
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<u64>,
    /// Print events of this kind alone, for example xid; may be given several times. docs/guide/json.md explains each kind.
    #[arg(long = "kind", value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS), hide_possible_values = true)]
    kinds: Vec<String>,
    /// Show the events before the last boot and of containers that ended long ago as well, which cgpu-agent has copied to DIR.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = events::history::DIR)]
    history: Option<PathBuf>,
}

impl Options {
    fn has(&self, event: &Event) -> bool {
        let is_of_kind = self.kinds.is_empty() || self.kinds.contains(&event.kind);
        is_of_kind && self.since.is_none_or(|since| event.at_unix_ms >= since)
    }

    /// How many events of the past are printed at most.
    fn most(&self) -> Option<usize> {
        let followed = self.follow && self.since.is_none();
        self.lines.or_else(|| followed.then_some(FOLLOWED))
    }
}

/// Of `--since`: milliseconds since 1970.
fn since(text: &str) -> Result<u64, String> {
    let unclear = || {
        format!(
            "{text:?} is neither how long ago (30s, 10m, 2h, 3d) nor a moment (2026-11-22T07:16:24Z)"
        )
    };
    if let Some(at_unix_ms) = parse_moment(text) {
        return Ok(at_unix_ms);
    }
    let unit = text.chars().next_back().ok_or_else(unclear)?;
    let unit_ms: u64 = match unit {
        's' => 1000,
        'm' => 60 * 1000,
        'h' => 3600 * 1000,
        'd' => 24 * 3600 * 1000,
        _ => return Err(unclear()),
    };
    let number = text.strip_suffix(unit).unwrap_or_default();
    if !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(unclear());
    }
    let number: u64 = number.parse().map_err(|_malformed| unclear())?;
    Ok(events::now_unix_ms().saturating_sub(number.saturating_mul(unit_ms)))
}

/// The folder of `--history` must be there: an agent that keeps none has not copied anything.
fn look_for(history: &Path) -> anyhow::Result<()> {
    let found = fs::read_dir(history).map(drop);
    found.with_context(|| {
        format!(
            "read the history in {}, where cgpu-agent would have copied it",
            history.display()
        )
    })
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let named = options.container.as_deref();
    let history = options.history.as_deref();
    history.map(look_for).transpose()?;
    let mut of_name = named.map(|name| find(&config, history, name)).transpose()?;
    let mut last: HashMap<Subject, Vec<Event>> = HashMap::new();
    let mut most = options.most();
    loop {
        let mut found = Vec::new();
        let all = || Subject::all(&config, history);
        for subject in of_name.clone().map_or_else(all, Ok)? {
            let (all, names) = subject.log(&config, history)?;
            let seen = last.insert(subject.clone(), all.clone());
            let new = all
                .into_iter()
                .skip(already(&seen.unwrap_or_default(), &last[&subject]));
            let new = new.filter(|event| options.has(event));
            found.extend(new.map(|event| (subject.clone(), names.clone(), event)));
        }
        found.sort_by_key(|(_, _, event)| event.at_unix_ms);
        if let Some(most) = most.take() {
            found.drain(..found.len().saturating_sub(most));
        }
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
        if let (Some(of_name), Some(name)) = (&mut of_name, named) {
            // A container that was made anew has the name, and another id. That nobody has it any more is no error.
            let now = find(&config, history, name).unwrap_or_default();
            of_name.extend(now);
            of_name.sort();
            of_name.dedup();
        }
    }
}

/// The containers of this name, among those that have a log or hold a vGPU: what was started again and again under one name has a
/// log of each time.
fn find(config: &Config, history: Option<&Path>, name: &str) -> anyhow::Result<Vec<Subject>> {
    let mut known: BTreeMap<ContainerKey, Names> = vgpu::named(config)?.into_iter().collect();
    for dir in [config.state_dir.as_path()].into_iter().chain(history) {
        for key in events::containers(dir).context("read the events")? {
            let names = known.entry(key.clone()).or_default();
            if names.is_empty() {
                *names = events::names_of(dir, &key);
            }
        }
    }
    let known: Vec<Named> = known.into_iter().collect();
    let found = every(&known, name, KNOWN)?;
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
    fn when_is_a_time_before_now_or_a_moment() {
        let now = events::now_unix_ms();
        for (text, ago_ms) in [
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("3d", 259_200_000),
        ] {
            let ago = now - since(text).unwrap();
            assert!(ago <= ago_ms && ago > ago_ms - 5000, "{text}: {ago}");
        }
        assert_eq!(since("2026-11-22T07:16:24Z"), Ok(1_795_331_784_000));
        for text in [
            "",
            "m",
            "10",
            "10mm",
            "10 m",
            "-10m",
            "1.5h",
            "10w",
            "ten",
            "yesterday",
            "99999999999999999999s",
        ] {
            let error = since(text).unwrap_err();
            assert!(error.contains("neither how long ago"), "{text}: {error}");
        }
    }

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
