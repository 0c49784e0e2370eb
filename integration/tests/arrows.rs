//! Imports between our crates: only the edges of the table in docs/internals/architecture.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::command::succeed;
use serde_json::Value;

/// What a crate must not import whatever its place: (crate, foreign crate, reason).
const FOREIGN: [(&str, &str, &str); 4] = [
    (
        "hook",
        "tokio",
        "the wrapper is one small synchronous program",
    ),
    (
        "hook",
        "nvml-wrapper",
        "the wrapper runs as root beside any image",
    ),
    (
        "shim",
        "nvml-wrapper",
        "a shim lives as long as its container",
    ),
    ("nvabi", "nix", "the ABI's numbers are pure"),
];

/// Each crate and what it may import, read from the table itself so that the page cannot drift from the rule.
fn allowed() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let page = fs::read_to_string(repository().join("docs/internals/architecture.md"))?;
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| crate | does | may import |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let (Some(name), Some(may)) = (cells.first(), cells.last()) else {
            continue;
        };
        let imports = if *may == "all of the above" {
            table.keys().cloned().collect()
        } else {
            quoted(may)
        };
        for name in quoted(name) {
            table.insert(name, imports.clone());
        }
    }
    Ok(table)
}

/// A crate's name in code and in the table: its package's without the prefix.
fn crate_name(package: &Value) -> Result<&str> {
    let package = package.as_str().context("a name")?;
    Ok(package.strip_prefix("cgpu-").unwrap_or(package))
}

fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn packages() -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let said = succeed(
        Command::new(cargo)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(repository()),
    )?;
    let packages = said.json()?["packages"].as_array().cloned();
    packages.context("cargo metadata lists packages")
}

#[test]
fn every_edge_stands_in_the_table() -> Result<()> {
    let allowed = allowed()?;
    let mut wrong = Vec::new();
    for package in packages()? {
        let name = crate_name(&package["name"])?;
        let Some(may) = allowed.get(name) else {
            wrong.push(format!(
                "{name} has no row in docs/internals/architecture.md"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = crate_name(&dependency["name"])?;
            let ours = dependency["path"].is_string();
            // Tests may drive any crate but the programs at the top.
            let for_tests = dependency["kind"] == "dev";
            let fine = if for_tests {
                !["shim", "hook", "cli", "xtask"].contains(&other)
            } else {
                may.contains(other)
            };
            if ours && !fine {
                wrong.push(format!("{name} imports {other}"));
            }
            for (from, foreign, reason) in FOREIGN {
                if !for_tests && (from, foreign) == (name, other) {
                    wrong.push(format!("{name} imports {other}: {reason}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The top folder of a package.
fn folder(package: &Value) -> Result<String> {
    let manifest = package["manifest_path"].as_str().context("a path")?;
    let inside = Path::new(manifest).strip_prefix(repository().canonicalize()?)?;
    let first = inside.iter().next().context("a folder")?;
    Ok(first.to_string_lossy().into_owned())
}

#[test]
fn the_product_imports_nothing_of_the_lab() -> Result<()> {
    let packages = packages()?;
    let mut folders = BTreeMap::new();
    for package in &packages {
        let name = crate_name(&package["name"])?;
        folders.insert(name, folder(package)?);
    }
    let is_product =
        |name: &str| ["isolation", "shim", "hook", "cli"].contains(&folders[name].as_str());
    assert!(is_product("broker") && !is_product("sim") && !is_product("integration"));
    let mut wrong = Vec::new();
    for package in &packages {
        let name = crate_name(&package["name"])?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = crate_name(&dependency["name"])?;
            let ours = dependency["path"].is_string();
            let for_tests = dependency["kind"] == "dev";
            if ours && !for_tests && is_product(name) && !is_product(other) {
                wrong.push(format!("{name} imports {other} of {}/", folders[other]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn packages_have_the_prefix_and_libraries_and_folders_have_not() -> Result<()> {
    for package in packages()? {
        let name = package["name"].as_str().context("a name")?;
        if name == "xtask" {
            continue;
        }
        let short = name.strip_prefix("cgpu-");
        let short = short.with_context(|| format!("{name} has not the prefix cgpu-"))?;
        let manifest = Path::new(package["manifest_path"].as_str().context("a path")?);
        let folder = manifest.parent().and_then(Path::file_name);
        assert_eq!(folder.context("a folder")?, short);
        for target in package["targets"].as_array().into_iter().flatten() {
            if target["kind"][0] == "lib" {
                assert_eq!(target["name"], short);
            }
        }
    }
    Ok(())
}

#[test]
fn the_table_names_every_crate_and_has_no_circle() -> Result<()> {
    let allowed = allowed()?;
    let names: BTreeSet<String> = packages()?
        .iter()
        .map(|package| crate_name(&package["name"]).map(str::to_owned))
        .collect::<Result<_>>()?;
    let rows: BTreeSet<String> = allowed.keys().cloned().collect();
    assert_eq!(
        rows, names,
        "rows of the table against members of the workspace"
    );
    // Take away what imports nothing that is left, until nothing is: a circle would stay.
    let mut left = allowed;
    while !left.is_empty() {
        let free: Vec<String> = left
            .iter()
            .filter(|(_, may)| may.iter().all(|other| !left.contains_key(other)))
            .map(|(name, _)| name.clone())
            .collect();
        assert!(!free.is_empty(), "a circle among {:?}", left.keys());
        for name in free {
            left.remove(&name);
        }
    }
    Ok(())
}

#[test]
fn unsafe_code_stands_in_sys_alone() -> Result<()> {
    let mut wrong = Vec::new();
    for package in packages()? {
        let name = crate_name(&package["name"])?;
        for target in package["targets"].as_array().into_iter().flatten() {
            let kind = target["kind"][0].as_str().context("a kind")?;
            let path = target["src_path"].as_str().context("a path")?;
            // The attackers of `security` call the kernel as no wrapper lets them; nothing of ours imports them.
            let may = ["sys", "security"].contains(&name) && kind == "lib";
            if may || !["lib", "bin"].contains(&kind) {
                continue;
            }
            if !fs::read_to_string(path)?.contains("#![forbid(unsafe_code)]") {
                wrong.push(format!("{path} does not forbid unsafe code"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
