//! Sockets that a frontend's server listens on, in a folder shared with other programs: ours have a second name there.
//!
//! The first name is the one that containerd's shims compute, so that its tools find our server too. The second, a hard link,
//! says that the server is ours, and stays true when another program takes the first.
//!
//! A program that is killed leaves the file of its socket behind, and whoever would remove it may have been killed with it.
//! So [`sweep`] removes what nobody listens on; [`Folder`] keeps it from a socket that is being made. Until a socket is bound and
//! has its second name, that is an empty file: whoever is killed in between has said whose the socket is.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Where containerd's shims keep theirs. Short, because a socket's path has at most 107 bytes.
pub const DIR: &str = "/run/containerd/s";

const PREFIX: &str = "cgpu-";

/// The folder, held against [`sweep`] and other frontends while this lives: from before a socket is bound until it has its
/// second name.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    _lock: File,
}

impl Folder {
    /// Waits for whoever holds it.
    ///
    /// # Errors
    /// The folder is not there, or cannot be locked.
    pub fn lock(dir: &Path) -> io::Result<Self> {
        let folder = File::open(dir)?;
        folder.lock()?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: folder,
        })
    }

    /// Binds a socket of ours, on whose name nobody listens, in the place of what a killed program has left there.
    ///
    /// # Errors
    /// A name cannot be made or removed, or the socket not be bound. What is there by then is left to [`sweep`].
    pub fn bind(&self, name: &str) -> io::Result<UnixListener> {
        self.announce(name)?;
        let socket = self.dir.join(name);
        sys::absent_is_fine(fs::remove_file(&socket))?;
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        self.claim(name)?;
        Ok(listener)
    }

    /// Says that the socket of this name, which is about to be bound, is ours.
    fn announce(&self, name: &str) -> io::Result<()> {
        self.replace_link(name, |new| File::create_new(new).map(drop))
    }

    /// Gives the socket, which has just been bound, its second name.
    fn claim(&self, name: &str) -> io::Result<()> {
        self.replace_link(name, |new| fs::hard_link(self.dir.join(name), new))
    }

    /// In one step: at no moment is there no mark where there was one. A new one that a killed program has left is a mark of no
    /// socket's, which [`sweep`] removes.
    fn replace_link(&self, name: &str, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let new = self.link(&format!("{name}.new"));
        sys::absent_is_fine(fs::remove_file(&new))?;
        make(&new)?;
        fs::rename(new, self.link(name))
    }

    /// Whether the socket of this name is one of ours.
    ///
    /// # Errors
    /// It cannot be looked at. A socket that is not there is no error.
    pub fn is_ours(&self, name: &str) -> io::Result<bool> {
        let inode = |path: PathBuf| match fs::symlink_metadata(path) {
            Ok(found) => Ok(Some((found.dev(), found.ino()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let socket = inode(self.dir.join(name))?;
        Ok(socket.is_some() && socket == inode(self.link(name))?)
    }

    /// Removes both names of a socket of ours.
    ///
    /// # Errors
    /// A name cannot be removed. One that is not there, or another program's, is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        if self.is_ours(name)? {
            fs::remove_file(self.dir.join(name))?;
        }
        sys::absent_is_fine(fs::remove_file(self.link(name)))
    }

    fn link(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{PREFIX}{name}"))
    }
}

/// Whether somebody was killed who listened there.
fn is_dead(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Removes a socket of ours by its path.
///
/// # Errors
/// Its folder cannot be locked, or the socket not removed.
pub fn remove(socket: &Path) -> io::Result<()> {
    match (
        socket.parent(),
        socket.file_name().and_then(|name| name.to_str()),
    ) {
        (Some(dir), Some(name)) => Folder::lock(dir)?.remove(name),
        _ => Ok(()),
    }
}

/// Removes the sockets of ours on which nobody listens; says how many. A folder that is not there has none.
///
/// # Errors
/// The folder cannot be read or locked, or a socket cannot be removed.
pub fn sweep(dir: &Path) -> io::Result<usize> {
    let folder = match Folder::lock(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    // One read instead of one connection for every container of the host.
    // Names in it are bytes, which any process of this network namespace chooses.
    let table = fs::read("/proc/net/unix")?;
    let known: HashSet<&[u8]> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').next_back())
        .collect();
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let link = entry?.path();
        let name = link.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let socket = dir.join(name);
        // Killed between both names: nobody makes a socket while the folder is held.
        if fs::symlink_metadata(&link)?.is_file() {
            if is_dead(&socket) {
                fs::remove_file(&socket)?;
            }
            fs::remove_file(&link)?;
            removed += 1;
            continue;
        }
        if known.contains(socket.as_os_str().as_bytes()) {
            continue;
        }
        // The table is of this network namespace only; a connection is certain.
        if is_dead(&link) {
            folder.remove(name)?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A process that another test is just starting holds a copy of every socket until it executes its program.
    fn swept(dir: &Path, needed: usize) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut removed = 0;
        while removed < needed && Instant::now() < until {
            removed += sweep(dir).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(removed, needed);
    }

    /// As a frontend does.
    fn bound(dir: &Path, name: &str) -> UnixListener {
        Folder::lock(dir).unwrap().bind(name).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_dead_sockets_of_ours_go() {
        let dir = tempfile::tempdir().unwrap();
        let live = bound(dir.path(), "live");
        drop(bound(dir.path(), "dead"));
        drop(UnixListener::bind(dir.path().join("foreign")).unwrap());
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["cgpu-live", "foreign", "live"]);
        drop(live);
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["foreign"]);
        assert_eq!(sweep(&dir.path().join("absent")).unwrap(), 0);
    }

    /// The name is of the network namespace that this process is in.
    #[test]
    fn a_socket_whose_name_is_no_text_stops_no_sweep() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = [
            b"cgpu-test-\xff-",
            std::process::id().to_string().as_bytes(),
        ]
        .concat();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let foreign = UnixListener::bind_addr(&address).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let live = bound(dir.path(), "live");
        drop(bound(dir.path(), "dead"));
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["cgpu-live", "live"]);
        drop((foreign, live));
    }

    /// `kill -9` between any two steps.
    #[test]
    fn what_a_frontend_leaves_that_was_killed_while_it_bound_goes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = || Folder::lock(dir.path()).unwrap();
        // Before a mark takes the place of another: of a killed server's, and of the announcement.
        drop(bound(dir.path(), "s"));
        File::create_new(folder().link("s.new")).unwrap();
        swept(dir.path(), 2);
        assert_eq!(names(dir.path()), [""; 0]);
        folder().announce("s").unwrap();
        drop(UnixListener::bind(dir.path().join("s")).unwrap());
        fs::hard_link(dir.path().join("s"), folder().link("s.new")).unwrap();
        swept(dir.path(), 2);
        assert_eq!(names(dir.path()), [""; 0]);
        folder().announce("s").unwrap();
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), [""; 0]);
        // Also where a former server's name is.
        drop(bound(dir.path(), "s"));
        folder().announce("s").unwrap();
        fs::remove_file(dir.path().join("s")).unwrap();
        drop(UnixListener::bind(dir.path().join("s")).unwrap());
        assert_eq!(names(dir.path()), ["cgpu-s", "s"]);
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), [""; 0]);
        // Another program has it by now.
        folder().announce("s").unwrap();
        let foreign = UnixListener::bind(dir.path().join("s")).unwrap();
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["s"]);
        drop(foreign);
        File::create_new(folder().link("s.new")).unwrap();
        drop(bound(dir.path(), "s"));
        assert_eq!(names(dir.path()), ["cgpu-s", "s"]);
    }

    #[test]
    fn a_socket_that_another_program_has_taken_is_no_longer_ours() {
        let dir = tempfile::tempdir().unwrap();
        let ours = |name| Folder::lock(dir.path()).unwrap().is_ours(name).unwrap();
        drop(bound(dir.path(), "s"));
        assert!(ours("s") && !ours("absent"));
        fs::remove_file(dir.path().join("s")).unwrap();
        let foreign = UnixListener::bind(dir.path().join("s")).unwrap();
        assert!(!ours("s"));
        remove(&dir.path().join("s")).unwrap();
        assert_eq!(names(dir.path()), ["s"], "it stays, our name does not");
        drop(foreign);
        drop(bound(dir.path(), "s"));
        drop(bound(dir.path(), "s"));
        assert!(
            ours("s"),
            "a new server's name takes the place of a killed one's"
        );
    }
}
