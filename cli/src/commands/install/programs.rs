//! cgpu's own programs on a host whose software comes as images: copied there from the installation that runs.
//!
//! ```text
//!   DIR/versions/VERSION-DIGEST/{bin,libexec/cgpu,lib/cgpu/static}   whole before anything leads to it, and never written again
//!   DIR/current ─► versions/VERSION-DIGEST                           replaced in one step; what engines name leads through it
//! ```
//!
//! A program that runs has its own files by its real path, so a container keeps the version that it began with. A former version
//! goes when nothing runs from it; the last former one stays, as what a start that has just begun may come from.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::copies::{Copies, Version};
use super::engine;
use super::journal::Journal;
use super::place::{Writer, digest_of};
use super::processes;
use super::transaction;
use super::work::Site;

/// The programs of an installation, from the folder above its `bin`. A test compares them with `packaging/packages.toml`.
pub(super) const PROGRAMS: [&str; 9] = [
    "bin/cgpu",
    "bin/containerd-shim-cgpu-v2",
    "bin/cgpu-runtime",
    "bin/cgpu-hook",
    "libexec/cgpu/cgpu-broker",
    "libexec/cgpu/cgpu-executor",
    "libexec/cgpu/cgpu-limits",
    "libexec/cgpu/cgpu-top",
    "lib/cgpu/static/cgpu",
];

/// Where they go if nothing else is said.
pub(super) const FOLDER: &str = "/opt/cgpu";

/// The installation that is copied: files that stay open when this process goes to the host.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    files: Vec<(&'static str, File, String)>,
    /// Whether the first of them, where it was copied to, can be started there.
    runs: fn(&Path) -> anyhow::Result<()>,
}

impl Source {
    /// The installation that the running program belongs to.
    ///
    /// # Errors
    /// A program is not in its place beside the running one.
    pub(super) fn own() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own path")?;
        let above = program.parent().filter(|folder| folder.ends_with("bin"));
        let above = above.and_then(Path::parent).with_context(|| {
            format!(
                "{} is in no folder `bin`: programs are copied from an installation, as the image cgpu-node is",
                program.display()
            )
        })?;
        Self::of(above, env!("CARGO_PKG_VERSION"), runs)
    }

    /// The installation below a folder.
    fn of(
        above: &Path,
        version: &str,
        runs: fn(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        let mut all = Sha256::new();
        for name in PROGRAMS {
            let path = above.join(name);
            let mut file =
                File::open(&path).with_context(|| format!("{} is to be copied", path.display()))?;
            let digest = digest_of(&mut file).with_context(|| path.display().to_string())?;
            all.update(format!("{name} {digest}\n"));
            files.push((name, file, digest));
        }
        let digest = cards::hexadecimal(&all.finalize());
        let short = digest.get(..12).unwrap_or(&digest);
        Ok(Self {
            name: format!("{version}-{short}"),
            files,
            runs,
        })
    }

    /// The version's name: two builds of one version have two.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// A cgpu on the host that is none of our copies: a package's, or the administrator's own.
pub(super) fn of_a_package(site: &Site, folder: &str) -> Option<PathBuf> {
    engine::find(&site.root, super::plan::SHIM).filter(|shim| !shim.starts_with(site.at(folder)))
}

/// Copies what is not there, and makes it the current version. Whether anything was changed.
///
/// # Errors
/// The disk's; or the programs do not run on this host. What was current stays so then.
pub(super) fn copy(
    site: &Site,
    writer: &Writer<'_>,
    journal: &mut Journal,
    source: &mut Source,
    folder: &str,
) -> anyhow::Result<bool> {
    let mut copies = match &journal.programs {
        Some(there) if there.folder != folder => bail!(
            "cgpu's programs are below {} already: name that folder, or uninstall them first",
            there.folder
        ),
        Some(there) => there.clone(),
        None => Copies {
            folder: folder.to_owned(),
            versions: Vec::new(),
        },
    };
    let former = copies.current().map(str::to_owned);
    let version = Version {
        name: source.name.clone(),
        files: source
            .files
            .iter()
            .map(|(name, ..)| (*name).to_owned())
            .collect(),
    };
    copies.versions.retain(|there| there.name != version.name);
    copies.versions.push(version.clone());
    let paths = copies.files_of(&site.root, &version);
    let link = copies.link(&site.root);
    let target = format!("versions/{}", version.name);
    let missing = missing(&paths, source)?;
    let leads = fs::read_link(&link).ok();
    let stands = leads.as_deref() == Some(Path::new(&target));
    if missing.is_empty() && stands && former.as_deref() == Some(&version.name) {
        return Ok(false);
    }
    // An unfinished copy is in the journal under its own name, before the version that is current.
    let mut listed = copies.clone();
    if let Some(at) = former.and_then(|former| position(&listed, &former)) {
        let former = listed.versions.remove(at);
        listed.versions.push(former);
    }
    journal.programs = Some(listed);
    for path in &paths {
        let folder = path.parent().unwrap_or(&site.root);
        transaction::record_folders(journal, &transaction::missing_folders(folder));
    }
    journal.write(&site.state(), writer)?;
    for (at, path) in paths.iter().enumerate() {
        writer.create_dirs(path.parent().unwrap_or(&site.root), 0o755)?;
        if let (true, Some((_, file, digest))) = (missing.contains(&at), source.files.get_mut(at)) {
            writer.copy_program(file, digest, path)?;
        }
    }
    (source.runs)(paths.first().context("an installation has programs")?)?;
    writer.link(&link, &target)?;
    journal.programs = Some(copies);
    journal.write(&site.state(), writer)?;
    Ok(true)
}

fn position(copies: &Copies, name: &str) -> Option<usize> {
    let mut versions = copies.versions.iter();
    versions.position(|version| version.name == name)
}

/// Which of the source's files are not in their place as they are.
fn missing(paths: &[PathBuf], source: &Source) -> anyhow::Result<Vec<usize>> {
    let mut missing = Vec::new();
    for (at, (path, (_, _, digest))) in paths.iter().zip(&source.files).enumerate() {
        let there = match fs::symlink_metadata(path) {
            Ok(about) if about.is_file() && about.mode() & 0o7777 == 0o755 => {
                let mut file =
                    File::open(path).with_context(|| format!("read {}", path.display()))?;
                &digest_of(&mut file)? == digest
            }
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        if !there {
            missing.push(at);
        }
    }
    Ok(missing)
}

/// Programs of an image are linked with the C library of the host here, which may be too old.
fn runs(program: &Path) -> anyhow::Result<()> {
    let reply = engine::run(Command::new(program).arg("--version"))?;
    if let Some(problem) = reply.problem() {
        bail!("cgpu's programs do not run on this host: {problem}");
    }
    Ok(())
}

/// Removes the former versions that nothing runs from, but for the last of them. Returns those that are kept because they run.
///
/// # Errors
/// The disk's.
pub(super) fn prune(
    site: &Site,
    writer: &Writer<'_>,
    journal: &Journal,
) -> anyhow::Result<Vec<String>> {
    let Some(mut copies) = journal.programs.clone() else {
        return Ok(Vec::new());
    };
    let former = copies.versions.len().saturating_sub(2);
    let mut kept = Vec::new();
    let mut gone = Vec::new();
    for version in copies.versions.iter().take(former) {
        let files = copies.files_of(&site.root, version);
        // What cannot be looked at may run.
        match processes::running(&site.at("/proc"), &files) {
            Ok(running) if running.is_empty() => gone.push((version.name.clone(), files)),
            _ => kept.push(version.name.clone()),
        }
    }
    if gone.is_empty() {
        return Ok(kept);
    }
    for file in gone.iter().flat_map(|(_, files)| files) {
        writer.remove(file)?;
    }
    let is_gone = |version: &Version| gone.iter().any(|(name, _)| *name == version.name);
    copies.versions.retain(|version| !is_gone(version));
    let mut journal = journal.clone();
    journal.programs = Some(copies);
    transaction::settle(site, writer, journal)?;
    Ok(kept)
}

/// Removes all copies and nothing beside them.
///
/// # Errors
/// The disk's; it can be called again.
pub(super) fn remove(site: &Site, writer: &Writer<'_>, mut journal: Journal) -> anyhow::Result<()> {
    if let Some(copies) = journal.programs.take() {
        writer.remove(&copies.link(&site.root))?;
        for file in copies.files(&site.root) {
            writer.remove(&file)?;
        }
    }
    transaction::settle(site, writer, journal)
}

/// After an error behind [`copy`]: what was current before is so again.
///
/// # Errors
/// The disk's.
pub(super) fn take_back(
    site: &Site,
    writer: &Writer<'_>,
    former: Option<&Copies>,
) -> anyhow::Result<()> {
    let mut journal = Journal::read(&site.state())?;
    let Some(former) = former else {
        return remove(site, writer, journal);
    };
    let (Some(mut copies), Some(current)) = (journal.programs.take(), former.current()) else {
        return Ok(());
    };
    if let Some(at) = position(&copies, current) {
        writer.link(&copies.link(&site.root), &format!("versions/{current}"))?;
        let version = copies.versions.remove(at);
        copies.versions.push(version);
    }
    journal.programs = Some(copies);
    journal.write(&site.state(), writer)
}

#[cfg(test)]
mod tests;
