//! From the files as they are to be to the disk.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::journal::{self, Entry, Journal, Lock, Phase};
use super::place::{self, Writer};
use super::work::{FileWork, Site, Work};

/// Makes the state folder and takes the lock. Returns also the folders that had to be made.
pub(super) fn lock(site: &Site, writer: &Writer<'_>) -> anyhow::Result<(Lock, Vec<PathBuf>)> {
    let state = site.state();
    let mut made = Vec::new();
    loop {
        for folder in missing_folders(&state) {
            if !made.contains(&folder) {
                made.push(folder);
            }
        }
        match writer.create_dirs(&state, 0o700) {
            // The former holder has just removed a folder above it.
            Err(error) if is_absent(&error) => continue,
            other => other?,
        }
        if let Some(lock) = Lock::take(&state)? {
            // Folders that went between the look and the making were made here as well.
            for folder in writer.folders_made() {
                if !made.contains(&folder) {
                    made.push(folder);
                }
            }
            made.sort();
            return Ok((lock, made));
        }
    }
}

fn is_absent(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The folders above and at a path that do not exist, parents first.
pub(super) fn missing_folders(path: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|folder| !folder.exists())
        .map(Path::to_owned)
        .collect();
    missing.reverse();
    missing
}

/// Brings all works to the disk. After an error everything is as it was before, or the error says that it is not.
pub(super) fn apply(
    site: &Site,
    writer: &Writer<'_>,
    journal: &Journal,
    works: &[Work],
    made_for_state: &[PathBuf],
) -> anyhow::Result<()> {
    let state = site.state();
    let files: Vec<&FileWork> = works.iter().flat_map(|work| &work.files).collect();
    let mut next = journal.clone();
    next.phase = Phase::Changing;
    record_folders(&mut next, made_for_state);
    for file in &files {
        writer.remove_rest(&site.at(&file.path))?;
        if let Some(found) = &file.original {
            journal::keep(&state, found, writer)?;
        }
        if let Some(entry) = &file.entry {
            next.put(entry.clone());
        }
        if let (Some(_), Some(folder)) = (&file.after, site.at(&file.path).parent()) {
            record_folders(&mut next, &missing_folders(folder));
        }
    }
    if !next.is_empty() {
        next.write(&state, writer)?;
    }
    if let Err(error) = place_all(site, writer, &files) {
        return Err(match take_back(site, writer, &files, journal) {
            Ok(()) => error.context("what had been done was taken back"),
            Err(_) => error.context("the change is half made; `cgpu uninstall` takes it back"),
        });
    }
    next.phase = Phase::Installed;
    for file in &files {
        if file.entry.is_none() {
            next.files.retain(|entry| entry.path != file.path);
        }
    }
    next.files.iter_mut().for_each(Entry::settled);
    settle(site, writer, next)
}

pub(super) fn record_folders(journal: &mut Journal, folders: &[PathBuf]) {
    for folder in folders {
        if !journal.folders.contains(folder) {
            journal.folders.push(folder.clone());
        }
    }
}

fn place_all(site: &Site, writer: &Writer<'_>, files: &[&FileWork]) -> anyhow::Result<()> {
    for file in files.iter().filter(|file| file.changes()) {
        let path = site.at(&file.path);
        match &file.after {
            Some(text) => {
                if let Some(folder) = path.parent() {
                    writer.create_dirs(folder, 0o755)?;
                }
                let owner = file.before.as_ref().map(|found| found.owner);
                writer.replace(&path, text, owner, file.before.as_ref())?;
            }
            None => {
                if place::read(&path)? != file.before {
                    bail!("{} was changed meanwhile; run it again", path.display());
                }
                writer.remove(&path)?;
            }
        }
    }
    Ok(())
}

/// After an error: what stands as this run left it becomes what it was before.
fn take_back(
    site: &Site,
    writer: &Writer<'_>,
    files: &[&FileWork],
    journal: &Journal,
) -> anyhow::Result<()> {
    for file in files.iter().rev().filter(|file| file.changes()) {
        let path = site.at(&file.path);
        let now = place::read(&path)?;
        if now.as_ref().map(|found| &found.text) != file.after.as_ref() {
            continue;
        }
        match &file.before {
            Some(before) => {
                writer.replace(&path, &before.text, Some(before.owner), now.as_ref())?;
            }
            None => writer.remove(&path)?,
        }
    }
    let mut former = journal.clone();
    record_folders(&mut former, &writer.folders_made());
    settle(site, writer, former)
}

/// Writes the journal that holds from now on; with the last entry everything of ours goes.
pub(super) fn settle(site: &Site, writer: &Writer<'_>, mut journal: Journal) -> anyhow::Result<()> {
    let state = site.state();
    let own: Vec<PathBuf> = journal
        .folders
        .iter()
        .filter(|folder| state.starts_with(folder))
        .cloned()
        .collect();
    // Folders of engines in which nothing is left of ours; one that others use now is theirs.
    for folder in journal.folders.clone().iter().rev() {
        let needed = own.contains(folder)
            || journal
                .files
                .iter()
                .any(|entry| site.at(&entry.path).starts_with(folder))
            || journal
                .programs
                .as_ref()
                .is_some_and(|programs| programs.need(&site.root, folder));
        if !needed {
            writer.remove_empty_dir(folder)?;
            journal.folders.retain(|there| there != folder);
        }
    }
    journal.forget_originals(&state, writer)?;
    journal.write(&state, writer)?;
    if journal.is_empty() {
        Lock::remove(&state, writer)?;
        // A run that was killed before its journal stood did not say that it had made this.
        writer.remove_empty_dir(&state)?;
        for folder in own.iter().rev() {
            writer.remove_empty_dir(folder)?;
        }
    }
    Ok(())
}
