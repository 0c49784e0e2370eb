//! What the programs are made of, as the packages say it: nothing that a program has is absent, nothing that only tests have is there, and
//! all of it is under a licence that the project takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::command::{capture, succeed};
use integration::skip;
use regex::Regex;
use serde_json::Value;
use spdx::{Expression, Licensee};

use crate::common::{MAKERS, build, lacking, package, packages};

/// Packages, with their programs and those for containers.
const PACKAGES: [(&str, &[&str]); 4] = [
    (
        "cgpu",
        &[
            "cgpu",
            "cgpu-broker",
            "cgpu-executor",
            "cgpu-hook",
            "cgpu-limits",
            "cgpu-runtime",
            "cgpu-top",
            "containerd-shim-cgpu-v2",
            "static/cgpu",
        ],
    ),
    ("cgpu-agent", &["cgpu-agent", "cgpu-tree"]),
    ("kubectl-cgpu", &["kubectl-cgpu"]),
    ("cgpu-sim", &["cgpu-sim", "cgpu-burn"]),
];

/// Crates that Rust's own library has in it, and that are in no lock file then.
const OF_RUST: [&str; 9] = [
    "addr2line",
    "adler2",
    "cfg_if",
    "gimli",
    "hashbrown",
    "memchr",
    "miniz_oxide",
    "object",
    "rustc_demangle",
];

/// A file of a package's folder of documents.
fn document(name: &str, file: &str) -> Result<String> {
    let unpacked = tempfile::tempdir()?;
    let deb = package(packages()?, name, ".deb")?;
    let mut unpack = Command::new("dpkg-deb");
    succeed(unpack.arg("-x").arg(deb).arg(unpacked.path()))?;
    let path = unpacked.path().join("usr/share/doc").join(name).join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn sbom(name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&document(
        name,
        &format!("{name}.cdx.json"),
    )?)?)
}

fn list<'a>(document: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    document[key].as_array().with_context(|| key.to_owned())
}

/// The components of a scope, by the names that they have in code.
fn components(document: &Value, scope: &str) -> Result<BTreeMap<String, Value>> {
    let of_scope = list(document, "components")?
        .iter()
        .filter(|component| component["scope"] == scope);
    of_scope
        .map(|component| {
            let name = component["name"].as_str().context("a name")?;
            Ok((name.replace('-', "_"), component.clone()))
        })
        .collect()
}

#[test]
fn every_crate_of_a_programs_symbols_is_in_its_sbom() -> Result<()> {
    const TEST: &str = "every_crate_of_a_programs_symbols_is_in_its_sbom";
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["nm"]].concat()) {
        skip!(TEST, "{reason}");
    }
    let lock: toml::Table = toml::from_str(&fs::read_to_string(repository().join("Cargo.lock"))?)?;
    let rows = lock["package"].as_array().context("packages")?;
    let foreign = rows.iter().filter(|row| row.get("checksum").is_some());
    let locked: BTreeSet<String> = foreign
        .filter_map(|row| Some(row.get("name")?.as_str()?.replace('-', "_")))
        .filter(|name| !OF_RUST.contains(&name.as_str()))
        .collect();
    // The first word of a path is a crate.
    let first = Regex::new(r"(?:^|[^:A-Za-z0-9_])([a-z_][a-z0-9_]*)::")?;
    for (name, programs) in PACKAGES {
        let listed = components(&sbom(name)?, "required")?;
        for program in programs {
            let mut nm = Command::new("nm");
            nm.args(["--demangle", "--format=just-symbols"]);
            nm.arg(build(1)?.programs.join(program));
            let symbols = capture(&mut nm, Duration::from_secs(300))?
                .success()?
                .stdout;
            let linked: BTreeSet<&str> = first
                .captures_iter(&symbols)
                .filter_map(|found| Some(found.get(1)?.as_str()))
                .filter(|name| locked.contains(*name))
                .collect();
            ensure!(
                linked.contains("serde") || linked.len() > 2,
                "{program}: {linked:?}"
            );
            let absent: Vec<_> = linked
                .iter()
                .filter(|name| !listed.contains_key(**name))
                .collect();
            ensure!(
                absent.is_empty(),
                "{program} has {absent:?}, {name}'s SBOM has not"
            );
        }
    }
    Ok(())
}

#[test]
fn what_only_tests_and_other_programs_have_is_in_no_sbom() -> Result<()> {
    const TEST: &str = "what_only_tests_and_other_programs_have_is_in_no_sbom";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    for (name, _) in PACKAGES {
        let document = sbom(name)?;
        let required = components(&document, "required")?;
        let building = components(&document, "excluded")?;
        for crate_name in ["proptest", "shuttle", "spdx", "plotters", "cgpu_packaging"] {
            let is_there = required.contains_key(crate_name) || building.contains_key(crate_name);
            ensure!(!is_there, "{name}: {crate_name}");
        }
        ensure!(
            required.contains_key("ratatui") == (name == "cgpu"),
            "{name}: ratatui"
        );
        ensure!(
            required.contains_key("hyper") == ["cgpu-agent", "kubectl-cgpu"].contains(&name),
            "{name}: hyper"
        );
        // Macros run in the compiler.
        ensure!(
            building.contains_key("serde_derive"),
            "{name}: serde_derive"
        );
        ensure!(
            !required.contains_key("serde_derive"),
            "{name}: serde_derive"
        );
        ensure!(required.contains_key("rust_std"), "{name}: no rust-std");
        ensure!(
            required.contains_key("glibc") == (name == "cgpu"),
            "{name}: glibc"
        );
    }
    Ok(())
}

#[test]
fn an_sbom_has_the_fields_that_cyclonedx_requires() -> Result<()> {
    const TEST: &str = "an_sbom_has_the_fields_that_cyclonedx_requires";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    for (name, _) in PACKAGES {
        let document = sbom(name)?;
        ensure!(document["bomFormat"] == "CycloneDX", "{name}");
        ensure!(
            document["specVersion"] == "1.5" && document["version"] == 1,
            "{name}"
        );
        ensure!(
            document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z",
            "{name}"
        );
        let mut references =
            BTreeSet::from([&document["metadata"]["component"]["bom-ref"]].map(Value::to_string));
        for component in list(&document, "components")? {
            ensure!(component["type"] == "library", "{component}");
            let has = |key: &str| component[key].as_str().is_some_and(|text| !text.is_empty());
            ensure!(
                has("name") && has("version") && has("bom-ref"),
                "{component}"
            );
            let is_new = references.insert(component["bom-ref"].to_string());
            ensure!(is_new, "twice: {component}");
            let licences = list(component, "licenses")?;
            ensure!(licences.len() == 1, "{component}");
            for hash in component["hashes"].as_array().into_iter().flatten() {
                let digits = hash["content"].as_str().unwrap_or_default();
                let is_hexadecimal = digits.chars().all(|digit| digit.is_ascii_hexdigit());
                ensure!(hash["alg"] == "SHA-256", "{component}");
                ensure!(digits.len() == 64 && is_hexadecimal, "{component}");
            }
        }
        for row in list(&document, "dependencies")? {
            ensure!(references.contains(&row["ref"].to_string()), "{row}");
            for other in list(row, "dependsOn")? {
                ensure!(references.contains(&other.to_string()), "{row}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_crate_is_under_a_licence_that_the_project_takes() -> Result<()> {
    const TEST: &str = "every_crate_is_under_a_licence_that_the_project_takes";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    let rules: toml::Table = toml::from_str(&fs::read_to_string(repository().join("deny.toml"))?)?;
    let allowed = rules["licenses"]["allow"].as_array().context("allow")?;
    let allowed = allowed
        .iter()
        .map(|name| Ok(Licensee::parse(name.as_str().context("a name")?)?))
        .collect::<Result<Vec<_>>>()?;
    let takes = |expression: &str| -> Result<bool> {
        let parsed = Expression::parse(expression).with_context(|| expression.to_owned())?;
        Ok(parsed.evaluate(|one| allowed.iter().any(|licence| licence.satisfies(one))))
    };
    ensure!(
        takes("MIT OR GPL-3.0-only")? && !takes("MIT AND GPL-3.0-only")?,
        "{rules}"
    );
    for (name, _) in PACKAGES {
        for component in list(&sbom(name)?, "components")? {
            let expression = component["licenses"][0]["expression"].as_str();
            let expression = expression.with_context(|| component.to_string())?;
            // The C library's parts of a static program are no crates: `docs/decisions/0010-packages.md`.
            let is_of_c = ["glibc", "libgcc"]
                .iter()
                .any(|name| component["name"] == *name);
            ensure!(is_of_c || takes(expression)?, "{component}");
        }
    }
    Ok(())
}

#[test]
fn every_foreign_crate_is_in_the_list_of_third_parties() -> Result<()> {
    const TEST: &str = "every_foreign_crate_is_in_the_list_of_third_parties";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    for (name, _) in PACKAGES {
        let (page, document) = (document(name, "THIRD-PARTY.md")?, sbom(name)?);
        for component in list(&document, "components")? {
            if component["purl"].is_null() {
                continue;
            }
            let text = |key: &str| component[key].as_str().unwrap_or_default().to_owned();
            let title = format!("{} {}", text("name"), text("version"));
            let expression = component["licenses"][0]["expression"].as_str();
            let expression = expression.with_context(|| title.clone())?;
            let line = match component["scope"].as_str() {
                Some("required") => format!("| {title} | {expression} | "),
                _ => format!("- {title}: {expression}\n"),
            };
            ensure!(page.contains(&line), "{name}: {line:?} is absent");
        }
        // Each number in the table is a text.
        let texts = page.matches("\n## Text ").count();
        let rows = page
            .lines()
            .filter(|line| line.starts_with("| ") && !line.contains("| texts |"));
        for row in rows {
            let cell = row.split('|').nth(3).unwrap_or_default().trim();
            let numbers = cell.split(", ").map(str::parse::<usize>);
            let is_known = numbers
                .into_iter()
                .all(|number| number.is_ok_and(|number| (1..=texts).contains(&number)));
            ensure!(is_known || cell == "none came with it", "{name}: {row}");
        }
        ensure!(texts > 5, "{name}: {texts} texts");
        ensure!(
            page.contains("Permission is hereby granted, free of charge"),
            "{name}"
        );
    }
    // Its author publishes it without one.
    let page = document("cgpu", "THIRD-PARTY.md")?;
    let row = page
        .lines()
        .find(|line| line.starts_with("| containerd-shim-protos "));
    let row = row.context("containerd-shim-protos")?;
    ensure!(row.contains("| Apache-2.0 | none came with it |"), "{row}");
    Ok(())
}
