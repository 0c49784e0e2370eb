//! Overlay mounts: layers whose names are longer than a page, and layers with mapped owners.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::mount::mount;
use nix::sched::{CloneFlags, unshare};

use super::options::Parsed;
use super::{Found, MOST_DATA_BYTES, idmap, unmount_once};
use crate::error::{Error, Result, file};

const LOWER: &str = "lowerdir=";

/// Images of many layers have more `lowerdir` than a page holds: the paths are made relative to the directory that
/// they share, in a thread whose working directory is its own.
pub(super) fn mount_long(source: &Path, target: &Path, kind: &str, parsed: &Parsed) -> Result<()> {
    let (dir, data) = shortened(&parsed.data)
        .filter(|(_, data)| data.len() <= MOST_DATA_BYTES)
        .ok_or_else(|| Error::Invalid {
            key: "mount options",
            value: format!("{} options", parsed.data.len()),
            allowed: "at most one page",
        })?;
    let target = std::path::absolute(target).map_err(file("resolve", target))?;
    let (source, kind, flags) = (source.to_owned(), kind.to_owned(), parsed.flags);
    let mounted = std::thread::spawn(move || -> Result<()> {
        unshare(CloneFlags::CLONE_FS)
            .map_err(crate::error::system("unshare a working directory"))?;
        nix::unistd::chdir(&dir).map_err(|errno| file("enter", &dir)(errno.into()))?;
        mount(
            Some(&source),
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
fn shortened(data: &[String]) -> Option<(PathBuf, String)> {
    let layers = layers(data)?;
    let shared = shared_parent(&layers)?;
    let relative: Option<Vec<&str>> = layers
        .iter()
        .map(|dir| dir.strip_prefix(&shared).ok()?.to_str())
        .collect();
    let lower = format!("{LOWER}{}", relative?.join(":"));
    let others = data
        .iter()
        .filter(|option| !option.starts_with(LOWER))
        .cloned();
    let data: Vec<String> = std::iter::once(lower).chain(others).collect();
    Some((shared, data.join(",")))
}

fn layers(data: &[String]) -> Option<Vec<&Path>> {
    let lower = data.iter().find_map(|option| option.strip_prefix(LOWER))?;
    Some(lower.split(':').map(Path::new).collect())
}

/// The deepest directory that has all of these below it.
fn shared_parent(layers: &[&Path]) -> Option<PathBuf> {
    let mut shared = layers.first()?.parent()?.to_owned();
    for dir in layers {
        while !dir.starts_with(&shared) || *dir == shared {
            shared = shared.parent()?.to_owned();
        }
    }
    Some(shared)
}

/// The layers with mapped owners, for as long as the overlay mount is being made: it holds them from then on by itself.
pub(super) struct MappedLayers(PathBuf);

impl MappedLayers {
    /// Maps the directory that the layers share, read-only, and points the mount's options at it.
    pub(super) fn mount(rootfs: &Path, parsed: &mut Parsed, users: &OwnedFd) -> Result<Self> {
        let lower = parsed.data.iter().position(|one| one.starts_with(LOWER));
        let named = layers(&parsed.data).and_then(|layers| Some((lower?, shared_parent(&layers)?)));
        // The whole file tree would be mapped with them.
        let found = named.filter(|(_, shared)| shared.parent().is_some());
        let (at, shared) = found.ok_or_else(|| Error::Invalid {
            key: "mount options",
            value: parsed.data.join(","),
            allowed: "for mapped owners, a lowerdir= whose directories share one that is not /",
        })?;
        let place = place(rootfs);
        std::fs::create_dir_all(&place).map_err(file("create", &place))?;
        // From here on dropping it undoes what is there.
        let mapped = Self(place);
        idmap::read_only_copy(&shared, &mapped.0, users)?;
        let moved = |dir: &Path| match dir.strip_prefix(&shared) {
            Ok(below) => mapped.0.join(below),
            Err(_elsewhere) => dir.to_owned(),
        };
        let names: Vec<String> = layers(&parsed.data)
            .unwrap_or_default()
            .into_iter()
            .map(|dir| moved(dir).to_string_lossy().into_owned())
            .collect();
        if let Some(option) = parsed.data.get_mut(at) {
            *option = format!("{LOWER}{}", names.join(":"));
        }
        Ok(mapped)
    }
}

impl Drop for MappedLayers {
    fn drop(&mut self) {
        if let Err(error) = forget(&self.0) {
            tracing::warn!(%error, "mapped layers stay mounted until the container is deleted");
        }
    }
}

/// Removes what a killed shim may have left of [`MappedLayers`].
pub(super) fn forget_mapped_layers(rootfs: &Path) -> Result<()> {
    forget(&place(rootfs))
}

fn forget(place: &Path) -> Result<()> {
    while unmount_once(place)? == Found::Mount {}
    sys::absent_is_fine(std::fs::remove_dir(place)).map_err(file("remove", place))
}

/// Beside the root file system, in the bundle.
fn place(rootfs: &Path) -> PathBuf {
    let mut name = rootfs.file_name().unwrap_or_default().to_owned();
    name.push(".layers");
    rootfs.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_layers_are_made_relative_to_what_they_share() {
        let lower: Vec<String> = (0..200)
            .map(|n| format!("/var/lib/containerd/snapshots/{n}/fs"))
            .collect();
        let data = vec![
            "workdir=/w".to_owned(),
            format!("{LOWER}{}", lower.join(":")),
            "index=off".to_owned(),
        ];
        assert!(data.iter().map(String::len).sum::<usize>() > MOST_DATA_BYTES);
        let (dir, data) = shortened(&data).unwrap();
        assert_eq!(dir, Path::new("/var/lib/containerd/snapshots"));
        assert!(data.starts_with("lowerdir=0/fs:1/fs:") && data.ends_with(",workdir=/w,index=off"));
        assert!(data.len() <= MOST_DATA_BYTES);
    }

    #[test]
    fn what_layers_share_is_above_each_of_them() {
        let shared = |layers: &[&str]| {
            let layers: Vec<&Path> = layers.iter().map(Path::new).collect();
            shared_parent(&layers)
        };
        assert_eq!(shared(&["/s/1/fs"]), Some("/s/1".into()));
        assert_eq!(shared(&["/s/1/fs", "/s/2/fs"]), Some("/s".into()));
        assert_eq!(shared(&["/s/1/fs", "/s/1"]), Some("/s".into()));
        assert_eq!(shared(&["/a/x", "/b/y"]), Some("/".into()));
        assert_eq!(shared(&["/"]), None);
    }
}
