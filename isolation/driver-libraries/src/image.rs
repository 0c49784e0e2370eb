//! A container's root, looked at from outside before anything of it runs: which folder its dynamic linker searches, and
//! its linker cache.
//!
//! Nothing is executed, no file of it is mounted, and no path of it is used but below its root. A root that says nothing,
//! or lies, costs nobody but its own container.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use arch::{Arch, Libraries};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use serde_json::Value;
use sys::failed;

use crate::elf;
use crate::error::Error;
use crate::linker_cache::{self, Entry};
use crate::tree::{Found, LastLink, Tree};

/// Folders and files of this machine's own programs.
const NATIVE: Libraries = Arch::NATIVE.libraries();

/// Folders that a dynamic linker of 32-bit programs searches with no configuration.
const FOLDERS_32: [&str; 5] = [
    "/usr/lib/i386-linux-gnu",
    "/lib/i386-linux-gnu",
    "/usr/lib32",
    "/usr/lib",
    "/lib",
];

/// Where musl searches with no configuration.
const MUSL_FOLDER: &str = "/usr/lib";

const CACHE: &str = "ld.so.cache";
/// A cache of a machine with everything is below a MiB.
const CACHE_MAX_BYTES: u64 = 16 << 20;

/// A container's root.
#[derive(Debug)]
pub(crate) struct Image(Option<Tree>);

impl Image {
    /// That of a spec; `bundle` is what its relative paths are below. A root that is not there is an empty one: its
    /// runtime will say what is wrong. So is the host's own: nothing of it is changed.
    pub(crate) fn of(spec: &Value, bundle: &Path) -> Self {
        let path = spec
            .pointer("/root/path")
            .and_then(Value::as_str)
            .unwrap_or("rootfs");
        Self(
            Tree::open(&bundle.join(path))
                .ok()
                .filter(|tree| !tree.is_the_host_s()),
        )
    }

    fn find(&self, path: &str) -> Option<Found> {
        let tree = self.0.as_ref()?;
        let found = tree.find(Path::new(path), LastLink::Followed).ok()??;
        found.is_file().then_some(found)
    }

    fn is_file(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// Where a library must stand to be found by its name alone. A libc is always in such a folder; a root without one has
    /// no program that could ask.
    pub(crate) fn library_folder(&self) -> PathBuf {
        let with_libc = |folder: &&str| self.is_file(&format!("{folder}/libc.so.6"));
        let folder = NATIVE
            .folders
            .into_iter()
            .find(|folder| with_libc(folder))
            .or_else(|| self.is_file(NATIVE.musl_loader).then_some(MUSL_FOLDER));
        PathBuf::from(folder.unwrap_or(NATIVE.folders[0]))
    }

    /// [`Self::library_folder`] for 32-bit programs; `None` where there are none.
    pub(crate) fn library_folder_32(&self) -> Option<PathBuf> {
        // Where Debian has 32-bit libraries in one folder, Arch has those of 64 bits, and by more than one name.
        let is_for_32 = |folder: &&str| {
            let libc = self.find(&format!("{folder}/libc.so.6"));
            libc.is_some_and(|libc| elf::is_for_32_bits(&libc))
        };
        let folder = FOLDERS_32.into_iter().find(is_for_32);
        folder.map(PathBuf::from)
    }

    /// Adds libraries to the linker cache, if there is one: programs find libraries in the default folders without it, and
    /// some ask `ldconfig -p`. The file is replaced in one step, so that `ldconfig` in the container still can, too. What
    /// fails is told and harms nothing.
    pub(crate) fn add_to_linker_cache(&self, libraries: &[Entry]) {
        let Some(tree) = self.0.as_ref().filter(|_| !libraries.is_empty()) else {
            return;
        };
        if let Err(error) = add(tree, libraries) {
            tracing::warn!(error = %host_config::chain(&error), "the image's linker cache stays as it is; its programs find the driver's libraries in the default folders");
        }
    }
}

fn add(tree: &Tree, libraries: &[Entry]) -> Result<(), Error> {
    let Some(folder) = tree.find(Path::new("/etc"), LastLink::Followed)? else {
        return Ok(());
    };
    let path = folder.path().join(CACHE);
    // A link would be followed to a file of another name, which is not the one that the linker replaces.
    let Some(old) = tree.find(&Path::new("/etc").join(CACHE), LastLink::Kept)? else {
        return Ok(());
    };
    let mut bytes = Vec::new();
    old.read()?
        .take(CACHE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("read", &path))?;
    let new = u64::try_from(bytes.len())
        .is_ok_and(|length| length <= CACHE_MAX_BYTES)
        .then(|| linker_cache::with(&bytes, libraries))
        .flatten()
        .ok_or_else(|| Error::Path {
            path: path.clone(),
            problem: "it is no linker cache of this machine's programs",
        })?;
    if new == bytes {
        return Ok(());
    }
    Ok(replace(folder.fd(), &new, old.metadata()).map_err(failed("write", &path))?)
}

/// By the folder's descriptor alone: whoever swaps folders of the root meanwhile changes nothing about where this goes.
fn replace(folder: &OwnedFd, bytes: &[u8], like: &std::fs::Metadata) -> std::io::Result<()> {
    let temporary = format!(".cgpu-{CACHE}.{}", std::process::id());
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let remove = || match unlinkat(folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(std::io::Error::from(errno)),
    };
    // What a killed frontend of this number has left.
    remove()?;
    let file = openat(
        folder,
        temporary.as_str(),
        flags,
        Mode::S_IRUSR | Mode::S_IWUSR,
    )?;
    let mut file = std::fs::File::from(file);
    let written = file.write_all(bytes).and_then(|()| {
        fchown(
            file.as_fd(),
            Some(Uid::from_raw(like.uid())),
            Some(Gid::from_raw(like.gid())),
        )?;
        fchmod(file.as_fd(), Mode::from_bits_truncate(like.mode() & 0o777))?;
        renameat(folder, temporary.as_str(), folder, CACHE)?;
        Ok(())
    });
    if let Err(error) = written {
        // The error that counts is the first.
        drop(remove());
        return Err(error);
    }
    Ok(())
}
