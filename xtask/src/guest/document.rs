//! docs/reports/hosts.md: the same steps on each kind of host, a column each.
//!
//! A run replaces the cells of what it ran, in its own columns; all others stay as they are in the page. So the page is read back:
//! [`Page`] has no more in it than the page itself.

use std::fs;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::guest::{Guest, Init};
use integration::matrix;

use super::plan::{Place, Report};
use super::starts::Spread;
use super::steps::{LONG, Step};
use crate::engines::{Outcome, Record};
use crate::machine;

mod page;

use page::Page;

const GUESTS: [Place; 2] = [Place::Guest(Init::Shell), Place::Guest(Init::Systemd)];
/// The section of all tests.
const TESTS: &str = "Tests";
/// The most that the ratio on version 2 may be, times that on version 1.
const MOST_RATIO: f64 = 1.1;
const RATIO: &str = "ratio, median";
const KEPT: &str = "ratio, to that of the guest of version 1: at most 1.1";
/// A reason in the page has no more characters.
const MOST_OF_A_REASON: usize = 600;

/// What no run here can show.
const LEFT_OUT: &str = include_str!("left_out.md");

/// Puts what was run into the page. What failed without cgpu too is not counted as failed any more.
pub(super) fn write(guest: &Guest, place: Place, reports: &mut [Report]) -> Result<()> {
    let path = repository().join("docs/reports/hosts.md");
    let mut page = Page::read(&fs::read_to_string(&path).unwrap_or_default());
    // What is compared with comes first.
    reports.sort_by_key(|report| !matches!(report.step, Step::Plain(..)));
    for report in reports.iter_mut() {
        put(&mut page, place, report);
    }
    judge_starts(&mut page, reports);
    let sections: Vec<String> = LONG.iter().map(|step| section_of(*step)).collect();
    let text = page.text(&head(guest), &sections, LEFT_OUT);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn head(guest: &Guest) -> String {
    format!(
        "# Kinds of hosts\n\nWritten by `cargo xtask guest --long`, a part at a time or all at once. The host is this: {}, control groups of version 1 (hybrid). \
         The guest has the same files and programs under Linux {}, and version 2 of control groups alone; qemu translates it (TCG), so that it takes ten to thirty \
         times as long. Pods have the `cgroupfs` driver, and the `systemd` driver where systemd is.\n\n\
         *As without cgpu*: the same check fails on the same host under the engine's own shim and runc, in the section *without cgpu*; what both gave is below the table.\n",
        machine::describe(),
        guest.release(),
    )
}

fn section_of(step: Step) -> String {
    match step {
        Step::Tests(..) | Step::Script(..) | Step::Reboots(..) => TESTS.to_owned(),
        Step::Row(..) | Step::Plain(..) | Step::Starts(_) => step.name(),
    }
}

fn put(page: &mut Page, place: Place, report: &mut Report) {
    let section = section_of(report.step);
    let cell = |row: &str| page::Cell {
        section: section.clone(),
        row: row.to_owned(),
        place,
    };
    match report.step {
        Step::Tests(name, _) | Step::Script(name, ..) | Step::Reboots(name, ..) => {
            put_tests(page, &cell(name), report);
        }
        Step::Starts(_) => put_starts(page, place, report),
        Step::Row(key, _) | Step::Plain(key, _) => {
            if let Some(first) = report.cells.first() {
                page.describe(&section, &first.engine);
            }
            for record in &report.cells {
                let at = cell(&record.check);
                page.put(&at, &shown(record), &remark(record));
                let plain = page::Cell {
                    section: Step::Plain(key, &[]).name(),
                    ..at.clone()
                };
                let fails_too = page.value(&plain) == Some(FAILED);
                if section != plain.section && record.outcome == Outcome::Failed && fails_too {
                    let both = format!(
                        "{}; without cgpu: {}",
                        remark(record),
                        page.remark(&plain).unwrap_or_default()
                    );
                    page.put(&at, "as without cgpu", &both);
                    report.outcome.counts.failed = report.outcome.counts.failed.saturating_sub(1);
                }
            }
            let names = matrix::checks().map(|check| check.name);
            let names: Vec<&str> = names.chain([matrix::LEAVES_NOTHING]).collect();
            page.order(&section, &names);
            // What the engine itself does is no failure of ours.
            if matches!(report.step, Step::Plain(..)) && !report.cells.is_empty() {
                report.outcome.counts.failed = 0;
            }
            if report.cells.is_empty() {
                page.put(&cell("run"), FAILED, &first_lines(&report.outcome.shown));
            }
        }
    }
}

const FAILED: &str = "**failed**";

fn shown(record: &Record) -> String {
    match record.outcome {
        Outcome::Passed => "holds".to_owned(),
        Outcome::Failed => FAILED.to_owned(),
        Outcome::Skipped => format!("left out: {}", first_lines(&record.reason)),
    }
}

fn remark(record: &Record) -> String {
    match record.outcome {
        Outcome::Failed => first_lines(&record.reason),
        Outcome::Passed | Outcome::Skipped => String::new(),
    }
}

/// As one line that ends somewhere.
fn first_lines(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ").replace('|', "/");
    match line.char_indices().nth(MOST_OF_A_REASON) {
        Some((end, _)) => format!("{} …", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

fn put_tests(page: &mut Page, cell: &page::Cell, report: &Report) {
    let outcome = &report.outcome;
    let skipped = outcome.skips.len() as u64;
    let passed = outcome.counts.passed.saturating_sub(skipped);
    let seconds = outcome.took.as_secs();
    let failed = match outcome.counts.failed {
        0 => String::new(),
        failed => format!(", **{failed} failed**"),
    };
    let skips = match skipped {
        0 => String::new(),
        skipped => format!(", {skipped} left out"),
    };
    let mut remarks: Vec<String> = outcome
        .skips
        .iter()
        .map(|skip| first_lines(skip.trim_start_matches("SKIP: ")))
        .collect();
    if outcome.counts.failed > 0 {
        remarks.push(first_lines(&outcome.shown));
    }
    let text = format!("{passed} passed{failed}{skips}, {seconds} s");
    page.put(cell, &text, &remarks.join("; "));
}

fn put_starts(page: &mut Page, place: Place, report: &Report) {
    let section = section_of(report.step);
    let cell = |row: &str| page::Cell {
        section: section.clone(),
        row: row.to_owned(),
        place,
    };
    let Some(starts) = &report.starts else {
        page.put(&cell(RATIO), FAILED, &first_lines(&report.outcome.shown));
        return;
    };
    page.describe(
        &section,
        "`ctr run -d` of containerd 1.6 with runc 1.1, in pairs: with a vGPU under cgpu's shim, and without cgpu under containerd's own. Programs \
         are built as shipped. With fewer than 100 pairs p99 is the largest value.",
    );
    let milliseconds = |spread: Spread| format!("{:.0}, {:.0}", spread.median, spread.p99);
    let ratio = starts.ratio();
    for (row, text) in [
        ("pairs", starts.count().to_string()),
        ("with a vGPU, ms: median, p99", milliseconds(starts.vgpu())),
        (
            "without cgpu, ms: median, p99",
            milliseconds(starts.plain()),
        ),
        (RATIO, format!("{:.2}", ratio.median)),
        ("ratio, p99", format!("{:.2}", ratio.p99)),
    ] {
        page.put(&cell(row), &text, "");
    }
}

/// What a vGPU costs on version 2 is compared with what it costs on version 1 under the same kernel, translated too.
fn judge_starts(page: &mut Page, reports: &mut [Report]) {
    let Some(report) = reports
        .iter_mut()
        .find(|report| matches!(report.step, Step::Starts(_)))
    else {
        return;
    };
    let at = |row: &str, place| page::Cell {
        section: section_of(report.step),
        row: row.to_owned(),
        place,
    };
    let number = |page: &Page, row: &str, place| -> Option<f64> {
        page.value(&at(row, place))?.parse().ok()
    };
    for place in GUESTS {
        let Some(here) = number(page, RATIO, place) else {
            continue;
        };
        let Some(before) = number(page, RATIO, Place::Guest(Init::ShellOfVersion1)) else {
            continue;
        };
        let more = here / before;
        let judged = if more <= MOST_RATIO {
            "holds"
        } else {
            report.outcome.counts.failed += 1;
            FAILED
        };
        page.put(&at(KEPT, place), &format!("{judged}, {more:.2}"), "");
    }
}
