//! The root file system's mounts, as the engine's snapshotter describes them.

mod idmap;
mod loop_device;
mod options;
mod overlay;

use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use spec::escape_checks::unescaped;

use self::options::Parsed;
use crate::error::{Error, Result, file};
use crate::task::Mount;

/// How often a place is looked for.
const TRIES: u32 = 16;

/// What mount(2) takes as data is one page, its last byte 0.
const MOST_DATA_BYTES: usize = 4095;

/// The mounted root; unmounted by [`unmount`], which also serves what a killed shim has left.
///
/// # Errors
/// The first mount that fails; those before it are undone.
pub fn mount_all(rootfs: &Path, mounts: &[Mount]) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(rootfs)
        .map_err(file("create", rootfs))?;
    for one in mounts {
        if let Err(error) = mount_one(rootfs, one) {
            unmount(rootfs)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Unmounts everything at and below `rootfs`, newest first; nothing there is success.
///
/// # Errors
/// A mount that is busy even for a lazy unmount.
pub fn unmount(rootfs: &Path) -> Result<()> {
    overlay::forget_mapped_layers(rootfs)?;
    loop {
        match umount2(rootfs, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            // In use, perhaps by mounts below it alone.
            Err(Errno::EBUSY) => {
                for below in mounts_below(rootfs)? {
                    unmount_once(&below)?;
                }
                unmount_once(rootfs)?;
            }
            Err(errno) => return Err(file("unmount", rootfs)(errno.into())),
        }
    }
}

/// What was at a path that was to be unmounted.
#[derive(PartialEq, Eq)]
enum Found {
    Mount,
    Nothing,
}

fn unmount_once(at: &Path) -> Result<Found> {
    let failed = |errno: Errno| file("unmount", at)(errno.into());
    loop {
        match umount2(at, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => return Ok(Found::Mount),
            Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(Found::Nothing),
            Err(Errno::EBUSY) => {
                let lazily = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
                return umount2(at, lazily).map(|()| Found::Mount).map_err(failed);
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
}

/// Mount points strictly below a folder, newest first.
fn mounts_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let table = "/proc/self/mountinfo";
    let text = std::fs::read(table).map_err(file("read", table))?;
    // The table has paths without links.
    let Ok(folder) = std::fs::canonicalize(folder) else {
        return Ok(Vec::new());
    };
    let point = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let path = unescaped(field);
        (path != folder && path.starts_with(&folder)).then_some(path)
    };
    let lines = text.split(|byte| *byte == b'\n');
    let mut found: Vec<PathBuf> = lines.filter_map(point).collect();
    found.reverse();
    Ok(found)
}

fn mount_one(rootfs: &Path, one: &Mount) -> Result<()> {
    let target = below(rootfs, &one.target)?;
    if let Some((helper, kind)) = fuse_helper(&one.kind) {
        return mount_with_helper(helper, kind, one, &target);
    }
    let mut parsed = options::parse(&one.options)?;
    if one.kind == "bind" {
        parsed.flags |= MsFlags::MS_BIND;
    }
    let users = parsed
        .id_maps
        .as_ref()
        .map(|maps| sys::user_namespace::with_maps(&maps.uids, &maps.gids))
        .transpose()
        .map_err(crate::error::system("make a user namespace"))?;
    match (&users, one.kind.as_str()) {
        // Overlay takes its layers with the identities that they have: these are mapped, not the result.
        (Some(users), "overlay") => {
            let _mapped = overlay::MappedLayers::mount(rootfs, &mut parsed, users)?;
            mount_plain(&target, one, &parsed)
        }
        (Some(users), _) => {
            mount_plain(&target, one, &parsed)?;
            idmap::over_itself(&target, users)
        }
        (None, _) => mount_plain(&target, one, &parsed),
    }
}

fn mount_plain(target: &Path, one: &Mount, parsed: &Parsed) -> Result<()> {
    let flags = parsed.flags;
    let kind = (one.kind != "bind").then_some(one.kind.as_str());
    let failed = |errno: Errno| file("mount", target)(errno.into());
    let data = parsed.data.join(",");
    let device = parsed
        .loop_backed
        .as_ref()
        .map(|needed| loop_device::attach(Path::new(&one.source), needed))
        .transpose()?;
    let source = match &device {
        Some(device) => device.path(),
        None => Path::new(&one.source),
    };
    if data.len() > MOST_DATA_BYTES {
        overlay::mount_long(source, target, &one.kind, parsed)?;
    } else {
        let data = (!data.is_empty()).then_some(data.as_str());
        mount(Some(source), target, kind, flags, data).map_err(failed)?;
    }
    // A bind mount takes its flags only in a second call.
    let only_later =
        MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if flags.contains(MsFlags::MS_BIND) && flags.intersects(only_later) {
        let again = flags | MsFlags::MS_REMOUNT;
        mount(None::<&str>, target, None::<&str>, again, None::<&str>).map_err(failed)?;
    }
    if !parsed.propagation.is_empty() {
        let how = parsed.propagation;
        mount(None::<&str>, target, None::<&str>, how, None::<&str>).map_err(failed)?;
    }
    Ok(())
}

/// A sub-mount's place, as the links of the mounts before it lead there inside the root. It is a path without links: nobody changes the root
/// until it is a container's.
fn below(rootfs: &Path, target: &str) -> Result<PathBuf> {
    if target.is_empty() {
        return Ok(rootfs.to_owned());
    }
    let failed =
        |errno: Errno| file("find", rootfs.join(target.trim_start_matches('/')))(errno.into());
    let folder = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root =
        open(rootfs, folder, Mode::empty()).map_err(|errno| file("open", rootfs)(errno.into()))?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    // A rename elsewhere while `..` is walked makes the kernel give up; it says so and may be asked again.
    let found = (0..TRIES)
        .map(|_attempt| openat2(&root, target, how))
        .find(|found| !matches!(found, Err(Errno::EAGAIN)))
        .unwrap_or(Err(Errno::EAGAIN))
        .map_err(failed)?;
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    std::fs::read_link(&found).map_err(file("resolve", found))
}

/// `fuse3.KIND` is mounted by the helper `mount.fuse3`, as containerd has it; also the helper's name for the kind.
fn fuse_helper(kind: &str) -> Option<(&'static str, &str)> {
    let helper = |prefix, program| Some((program, kind.strip_prefix(prefix)?));
    helper("fuse3.", "mount.fuse3").or_else(|| helper("fuse.", "mount.fuse"))
}

fn mount_with_helper(helper: &'static str, kind: &str, one: &Mount, target: &Path) -> Result<()> {
    let mut command = Command::new(helper);
    command.arg(&one.source).arg(target);
    for option in &one.options {
        command.args(["-o", option]);
    }
    command
        .args(["-t", kind])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = sys::open_files::restore_before_exec(&mut command)
        .output()
        .map_err(file("execute", helper))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Helper {
        program: helper,
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_mount_is_where_links_lead_inside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        let inside = root.join(outside.strip_prefix("/").unwrap());
        for folder in [&outside, &inside, &root.join("etc")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("away")).unwrap();
        std::os::unix::fs::symlink("../../etc", root.join("up")).unwrap();
        assert_eq!(below(&root, "").unwrap(), root);
        assert_eq!(below(&root, "/etc").unwrap(), root.join("etc"));
        assert_eq!(below(&root, "away").unwrap(), inside);
        assert_eq!(below(&root, "/up").unwrap(), root.join("etc"));
        assert_eq!(below(&root, "../etc").unwrap(), root.join("etc"));
        below(&root, "absent").unwrap_err();
    }

    #[test]
    fn fuse_kinds_have_a_helper_and_others_none() {
        assert_eq!(fuse_helper("fuse3.sshfs"), Some(("mount.fuse3", "sshfs")));
        assert_eq!(fuse_helper("fuse.sshfs"), Some(("mount.fuse", "sshfs")));
        assert_eq!(fuse_helper("overlay"), None);
    }
}
