//! The cells as docs/engines.md.

use integration::matrix::{Cell, Family, LEAVES_NOTHING, Verdict, checks, checks_of};

const HEAD: &str = "\
# Engines

Written by `cargo xtask engines`, which starts every engine privately from distribution packages, asks the checks below of each,
and leaves nothing on the machine. Edit the checks, not this file.

`ok`: it held. `-`: the engine's client has no word for it, or this machine cannot do it; the notes say which. `FAILED`: it did not hold.
Doors: *shim by type* is `io.containerd.cgpu.v2`; *shim by configuration* is `runtime_path` of a CRI handler or `runtimeType` in docker's
`daemon.json`; *wrapper* is `cgpu-runtime` in the place of runc, below containerd's own shim;
*hook* is `cgpu-hook` at podman's `precreate`.
";

const FAMILIES: [Family; 5] = [
    Family::Containerd,
    Family::Docker,
    Family::Nerdctl,
    Family::Cri,
    Family::Podman,
];

/// The whole file.
pub(super) fn of(cells: &[Cell]) -> String {
    let mut text = HEAD.to_owned();
    for family in FAMILIES {
        let of_family: Vec<&Cell> = cells
            .iter()
            .filter(|cell| cell.row.family == family)
            .collect();
        text.push_str(&table(family, &of_family));
    }
    text.push_str("\n## What each check demands\n\n");
    for check in checks() {
        text.push_str(&format!("- **{}**: {}\n", check.name, check.demands));
    }
    text.push_str(&format!(
        "- **{LEAVES_NOTHING}**: no process, mount, control group, shim socket, runc state or grant of the row is left at its end\n"
    ));
    text
}

/// One family: a check a line, a row of the matrix a column.
fn table(family: Family, cells: &[&Cell]) -> String {
    let mut columns: Vec<(String, &str)> = Vec::new();
    for cell in cells {
        let column = (cell.engine.clone(), cell.row.door.name());
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let mut notes: Vec<String> = Vec::new();
    let mut text = format!("\n## {}\n\n| check |", family.name());
    for (engine, door) in &columns {
        text.push_str(&format!(" {engine}, {door} |"));
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns.len()));
    text.push('\n');
    let names = checks_of(family)
        .map(|check| check.name)
        .chain([LEAVES_NOTHING]);
    for name in names {
        let line: Vec<Option<&Cell>> = columns
            .iter()
            .map(|(engine, door)| {
                cells.iter().copied().find(|cell| {
                    cell.check == name && cell.engine == *engine && cell.row.door.name() == *door
                })
            })
            .collect();
        text.push_str(&format!("| {name} |"));
        for cell in line {
            let shown = match cell.map(|cell| &cell.verdict) {
                None => String::new(),
                Some(Verdict::Passed) => "ok".to_owned(),
                Some(Verdict::Skipped(reason)) => format!("- {}", note(&mut notes, reason)),
                Some(Verdict::Failed(reason)) => {
                    format!("**FAILED** {}", note(&mut notes, reason))
                }
            };
            text.push_str(&format!(" {shown} |"));
        }
        text.push('\n');
    }
    text.push('\n');
    for (number, reason) in notes.iter().enumerate() {
        text.push_str(&format!("{}. {reason}\n", number + 1));
    }
    text
}

/// The number of a note, one for each reason.
fn note(notes: &mut Vec<String>, reason: &str) -> String {
    let reason = reason.lines().next().unwrap_or_default().to_owned();
    let at = notes
        .iter()
        .position(|known| *known == reason)
        .unwrap_or_else(|| {
            notes.push(reason);
            notes.len() - 1
        });
    format!("({})", at + 1)
}
