//! `cargo xtask bench compute`: shares of a card's time against their targets, in virtual time.
//!
//! The numbers are the same on every machine: no clock is read, and every source of chance has a seed.

use std::fs;

use anyhow::{Context, Result};
use experiments::report::{Effort, Findings, HEADINGS, cells};
use experiments::{Experiment, plot};
use integration::cache::repository;
use integration::command::progress;
use integration::programs::target_folder;
use serde::Serialize;

use crate::table;

/// The form of `target/bench-compute.json`.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    /// `full` or `short`.
    effort: &'static str,
    missed: usize,
    experiments: &'a [Findings],
}

/// Runs every experiment; true where every target holds.
pub(super) fn run(effort: Effort) -> Result<bool> {
    let findings = experiments::run(Experiment::all(), effort, |done| {
        progress(&format!(
            "{}: {} rows, {:.0} s of virtual time, {} seeds",
            done.name,
            done.rows.len(),
            done.virtual_s,
            done.seeds
        ));
    })?;

    // A quick look must not replace what is published.
    if effort == Effort::Full {
        let folder = repository().join("docs/reports/plots");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for plot in findings.iter().flat_map(|one| &one.plots) {
            plot::write(plot, &folder)?;
        }
    }

    let rows: Vec<Vec<String>> = findings
        .iter()
        .flat_map(|one| one.rows.iter().map(|row| cells(one.name, row)))
        .collect();
    println!();
    table::print(&HEADINGS, &rows);

    let missed = findings.iter().flat_map(Findings::missed).count();
    let file = target_folder().join("bench-compute.json");
    let report = Report {
        version: 1,
        effort: effort.pick("short", "full"),
        missed,
        experiments: &findings,
    };
    fs::write(&file, serde_json::to_vec_pretty(&report)?)
        .with_context(|| format!("writing {}", file.display()))?;
    println!("\n{missed} targets missed; {}", file.display());
    Ok(missed == 0)
}
