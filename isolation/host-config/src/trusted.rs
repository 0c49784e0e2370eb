//! Files that decide over every container: the runtime, the broker, the configuration. They must be root's (or this user's)
//! alone, and so must every folder and link on the way to them: whoever can change one of these holds every container.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sys::failed;

use crate::user_namespace;
use crate::walk::walk;

/// What [`Error::File`] calls a configuration, which nobody executes.
pub const CONFIGURATION: &str = "configuration";

/// A file that describes a driver version, in messages.
pub const DRIVER_FILE: &str = "file of a driver version";

/// Why a file is not obeyed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be looked at.
    #[error(transparent)]
    Io(#[from] sys::FileError),
    /// A program or a configuration that others can change.
    #[error("{what} {} belongs to user {owner} with mode {mode:o}: it must be a plain file of root's that no other user can write{}", path.display(), if [CONFIGURATION, DRIVER_FILE].contains(what) { "" } else { ", and executable" })]
    File {
        /// Which one.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// A program or a configuration behind a folder or a link that others can change.
    #[error("the way to {what} {} leads through {}, which belongs to user {owner} with mode {mode:o}: whoever can write there can replace it; it must be root's, and writable by no other", file.display(), folder.display())]
    Folder {
        /// Which one.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The folder, or the link.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
}

/// Checks a program.
///
/// # Errors
/// It is absent, no file that can be run, or others can change it.
pub fn program(what: &'static str, path: &Path) -> Result<(), Error> {
    check(what, path, |metadata| metadata.mode() & 0o111 != 0)
}

/// Whether a path leads to a program that nobody but root (or this user) could have put there.
#[must_use]
pub fn is_trusted_program(path: &Path) -> bool {
    program("program", path).is_ok()
}

/// Checks a file that is read.
///
/// # Errors
/// It is absent, no plain file, or others can change it.
pub fn file(what: &'static str, path: &Path) -> Result<(), Error> {
    check(what, path, |_| true)
}

fn check(
    what: &'static str,
    path: &Path,
    is_as_needed: impl Fn(&Metadata) -> bool,
) -> Result<(), Error> {
    let absolute = std::path::absolute(path).map_err(failed("resolve", path))?;
    let walked = walk(&absolute);
    let metadata = std::fs::metadata(&absolute).map_err(failed(
        match what {
            CONFIGURATION => "find the configuration",
            DRIVER_FILE => "find the file of the driver's version",
            "runtime" => "find the OCI runtime",
            "broker" => "find the broker",
            _ => "find",
        },
        path,
    ))?;
    let untrusted = |metadata: &Metadata| Error::File {
        what,
        path: path.to_owned(),
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
    };
    if walked.is_magic
        || !metadata.is_file()
        || !is_ours(&metadata)
        || others_write(&metadata)
        || !is_as_needed(&metadata)
    {
        return Err(untrusted(&metadata));
    }
    for part in &walked.through {
        let metadata = std::fs::symlink_metadata(part).map_err(failed("read", part))?;
        // In a sticky folder others cannot touch what is not theirs; a link has no mode of its own.
        let is_safe = metadata.is_symlink()
            || !others_write(&metadata)
            || metadata.mode() & libc::S_ISVTX != 0;
        if !is_ours(&metadata) || !is_safe {
            return Err(Error::Folder {
                what,
                file: path.to_owned(),
                folder: part.clone(),
                owner: metadata.uid(),
                mode: metadata.mode() & 0o7777,
            });
        }
    }
    Ok(())
}

/// Root's, or this user's. In a user namespace the host's root is an unknown owner, like all other users of the host: a rootless
/// engine has nothing of the host's that such a program could misuse, and no container of it gets a vGPU.
fn is_ours(metadata: &Metadata) -> bool {
    let owner = metadata.uid();
    owner == 0
        || owner == nix::unistd::geteuid().as_raw()
        || owner == user_namespace::UNKNOWN_OWNER && user_namespace::is_in_one().unwrap_or(false)
}

fn others_write(metadata: &Metadata) -> bool {
    metadata.mode() & 0o022 != 0
}
