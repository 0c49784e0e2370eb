//! Locks that end with their holder: open-file-description locks on a file that is never removed while held.
//!
//! They belong to the open file, not to the process, so that two threads of one program exclude each other, a
//! closed descriptor elsewhere does not drop them (as POSIX record locks would), and a killed holder leaves none.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sys::failed;

use crate::Error;

/// A held lock; dropping it releases.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// What became of an attempt that does not wait.
#[derive(Debug)]
pub enum Attempt {
    /// The lock is ours.
    Taken(FileLock),
    /// Another holder lives.
    Held,
}

impl FileLock {
    /// Waits until the lock is ours.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be created or the lock not be had.
    pub fn take(path: &Path) -> Result<Self, Error> {
        let file = open(path)?;
        sys::lock::exclusive(&file).map_err(failed("lock", path))?;
        Ok(Self(file))
    }

    /// Takes the lock if nobody holds it.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be created or the lock fails for another reason than a holder.
    pub fn attempt(path: &Path) -> Result<Attempt, Error> {
        let file = open(path)?;
        let taken = sys::lock::try_exclusive(&file).map_err(failed("lock", path))?;
        Ok(if taken {
            Attempt::Taken(Self(file))
        } else {
            Attempt::Held
        })
    }

    /// Whether anybody holds the lock now. A file that does not exist is held by nobody, and is not created.
    ///
    /// # Errors
    /// [`Error::Io`] where the file exists and cannot be opened or asked.
    pub fn is_held(path: &Path) -> Result<bool, Error> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let Some(file) = sys::absent_is_none(opened).map_err(failed("open", path))? else {
            return Ok(false);
        };
        Ok(sys::lock::is_held(&file).map_err(failed("query the lock of", path))?)
    }
}

/// The lock around placement, release and reclaim: `<state_dir>/lock`.
#[derive(Debug)]
pub struct StateLock {
    _lock: FileLock,
}

impl StateLock {
    /// Waits for the host's one lock. It is held for milliseconds, never across the start of a program.
    ///
    /// # Errors
    /// As [`FileLock::take`].
    pub fn take(state_dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            _lock: FileLock::take(&state_dir.join("lock"))?,
        })
    }
}

fn open(path: &Path) -> Result<File, sys::FileError> {
    // std opens with O_CLOEXEC: a program that we start never holds the lock on.
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_reported_and_a_dropped_lock_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!FileLock::is_held(&path).unwrap());
        assert!(!path.exists(), "asking must not create the file");
        let held = FileLock::take(&path).unwrap();
        assert!(FileLock::is_held(&path).unwrap());
        assert!(matches!(FileLock::attempt(&path).unwrap(), Attempt::Held));
        drop(held);
        assert!(!FileLock::is_held(&path).unwrap());
        assert!(matches!(
            FileLock::attempt(&path).unwrap(),
            Attempt::Taken(_)
        ));
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        FileLock::take(&path).unwrap_err();
        assert!(!dir.path().join("elsewhere").exists());
    }
}
