//! The driver's nodes, and one call on an open one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::ioctl::Block;

use crate::Error;

/// Where the driver's nodes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    dir: PathBuf,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::in_dir("/dev")
    }
}

impl Nodes {
    /// Nodes in a directory other than `/dev`.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// `nvidiactl`
    #[must_use]
    pub fn ctl(&self) -> PathBuf {
        self.dir.join("nvidiactl")
    }

    /// `nvidia<minor>`
    #[must_use]
    pub fn card(&self, minor: u32) -> PathBuf {
        self.dir.join(format!("nvidia{minor}"))
    }

    /// `nvidia-uvm`
    #[must_use]
    pub fn uvm(&self) -> PathBuf {
        self.dir.join("nvidia-uvm")
    }

    /// A node by its name.
    #[must_use]
    pub fn named(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }
}

/// An open node.
#[derive(Debug)]
pub struct DriverFile {
    file: File,
    path: PathBuf,
    repeats: Arc<AtomicU64>,
}

impl DriverFile {
    /// Opens a node; calls on it that a signal interrupts are counted in `repeats`.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(path: PathBuf, repeats: &Arc<AtomicU64>) -> Result<Self, Error> {
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Self {
                file,
                path,
                repeats: Arc::clone(repeats),
            }),
            Err(source) => Err(Error::Open { path, source }),
        }
    }

    /// The node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number that a struct names this file by.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// One call, repeated with the same bytes until no signal interrupts it. `name` is the driver's, for errors.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn call(
        &self,
        name: &'static str,
        cmd: u32,
        arg: &mut [u8],
        blocks: &mut [Block<'_>],
    ) -> Result<(), Error> {
        loop {
            match sys::ioctl::with_pointers(self.file.as_fd(), cmd, arg, blocks) {
                Ok(_zero) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.repeats.fetch_add(1, Ordering::Relaxed);
                }
                Err(source) => {
                    return Err(Error::Ioctl {
                        call: name,
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
    }
}

impl AsFd for DriverFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<DriverFile> for std::os::fd::OwnedFd {
    fn from(node: DriverFile) -> Self {
        node.file.into()
    }
}
