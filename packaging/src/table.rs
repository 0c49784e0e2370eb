//! The table of files, `packages.toml`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// `packages.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What is made.
    #[serde(rename = "package")]
    pub packages: Vec<Package>,
    /// The image with some of them; former versions had none.
    pub image: Option<Image>,
    #[serde(rename = "file")]
    pub(crate) rows: Vec<Row>,
}

/// One package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// In one line.
    pub summary: String,
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) debian_depends: Vec<String>,
    #[serde(default)]
    pub(crate) debian_recommends: Vec<String>,
    #[serde(default)]
    pub(crate) rpm_requires: Vec<String>,
    #[serde(default)]
    pub(crate) rpm_recommends: Vec<String>,
    #[serde(default)]
    pub(crate) suggests: Vec<String>,
}

/// The image of a node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Its name, without registry and tag.
    pub name: String,
    pub(crate) summary: String,
    /// The packages whose files it has.
    pub packages: Vec<String>,
    /// What it runs where no command is named.
    pub(crate) command: Vec<String>,
    /// Libraries beside the C library that no program of the image is linked with.
    pub(crate) libraries: Vec<String>,
}

/// One row: a file, or all files of a folder.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) package: String,
    program: Option<String>,
    #[serde(rename = "static")]
    for_containers: Option<String>,
    file: Option<String>,
    generated: Option<String>,
    pub(crate) to: String,
    pub(crate) rpm_to: Option<String>,
    #[serde(default = "plain")]
    pub(crate) mode: u32,
    #[serde(default)]
    pub(crate) compressed: bool,
    #[serde(default)]
    pub(crate) config: bool,
}

fn plain() -> u32 {
    0o644
}

/// Where a row's bytes come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    Program(&'a str),
    ForContainers(&'a str),
    Repository(&'a str),
    Generated(&'a str),
}

impl Row {
    pub(crate) fn source(&self) -> Result<Source<'_>> {
        let sources = [
            self.program.as_deref().map(Source::Program),
            self.for_containers.as_deref().map(Source::ForContainers),
            self.file.as_deref().map(Source::Repository),
            self.generated.as_deref().map(Source::Generated),
        ];
        let mut sources = sources.into_iter().flatten();
        match (sources.next(), sources.next()) {
            (Some(source), None) => Ok(source),
            _ => bail!("the row of {} has not exactly one source", self.to),
        }
    }
}

impl Table {
    /// The rows of one package.
    pub(crate) fn rows_of(&self, package: &Package) -> impl Iterator<Item = &Row> {
        let name = package.name.clone();
        self.rows.iter().filter(move |row| row.package == name)
    }

    /// Reads the table of a checkout.
    ///
    /// # Errors
    /// It cannot be read, or a row is of no package.
    pub fn read(repository: &Path) -> Result<Self> {
        let path = repository.join("packaging/packages.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let table: Self =
            toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        let is_package = |name: &str| table.packages.iter().any(|package| package.name == name);
        for row in &table.rows {
            row.source()?;
            if !is_package(&row.package) {
                bail!("{} is in {}, which is no package", row.to, row.package);
            }
        }
        if let Some(other) = table
            .image
            .iter()
            .flat_map(|image| &image.packages)
            .find(|name| !is_package(name))
        {
            bail!("the image is to have {other}, which is no package");
        }
        Ok(table)
    }
}
