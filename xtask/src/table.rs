//! Plain tables on a terminal.

use std::process::ExitCode;
use std::time::Duration;

/// Columns as wide as their widest cell, under a line of headings.
pub(crate) fn print(headings: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = headings.iter().map(|text| text.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let show = |cells: &[String]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        println!("{}", padded.join("  ").trim_end());
    };
    show(
        &headings
            .iter()
            .map(|&text| text.to_owned())
            .collect::<Vec<_>>(),
    );
    show(
        &widths
            .iter()
            .map(|width| "-".repeat(*width))
            .collect::<Vec<_>>(),
    );
    for row in rows {
        show(row);
    }
}

/// A fact that was decided beforehand, and what was seen of it.
#[derive(Debug)]
pub(crate) struct Row {
    fact: String,
    expected: String,
    seen: String,
}

impl Row {
    pub(crate) fn new(
        fact: impl Into<String>,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Self {
        Self {
            fact: fact.into(),
            expected: expected.into(),
            seen: seen.into(),
        }
    }

    fn holds(&self) -> bool {
        self.expected == self.seen
    }

    fn cells(&self) -> Vec<String> {
        let verdict = if self.holds() { "ok" } else { "DIFFERS" };
        vec![
            self.fact.clone(),
            self.expected.clone(),
            self.seen.clone(),
            verdict.to_owned(),
        ]
    }
}

/// The end of a show: what was expected beside what was seen. It fails when a row differs.
pub(crate) fn print_expected(rows: &[Row], took: Duration) -> ExitCode {
    println!(
        "\n\nWhat was expected and what was seen ({} s)\n",
        took.as_secs()
    );
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    print(&["fact", "expected", "seen", ""], &cells);
    let different = rows.iter().filter(|row| !row.holds()).count();
    if different > 0 {
        println!("\n{different} of {} differ", rows.len());
        return ExitCode::FAILURE;
    }
    println!("\nall {} hold", rows.len());
    ExitCode::SUCCESS
}
