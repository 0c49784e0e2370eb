//! `docs/internals/threat-model.md` names every attack, and every test that it names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use integration::cache::repository;

/// Where tests are.
const FOLDERS: [&str; 16] = [
    "agent",
    "build-info",
    "cli",
    "cluster",
    "dra",
    "fit",
    "hook",
    "integration",
    "isolation",
    "kubectl",
    "lab",
    "packaging",
    "shim",
    "top",
    "tree",
    "view",
];

/// Cells of the table of attacks.
fn rows() -> Result<Vec<Vec<String>>> {
    let page = fs::read_to_string(repository().join("docs/internals/threat-model.md"))
        .context("read docs/internals/threat-model.md")?;
    let rows: Vec<Vec<String>> = page
        .lines()
        .skip_while(|line| !line.starts_with("| attack |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split(" | ")
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect();
    anyhow::ensure!(rows.len() > 30, "only {} rows", rows.len());
    Ok(rows)
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Names of functions in the sources of tests: whole files below `tests`, and `#[cfg(test)]` modules elsewhere.
fn functions(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        if path.is_dir() {
            if !["target", ".git", ".cache"].contains(&name.unwrap_or_default().as_str()) {
                functions(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            for line in text.lines() {
                let line = line.trim_start();
                let line = line.strip_prefix("pub(super) ").unwrap_or(line);
                let line = line.strip_prefix("async ").unwrap_or(line);
                if let Some(rest) = line.strip_prefix("fn ") {
                    let end = rest.find(['(', '<']).unwrap_or(rest.len());
                    found.extend(rest.get(..end).map(str::to_owned));
                }
                // A row of the attacks' table makes a test.
                if let Some((name, _check)) = line.split_once(" => ") {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_named_test_exists() -> Result<()> {
    let mut found = BTreeSet::new();
    for part in FOLDERS {
        functions(&repository().join(part), &mut found)?;
    }
    for row in rows()? {
        let tests = row.last().context("a cell")?;
        let mut any = false;
        for test in quoted(tests) {
            any = true;
            let name = test.rsplit("::").next().unwrap_or(test);
            assert!(
                found.contains(name),
                "{test} of the row {:?} does not exist",
                row.first()
            );
        }
        assert!(any, "the row {:?} names no test", row.first());
    }
    Ok(())
}

#[test]
fn every_test_that_a_table_names_exists() -> Result<()> {
    let mut found = BTreeSet::new();
    for part in FOLDERS {
        functions(&repository().join(part), &mut found)?;
    }
    for (page, at_least) in [
        ("docs/guide/limits.md", 20),
        ("docs/internals/driver-behaviour.md", 15),
    ] {
        let page = fs::read_to_string(repository().join(page))?;
        let cells = page
            .lines()
            .filter(|line| line.starts_with('|'))
            .filter_map(|line| line.trim_matches('|').rsplit(" | ").next());
        let named: Vec<&str> = cells.flat_map(quoted).collect();
        assert!(named.len() > at_least, "{named:?}");
        for test in named {
            let name = test.rsplit("::").next().unwrap_or(test);
            assert!(found.contains(name), "{test} does not exist");
        }
    }
    Ok(())
}

#[test]
fn every_named_file_exists() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/internals/threat-model.md"))?;
    let files: Vec<&str> = quoted(&page).filter(|name| name.ends_with(".rs")).collect();
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let is_there = [repository(), repository().join("isolation")]
            .iter()
            .any(|folder| folder.join(file).is_file());
        assert!(is_there, "{file} does not exist");
    }
    Ok(())
}

#[test]
fn every_attack_has_a_row() -> Result<()> {
    let named: BTreeSet<String> = rows()?
        .iter()
        .flat_map(|row| row.iter().flat_map(|cell| quoted(cell)))
        .map(str::to_owned)
        .collect();
    for attack in security::ATTACKS
        .iter()
        .filter(|attack| attack.name != "honest")
    {
        let test = match attack.name {
            "fd_to_other_container" | "fd_from_other_container" => "fd_across_containers",
            other => other,
        };
        assert!(named.contains(test), "no row names {test}");
    }
    Ok(())
}
