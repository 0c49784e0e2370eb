//! Files that calls of cgpu's own are made on.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::OwnCallError;
use crate::{FdSlot, FileId, FileKind, FileRef};

/// A file of cgpu's own, here and by its name with whoever makes the calls.
#[derive(Debug)]
pub struct OwnFile {
    pub(super) id: FileId,
    pub(super) kind: FileKind,
    pub(super) fd: OwnedFd,
    path: PathBuf,
}

impl OwnFile {
    /// Opens a node, which must be what its name says.
    ///
    /// # Errors
    /// [`OwnCallError::Node`] and [`OwnCallError::NotTheDrivers`].
    pub fn open(
        path: PathBuf,
        (id, kind): (FileId, FileKind),
        classify: impl FnOnce(BorrowedFd<'_>) -> Option<FileKind>,
    ) -> Result<Self, OwnCallError> {
        let opened = File::options().read(true).write(true).open(&path);
        let fd = match opened {
            Ok(file) => OwnedFd::from(file),
            Err(source) => return Err(OwnCallError::Node { path, source }),
        };
        match classify(fd.as_fd()) {
            Some(found) if found == kind => Ok(Self { id, kind, fd, path }),
            _ => Err(OwnCallError::NotTheDrivers { path }),
        }
    }

    /// A tenant's file, for calls of cgpu's own on it.
    ///
    /// # Errors
    /// [`OwnCallError::Node`]: the system has no descriptor for it.
    pub fn duplicate(file: FileRef<'_>) -> Result<Self, OwnCallError> {
        let path = PathBuf::from("a tenant's file");
        match file.fd.try_clone_to_owned() {
            Ok(fd) => Ok(Self {
                id: file.id,
                kind: file.kind,
                fd,
                path,
            }),
            Err(source) => Err(OwnCallError::Node { path, source }),
        }
    }

    /// It, in the place of a descriptor's number.
    pub(super) fn slot(&self, (segment, at): (u8, usize)) -> Result<FdSlot, OwnCallError> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|source| OwnCallError::Node {
            path: self.path.clone(),
            source,
        })?;
        Ok(FdSlot {
            segment,
            // No struct is as long: whoever makes the call refuses it.
            at: u32::try_from(at).unwrap_or(u32::MAX),
            number: 0,
            file: Some((self.id, self.kind)),
            fd,
        })
    }
}
