//! Imports between our crates: only the edges of the table in docs/internals/architecture.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::command::succeed;
use regex::Regex;
use serde_json::Value;

/// Folders of crates that are product.
const PRODUCT: [&str; 13] = [
    "agent",
    "build-info",
    "cluster",
    "dra",
    "fit",
    "isolation",
    "kubectl",
    "shim",
    "hook",
    "cli",
    "top",
    "tree",
    "view",
];

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

/// Foreign crates that are known to these crates of ours alone, and the reason.
const ALONE: [(&[&str], &[&str], &str); 2] = [
    // The plugin asks a cluster's API from a machine that is no node, and has nothing of a node's programs in it.
    (
        &["cluster", "fit", "kubectl"],
        &["k8s-openapi", "kube"],
        "no container depends on a cluster's API",
    ),
    (
        &["cluster"],
        &[
            "axum",
            "prost",
            "protox",
            "tonic",
            "tonic-prost",
            "tonic-prost-build",
        ],
        "the kubelet calls the node's driver alone",
    ),
];

/// Who may have a crate of ours with [`ALONE`]'s crates below it: nothing that a container's life depends on. `packaging` reads the plugin's
/// command line, without these crates.
const CLUSTERED: [(&str, &[&str]); 3] = [
    ("cluster", &["agent"]),
    ("fit", &["cluster", "kubectl"]),
    ("kubectl", &["packaging"]),
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
    let reply = succeed(
        Command::new(cargo)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(repository()),
    )?;
    let packages = reply.json()?["packages"].as_array().cloned();
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
                !["agent", "shim", "hook", "cli", "xtask"].contains(&other)
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
            for (only, foreign, reason) in ALONE {
                if !for_tests && !only.contains(&name) && foreign.contains(&other) {
                    wrong.push(format!("{name} imports {other}: {reason}"));
                }
            }
            for (only, may) in CLUSTERED {
                if ours && !for_tests && other == only && !may.contains(&name) {
                    wrong.push(format!("{name} imports {other}, which has a cluster's API"));
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
    let is_product = |name: &str| PRODUCT.contains(&folders[name].as_str());
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

/// cargo links each of them with all of its libraries, to find that it has none; `--all-targets` takes it for a bench as well.
#[test]
fn a_program_without_tests_is_not_built_as_one() -> Result<()> {
    let mut programs = 0;
    for package in packages()? {
        let path = package["manifest_path"].as_str().context("a path")?;
        let manifest = fs::read_to_string(path)?;
        let targets = package["targets"].as_array().into_iter().flatten();
        for program in targets.filter(|target| target["kind"][0] == "bin") {
            let name = format!("name = {}", program["name"]);
            let text = fs::read_to_string(program["src_path"].as_str().context("a path")?)?;
            // A module may have some.
            let has_tests = text
                .lines()
                .any(|line| line.contains("#[test]") || line.starts_with("mod "));
            let mut tables = manifest.split("\n[");
            let table = tables.find(|table| table.starts_with("[bin]]") && table.contains(&name));
            for off in ["test = false", "bench = false"] {
                let is_off = table.is_some_and(|table| table.lines().any(|line| line == off));
                assert_eq!(is_off, !has_tests, "{path}: {name}, {off}");
            }
            programs += 1;
        }
    }
    assert!(programs > 10, "{programs} programs");
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
                assert_eq!(target["name"], short.replace('-', "_"));
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
fn unsafe_code_of_the_product_is_in_sys_alone() -> Result<()> {
    let mut wrong = Vec::new();
    for package in packages()? {
        let name = crate_name(&package["name"])?;
        for target in package["targets"].as_array().into_iter().flatten() {
            let kind = target["kind"][0].as_str().context("a kind")?;
            let path = target["src_path"].as_str().context("a path")?;
            // Of the lab, `syscalls` has the calls that no program of the product makes, the attackers of `security` call the kernel as no
            // wrapper lets them, and `cgpu-cuda` loads CUDA's library. No program of the product has them in it.
            let is_cuda = package["name"] == "cgpu-hwprobe" && target["name"] == "cgpu-cuda";
            let may = ["sys", "syscalls", "security"].contains(&name) && kind == "lib" || is_cuda;
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

/// The bound is `too-many-lines-threshold` of `clippy.toml`.
#[test]
fn functions_of_the_product_have_a_longest_length() -> Result<()> {
    for package in packages()? {
        for target in package["targets"].as_array().into_iter().flatten() {
            let path = target["src_path"].as_str().context("a path")?;
            let is_library = target["kind"][0].as_str() == Some("lib");
            let is_product = PRODUCT.contains(&&*folder(&package)?);
            if is_library && is_product {
                let checked = fs::read_to_string(path)?.contains("warn(clippy::too_many_lines)");
                assert!(checked, "{path} does not warn of long functions");
            }
        }
    }
    Ok(())
}

/// What the modules at the top of a crate import of each other, tests left out.
fn modules(source: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    collect(source, source, &mut texts)?;
    let root = texts.remove("lib").unwrap_or_default();
    let names: BTreeSet<String> = texts.keys().cloned().collect();
    // What the root gives on is its module's: `crate::Error` is an arrow to `error`.
    let given = Regex::new(r"pub(?:\(crate\))? use (?:crate::)?([a-z0-9_]+)::([^;]+);")?;
    let argument = Regex::new(r"[A-Za-z0-9_]+")?;
    let mut home = BTreeMap::new();
    for found in given.captures_iter(&root) {
        if names.contains(&found[1]) {
            for name in argument.find_iter(&found[2]) {
                home.insert(name.as_str().to_owned(), found[1].to_owned());
            }
        }
    }
    let path = Regex::new(r"crate::(\{[^;]*?\}|[A-Za-z0-9_]+)")?;
    let mut arrows = BTreeMap::new();
    for (module, text) in &texts {
        let mut imports = BTreeSet::new();
        for found in path.captures_iter(text) {
            for name in first_arguments(&found[1]) {
                let target = if names.contains(&name) {
                    Some(name)
                } else {
                    home.get(&name).cloned()
                };
                imports.extend(target.filter(|target| target != module));
            }
        }
        arrows.insert(module.clone(), imports);
    }
    Ok(arrows)
}

/// The first word of each path of `a` or `{a::b, c}`.
fn first_arguments(path: &str) -> Vec<String> {
    let Some(list) = path
        .strip_prefix('{')
        .and_then(|list| list.strip_suffix('}'))
    else {
        return vec![path.to_owned()];
    };
    let (mut depth, mut item, mut items) = (0, String::new(), Vec::new());
    for letter in list.chars().chain([',']) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ => {}
        }
        if letter != ',' || depth > 0 {
            item.push(letter);
        }
    }
    let first = |item: &String| {
        let argument = item.trim().split("::").next()?.trim();
        (!argument.is_empty()).then(|| argument.to_owned())
    };
    items.iter().filter_map(first).collect()
}

fn collect(root: &Path, folder: &Path, texts: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let inside = path.strip_prefix(root)?;
        let stem = path.file_stem().context("a name")?;
        if path.is_dir() {
            if stem != "tests" && stem != "bin" {
                collect(root, &path, texts)?;
            }
            continue;
        }
        let top = Path::new(inside.iter().next().context("a module")?);
        let top = top.file_stem().context("a module")?.to_string_lossy();
        if stem != "tests" && top != "main" {
            let text = fs::read_to_string(&path)?;
            texts
                .entry(top.into_owned())
                .or_default()
                .push_str(&product(&text));
        }
    }
    Ok(())
}

/// A file without comments and without what is under `#[cfg(test)]`, which ends at the next line that closes its first brace.
fn product(text: &str) -> String {
    let mut kept = String::new();
    let (mut is_test, mut depth) = (false, 0_i64);
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        if line.trim() == "#[cfg(test)]" {
            (is_test, depth) = (true, 0);
            continue;
        }
        if !is_test {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let braces = |brace| i64::try_from(line.matches(brace).count()).unwrap_or(i64::MAX);
        depth += braces('{') - braces('}');
        let ends = line.contains('}') || line.trim_end().ends_with(';');
        if depth <= 0 && ends {
            is_test = false;
        }
    }
    kept
}

/// What is in a circle: whatever is left when modules that import nothing that is left, and those that nothing that is left imports,
/// are taken away again and again.
fn circle(mut arrows: BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    loop {
        let left: BTreeSet<String> = arrows.keys().cloned().collect();
        arrows.retain(|_, imports| imports.iter().any(|import| left.contains(import)));
        let imported: BTreeSet<String> = arrows.values().flatten().cloned().collect();
        arrows.retain(|module, _| imported.contains(module));
        if arrows.len() == left.len() {
            return left;
        }
    }
}

#[test]
fn modules_of_a_crate_import_each_other_in_no_circle() -> Result<()> {
    let mut wrong = Vec::new();
    for package in packages()? {
        let name = crate_name(&package["name"])?;
        let manifest = Path::new(package["manifest_path"].as_str().context("a path")?);
        let source = manifest.parent().context("a folder")?.join("src");
        let found = circle(modules(&source)?);
        if !found.is_empty() {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_circle_is_found_and_what_hangs_on_it_is_not_part_of_it() {
    let arrows = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "")];
    let arrows = arrows.iter().fold(BTreeMap::new(), |mut all, (from, to)| {
        let imports: &mut BTreeSet<String> =
            BTreeMap::entry(&mut all, (*from).to_owned()).or_default();
        imports.extend((!to.is_empty()).then(|| (*to).to_owned()));
        all
    });
    let found: Vec<String> = circle(arrows).into_iter().collect();
    assert_eq!(found, ["b", "c"]);
    assert_eq!(first_arguments("{a::b, c::{d, e}, f}"), ["a", "c", "f"]);
    let text = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\nuse crate::c; // crate::d\n";
    assert_eq!(product(text), "use crate::a;\nuse crate::c; \n");
}
