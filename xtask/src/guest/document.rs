//! docs/reports/hosts.md: the same checks on this machine's control groups and on the guest's.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::guest::{Guest, Init};

use super::Report;
use crate::engines::{Outcome, Record, rows};
use crate::machine;

/// Asks this machine what the guest was asked, and writes the table.
pub(super) fn write(guest: &Guest, columns: &[(Init, Vec<Report>)]) -> Result<()> {
    let mut text = format!(
        "# Kinds of hosts\n\nWritten by `cargo xtask guest --long`. The host is this: {}, control groups of version 1 (hybrid). The guest has the same files and \
         programs under Linux {}, and version 2 of control groups alone; qemu translates it (TCG), so that it takes ten to thirty times as long.\n",
        machine::describe(),
        guest.release(),
    );
    let Some((_, first)) = columns.first() else {
        return Ok(());
    };
    let heads: String = columns
        .iter()
        .map(|(init, _)| format!(" {}, guest |", init.name()))
        .collect();
    let line = "---|".repeat(columns.len());
    for (number, report) in first.iter().enumerate() {
        let Some(cell) = report.cells.first() else {
            continue;
        };
        let here = rows(&cell.row)?;
        let of = |cells: &[Record], check: &str| {
            let cell = cells.iter().find(|other| other.check == check);
            cell.map_or_else(|| "-".to_owned(), shown)
        };
        write!(
            text,
            "\n## {} ({})\n\n| check | version 1, host |{heads}\n|---|---|{line}\n",
            cell.row, cell.engine
        )?;
        for cell in &report.cells {
            let guests = columns
                .iter()
                .filter_map(|(_, reports)| reports.get(number));
            let guests: String = guests
                .map(|report| format!(" {} |", of(&report.cells, &cell.check)))
                .collect();
            writeln!(
                text,
                "| {} | {} |{guests}",
                cell.check,
                of(&here, &cell.check)
            )?;
        }
    }
    write!(
        text,
        "\n## Tests in the guest: passed, failed, seconds\n\n| tests |{heads}\n|---|{line}\n"
    )?;
    for (number, report) in first
        .iter()
        .enumerate()
        .filter(|(_, report)| report.cells.is_empty())
    {
        let guests = columns
            .iter()
            .filter_map(|(_, reports)| reports.get(number));
        let guests: String = guests
            .map(|report| {
                let (counts, skipped) = (report.outcome.counts, report.outcome.skips.len() as u64);
                let seconds = report.outcome.took.as_secs();
                format!(
                    " {}, {}, {seconds} |",
                    counts.passed.saturating_sub(skipped),
                    counts.failed
                )
            })
            .collect();
        let name = report.outcome.name.trim_start_matches("guest: ");
        writeln!(text, "| {name} |{guests}")?;
        for skip in &report.outcome.skips {
            writeln!(
                text,
                "| {} |{}",
                skip.replace('|', "/"),
                " - |".repeat(columns.len())
            )?;
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
