//! The few file operations that durability rests on, as a seam: tests fail the N-th of them, or stop at the N-th.
//!
//! A file is replaced as: write `<name>.tmp`, sync it, rename it over `<name>`, sync the folder. The rename is the
//! commit point: a reader sees the old file or the new one, never half of either. Writers hold the state lock, so
//! one name for the temporary file is enough, and a temporary file that a crash left behind is overwritten. Those that do not hold it
//! replace a file by [`replace_beside_others`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::failed;

use crate::Error;

/// The operations. Every method is one step that can fail or be the last one before a crash.
pub trait Store: std::fmt::Debug {
    /// Creates the folder, root's alone, if it is absent; its parent must exist.
    ///
    /// # Errors
    /// The system's.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Writes a new file, or over an old one, mode 0600.
    ///
    /// # Errors
    /// The system's.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Brings a file's content, or a folder's entries, to the disk.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Replaces `to` by `from` in one step.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; an absent one is fine.
    ///
    /// # Errors
    /// The system's.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder; an absent one is fine.
    ///
    /// # Errors
    /// The system's.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskStore;

impl Store for DiskStore {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        file.write_all(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        sys::absent_is_fine(fs::remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        sys::absent_is_fine(fs::remove_dir(path))
    }
}

/// Replaces `path` durably by `value` as JSON.
pub(crate) fn write_json<T: Serialize>(
    store: &dyn Store,
    what: &'static str,
    path: &Path,
    value: &T,
) -> Result<(), Error> {
    replace(store, path, &to_json(what, path, value)?)
}

/// As a file has it, with a newline at its end.
pub(crate) fn to_json<T: Serialize>(
    what: &'static str,
    path: &Path,
    value: &T,
) -> Result<Vec<u8>, Error> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|source| Error::Unreadable {
        what,
        path: path.to_owned(),
        source,
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Replaces `path` durably: the four steps of the module's header.
///
/// # Errors
/// Names the step and the file. After an error the old file still stands, unless only the last step failed.
pub fn replace(store: &dyn Store, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = temporary_of(path);
    store
        .write(&temporary, bytes)
        .map_err(failed("write", &temporary))?;
    store.sync(&temporary).map_err(failed("sync", &temporary))?;
    store
        .rename(&temporary, path)
        .map_err(failed("replace", path))?;
    let parent = path.parent().unwrap_or_else(|| Path::new("/"));
    Ok(store.sync(parent).map_err(failed("sync", parent))?)
}

/// Replaces a file that others may replace at the same time, with a temporary file of one's own: the last one stays, whole. What is kept
/// so can be asked for anew, and is not synced.
///
/// # Errors
/// Names the step and the file; no temporary file is left.
pub fn replace_beside_others(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    static WRITERS: AtomicU32 = AtomicU32::new(0);
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    let temporary = with_ending(path, &format!(".{}-{writer}", std::process::id()));
    let written = DiskStore
        .write(&temporary, bytes)
        .map_err(failed("write", &temporary))
        .and_then(|()| fs::rename(&temporary, path).map_err(failed("replace", path)));
    if written.is_err() {
        let _removed = fs::remove_file(&temporary);
    }
    Ok(written?)
}

fn temporary_of(path: &Path) -> PathBuf {
    with_ending(path, ".tmp")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Reads a file of ours, which can be hostile or broken: no more than `limit_bytes`.
///
/// # Errors
/// [`Error::Io`] and [`Error::Oversized`].
pub fn read_capped(what: &'static str, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(failed("read", path))?;
    read_open(what, (path, &file), limit_bytes)
}

/// The same of a file that is open; `path` is where it was found.
pub(crate) fn read_open(
    what: &'static str,
    (path, file): (&Path, &File),
    limit_bytes: u64,
) -> Result<Vec<u8>, Error> {
    // Some room beyond what is there: the end is then found without growing, and a node of many claims reads many such files at a start.
    let expected = file.metadata().map_or(0, |found| found.len());
    let expected = usize::try_from(expected.min(limit_bytes)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(expected.saturating_add(64));
    file.take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    let oversized = u64::try_from(bytes.len()).map_or(true, |len| len > limit_bytes);
    if oversized {
        Err(Error::Oversized {
            what,
            path: path.to_owned(),
            limit_bytes,
        })
    } else {
        Ok(bytes)
    }
}

/// Reads the version before anything else, so that a newer file is called newer and not broken.
pub(crate) fn parse_versioned<T: DeserializeOwned>(
    what: &'static str,
    path: &Path,
    bytes: &[u8],
    known: u32,
) -> Result<T, Error> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let unreadable = |source| Error::Unreadable {
        what,
        path: path.to_owned(),
        source,
    };
    let Versioned { version: found } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if found > known {
        return Err(Error::Newer {
            what,
            path: path.to_owned(),
            found,
            known,
        });
    }
    serde_json::from_slice(bytes).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_replace_a_file_at_once_leave_it_whole_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cards.json");
        let texts = [vec![b'a'; 1 << 16], vec![b'b'; 1 << 15]];
        replace_beside_others(&path, &texts[0]).unwrap();
        std::thread::scope(|scope| {
            for text in [0, 1, 0, 1].map(|which| &texts[which]) {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..100 {
                        replace_beside_others(path, text).unwrap();
                        assert!(texts_have(&fs::read(path).unwrap()));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    fn texts_have(found: &[u8]) -> bool {
        let one =
            |byte: u8, length: usize| found.len() == length && found.iter().all(|it| *it == byte);
        one(b'a', 1 << 16) || one(b'b', 1 << 15)
    }
}
