//! Engine × version × frontend × check: what every engine must do with a container of ours, as two tables.
//!
//! [`ROWS`] has the engines, [`checks`] what is asked of each; an engine is one implementation of [`Engine`]. A new version
//! is a row, a new demand a check. A client that has no word for something answers with [`Lacks`], which is a skipped cell
//! with its reason, never a passed one.
//!
//! ```text
//!   ROWS ─► Row::open ─► Engine ─┐
//!                                ├─► run ─► Cell (passed, skipped: why, failed: why)
//!   checks ──────────────────────┘
//! ```

mod checks;
mod claims;
mod client;
mod containerd;
mod cri;
mod docker;
mod engine;
mod load;
mod nerdctl;
mod podman;
mod pods;
mod rows;
mod vgpu;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::programs::Programs;

pub use checks::{About, Check, FIFTY, checks, checks_of};
pub use engine::{Ask, Container, Engine, Lacks, Restarts, Usage};
pub use rows::{Absent, Family, Frontend, ROWS, Row};

/// What became of one check on one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It held.
    Passed,
    /// It could not be asked, and why.
    Skipped(String),
    /// It did not hold, and how that was seen.
    Failed(String),
}

/// One cell of the matrix.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The row's engine with its version, as it says it itself.
    pub engine: String,
    /// The row.
    pub row: Row,
    /// The check's name.
    pub check: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

/// The check that every row ends with.
pub const LEAVES_NOTHING: &str = "nothing left behind";

/// Runs the chosen checks on one row with the programs that tests build, and tells each cell as it comes.
///
/// # Errors
/// The row's engine cannot be started although it could be fetched.
pub fn run(
    row: &Row,
    needed: impl Fn(&Check) -> bool,
    tell: impl FnMut(&Cell),
) -> Result<Vec<Cell>> {
    run_with(Programs::for_tests()?, row, 1, needed, tell)
}

/// The same with these programs, and each check so many times: what one run does not show another may.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    programs: &Programs,
    row: &Row,
    times: u32,
    needed: impl Fn(&Check) -> bool,
    mut tell: impl FnMut(&Cell),
) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let mut cell = |engine: &str, check, verdict, took| {
        let cell = Cell {
            engine: engine.to_owned(),
            row: *row,
            check,
            verdict,
            took,
        };
        tell(&cell);
        cells.push(cell);
    };
    let mut engine = match row.open(programs)? {
        Ok(engine) => engine,
        Err(absent) => {
            for check in checks_of(row.family).filter(|check| needed(check)) {
                let verdict = Verdict::Skipped(absent.reason.clone());
                cell(&absent.title, check.name, verdict, Duration::ZERO);
            }
            return Ok(cells);
        }
    };
    let title = engine.title();
    for check in checks_of(row.family).filter(|check| needed(check)) {
        let began = Instant::now();
        if check.about == About::Vgpu && row.frontend == Frontend::Plain {
            continue;
        }
        if check.name == FIFTY && !row.bears_load() {
            let reason = "asked of one row of each kind".to_owned();
            cell(&title, check.name, Verdict::Skipped(reason), Duration::ZERO);
            continue;
        }
        let verdicts = (0..times).map(|_| once(check, engine.as_mut()));
        let verdict = worst(&verdicts.collect::<Vec<_>>());
        cell(&title, check.name, verdict, began.elapsed());
    }
    let began = Instant::now();
    let verdict = match engine.finish() {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    };
    cell(&title, LEAVES_NOTHING, verdict, began.elapsed());
    Ok(cells)
}

fn once(check: &Check, engine: &mut dyn Engine) -> Verdict {
    let verdict = match (check.body)(engine) {
        Ok(()) => Verdict::Passed,
        Err(error) => match error.downcast_ref::<Lacks>() {
            Some(lacks) => Verdict::Skipped(lacks.to_string()),
            None => Verdict::Failed(format!("{error:#}")),
        },
    };
    // One check's containers must not stand in the next one's way.
    match (verdict, engine.remove_all()) {
        (Verdict::Passed | Verdict::Skipped(_), Err(error)) => {
            Verdict::Failed(format!("removing what the check left: {error:#}"))
        }
        (verdict, _) => verdict,
    }
}

/// The first that failed, with how many did; else the first.
fn worst(verdicts: &[Verdict]) -> Verdict {
    let failed = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Failed(reason) => Some(reason),
        Verdict::Passed | Verdict::Skipped(_) => None,
    });
    let failed: Vec<&String> = failed.collect();
    match (failed.as_slice(), verdicts) {
        ([reason], [_]) => Verdict::Failed((*reason).clone()),
        ([reason, ..], all) => Verdict::Failed(format!(
            "{} of {} times, first: {reason}",
            failed.len(),
            all.len()
        )),
        ([], [first, ..]) => first.clone(),
        ([], []) => Verdict::Skipped("no times".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_fails_once_has_failed() {
        let failed = Verdict::Failed("late".to_owned());
        assert_eq!(worst(&[Verdict::Passed, Verdict::Passed]), Verdict::Passed);
        assert_eq!(worst(std::slice::from_ref(&failed)), failed);
        assert_eq!(
            worst(&[Verdict::Passed, failed]),
            Verdict::Failed("1 of 2 times, first: late".to_owned())
        );
    }
}
