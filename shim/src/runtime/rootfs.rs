//! The root file system's mounts, as the engine's snapshotter describes them.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::error::{Error, Result, file};
use crate::task::Mount;

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
    std::fs::create_dir_all(rootfs).map_err(file("create", rootfs))?;
    for one in mounts {
        if let Err(error) = mount_one(rootfs, one) {
            unmount(rootfs)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Unmounts everything at `rootfs`, newest first; nothing there is success.
///
/// # Errors
/// A mount that is busy even for a lazy unmount.
pub fn unmount(rootfs: &Path) -> Result<()> {
    loop {
        match umount2(rootfs, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(Errno::EBUSY) => umount2(rootfs, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
                .map_err(|errno| file("unmount", rootfs)(errno.into()))?,
            Err(errno) => return Err(file("unmount", rootfs)(errno.into())),
        }
    }
}

fn mount_one(rootfs: &Path, one: &Mount) -> Result<()> {
    let target = below(rootfs, &one.target)?;
    let Parsed {
        mut flags,
        propagation,
        data,
    } = parse(&one.options)?;
    if one.kind == "bind" {
        flags |= MsFlags::MS_BIND;
    }
    let kind = (one.kind != "bind").then_some(one.kind.as_str());
    let failed = |errno: Errno| file("mount", &target)(errno.into());
    if data.len() > MOST_DATA_BYTES {
        mount_long_overlay(&one.source, &target, one, flags)?;
    } else {
        let data = (!data.is_empty()).then_some(data.as_str());
        mount(Some(one.source.as_str()), &target, kind, flags, data).map_err(failed)?;
    }
    // A bind mount takes its flags only in a second call.
    let only_later =
        MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if flags.contains(MsFlags::MS_BIND) && flags.intersects(only_later) {
        let again = flags | MsFlags::MS_REMOUNT;
        mount(None::<&str>, &target, None::<&str>, again, None::<&str>).map_err(failed)?;
    }
    if !propagation.is_empty() {
        mount(
            None::<&str>,
            &target,
            None::<&str>,
            propagation,
            None::<&str>,
        )
        .map_err(failed)?;
    }
    Ok(())
}

/// A sub-mount's place; the engine gives it, and it may not leave the root.
fn below(rootfs: &Path, target: &str) -> Result<PathBuf> {
    use std::path::Component;
    let inside = Path::new(target)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
    if inside {
        Ok(rootfs.join(target.trim_start_matches('/')))
    } else {
        Err(Error::Invalid {
            key: "mount target",
            value: target.to_owned(),
            allowed: "a path without '..'",
        })
    }
}

struct Parsed {
    flags: MsFlags,
    propagation: MsFlags,
    data: String,
}

fn parse(options: &[String]) -> Result<Parsed> {
    let mut flags = MsFlags::empty();
    let mut propagation = MsFlags::empty();
    let mut data = Vec::new();
    for option in options {
        match option.as_str() {
            "defaults" | "rw" => flags.remove(MsFlags::MS_RDONLY),
            "ro" => flags |= MsFlags::MS_RDONLY,
            "bind" => flags |= MsFlags::MS_BIND,
            "rbind" => flags |= MsFlags::MS_BIND | MsFlags::MS_REC,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "suid" => flags.remove(MsFlags::MS_NOSUID),
            "nodev" => flags |= MsFlags::MS_NODEV,
            "dev" => flags.remove(MsFlags::MS_NODEV),
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "exec" => flags.remove(MsFlags::MS_NOEXEC),
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            "async" => flags.remove(MsFlags::MS_SYNCHRONOUS),
            "dirsync" => flags |= MsFlags::MS_DIRSYNC,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "atime" => flags.remove(MsFlags::MS_NOATIME),
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "diratime" => flags.remove(MsFlags::MS_NODIRATIME),
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "norelatime" => flags.remove(MsFlags::MS_RELATIME),
            "strictatime" => flags |= MsFlags::MS_STRICTATIME,
            "nostrictatime" => flags.remove(MsFlags::MS_STRICTATIME),
            "private" => propagation |= MsFlags::MS_PRIVATE,
            "rprivate" => propagation |= MsFlags::MS_PRIVATE | MsFlags::MS_REC,
            "slave" => propagation |= MsFlags::MS_SLAVE,
            "rslave" => propagation |= MsFlags::MS_SLAVE | MsFlags::MS_REC,
            "shared" => propagation |= MsFlags::MS_SHARED,
            "rshared" => propagation |= MsFlags::MS_SHARED | MsFlags::MS_REC,
            "unbindable" => propagation |= MsFlags::MS_UNBINDABLE,
            "loop" => {
                return Err(Error::Invalid {
                    key: "mount option",
                    value: option.clone(),
                    allowed: "anything but loop",
                });
            }
            id if id.starts_with("uidmap=") || id.starts_with("gidmap=") => {
                let allowed = "no id-mapped root file systems";
                return Err(Error::Invalid {
                    key: "mount option",
                    value: option.clone(),
                    allowed,
                });
            }
            other => data.push(other),
        }
    }
    Ok(Parsed {
        flags,
        propagation,
        data: data.join(","),
    })
}

/// Images of many layers have more `lowerdir` than a page holds: the paths are made relative to the directory that
/// they share, in a thread whose working directory is its own.
fn mount_long_overlay(source: &str, target: &Path, one: &Mount, flags: MsFlags) -> Result<()> {
    let (dir, data) = shortened(&one.options)
        .filter(|(_, data)| data.len() <= MOST_DATA_BYTES)
        .ok_or_else(|| {
            let value = format!("{} options", one.options.len());
            Error::Invalid {
                key: "mount options",
                value,
                allowed: "at most one page",
            }
        })?;
    let target = std::path::absolute(target).map_err(file("resolve", target))?;
    let (source, kind) = (source.to_owned(), one.kind.clone());
    let mounted = std::thread::spawn(move || -> Result<()> {
        unshare(CloneFlags::CLONE_FS)
            .map_err(crate::error::system("unshare a working directory"))?;
        nix::unistd::chdir(&dir).map_err(|errno| file("enter", &dir)(errno.into()))?;
        mount(
            Some(source.as_str()),
            &target,
            Some(kind.as_str()),
            flags,
            Some(data.as_str()),
        )
        .map_err(|errno| file("mount", &target)(errno.into()))
    });
    mounted.join().map_err(|_panic| Error::Lost("mounting"))?
}

/// The directory that all lower directories share, and the data with them relative to it.
fn shortened(options: &[String]) -> Option<(PathBuf, String)> {
    let lower = options
        .iter()
        .find_map(|option| option.strip_prefix("lowerdir="))?;
    let mut shared = Path::new(lower.split(':').next()?).parent()?.to_owned();
    for dir in lower.split(':') {
        while !Path::new(dir).starts_with(&shared) {
            shared = shared.parent()?.to_owned();
        }
    }
    let relative: Option<Vec<&str>> = lower
        .split(':')
        .map(|dir| Path::new(dir).strip_prefix(&shared).ok()?.to_str())
        .collect();
    let lower = format!("lowerdir={}", relative?.join(":"));
    let is_data =
        |option: &&String| option.contains('=') || *option == "index" || *option == "userxattr";
    let others = options
        .iter()
        .filter(is_data)
        .filter(|option| !option.starts_with("lowerdir="));
    let data = std::iter::once(lower)
        .chain(others.cloned())
        .collect::<Vec<_>>()
        .join(",");
    Some((shared, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(options: &[&str]) -> Vec<String> {
        options.iter().map(|option| (*option).to_owned()).collect()
    }

    #[test]
    fn options_become_flags_and_the_rest_data() {
        let parsed = parse(&strings(&[
            "ro",
            "rbind",
            "nosuid",
            "rprivate",
            "upperdir=/u",
            "index=off",
        ]))
        .unwrap();
        assert_eq!(
            parsed.flags,
            MsFlags::MS_RDONLY | MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_NOSUID
        );
        assert_eq!(parsed.propagation, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
        assert_eq!(parsed.data, "upperdir=/u,index=off");
        assert!(parse(&strings(&["loop"])).is_err());
        assert!(parse(&strings(&["uidmap=0:1:2"])).is_err());
    }

    #[test]
    fn many_layers_are_made_relative_to_what_they_share() {
        let lower: Vec<String> = (0..200)
            .map(|n| format!("/var/lib/containerd/snapshots/{n}/fs"))
            .collect();
        let options = vec![
            "workdir=/w".to_owned(),
            format!("lowerdir={}", lower.join(":")),
            "index=off".to_owned(),
        ];
        assert!(options.iter().map(String::len).sum::<usize>() > MOST_DATA_BYTES);
        let (dir, data) = shortened(&options).unwrap();
        assert_eq!(dir, Path::new("/var/lib/containerd/snapshots"));
        assert!(data.starts_with("lowerdir=0/fs:1/fs:") && data.ends_with(",workdir=/w,index=off"));
        assert!(data.len() <= MOST_DATA_BYTES);
    }

    #[test]
    fn a_sub_mount_cannot_leave_the_root() {
        assert_eq!(
            below(Path::new("/r"), "/etc/x").unwrap(),
            Path::new("/r/etc/x")
        );
        assert_eq!(below(Path::new("/r"), "").unwrap(), Path::new("/r/"));
        below(Path::new("/r"), "../x").unwrap_err();
    }
}
