//! `cargo xtask headers`: what a driver version changes in the layouts, sizes and numbers that cgpu decodes.
//!
//! The public headers are read from a source tree that the user names (open-gpu-kernel-modules at some tag; never part of this
//! repository): a generated C program prints `sizeof`, `offsetof` and the numbers, and the list of what to ask is `nvabi`'s own
//! (`nvabi::headers`, `nvabi::control::rows`). The answer is compared with every known release; `--write` keeps it as the data
//! file of a new one. docs/internals/adding-a-driver-version.md is the runbook around it.

mod found;
mod lists;
mod probe;
mod texts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use nvabi::{DriverVersion, Release};

use crate::table;
use found::{Difference, Found};
use releases::{Facts, What};
use texts::Texts;

/// Where the facts come from and what becomes of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A source tree of open-gpu-kernel-modules, or a file of facts that --write made.
    source: PathBuf,
    /// Write the facts found as JSON, in the form of isolation/nvabi/data/structs-*.json.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Compare with one release alone and fail on a difference, e.g. R595.
    #[arg(long, value_parser = release)]
    expect: Option<Release>,
    /// Write the file that makes this version known to a host, for its /etc/cgpu/drivers.d.
    #[arg(long)]
    release_file: Option<PathBuf>,
    /// Write what the source tree exports into the lists of isolation/nvabi/data, as the release that its version belongs to.
    #[arg(long)]
    lists: bool,
    /// The C compiler.
    #[arg(long, default_value = "cc")]
    cc: String,
}

fn release(text: &str) -> Result<Release, String> {
    let known = |release: &Release| format!("{release:?}");
    Release::ALL
        .into_iter()
        .find(|release| known(release) == text)
        .ok_or_else(|| {
            let all: Vec<String> = Release::ALL.iter().map(known).collect();
            format!("no release {text}; known are {}", all.join(", "))
        })
}

/// Reads, compares, prints.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let Some((name, found)) = read(options)? else {
        return Ok(ExitCode::SUCCESS);
    };
    println!("{name}: {} facts", found.facts.iter().count());
    if let Ok(version) = name.parse::<DriverVersion>() {
        match Release::of(version) {
            Ok(release) => println!("cgpu decodes {version} as {release:?}"),
            Err(unsupported) => println!("cgpu refuses it: {unsupported}"),
        }
    }
    if let Some(path) = &options.write {
        std::fs::write(path, found.to_json())
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    if options.lists {
        let release = Release::of(name.parse()?)?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        lists::update(&root, &options.source, &options.cc, release)?;
    }
    if let Some(path) = &options.release_file {
        let plain = Texts::read(&options.source)?.plain(&releases::structs());
        let text = releases::file_of(&name, &found.facts, plain)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    let mut failed = false;
    for release in Release::ALL {
        if options.expect.is_some_and(|expected| expected != release) {
            continue;
        }
        let differences = found.against(&Facts::of_release(release));
        println!("\n{release:?}: {}", summary(&differences));
        show(&differences);
        failed |= options.expect.is_some() && !differences.is_empty();
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What the compiler is asked: everything that some release knows, and the size of every struct with a field in it, which the data
/// file has.
fn questions() -> Vec<What> {
    let releases = Release::ALL.map(Facts::of_release);
    let known = releases.iter().flat_map(Facts::iter);
    let sizes = nvabi::headers::fields().map(|(name, ..)| What::Size((*name).to_owned()));
    let all: BTreeSet<What> = known
        .map(|(what, _)| what.clone())
        .chain(sizes)
        .filter(|what| !matches!(what, What::Text(_)))
        .collect();
    all.into_iter().collect()
}

/// The version that the facts are of, and the facts; `None` when the machine lacks a compiler, said aloud.
fn read(options: &Options) -> anyhow::Result<Option<(String, Found)>> {
    let source = &options.source;
    if source.is_file() {
        let text = std::fs::read_to_string(source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        let found = Found::from_json(&text)
            .with_context(|| format!("{} holds no facts of a driver", source.display()))?;
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let name = stem.strip_prefix("structs-").unwrap_or(&stem).to_owned();
        return Ok(Some((name, found)));
    }
    if !source.is_dir() {
        bail!(
            "{}: neither a source tree nor a file of facts",
            source.display()
        );
    }
    if !probe::has_compiler(&options.cc) {
        println!(
            "SKIP: no C compiler {}; the headers were not read (--cc names another)",
            options.cc
        );
        return Ok(None);
    }
    let name = version(source)?;
    let (mut known, widths) = probe::ask(source, &options.cc, questions())?;
    let texts = Texts::read(source)?;
    known.extend(releases::structs().into_iter().filter_map(|name| {
        let digest = texts.digest(&name)?;
        Some((What::Text(name), digest))
    }));
    Ok(Some((name, Found::new(known, widths))))
}

/// `NVIDIA_VERSION = 595.45.04` in version.mk.
fn version(tree: &Path) -> anyhow::Result<String> {
    let path = tree.join("version.mk");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{} is not a source tree of open-gpu-kernel-modules: cannot read {}",
            tree.display(),
            path.display()
        )
    })?;
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == "NVIDIA_VERSION")
        .map(|(_, version)| version.trim().to_owned())
        .with_context(|| format!("{} has no NVIDIA_VERSION", path.display()))
}

fn summary(differences: &[Difference]) -> String {
    match differences.len() {
        0 => "no difference in anything that cgpu decodes".to_owned(),
        count => format!("{count} differences"),
    }
}

fn show(differences: &[Difference]) {
    let text =
        |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:#x}"));
    let rows: Vec<Vec<String>> = differences
        .iter()
        .map(|difference| {
            vec![
                difference.what.to_string(),
                text(difference.ours),
                text(difference.theirs),
            ]
        })
        .collect();
    if !rows.is_empty() {
        table::print(&["what", "cgpu", "headers"], &rows);
    }
}

#[cfg(test)]
mod tests;
