//! What is in folders, to compare it with what is there later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Mode, owner, group and content of each file; of a link, where it leads.
pub type Picture = BTreeMap<PathBuf, (u32, u32, u32, Vec<u8>)>;

/// A path and everything below it. No link is followed.
///
/// # Errors
/// A file cannot be read.
pub fn picture(at: &Path) -> Result<Picture> {
    let mut picture = Picture::new();
    add(&mut picture, at, &|_folder| true)?;
    Ok(picture)
}

/// Adds a path and everything below it, but for what is in a folder that is not to be entered.
///
/// # Errors
/// A file cannot be read.
pub fn add(picture: &mut Picture, at: &Path, enters: &dyn Fn(&Path) -> bool) -> Result<()> {
    let mut paths = vec![at.to_owned()];
    while let Some(path) = paths.pop() {
        let shown = || path.display().to_string();
        let about = fs::symlink_metadata(&path).with_context(shown)?;
        let content = if about.is_symlink() {
            fs::read_link(&path)?.into_os_string().into_encoded_bytes()
        } else if about.is_file() {
            fs::read(&path).with_context(shown)?
        } else {
            Vec::new()
        };
        if about.is_dir() && enters(&path) {
            for entry in fs::read_dir(&path).with_context(shown)? {
                paths.push(entry?.path());
            }
        }
        let seen = (about.mode(), about.uid(), about.gid(), content);
        picture.insert(path, seen);
    }
    Ok(())
}

/// What differs, by path.
#[must_use]
pub fn differences(before: &Picture, after: &Picture) -> BTreeSet<PathBuf> {
    let names = before.keys().chain(after.keys());
    let differ = |name: &&PathBuf| before.get(*name) != after.get(*name);
    names.filter(differ).cloned().collect()
}
