//! The probes. Each says what it finds as it finds it, one JSON object a line, so that a probe that hangs later has told it.

mod channel;
pub(crate) mod contact;
mod crash;
mod errors;
pub(crate) mod files;
mod foreign;
mod host;
mod implicit;
mod knobs;
mod latency;
mod memory;
mod shares;
mod slice;
mod sums;
mod torch;
mod userd;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rmclient::{Client, Nodes, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bundle::Bundle;

/// The variable that tells a probe of the host's the profile of the simulated cards.
pub(crate) const SIMULATE: &str = "CGPU_CARD_SIMULATE";
/// The folder that recordings are kept in.
pub(crate) const RECORDINGS: &str = "CGPU_CARD_RECORDINGS";

/// One line of a probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Found { what: String, value: Value },
    NotRun { why: String },
}

/// What a probe works with.
pub(crate) struct Bench {
    nodes: Nodes,
}

impl Bench {
    /// A client of the driver, on nodes of its own.
    fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.nodes).context("connect to the driver")
    }

    /// Whether a kernel driver answers: the nodes of simulated cards are files.
    fn is_real(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(self.nodes.ctl()).is_ok_and(|node| node.file_type().is_char_device())
    }
}

/// How a probe ends.
pub(crate) enum End {
    Done,
    NotRun(String),
}

pub(crate) fn run_here(name: &str, dev: PathBuf) -> anyhow::Result<ExitCode> {
    let bench = Bench {
        nodes: Nodes::in_dir(dev),
    };
    let bundle = || {
        let profile = std::env::var_os(SIMULATE).map(PathBuf::from);
        Bundle::find(profile.as_deref())
    };
    let end = match name {
        "host" => host::probe(&bundle()?)?,
        "first-contact" => contact::probe(&bundle()?)?,
        "memory" => memory::probe(&bench)?,
        "errors" => errors::probe(&bench)?,
        "implicit" => implicit::probe(&bench)?,
        "files" => files::probe(&bench)?,
        "knobs" => knobs::probe(&bench)?,
        "userd" => userd::probe(&bench)?,
        "foreign-channels" => foreign::probe(&bench)?,
        "slice" => slice::probe(&bundle()?)?,
        "sums" => sums::probe(&bundle()?)?,
        "nvidia-smi" => slice::vendor_tool(&bundle()?)?,
        "latency" => latency::probe(&bundle()?)?,
        "shares" => shares::probe(&bundle()?)?,
        "crash" => crash::probe(&bundle()?)?,
        "torch" => torch::probe(&bundle()?)?,
        other => bail!("no probe {other}"),
    };
    if let End::NotRun(why) = end {
        line(&Line::NotRun { why });
    }
    Ok(ExitCode::SUCCESS)
}

/// Says one finding.
fn found(what: impl Into<String>, value: impl Into<Value>) {
    line(&Line::Found {
        what: what.into(),
        value: value.into(),
    });
}

#[expect(clippy::print_stdout, reason = "the probe's answer to its runner")]
fn line(line: &Line) {
    println!("{}", json!(line));
}

/// A call that failed, made by the client or by a step of a program.
trait Failure: std::error::Error {
    /// The driver's status, where the driver has answered.
    fn status(&self) -> Option<Status>;
}

impl Failure for rmclient::Error {
    fn status(&self) -> Option<Status> {
        self.status()
    }
}

impl Failure for rmprogram::Error {
    fn status(&self) -> Option<Status> {
        self.status()
    }
}

/// A driver's answer in one word: `ok`, its status, or what else went wrong.
fn answer<T>(result: &Result<T, impl Failure>) -> Value {
    match result {
        Ok(_) => json!("ok"),
        Err(error) => match error.status() {
            Some(status) => json!(status.to_string()),
            None => json!(sys::chain(error)),
        },
    }
}

/// Microseconds of many runs.
#[derive(Debug, Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    /// Runs `work` up to `count` times or until `most` has passed, and times each.
    fn of<E>(
        count: usize,
        most: Duration,
        mut work: impl FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut times = Self::default();
        let began = Instant::now();
        while times.0.len() < count && began.elapsed() < most {
            let one = Instant::now();
            work()?;
            times.add(one.elapsed());
        }
        Ok(times)
    }

    fn summary(mut self) -> Value {
        self.0.sort_by(f64::total_cmp);
        let at = |share: f64| {
            // The index is inside the list: share <= 1.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a position in a list of at most thousands"
            )]
            let index = ((self.0.len().saturating_sub(1)) as f64 * share) as usize;
            self.0
                .get(index)
                .map(|value| (value * 100.0).round() / 100.0)
        };
        json!({"runs": self.0.len(), "median_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0)})
    }
}
