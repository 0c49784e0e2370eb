//! Sockets in the kubelet's folders.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cards::sockets::PATH_BYTES_MAX;
use tokio::net::{UnixListener, UnixStream};

use crate::error::Error;

/// How long a living driver may take to accept.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a path is a socket's address.
///
/// # Errors
/// [`Error::SocketPath`].
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    let bytes = path.as_os_str().len();
    if bytes <= PATH_BYTES_MAX {
        return Ok(());
    }
    Err(Error::SocketPath {
        path: path.to_owned(),
        bytes,
        most: PATH_BYTES_MAX,
    })
}

/// A socket that is ours.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    bound: Bound,
}

/// Its name in the file system, which is removed with it.
#[derive(Debug)]
pub(super) struct Bound {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Socket {
    /// Binds it, root's alone. One that a killed driver left is removed.
    ///
    /// # Errors
    /// [`Error::SocketInUse`] where somebody serves on it; a failed file operation.
    pub(super) async fn bind(path: &Path) -> Result<Self, Error> {
        check(path)?;
        let folder = path.parent().unwrap_or_else(|| Path::new("/"));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(folder)
            .map_err(Error::io("make", folder))?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(Error::io("bind", path))?;
        let file = identity(path).map_err(Error::io("look at", path))?;
        let bound = Bound {
            path: path.to_owned(),
            file,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(Error::io("protect", path))?;
        Ok(Self { listener, bound })
    }

    pub(super) fn path(&self) -> &Path {
        &self.bound.path
    }

    /// The listener, and its name.
    pub(super) fn split(self) -> (UnixListener, Bound) {
        (self.listener, self.bound)
    }
}

impl Bound {
    /// Whether the name still leads here.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|file| file == self.file)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.is_there() {
            drop(fs::remove_file(&self.path));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino()))
}

/// Nobody accepts on a socket whose process has ended.
async fn remove_stale(path: &Path) -> Result<(), Error> {
    let about = sys::absent_is_none(fs::symlink_metadata(path));
    let Some(about) = about.map_err(Error::io("look at", path))? else {
        return Ok(());
    };
    if !about.file_type().is_socket() {
        let is_file = io::Error::other("it is there, and is no socket");
        return Err(Error::io("bind", path)(is_file));
    }
    let attempt = tokio::time::timeout(PATIENCE, UnixStream::connect(path)).await;
    match attempt {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "a former driver's socket is removed");
            sys::absent_is_fine(fs::remove_file(path)).map_err(Error::io("remove", path))
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) => Err(Error::io("connect to", path)(error)),
        Ok(Ok(_)) | Err(_) => Err(Error::SocketInUse {
            path: path.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_killed_driver_s_socket_is_replaced_and_a_living_one_s_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugins/x/dra.sock");
        let first = Socket::bind(&path).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Socket::bind(&path).await.unwrap_err();
        assert!(matches!(error, Error::SocketInUse { .. }), "{error}");
        // As after a kill: the name stays.
        let kept = folder.path().join("kept");
        fs::hard_link(&path, &kept).unwrap();
        drop(first);
        assert!(!path.exists(), "an end in order removes the name");
        fs::rename(&kept, &path).unwrap();
        let second = Socket::bind(&path).await.unwrap();
        assert!(second.bound.is_there());
        fs::remove_file(&path).unwrap();
        assert!(!second.bound.is_there());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dra.sock");
        fs::write(&path, "a file of somebody's").unwrap();
        let bound = Socket::bind(&path).await;
        assert!(bound.is_err() && path.exists(), "{bound:?}");
        let long = folder.path().join("a".repeat(108));
        let error = Socket::bind(&long).await.unwrap_err();
        assert!(matches!(error, Error::SocketPath { .. }), "{error}");
    }
}
