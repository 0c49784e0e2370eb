//! The packages: deb, rpm and tar.zst from one table, `packages.toml`.
//!
//! ```text
//!   packages.toml ─► table ─► tree (a tree with modes and times) ─► deb, rpm, archive, image
//!                                ▲
//!                      generated (manual pages, completions, copyright; SBOM and third parties' licences by `crates`)
//! ```
//!
//! The same programs and the same commit give the same bytes. This crate must not build programs: it is given their folder.
#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod archive;
mod crates;
mod deb;
mod generated;
mod image;
mod layer;
mod libraries;
mod rpm;
mod sbom;
mod scripts;
mod table;
mod third_party;
mod tool;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use self::table::{Image, Package, Table};
pub use self::tree::Dialect;

/// How much is done to make the packages small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// For what is published.
    Small,
    /// For tests.
    Fast,
}

/// What a package is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For dpkg.
    Deb,
    /// For rpm; where `rpmbuild` is absent there is none.
    Rpm,
    /// For systems without either: tar.zst.
    Archive,
    /// The node's image, of the packages that its row names.
    Image,
}

impl Form {
    /// What is published.
    pub const ALL: [Self; 4] = [Self::Deb, Self::Rpm, Self::Archive, Self::Image];
}

/// What is packaged.
#[derive(Debug, Clone)]
pub struct Build {
    /// The root of the checkout.
    pub repository: PathBuf,
    /// The folder of the programs; those for containers are in `static` below it.
    pub programs: PathBuf,
    /// The version that all programs have.
    pub version: String,
    /// The packages' own revision of that version.
    pub revision: u32,
    /// Seconds since 1970: the one time that is in the packages.
    pub epoch: u64,
    /// How the programs were built.
    pub cargo: CargoPackages,
    /// The commit that the programs are of; `unknown` outside a repository.
    pub commit: String,
    /// See there.
    pub compression: Compression,
}

/// The packages that one call of `cargo build` builds together, and that have the same features for that.
#[derive(Debug, Clone)]
pub struct CargoPackages {
    /// With their default features, for the host.
    pub host: Vec<String>,
    /// Without them, for containers.
    pub containers: Vec<String>,
}

/// What all packages are made from.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) build: &'a Build,
    pub(crate) table: Table,
    pub(crate) crates: crates::Crates,
}

impl Build {
    /// For tests: the first revision, at a moment that is fixed, of no commit and quickly made.
    #[must_use]
    pub fn for_tests(repository: PathBuf, programs: &Path, cargo: CargoPackages) -> Self {
        Self {
            repository,
            programs: programs.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: 1,
            epoch: 1_700_000_000,
            cargo,
            commit: "unknown".to_owned(),
            compression: Compression::Fast,
        }
    }

    /// Version and revision, as both package managers write them.
    #[must_use]
    pub fn full_version(&self) -> String {
        format!("{}-{}", self.version, self.revision)
    }

    /// What an engine calls the image after it has loaded it. A tag has no `+` and no `~`.
    #[must_use]
    pub fn image_name(&self, name: &str) -> String {
        let tag = self.full_version().replace(['+', '~'], "-");
        format!("localhost/{name}:{tag}")
    }

    fn time(&self) -> std::time::SystemTime {
        std::time::UNIX_EPOCH + std::time::Duration::from_secs(self.epoch)
    }
}

/// Writes all packages and the image into a folder, in some forms; returns the files.
///
/// # Errors
/// A source is absent; a tool is absent or fails.
pub fn write(build: &Build, forms: &[Form], into: &Path) -> Result<Vec<PathBuf>> {
    let sources = Sources {
        build,
        table: Table::read(&build.repository)?,
        crates: crates::Crates::read(build)?,
    };
    let table = &sources.table;
    let has = |form| forms.contains(&form);
    let image = table.image.as_ref().filter(|_| has(Form::Image));
    fs::create_dir_all(into).with_context(|| format!("create {}", into.display()))?;
    let mut written = Vec::new();
    let work = tempfile::tempdir().context("folder for the trees")?;
    let mut of_image = Vec::new();
    for package in &table.packages {
        let at = |dialect| work.path().join(dialect).join(&package.name);
        let is_in_image = image.is_some_and(|image| image.packages.contains(&package.name));
        if is_in_image || has(Form::Deb) || has(Form::Archive) {
            let tree = tree::lay(&sources, package, Dialect::Debian, &at("debian"))?;
            if has(Form::Deb) {
                written.push(deb::write(build, package, &tree, into)?);
            }
            if has(Form::Archive) {
                written.push(archive::write(build, package, &tree, into)?);
            }
            if is_in_image {
                of_image.push((package, tree));
            }
        }
        if has(Form::Rpm) && tool::is_there("rpmbuild") {
            let tree = tree::lay(&sources, package, Dialect::Rpm, &at("rpm"))?;
            written.push(rpm::write(build, package, &tree, into)?);
        }
    }
    if let Some(image) = image {
        written.push(image::write(build, image, &of_image, into)?);
    }
    written.sort();
    Ok(written)
}
