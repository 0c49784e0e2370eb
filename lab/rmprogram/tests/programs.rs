//! docs/internals/programs.md says of every table how long it is, what of it is refused, and where it is from.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeSet;
use std::path::Path;

use nvabi::{Release, class, control, escape, uvm};
use rmprogram::program::{Action, Expected, Program, Step};

fn programs() -> Vec<Program> {
    let named = |name| Program::named(name).unwrap().unwrap();
    Program::names().map(named).collect()
}

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/programs.md");
    std::fs::read_to_string(page).unwrap()
}

/// What is in the sources' column, each source without its section.
fn sources(program: &Program) -> String {
    let columns = program.steps().iter().map(|step| step.source.as_str());
    let sources: BTreeSet<&str> = columns
        .flat_map(|column| column.split(", "))
        .map(|source| source.split(' ').next().unwrap_or(source))
        .filter(|source| *source != "-")
        .collect();
    sources.into_iter().collect::<Vec<_>>().join(", ")
}

#[test]
fn the_page_has_a_row_for_each_table() {
    let mut rows = Vec::new();
    for program in programs() {
        let (mut refused, mut native) = (0, 0);
        for step in program.steps() {
            match step.expected {
                Expected::Done => {}
                Expected::Native { .. } => native += 1,
                Expected::Refused { .. } => refused += 1,
            }
        }
        let steps = program.steps().len();
        let (name, sources) = (program.name(), sources(&program));
        rows.push(format!(
            "| {name} | {steps} | {refused} | {native} | {sources} |"
        ));
    }
    let page = page();
    let found: Vec<&str> = lines_of(&page, "| program | steps | refused |");
    assert_eq!(found, rows, "\n{}", rows.join("\n"));
}

#[test]
fn the_page_has_a_row_for_each_refusal() {
    let mut rows = Vec::new();
    for program in programs() {
        for step in program.steps() {
            if let Expected::Refused { status, why } = &step.expected {
                let status = status.name().unwrap();
                let what = step.what.split(':').next().unwrap();
                let (native, consequence) = why.split_once("; ").unwrap();
                let name = program.name();
                rows.push(format!(
                    "| {name} | {what} | {status} | {native} | {consequence} |"
                ));
            }
        }
    }
    let page = page();
    let found: Vec<&str> = lines_of(&page, "| program | call | answer |");
    assert_eq!(found, rows, "\n{}", rows.join("\n"));
}

/// A call is from a source that the data's README names.
#[test]
fn every_call_is_from_a_source() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    for program in programs() {
        for step in program
            .steps()
            .iter()
            .filter(|step| step.action != Action::Buffer)
        {
            for source in step.source.split(", ") {
                let named = source.split(' ').next().unwrap();
                let is_there = readme.contains(&format!("{named}, "))
                    || readme.contains(&format!("{named}; "));
                assert!(is_there, "{}.tsv:{}: {source:?}", program.name(), step.line);
            }
        }
    }
}

/// The tables are of drivers from 550 on; what a later one has no more, or a class that only some cards have, is named here.
#[test]
fn every_call_is_in_every_release_from_550_on() {
    let mut absent = BTreeSet::new();
    for program in programs() {
        for Step { action, what, .. } in program.steps() {
            for release in Release::ALL.into_iter().filter(|it| *it >= Release::R550) {
                let is_there = match action {
                    Action::Escape => {
                        let mut rows = escape::ALL.iter().filter(|row| row.name == what);
                        // An array of any length has no row.
                        what == "NV_ESC_CARD_INFO" || rows.any(|row| row.key(release).is_some())
                    }
                    Action::Uvm => {
                        let mut rows = uvm::ALL.iter().filter(|row| row.name == what);
                        rows.any(|row| row.size.of(release) != 0)
                    }
                    Action::Alloc(_) => {
                        let row = class::ALL.iter().find(|row| row.name == what);
                        row.is_none_or(|row| row.since <= release)
                    }
                    Action::Control => {
                        let spec = control::ALL.iter().find(|spec| spec.name == what);
                        spec.is_none_or(|spec| control::known(spec.cmd, release).is_some())
                    }
                    Action::Open | Action::Close | Action::Buffer | Action::Dup | Action::Free => {
                        true
                    }
                };
                if !is_there {
                    absent.insert(format!("{release:?} {what}"));
                }
            }
        }
    }
    assert_eq!(absent, BTreeSet::new());
}

/// The rows of the table with this heading.
fn lines_of<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = page.lines().skip_while(|line| !line.starts_with(heading));
    lines
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect()
}
