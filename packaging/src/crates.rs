//! The crates that programs are made of, as cargo resolves them for the release build.
//!
//! `cargo tree` is asked, with all packages that are built together: `cargo metadata` alone resolves the whole workspace at once, with the
//! features and dependencies of its tests. What is known of each crate is `cargo metadata`'s and `Cargo.lock`'s.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{Build, tool};

/// What the packages are built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Name and version: one of the lock file's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// A crate.
#[derive(Debug, Clone)]
pub(crate) struct Crate {
    pub(crate) id: Id,
    /// An SPDX expression, as its author wrote it.
    pub(crate) licence: Option<String>,
    pub(crate) licence_file: Option<PathBuf>,
    pub(crate) repository: Option<String>,
    /// Its own folder.
    pub(crate) folder: PathBuf,
    /// SHA-256 of what the registry has, in hexadecimal; none of the project's own.
    pub(crate) checksum: Option<String>,
}

impl Crate {
    /// Whether it is not the project's own.
    pub(crate) fn is_foreign(&self) -> bool {
        self.checksum.is_some()
    }

    /// The expression in today's spelling: `/` was once `OR`.
    pub(crate) fn expression(&self) -> Option<String> {
        let text = self.licence.as_ref()?;
        let parts: Vec<&str> = text.split('/').map(str::trim).collect();
        Some(parts.join(" OR "))
    }
}

/// Crates and what each is linked with.
type Graph = BTreeMap<Id, BTreeSet<Id>>;

/// All crates of the release build.
#[derive(Debug)]
pub(crate) struct Crates {
    known: BTreeMap<Id, Crate>,
    /// The package of each program.
    programs: HashMap<String, Id>,
    host: Graphs,
    containers: Graphs,
    /// Of Rust, whose library all programs have.
    pub(crate) rust: String,
}

#[derive(Debug)]
struct Graphs {
    linked: Graph,
    /// With build scripts, macros and what they are made of.
    built: Graph,
}

/// The crates of one package.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'a> {
    /// Those in the programs.
    pub(crate) linked: Vec<&'a Crate>,
    /// Those that only run while the programs are built.
    pub(crate) building: Vec<&'a Crate>,
    /// Which of these each one depends on.
    pub(crate) edges: BTreeMap<&'a Id, BTreeSet<&'a Id>>,
}

impl Crates {
    pub(crate) fn read(build: &Build) -> Result<Self> {
        let metadata = cargo(
            build,
            &[
                "metadata",
                "--format-version=1",
                "--filter-platform",
                TARGET,
            ],
        )?;
        let metadata: Metadata = serde_json::from_str(&metadata).context("cargo metadata")?;
        let lock = build.repository.join("Cargo.lock");
        let lock = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
        let lock: Lock = toml::from_str(&lock).context("Cargo.lock")?;
        let checksums: HashMap<Id, String> = lock
            .packages
            .into_iter()
            .filter_map(|row| {
                let id = Id {
                    name: row.name,
                    version: row.version,
                };
                Some((id, row.checksum?))
            })
            .collect();
        let mut programs = HashMap::new();
        let mut known = BTreeMap::new();
        for package in metadata.packages {
            let id = Id {
                name: package.name,
                version: package.version,
            };
            for target in package.targets {
                if target.kind.iter().any(|kind| kind == "bin") && package.source.is_none() {
                    programs.insert(target.name, id.clone());
                }
            }
            let folder = package
                .manifest_path
                .parent()
                .context("a manifest's folder")?;
            let row = Crate {
                licence: package.license,
                licence_file: package.license_file.map(|file| folder.join(file)),
                repository: package.repository,
                folder: folder.to_owned(),
                checksum: checksums.get(&id).cloned(),
                id: id.clone(),
            };
            known.insert(id, row);
        }
        let rust = tool::run(
            Command::new("rustc")
                .arg("--version")
                .current_dir(&build.repository),
        )?;
        Ok(Self {
            known,
            programs,
            host: Graphs::read(build, &build.cargo.host, &[])?,
            containers: Graphs::read(build, &build.cargo.containers, &["--no-default-features"])?,
            rust: rust
                .split(' ')
                .nth(1)
                .context("rustc's version")?
                .to_owned(),
        })
    }

    /// The crates of some programs of the host, and of some for containers.
    pub(crate) fn of(&self, host: &[&str], containers: &[&str]) -> Result<Parts<'_>> {
        let (mut linked, mut built) = (BTreeSet::new(), BTreeSet::new());
        let mut edges: BTreeMap<&Id, BTreeSet<&Id>> = BTreeMap::new();
        for (graphs, programs) in [(&self.host, host), (&self.containers, containers)] {
            for program in programs {
                let package = self.programs.get(*program);
                let package = package.with_context(|| format!("{program} is of no package"))?;
                ensure!(
                    graphs.linked.contains_key(package),
                    "{package:?} is not built"
                );
                linked.extend(below(&graphs.linked, package));
                built.extend(below(&graphs.built, package));
            }
            for (id, others) in graphs.built.iter().filter(|(id, _)| built.contains(id)) {
                edges.entry(id).or_default().extend(others);
            }
        }
        let crates = |ids: Vec<&Id>| -> Result<Vec<&Crate>> {
            ids.into_iter()
                .map(|id| {
                    self.known
                        .get(id)
                        .with_context(|| format!("{id:?} is not known"))
                })
                .collect()
        };
        Ok(Parts {
            building: crates(built.difference(&linked).copied().collect())?,
            linked: crates(linked.into_iter().collect())?,
            edges,
        })
    }
}

/// A crate, and everything that is reached from it.
fn below<'a>(graph: &'a Graph, root: &'a Id) -> BTreeSet<&'a Id> {
    let mut reached = BTreeSet::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if reached.insert(id) {
            open.extend(graph.get(id).into_iter().flatten());
        }
    }
    reached
}

impl Graphs {
    fn read(build: &Build, packages: &[String], options: &[&str]) -> Result<Self> {
        let graph = |edges: &str| -> Result<Graph> {
            let mut args = vec!["tree", "--target", TARGET, "--edges", edges];
            args.extend(["--prefix=depth", "--format= {p}"]);
            args.extend(options);
            for package in packages {
                args.extend(["--package", package.as_str()]);
            }
            parse(&cargo(build, &args)?)
        };
        Ok(Self {
            linked: graph("normal,no-proc-macro")?,
            built: graph("normal,build")?,
        })
    }
}

/// Lines of `cargo tree`: a depth, a name and `v` with a version; what was shown before ends with `(*)` and without its dependencies.
fn parse(text: &str) -> Result<Graph> {
    let mut graph = Graph::new();
    let mut above: Vec<Id> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let depth: usize = words
            .next()
            .and_then(|depth| depth.parse().ok())
            .with_context(|| line.to_owned())?;
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            anyhow::bail!("{line}");
        };
        let id = Id {
            name: name.to_owned(),
            version: version.trim_start_matches('v').to_owned(),
        };
        ensure!(
            depth <= above.len(),
            "{line} is deeper than what is above it"
        );
        above.truncate(depth);
        if let Some(parent) = above.last() {
            graph.entry(parent.clone()).or_default().insert(id.clone());
        }
        graph.entry(id.clone()).or_default();
        above.push(id);
    }
    Ok(graph)
}

fn cargo(build: &Build, args: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(args)
        .arg("--locked")
        .current_dir(&build.repository);
    tool::run(&mut command)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    version: String,
    source: Option<String>,
    license: Option<String>,
    license_file: Option<PathBuf>,
    repository: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    #[serde(rename = "package")]
    packages: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, version: &str) -> Id {
        Id {
            name: name.to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn what_is_shown_a_second_time_keeps_the_dependencies_of_the_first() {
        let text = "0 one v0.1.0 (/folder)\n1 both v1.2.3\n2 deep v0.4.0\n1 macro v2.0.0 (proc-macro)\n\n\
                    0 two v0.1.0 (/folder)\n1 both v1.2.3 (*)\n";
        let graph = parse(text).unwrap();
        let two = id("two", "0.1.0");
        let reached: Vec<&Id> = below(&graph, &two).into_iter().collect();
        assert_eq!(reached, [&id("both", "1.2.3"), &id("deep", "0.4.0"), &two]);
        assert!(!reached.contains(&&id("macro", "2.0.0")));
    }

    #[test]
    fn a_tree_that_is_not_understood_is_an_error() {
        parse("serde v1.0.0").unwrap_err();
        parse("0 serde v1.0.0\n2 deep v1.0.0").unwrap_err();
    }
}
