//! Runs experiments, as many at a time as there are processors; what they find comes in the order in which they are listed.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

use crate::report::{Effort, Findings};

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// `E1`, `chaos` …
    pub name: &'static str,
    /// The same effort gives the same findings.
    pub run: fn(Effort) -> Result<Findings>,
}

/// All findings, in the order of the experiments; `done` hears of each when it is there.
///
/// # Errors
/// An experiment could not be carried out. A missed target is no error here.
pub fn run(
    experiments: &[Experiment],
    effort: Effort,
    done: impl Fn(&Findings) + Sync,
) -> Result<Vec<Findings>> {
    let next = AtomicUsize::new(0);
    let findings: Mutex<Vec<(usize, Result<Findings>)>> = Mutex::new(Vec::new());
    let workers = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(experiments.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(experiment) = experiments.get(index) else {
                        break;
                    };
                    let found = (experiment.run)(effort).context(experiment.name);
                    if let Ok(found) = &found {
                        done(found);
                    }
                    findings
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((index, found));
                }
            });
        }
    });
    let mut findings = findings
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    findings.sort_by_key(|(index, _)| *index);
    findings.into_iter().map(|(_, found)| found).collect()
}
