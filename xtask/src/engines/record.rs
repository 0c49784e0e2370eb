//! `target/engines.json`: the last result of every cell.

use std::fs::{self, File};

use anyhow::{Context, Result};
use integration::matrix::{Cell, LEAVES_NOTHING, ROWS, Verdict, checks_of};
use integration::programs::target_folder;
use serde::{Deserialize, Serialize};

/// What became of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Skipped,
    Failed,
}

/// One cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The row's key.
    pub(crate) row: String,
    /// The row's engine with its version.
    pub(crate) engine: String,
    /// The check's name.
    pub(crate) check: String,
    /// What became of it.
    pub(crate) outcome: Outcome,
    /// Why, where it did not hold or was not asked.
    pub(crate) reason: String,
    /// How long it took.
    pub(crate) took_ms: u64,
}

impl From<&Cell> for Record {
    fn from(cell: &Cell) -> Self {
        let (outcome, reason) = match &cell.verdict {
            Verdict::Passed => (Outcome::Passed, String::new()),
            Verdict::Skipped(reason) => (Outcome::Skipped, reason.clone()),
            Verdict::Failed(reason) => (Outcome::Failed, reason.clone()),
        };
        Self {
            row: cell.row.key(),
            engine: cell.engine.clone(),
            check: cell.check.to_owned(),
            outcome,
            reason,
            took_ms: u64::try_from(cell.took.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Puts new cells in the place of the old ones; what is no row or check any more goes.
pub(super) fn merged(cells: &[Cell]) -> Result<Vec<Record>> {
    let path = target_folder().join("engines.json");
    let lock = File::create(path.with_extension("lock")).context("locking the results")?;
    lock.lock().context("locking the results")?;
    let old: Vec<Record> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is of another version: remove it", path.display()))?,
        Err(_absent) => Vec::new(),
    };
    let new: Vec<Record> = cells.iter().map(Record::from).collect();
    let mut merged = Vec::new();
    for row in ROWS {
        let key = row.key();
        let names = checks_of(row.family)
            .map(|check| check.name)
            .chain([LEAVES_NOTHING]);
        for name in names {
            let of = |record: &&Record| record.row == key && record.check == name;
            let found = new.iter().find(of).or_else(|| old.iter().find(of));
            merged.extend(found.cloned());
        }
    }
    fs::write(&path, serde_json::to_vec_pretty(&merged)?)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(merged)
}
