//! Sockets that a door's server listens on, in a folder shared with other programs: ours are known by their names.
//!
//! A program that is killed leaves the file of its socket behind, and whoever would remove it may have been killed with it.
//! So [`sweep`] removes what nobody listens on; [`lock`] keeps it from a socket that is being made.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where containerd's shims keep theirs. Short, because a socket's path has at most 107 bytes.
pub const DIR: &str = "/run/containerd/s";

const PREFIX: &str = "cgpu-";

/// Where a door's socket stands. `name` is of the door's choice and says for whom it listens.
#[must_use]
pub fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{PREFIX}{name}"))
}

/// Holds off [`sweep`] while the returned file lives: from before a socket is bound until somebody listens on it.
///
/// # Errors
/// The folder is not there, or cannot be locked.
pub fn lock(dir: &Path) -> io::Result<File> {
    let folder = File::open(dir)?;
    folder.lock()?;
    Ok(folder)
}

/// Removes the sockets of ours on which nobody listens; says how many. A folder that is not there has none.
///
/// # Errors
/// The folder cannot be read or locked, or a socket cannot be removed.
pub fn sweep(dir: &Path) -> io::Result<usize> {
    let _lock = match lock(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    // One read instead of one connection for every container of the host.
    let table = fs::read_to_string("/proc/net/unix")?;
    let known: HashSet<&str> = table
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let (Some(name), Some(text)) = (
            path.file_name().and_then(|name| name.to_str()),
            path.to_str(),
        ) else {
            continue;
        };
        if !name.starts_with(PREFIX) || known.contains(text) {
            continue;
        }
        // The table is of this network namespace only; a connection is certain.
        if UnixStream::connect(&path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        {
            fs::remove_file(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    /// A process that another test is just starting holds a copy of every socket until it executes its program.
    fn swept(dir: &Path, wanted: usize) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut removed = 0;
        while removed < wanted && Instant::now() < until {
            removed += sweep(dir).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(removed, wanted);
    }

    #[test]
    fn only_dead_sockets_of_ours_go() {
        let dir = tempfile::tempdir().unwrap();
        let live = UnixListener::bind(path(dir.path(), "live")).unwrap();
        drop(UnixListener::bind(path(dir.path(), "dead")).unwrap());
        drop(UnixListener::bind(dir.path().join("foreign")).unwrap());
        swept(dir.path(), 1);
        assert!(path(dir.path(), "live").exists());
        assert!(!path(dir.path(), "dead").exists());
        assert!(dir.path().join("foreign").exists());
        drop(live);
        swept(dir.path(), 1);
        assert_eq!(sweep(&dir.path().join("absent")).unwrap(), 0);
    }
}
