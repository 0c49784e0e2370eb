//! Files of engines: read with their owner and mode, replaced in one step.
//!
//! ```text
//!   write <name>.cgpu-new, owner, mode, sync  ─►  the file is still as it was read  ─►  rename  ─►  sync the folder
//! ```
//!
//! A reader sees the old file or the new one, never half of either; no engine reads a name that ends in `.cgpu-new`.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink,
};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// More than any engine's configuration.
const LIMIT_BYTES: u64 = 4 << 20;

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The permission bits.
    pub(super) mode: u32,
}

/// A file as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: String,
    pub(super) owner: Owner,
}

/// Reads a file; `None` where there is none.
///
/// # Errors
/// A link, something that is no plain file, more than 4 MiB, not UTF-8.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Found>> {
    let about = sys::absent_is_none(fs::symlink_metadata(path));
    let Some(about) = about.with_context(|| format!("read {}", path.display()))? else {
        return Ok(None);
    };
    if about.is_symlink() {
        bail!(
            "{} is a symbolic link: it would be replaced by a file; write the entries that `cgpu install --dry-run --root DIR` shows by hand",
            path.display()
        );
    }
    if !about.is_file() {
        bail!("{} is no plain file", path.display());
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
        .with_context(|| format!("read {}", path.display()))?;
    let about = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(LIMIT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT_BYTES {
        bail!("{} has more than {LIMIT_BYTES} bytes", path.display());
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| error.utf8_error())
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(Some(Found {
        text,
        owner: Owner {
            uid: about.uid(),
            gid: about.gid(),
            mode: about.mode() & 0o7777,
        },
    }))
}

/// A file's fingerprint, from its beginning.
pub(super) fn digest_of(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    transfer(file, &mut io::sink())
}

/// Copies all of a program; its fingerprint.
fn transfer(from: &mut impl Read, to: &mut impl Write) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Ok(cards::hexadecimal(&digest.finalize()));
        };
        digest.update(bytes);
        to.write_all(bytes)?;
    }
}

/// Copies all of a program from its beginning; the file must be what it was when the source was opened.
fn copied(from: &mut File, to: &mut impl Write, digest: &str) -> io::Result<()> {
    from.seek(SeekFrom::Start(0))?;
    if transfer(from, to)? != digest {
        return Err(io::Error::other(
            "the program was changed while it was copied",
        ));
    }
    Ok(())
}

/// What changes the disk, as a seam: tests end at the N-th step, as SIGKILL would.
pub(super) trait Disk {
    /// Called before each step.
    ///
    /// # Errors
    /// A test's: the step is not made.
    fn step(&self) -> io::Result<()>;
}

/// Every step is made.
#[derive(Debug)]
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn step(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The disk, and the folders that were made on it.
pub(super) struct Writer<'a> {
    disk: &'a dyn Disk,
    made: RefCell<Vec<PathBuf>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Self {
        Self {
            disk,
            made: RefCell::new(Vec::new()),
        }
    }

    /// The folders made so far, parents first.
    pub(super) fn folders_made(&self) -> Vec<PathBuf> {
        self.made.borrow().clone()
    }

    /// Makes a folder and those above it.
    pub(super) fn create_dirs(&self, path: &Path, mode: u32) -> anyhow::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.create_dirs(parent, 0o755)?;
        }
        let made = self
            .disk
            .step()
            .and_then(|()| DirBuilder::new().mode(mode).create(path));
        match made {
            // Another run was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(error) => Err(error).with_context(|| format!("create {}", path.display())),
            Ok(()) => {
                self.made.borrow_mut().push(path.to_owned());
                Ok(())
            }
        }
    }

    /// Removes a folder if it is empty; an absent one is fine.
    pub(super) fn remove_empty_dir(&self, path: &Path) -> anyhow::Result<()> {
        let removed = self.disk.step().and_then(|()| fs::remove_dir(path));
        match removed {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                Ok(())
            }
            other => other.with_context(|| format!("remove {}", path.display())),
        }
    }

    /// Replaces a file, or makes it, in one step. `was`: what it must still be, so that nobody's edit is lost.
    pub(super) fn replace(
        &self,
        path: &Path,
        text: &str,
        owner: Option<Owner>,
        was: Option<&Found>,
    ) -> anyhow::Result<()> {
        let temporary = temporary_of(path);
        let written = self
            .write_new(&temporary, text, owner)
            .with_context(|| format!("write {}", temporary.display()))
            .and_then(|()| {
                if read(path)?.as_ref() != was {
                    bail!("{} was changed meanwhile; run it again", path.display());
                }
                self.disk
                    .step()
                    .and_then(|()| fs::rename(&temporary, path))
                    .with_context(|| format!("replace {}", path.display()))
            });
        if written.is_err() && self.disk.step().is_ok() {
            // The error that counts is the first.
            drop(fs::remove_file(&temporary));
        }
        written?;
        self.sync_folder(path)
    }

    /// Copies a program to its place in one step; one that runs from there keeps the file that it has.
    pub(super) fn copy_program(
        &self,
        from: &mut File,
        digest: &str,
        path: &Path,
    ) -> anyhow::Result<()> {
        let temporary = temporary_of(path);
        let copied = self
            .disk
            .step()
            .and_then(|()| create_new(&temporary))
            .and_then(|mut file| {
                self.disk.step()?;
                copied(from, &mut file, digest)?;
                file.set_permissions(Permissions::from_mode(0o755))?;
                file.sync_all()
            })
            .and_then(|()| self.disk.step())
            .and_then(|()| fs::rename(&temporary, path))
            .with_context(|| format!("copy {}", path.display()));
        if copied.is_err() && self.disk.step().is_ok() {
            // The error that counts is the first.
            drop(fs::remove_file(&temporary));
        }
        copied?;
        self.sync_folder(path)
    }

    /// Makes a symbolic link, or lets it lead elsewhere, in one step.
    pub(super) fn link(&self, path: &Path, target: &str) -> anyhow::Result<()> {
        let temporary = temporary_of(path);
        self.disk
            .step()
            .and_then(|()| sys::absent_is_fine(fs::remove_file(&temporary)))
            .and_then(|()| symlink(target, &temporary))
            .and_then(|()| self.disk.step())
            .and_then(|()| fs::rename(&temporary, path))
            .with_context(|| format!("let {} lead to {target}", path.display()))?;
        self.sync_folder(path)
    }

    /// Removes a file, and what a killed run may have left beside it; an absent one is fine.
    pub(super) fn remove(&self, path: &Path) -> anyhow::Result<()> {
        for path in [&temporary_of(path), path] {
            let removed = self.disk.step().and_then(|()| fs::remove_file(path));
            sys::absent_is_fine(removed).with_context(|| format!("remove {}", path.display()))?;
        }
        self.sync_folder(path)
    }

    /// Removes what a killed run may have left beside a file.
    pub(super) fn remove_rest(&self, path: &Path) -> anyhow::Result<()> {
        let temporary = temporary_of(path);
        if temporary.exists() {
            self.disk
                .step()
                .and_then(|()| fs::remove_file(&temporary))
                .with_context(|| format!("remove {}", temporary.display()))?;
        }
        Ok(())
    }

    fn write_new(&self, path: &Path, text: &str, owner: Option<Owner>) -> io::Result<()> {
        self.disk.step()?;
        let mut file = create_new(path)?;
        self.disk.step()?;
        file.write_all(text.as_bytes())?;
        let mode = match owner {
            Some(owner) => {
                fchown(&file, Some(owner.uid), Some(owner.gid))?;
                owner.mode
            }
            None => 0o644,
        };
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> anyhow::Result<()> {
        let folder = path.parent().unwrap_or_else(|| Path::new("/"));
        self.disk
            .step()
            .and_then(|()| match sys::absent_is_none(File::open(folder))? {
                None => Ok(()),
                Some(folder) => folder.sync_all(),
            })
            .with_context(|| format!("sync {}", folder.display()))
    }
}

/// A file of nobody else's, in the place of what a killed run left.
fn create_new(path: &Path) -> io::Result<File> {
    sys::absent_is_fine(fs::remove_file(path))?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
}

fn temporary_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".cgpu-new");
    PathBuf::from(name)
}
