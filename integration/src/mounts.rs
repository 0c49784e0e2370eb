//! A mount namespace for a thread.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Takes this thread into a new mount namespace, whose changes nobody else sees. Threads and processes
/// that it starts are in it too; it stays there until it ends.
///
/// # Errors
///
/// What the kernel answers to a caller without `CAP_SYS_ADMIN`.
pub fn enter_new() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("private mounts")?;
    detach_loops()
}

/// A copy of another test's mount would keep its loop device when that test has unmounted it.
fn detach_loops() -> Result<()> {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").context("reading the mounts")?;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(folder)) = (fields.next(), fields.next()) else {
            continue;
        };
        if device.starts_with("/dev/loop") && Path::new(folder).starts_with(std::env::temp_dir()) {
            umount2(folder, MntFlags::MNT_DETACH)
                .with_context(|| format!("unmounting {folder}"))?;
        }
    }
    Ok(())
}

/// Takes this thread into that mount namespace, if it is not there already.
///
/// # Errors
///
/// Those of `setns`.
pub fn enter(namespace: &File) -> Result<()> {
    let of_thread = fs::metadata("/proc/thread-self/ns/mnt").context("a thread's namespaces")?;
    if of_thread.ino() == namespace.metadata()?.ino() {
        return Ok(());
    }
    // Threads share a root and a working directory, which the new namespace sets.
    unshare(CloneFlags::CLONE_FS).context("a root folder of the thread's own")?;
    let folder = std::env::current_dir().context("the working directory")?;
    setns(namespace, CloneFlags::CLONE_NEWNS).context("entering a mount namespace")?;
    std::env::set_current_dir(folder).context("the former working directory")
}

/// The mount namespace of this thread.
///
/// # Errors
///
/// Those of opening it.
pub fn current() -> Result<File> {
    File::open("/proc/thread-self/ns/mnt").context("opening a thread's mount namespace")
}

/// Takes this thread into a mount namespace where `folder` is empty, unless it is in one already.
///
/// # Errors
///
/// As [`enter_new`]'s, and those of a tmpfs at `folder`.
pub fn ensure_own(folder: &Path) -> Result<()> {
    static FIRST: OnceLock<PathBuf> = OnceLock::new();
    let namespace_of = |task: &str| {
        let link = format!("/proc/{task}/ns/mnt");
        fs::read_link(&link).with_context(|| format!("reading {link}"))
    };
    // That of the process when the first thread asked: its main thread may enter one of its own too.
    let first = match FIRST.get() {
        Some(first) => first,
        None => {
            let namespace = namespace_of("self")?;
            FIRST.get_or_init(|| namespace)
        }
    };
    if namespace_of("thread-self")? != *first {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    enter_new()?;
    tmpfs(folder)
}

/// An empty folder of memory, which nobody but root lists.
///
/// # Errors
///
/// The kernel's.
pub fn tmpfs(folder: &Path) -> Result<()> {
    mount(
        Some("cgpu-test"),
        folder,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=0711"),
    )
    .with_context(|| format!("a tmpfs at {}", folder.display()))
}

/// Changes to `folder` go below `changes`, and `over` comes before what it has.
///
/// # Errors
///
/// The kernel's: not every file system takes such changes.
pub fn overlay(changes: &Path, folder: &Path, over: &[PathBuf]) -> Result<()> {
    let name = folder.display().to_string().replace('/', "-");
    let place = |kind: &str| changes.join(format!("{name}{kind}"));
    let (upper, work) = (place(".upper"), place(".work"));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&work)?;
    fs::set_permissions(&upper, Permissions::from_mode(0o755))?;
    let mut lower = OsString::new();
    for one in over {
        lower.push(one);
        lower.push(":");
    }
    lower.push(folder);
    let mut options = OsString::from("lowerdir=");
    options.push(lower);
    options.push(",upperdir=");
    options.push(upper);
    options.push(",workdir=");
    options.push(work);
    mount(
        Some("cgpu-test"),
        folder,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_os_str()),
    )
    .with_context(|| format!("an overlay over {}", folder.display()))
}
