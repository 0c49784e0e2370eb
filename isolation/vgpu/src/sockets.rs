//! Sockets that a frontend's server listens on, in a folder shared with other programs: ours have a second name there.
//!
//! The first name is the one that containerd's shims compute, so that its tools find our server too. The second, a hard link,
//! says that the server is ours, and stays true when another program takes the first.
//!
//! A program that is killed leaves the file of its socket behind, and whoever would remove it may have been killed with it.
//! So [`sweep`] removes what nobody listens on; [`Folder`] keeps it from a socket that is being made. Until a socket is bound and
//! has its second name, that is an empty file: whoever is killed in between has said whose the socket is.
//!
//! Whether anybody listens, a connection says, one for each server of ours: the kernel's table of sockets (`/proc/net/unix`) has also what
//! any user makes, as much of it as that one likes and under the names of ours. A server accepts the connection, reads its end and forgets it.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

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

    /// `None`: somebody holds it.
    fn attempt(dir: &Path) -> io::Result<Option<Self>> {
        let folder = File::open(dir)?;
        match folder.try_lock() {
            Ok(()) => Ok(Some(Self {
                dir: dir.to_owned(),
                _lock: folder,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
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
        let inode = |path: PathBuf| {
            let found = sys::absent_is_none(fs::symlink_metadata(path))?;
            io::Result::Ok(found.map(|found| (found.dev(), found.ino())))
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
#[must_use]
pub fn is_dead(socket: &Path) -> bool {
    connection(socket) == Err(Errno::CONNREFUSED)
}

/// Whether a server lives there, also one that has no room for a connection.
#[must_use]
pub fn is_served(socket: &Path) -> bool {
    matches!(connection(socket), Ok(()) | Err(Errno::AGAIN))
}

/// Nobody is waited for: a server that is stopped accepts nothing, and its queue is full at last.
fn connection(socket: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let ours = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&ours, &SocketAddrUnix::new(socket)?)
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

/// Removes the sockets of ours on which nobody listens; says how many. A folder that is not there has none, and one that somebody holds is
/// left to the next sweep: a socket that is being made there refuses connections too, and a dead one is in nobody's way.
///
/// # Errors
/// The folder cannot be read or locked, or a socket cannot be removed.
pub fn sweep(dir: &Path) -> io::Result<usize> {
    let folder = match Folder::attempt(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Ok(None) => return Ok(0),
        Ok(Some(folder)) => folder,
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let link = entry?.path();
        let name = link.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        // Killed between both names: nobody makes a socket while the folder is held.
        if fs::symlink_metadata(&link)?.is_file() {
            let socket = dir.join(name);
            if is_dead(&socket) {
                fs::remove_file(&socket)?;
            }
            fs::remove_file(&link)?;
            removed += 1;
        } else if is_dead(&link) {
            folder.remove(name)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Where this host's are. A test has a folder of its own, for its thread.
pub(crate) fn dir() -> PathBuf {
    #[cfg(test)]
    if let Some(dir) = tests::DIR_OF_THIS_TEST.with_borrow(Clone::clone) {
        return dir;
    }
    PathBuf::from(DIR)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    thread_local! {
        pub(crate) static DIR_OF_THIS_TEST: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
    }

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

    /// As a user without privileges makes one, in a mount namespace where that path is the user's own.
    #[test]
    fn a_foreign_socket_of_the_same_path_keeps_no_dead_one_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let foreign = UnixListener::bind(&path).unwrap();
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        let table = fs::read("/proc/net/unix").unwrap();
        let name = path.as_os_str().as_encoded_bytes();
        assert!(table.windows(name.len()).any(|found| found == name));
        drop(bound(dir.path(), "s"));
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["elsewhere"]);
        drop(foreign);
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::lock(dir.path()).unwrap();
        folder.announce("s").unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let path = dir.path().join("s");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(is_dead(&path), "a connection does not tell it");
        assert_eq!(sweep(dir.path()).unwrap(), 0);
        rustix::net::listen(&socket, 1).unwrap();
        folder.claim("s").unwrap();
        drop(folder);
        assert_eq!(sweep(dir.path()).unwrap(), 0);
        assert_eq!(names(dir.path()), ["cgpu-s", "s"]);
    }

    #[test]
    fn a_server_that_accepts_nothing_is_not_waited_for_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let live = bound(dir.path(), "live");
        rustix::net::listen(&live, 0).unwrap();
        let path = dir.path().join("live");
        let connection = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let ours = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            connect(&ours, &SocketAddrUnix::new(&path).unwrap()).map(|()| ours)
        };
        let waiting: Vec<_> = std::iter::from_fn(|| connection().ok()).collect();
        assert_eq!(super::connection(&path), Err(Errno::AGAIN));
        assert!(is_served(&path) && !is_dead(&path));
        drop(bound(dir.path(), "dead"));
        swept(dir.path(), 1);
        assert_eq!(names(dir.path()), ["cgpu-live", "live"]);
        drop((live, waiting));
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
