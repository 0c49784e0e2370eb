//! What is in the programs beside crates, and the licence texts of third parties.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::crates::{Crate, Crates, Parts};
use crate::{Build, libraries, tool};

/// How the names of files with licences begin.
const NAMES: [&str; 7] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
    "PATENTS",
];

/// A part of the programs that is no crate.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) expression: &'static str,
    texts: Vec<PathBuf>,
}

impl Library {
    /// Its name in an SBOM.
    pub(crate) fn reference(&self) -> String {
        format!("pkg:generic/{}@{}", self.name, self.version)
    }
}

/// Rust's own library and, where there are static programs, what these have of the C library that `dynamic` loads.
pub(crate) fn libraries(
    build: &Build,
    crates: &Crates,
    dynamic: Option<&Path>,
) -> Result<Vec<Library>> {
    let root = tool::run(Command::new("rustc").args(["--print", "sysroot"]))?;
    let texts = Path::new(root.trim()).join("share/doc/rust/licenses");
    let texts = ["MIT.txt", "Apache-2.0.txt"].map(|name| texts.join(name));
    let mut found = vec![Library {
        name: "rust-std",
        version: crates.rust.clone(),
        expression: "MIT OR Apache-2.0",
        texts: texts.into_iter().filter(|path| path.is_file()).collect(),
    }];
    for path in dynamic
        .into_iter()
        .flat_map(|path| libraries::loaded_by(build, path))
        .flatten()
    {
        let (name, expression) = match path.file_name().and_then(|name| name.to_str()) {
            Some("libc.so.6") => ("glibc", "LGPL-2.1-or-later"),
            Some("libgcc_s.so.1") => ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
            _ => continue,
        };
        let origin = libraries::Origin::of(build, &path)?;
        found.push(Library {
            name,
            version: origin.version,
            expression,
            texts: origin.licences,
        });
    }
    Ok(found)
}

/// A part of the programs with the licence texts that came with it.
struct Row {
    title: String,
    expression: String,
    repository: String,
    texts: Vec<String>,
}

/// The page: what is in the programs by which licence, and every text once.
pub(crate) fn page(package: &str, parts: &Parts<'_>, libraries: &[Library]) -> Result<String> {
    let mut rows = Vec::new();
    for library in libraries {
        rows.push(Row {
            title: format!("{} {}", library.name, library.version),
            expression: library.expression.to_owned(),
            repository: String::new(),
            texts: read(&library.texts)?,
        });
    }
    for row in parts.linked.iter().filter(|row| row.is_foreign()) {
        rows.push(Row {
            title: format!("{} {}", row.id.name, row.id.version),
            expression: row
                .expression()
                .unwrap_or_else(|| "in its own words".to_owned()),
            repository: row.repository.clone().unwrap_or_default(),
            texts: read(&texts_of(row)?)?,
        });
    }
    let mut page = format!(
        "# Third parties in {package}\n\n\
         {package} is under Apache-2.0. Its programs contain the following. What a text does not say is in the licence\n\
         expression of its author; a text stands once for all that have it.\n\n\
         | what | licence | texts | source |\n|---|---|---|---|\n"
    );
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut users: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in &rows {
        let mut own = Vec::new();
        for text in &row.texts {
            let next = users.len();
            let number = *numbers.entry(text).or_insert(next);
            if number == next {
                users.push((text, Vec::new()));
            }
            if let Some((_, titles)) = users.get_mut(number) {
                titles.push(&row.title);
            }
            own.push((number + 1).to_string());
        }
        let own = match own.as_slice() {
            [] => "none came with it".to_owned(),
            own => own.join(", "),
        };
        writeln!(
            page,
            "| {} | {} | {own} | {} |",
            row.title, row.expression, row.repository
        )?;
    }
    page.push_str("\nThe following ran while the programs were built, and are not in them:\n\n");
    for row in parts.building.iter().filter(|row| row.is_foreign()) {
        let expression = row.expression();
        let expression = expression.as_deref().unwrap_or("in its own words");
        writeln!(page, "- {} {}: {expression}", row.id.name, row.id.version)?;
    }
    for (number, (text, titles)) in users.iter().enumerate() {
        // Four characters: a text may have three of its own.
        let (number, titles) = (number + 1, titles.join(", "));
        write!(
            page,
            "\n## Text {number}\n\nOf {titles}.\n\n~~~~\n{text}\n~~~~\n"
        )?;
    }
    Ok(page)
}

/// The files with licences in a crate's own folder, and the one that its manifest names.
fn texts_of(row: &Crate) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let folder = fs::read_dir(&row.folder);
    for entry in folder.with_context(|| row.folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_uppercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            found.push(path);
        }
    }
    found.extend(row.licence_file.clone().filter(|path| path.is_file()));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Texts without what differs between editors: ends of lines, spaces before them, empty lines around.
fn read(paths: &[PathBuf]) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for path in paths {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = lines.join("\n").trim_matches('\n').to_owned();
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    Ok(texts)
}
