//! docs/reports/hosts.md: the same checks on this machine's control groups and on the guest's.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::guest::Guest;

use super::Report;
use crate::engines::{Outcome, Record, rows};
use crate::machine;

/// Asks this machine what the guest was asked, and writes the table.
pub(super) fn write(guest: &Guest, reports: &[Report]) -> Result<()> {
    let mut text = format!(
        "# Kinds of hosts\n\nWritten by `cargo xtask guest --long`. The host is this: {}, control groups of version 1 (hybrid). The guest has the same files and \
         programs under Linux {}, and version 2 of control groups alone; qemu translates it (TCG), so that it takes ten to thirty times as long.\n",
        machine::describe(),
        guest.release(),
    );
    for report in reports.iter().filter(|report| !report.cells.is_empty()) {
        let Some(first) = report.cells.first() else {
            continue;
        };
        let here = rows(&first.row)?;
        write!(
            text,
            "\n## {} ({})\n\n| check | version 1, host | version 2, guest |\n|---|---|---|\n",
            first.row, first.engine
        )?;
        for cell in &report.cells {
            let host = here.iter().find(|other| other.check == cell.check);
            let host = host.map_or_else(|| "-".to_owned(), shown);
            writeln!(text, "| {} | {host} | {} |", cell.check, shown(cell))?;
        }
    }
    text.push_str(
        "\n## Tests in the guest\n\n| tests | passed | failed | seconds |\n|---|---|---|---|\n",
    );
    for report in reports.iter().filter(|report| report.cells.is_empty()) {
        let outcome = &report.outcome;
        let skipped = u64::try_from(outcome.skips.len())?;
        writeln!(
            text,
            "| {} | {} | {} | {:.0} |",
            outcome.name.trim_start_matches("guest: "),
            outcome.counts.passed.saturating_sub(skipped),
            outcome.counts.failed,
            outcome.took.as_secs_f64()
        )?;
        for skip in &outcome.skips {
            writeln!(text, "| {} | - | - | - |", skip.replace('|', "/"))?;
        }
    }
    let path = repository().join("docs/reports/hosts.md");
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn shown(cell: &Record) -> String {
    match cell.outcome {
        Outcome::Passed => "holds".to_owned(),
        Outcome::Failed => "**failed**".to_owned(),
        Outcome::Skipped => format!("not asked: {}", cell.reason.replace(['|', '\n'], " ")),
    }
}
