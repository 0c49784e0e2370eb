//! `cgpu top`: cards and containers, anew once a period. The full screen is a program of its own, `cgpu-top`.

use std::io::{IsTerminal, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use host_config::{Config, programs, trusted};
use view::called::ShownNames;
use view::cards::Cards;
use view::ps::Ps;
use view::top::Top;
use view::{JSON_VERSION, moment};

use super::list::all_shown;
use super::not_understood;
use crate::output::{Reader, print};
use crate::render::ps::Width;
use crate::render::{self, Look};

/// The program of the full screen.
const PROGRAM: &str = "cgpu-top";

/// Below the help of `cgpu top`.
pub(super) const EXAMPLES: &str = "\
Without a terminal it prints once and ends. Keys of the full screen: `?` lists them, `q` ends it.

Examples:
  cgpu top                      The full screen
  cgpu top --once               Two tables
  cgpu top --batch -n 10 -d 5   Tables, ten times, five seconds apart
  cgpu top --json -n 1          A JSON document";

/// The options of `cgpu top`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Print tables once and end.
    #[arg(long, conflicts_with_all = ["batch", "rounds"])]
    once: bool,
    /// Print tables once a period, without keys or colours, as `top -b`.
    #[arg(long, short)]
    batch: bool,
    /// Print a JSON document on one line once a period, instead of tables.
    #[arg(long)]
    json: bool,
    /// End after this many periods. Default: when interrupted.
    #[arg(long = "number", short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// The period, 0.1 to 3600 seconds.
    #[arg(long = "delay", short = 'd', value_name = "SECONDS", default_value = "1", value_parser = period)]
    period: Duration,
}

fn period(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_malformed| {
        format!("{text:?} is no number of seconds; allowed are 0.1 to 3600")
    })?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("allowed are 0.1 to 3600 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let is_plain = options.once || options.batch || options.json;
    if !is_plain && stdin().is_terminal() && stdout().is_terminal() {
        if options.rounds.is_some() {
            return Err(not_understood(
                "-n counts documents or tables: give --batch or --json with it",
            ));
        }
        return full_screen(options.period);
    }
    let is_once = options.once || !is_plain && options.rounds.is_none();
    let rounds = if is_once { Some(1) } else { options.rounds };
    let unread = print_rounds(&Config::load()?, options, rounds)?;
    all_shown(&unread)
}

/// Becomes the program of the full screen.
fn full_screen(period: Duration) -> anyhow::Result<ExitCode> {
    let path = programs::internal(PROGRAM).context("find this program's folder")?;
    if !path.exists() {
        bail!(
            "{} does not exist; `cgpu top --batch` works without it",
            path.display()
        );
    }
    trusted::program("top", &path)?;
    let error = Command::new(&path)
        .arg("--period-ms")
        .arg(period.as_millis().to_string())
        .exec();
    Err(error).with_context(|| format!("start {}", path.display()))
}

/// Returns what could not be read in the last round.
fn print_rounds(
    config: &Config,
    options: &Options,
    rounds: Option<u64>,
) -> anyhow::Result<Vec<String>> {
    let mut next = Instant::now();
    let mut round = 0;
    loop {
        let mut top = Top::collect(config)?;
        let unread = std::mem::take(&mut top.unread);
        let text = if options.json {
            serde_json::to_string(&top)?
        } else {
            tables(top)
        };
        let reader = print(&text).context("write to standard output")?;
        round += 1;
        if reader == Reader::Gone || rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(unread);
        }
        if !unread.is_empty() {
            tracing::warn!("containers that cannot be read: {}", unread.join("; "));
        }
        if !options.json {
            print("").context("write to standard output")?;
        }
        next += options.period;
        match next.checked_duration_since(Instant::now()) {
            Some(left) => std::thread::sleep(left),
            // A host that answers slowly is not asked twice at once to catch up.
            None => next = Instant::now(),
        }
    }
}

fn tables(top: Top) -> String {
    let Top {
        at_unix_ms,
        driver,
        driver_version,
        cards,
        vgpus,
        ..
    } = top;
    let cards = Cards {
        version: JSON_VERSION,
        driver,
        driver_version,
        cards,
        orphaned: Vec::new(),
    };
    let ps = Ps {
        version: JSON_VERSION,
        vgpus,
        elsewhere: None,
        unread: Vec::new(),
    };
    let look = Look::of_output();
    format!(
        "{}\n\n{}\n\n{}",
        moment(at_unix_ms),
        render::cards::render(&cards, Width::Narrow, look),
        render::ps::render(&ps, &ShownNames::of(&ps.vgpus), Width::Narrow, look)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_number_of_seconds() {
        assert_eq!(period("0.5").unwrap(), Duration::from_millis(500));
        for text in ["", "0", "-1", "NaN", "inf", "1e9", "1s"] {
            let why = period(text).unwrap_err();
            assert!(why.contains("allowed are 0.1 to 3600"), "{text}: {why}");
        }
    }
}
