//! Where lines go: a file that is rotated, or what standard error is otherwise.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::open_for_append;

/// A file that would be longer becomes the former one.
pub const MOST_BYTES: u64 = 256 << 10;
/// Where it cannot be rotated, lines beyond this are left out.
pub const HARD_BYTES: u64 = MOST_BYTES + (64 << 10);
/// Another process that holds the lock is waited for so often, so long each time: some milliseconds in all.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_micros(100);

/// Why a line was not written.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The system's.
    Io(io::Error),
    /// Nobody reads the pipe.
    Unread,
    /// The file is at its bound and cannot be rotated.
    Long,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Unread => f.write_str("nobody reads the log"),
            Self::Long => f.write_str("the log is full and cannot be rotated"),
        }
    }
}

/// Where lines go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A file of ours.
    Rotated(Rotated),
    /// A terminal, a pipe, somebody's file.
    Plain(Option<OwnedFd>),
}

#[derive(Debug)]
pub(crate) struct Rotated {
    file: File,
    /// Whether `file` is an open file of this process alone, whose lock keeps others out.
    is_own: bool,
    former: Option<File>,
    former_path: PathBuf,
    /// The last line is there in part: the next one begins anew.
    is_torn: bool,
}

impl Sink {
    pub(crate) fn standard_error(former: Option<PathBuf>) -> Self {
        // The descriptor itself, and none of its number's: what is opened later under it is not the log.
        let inherited = io::stderr().as_fd().try_clone_to_owned().ok();
        match (inherited, former) {
            (Some(inherited), Some(former)) => Self::of(inherited, former),
            (inherited, _) => Self::Plain(inherited),
        }
    }

    /// The file of a descriptor, if it is one, and beside it the one for what is older.
    pub(crate) fn of(inherited: OwnedFd, former_path: PathBuf) -> Self {
        let inherited = File::from(inherited);
        if !inherited.metadata().is_ok_and(|file| file.is_file()) {
            return Self::Plain(Some(inherited.into()));
        }
        // `/proc/self/fd` gives the very file, whatever its name has become.
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", inherited.as_raw_fd());
        let own = File::options().read(true).append(true).open(again);
        let former = open_for_append(&former_path).ok();
        Self::Rotated(Rotated {
            is_own: own.is_ok(),
            file: own.unwrap_or(inherited),
            former,
            former_path,
            is_torn: false,
        })
    }

    pub(crate) fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Rotated(file) => file.write(line),
            Self::Plain(None) => Ok(()),
            Self::Plain(Some(fd)) => plain(fd, line),
        }
    }
}

/// A reader that has stopped must not stop the writer.
fn plain(fd: &OwnedFd, line: &[u8]) -> Result<(), Failure> {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    // What cannot be polled can be written.
    if poll(&mut polled, PollTimeout::ZERO) == Ok(0) {
        return Err(Failure::Unread);
    }
    match nix::unistd::write(fd, line) {
        Ok(_some) => Ok(()),
        Err(errno) => Err(Failure::Io(errno.into())),
    }
}

impl Rotated {
    fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        let is_locked = self.lock();
        let written = self.write_locked(line, is_locked);
        if is_locked {
            // It fails for no file that could be locked.
            let _unlocked = sys::lock::unlock(&self.file);
        }
        written
    }

    /// Another process writes or rotates for microseconds, unless it is stopped in the middle of that. Then lines are appended
    /// beside it, as the kernel does it in one piece, up to the hard bound.
    fn lock(&self) -> bool {
        if !self.is_own {
            return false;
        }
        for _ in 0..LOCK_TRIES {
            match sys::lock::try_exclusive(&self.file) {
                Ok(true) => return true,
                Ok(false) => std::thread::sleep(LOCK_PAUSE),
                Err(_) => return false,
            }
        }
        false
    }

    fn write_locked(&mut self, line: &[u8], is_locked: bool) -> Result<(), Failure> {
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let beyond = |file: &File, bound| {
            let length = file.metadata().map_or(0, |file| file.len());
            length.saturating_add(more) > bound
        };
        if is_locked && beyond(&self.file, MOST_BYTES) {
            self.rotate().map_err(Failure::Io)?;
        }
        if beyond(&self.file, HARD_BYTES) {
            return Err(Failure::Long);
        }
        if self.is_torn {
            match (&self.file).write(b"\n") {
                Ok(1) => self.is_torn = false,
                Ok(_) => return Err(Failure::Io(io::ErrorKind::WriteZero.into())),
                Err(error) => return Err(Failure::Io(error)),
            }
        }
        let before = self.file.metadata().map(|file| file.len());
        match (&self.file).write(line) {
            Ok(count) if count == line.len() => Ok(()),
            Ok(count) => {
                // The disk is full in the middle of the line: half a line is none.
                let is_whole = is_locked && before.is_ok_and(|at| self.file.set_len(at).is_ok());
                self.is_torn = count > 0 && !is_whole;
                Err(Failure::Io(io::ErrorKind::StorageFull.into()))
            }
            Err(error) => Err(Failure::Io(error)),
        }
    }

    /// What is in the file becomes the former part; on a full disk as much of it as there is room for.
    fn rotate(&mut self) -> io::Result<()> {
        if self.former.is_none() {
            self.former = open_for_append(&self.former_path).ok();
        }
        if let Some(former) = &self.former {
            former.set_len(0)?;
            let mut at = 0;
            let mut piece = [0; 4096];
            loop {
                let count = self.file.read_at(&mut piece, at)?;
                let Some(piece) = piece.get(..count).filter(|piece| !piece.is_empty()) else {
                    break;
                };
                let mut to = former;
                if to.write_all(piece).is_err() {
                    break;
                }
                at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            }
        }
        self.is_torn = false;
        self.file.set_len(0)
    }
}
