//! The mount: made by the system call itself, so that no helper program (`fusermount3`) is needed, and taken away in any case.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use cards::lock::{Attempt, FileLock};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The kernel's side.
const DEVICE: &str = "/dev/fuse";

/// Mounts of former programs one above the other that are taken away; one is all that there should be.
const DEAD_MOST: usize = 8;

/// A mount that goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Mount {
    target: PathBuf,
    _lock: FileLock,
}

impl Mount {
    /// Mounts at this folder, which is made where it is absent. A mount that a killed program has left there is taken away.
    ///
    /// # Errors
    /// Another program of this kind; something else is there; no FUSE, or no right to mount.
    pub(crate) fn new(target: &Path) -> anyhow::Result<(Self, OwnedFd)> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "this needs root: the tree is a mount for root alone"
        );
        let shown = target.display();
        let parent = target.parent().filter(|_| target.is_absolute());
        let parent =
            parent.with_context(|| format!("{shown}: not an absolute path of a folder"))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .with_context(|| format!("make {}", parent.display()))?;
        let lock = lock(target)?;
        unmount_dead(target)?;
        match DirBuilder::new().mode(0o700).create(target) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("make {shown}"))?,
        }
        let (inside, outside) = (target.symlink_metadata()?, parent.metadata()?);
        ensure!(inside.is_dir(), "{shown} is no folder");
        ensure!(
            inside.dev() == outside.dev(),
            "something else is mounted at {shown}: unmount it, or name another folder with --mount"
        );
        ensure!(
            target.read_dir()?.next().is_none(),
            "{shown} is not empty: name another folder with --mount"
        );
        let device = open_device()?;
        mount_at(target, &device)?;
        let mounted = Self {
            target: target.to_owned(),
            _lock: lock,
        };
        Ok((mounted, device.into()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let target = self.target.display();
        // Somebody may have a file open, or a folder below as his own: the mount is gone for all others, and for him with this program.
        match detach(&self.target) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(error) => tracing::warn!(%target, %error, "the mount stays"),
        }
        if let Err(error) = std::fs::remove_dir(&self.target) {
            tracing::debug!(%target, %error, "the folder stays");
        }
    }
}

fn lock(target: &Path) -> anyhow::Result<FileLock> {
    let mut path = target.as_os_str().to_owned();
    path.push(".lock");
    match FileLock::attempt(Path::new(&path))? {
        Attempt::Taken(lock) => Ok(lock),
        Attempt::Held => bail!(
            "another cgpu-tree runs on this host and serves {}",
            target.display()
        ),
    }
}

fn detach(target: &Path) -> Result<(), Errno> {
    umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
}

/// A mount whose program is gone answers everybody with ENOTCONN.
fn unmount_dead(target: &Path) -> anyhow::Result<()> {
    let is_dead = || {
        let looked = target.symlink_metadata();
        looked.is_err_and(|error| error.raw_os_error() == Some(Errno::ENOTCONN as i32))
    };
    for _ in 0..DEAD_MOST {
        if !is_dead() {
            return Ok(());
        }
        tracing::info!(target = %target.display(), "taking away the mount of a program that was killed");
        detach(target).with_context(|| format!("unmount {}", target.display()))?;
    }
    bail!(
        "{} has more than {DEAD_MOST} dead mounts: unmount them with `umount -l`",
        target.display()
    )
}

fn open_device() -> anyhow::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|error| {
        let hint = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => {
                ": this kernel has no FUSE, or its module is not loaded (`modprobe fuse`)"
            }
            Some(Errno::EPERM | Errno::EACCES) => {
                ": a container that is to serve the tree needs this device"
            }
            _ => "",
        };
        anyhow::Error::new(error).context(format!("open {DEVICE}{hint}"))
    })
}

fn mount_at(target: &Path, device: &File) -> anyhow::Result<()> {
    // Without `allow_other` the kernel lets nobody in but this program's user, root.
    let options = format!(
        "fd={},rootmode=40555,user_id=0,group_id=0,default_permissions",
        device.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
    let mounted = mount(
        Some("cgpu-tree"),
        target,
        Some("fuse.cgpu_km"),
        flags,
        Some(options.as_str()),
    );
    mounted.map_err(|error| {
        let hint = match error {
            Errno::ENODEV => ": this kernel has no FUSE (CONFIG_FUSE_FS)",
            Errno::EPERM => ": this needs CAP_SYS_ADMIN",
            _ => "",
        };
        anyhow::Error::new(error).context(format!("mount at {}{hint}", target.display()))
    })
}
