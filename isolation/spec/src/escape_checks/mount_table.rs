//! The host's mounts: under which other paths the same files are, and what is mounted below a folder.
//!
//! A path does not say which files it leads to. A bind mount of `/etc` elsewhere, a volume of docker's local driver with
//! `device=/etc`, or the root disk mounted a second time are `/etc` as much as `/etc` is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount (`man 5 proc_pid_mountinfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    device: String,
    /// Which folder of its filesystem is mounted.
    root: PathBuf,
    at: PathBuf,
    kind: String,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads `/proc/self/mountinfo`; lines of another form are passed over.
    pub(super) fn read(text: &str) -> Self {
        Self(text.lines().filter_map(mount).collect())
    }

    /// The other paths of the files at a path without links, and of files below it.
    pub(super) fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let Some((on, place)) = self.place(path) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for mount in self.0.iter().filter(|mount| mount.device == on.device) {
            if let Ok(rest) = place.strip_prefix(&mount.root) {
                found.push(joined(&mount.at, rest));
            } else if mount.root.starts_with(&place) {
                found.push(mount.at.clone());
            }
        }
        found.retain(|alias| alias != path);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Where something is mounted below a path.
    pub(super) fn below(&self, path: &Path) -> Vec<PathBuf> {
        let is_below = |mount: &&Mount| mount.at != path && mount.at.starts_with(path);
        self.0
            .iter()
            .filter(is_below)
            .map(|mount| mount.at.clone())
            .collect()
    }

    /// The kind of filesystem that a path is on.
    pub(super) fn kind(&self, path: &Path) -> Option<&str> {
        self.on(path).map(|mount| mount.kind.as_str())
    }

    /// Of mounts at one place the last covers the others.
    fn on(&self, path: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.at))
            .max_by_key(|mount| mount.at.components().count())
    }

    /// The mount that a path is on, and where in its filesystem.
    fn place(&self, path: &Path) -> Option<(&Mount, PathBuf)> {
        let on = self.on(path)?;
        let rest = path.strip_prefix(&on.at).ok()?;
        Some((on, joined(&on.root, rest)))
    }
}

/// `join` of nothing would leave a slash at the end.
fn joined(folder: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() {
        folder.to_owned()
    } else {
        folder.join(rest)
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut fields = front.split(' ').skip(2);
    Some(Mount {
        device: fields.next()?.to_owned(),
        root: unescaped(fields.next()?.as_bytes()),
        at: unescaped(fields.next()?.as_bytes()),
        kind: back.split(' ').next()?.to_owned(),
    })
}

/// A path of the mount table, where spaces, tabs, line ends and backslashes are `\` and three octal digits.
#[must_use]
pub fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_tables_escapes_are_undone() {
        let path = unescaped(br"/a\040b\134c\1");
        assert_eq!(path, Path::new(r"/a b\c\1"));
    }

    const TABLE: &str = "\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
23 21 8:2 / /var/lib/docker rw - ext4 /dev/sdb rw
24 21 8:1 /etc /srv/con\\040fig rw - ext4 /dev/sda1 rw
25 23 8:1 /etc /var/lib/docker/volumes/v/_data rw - ext4 /dev/sda1 rw
26 21 8:1 / /mnt/disk rw - ext4 /dev/sda1 rw
27 21 8:2 /volumes/w/_data /data rw - ext4 /dev/sdb rw
28 26 0:5 / /mnt/disk/proc rw - proc proc rw
no line
";

    fn aliases(path: &str) -> Vec<PathBuf> {
        MountTable::read(TABLE).aliases(Path::new(path))
    }

    #[test]
    fn the_same_files_are_found_under_all_their_paths() {
        for (path, expected) in [
            ("/srv/con fig", "/etc"),
            ("/srv/con fig/cron.d", "/etc/cron.d"),
            ("/var/lib/docker/volumes/v/_data", "/etc"),
            ("/mnt/disk", "/"),
            ("/mnt/disk/usr/bin", "/usr/bin"),
            ("/data/x", "/var/lib/docker/volumes/w/_data/x"),
            // What is below a folder, and elsewhere as well.
            ("/var/lib/docker/volumes/w", "/data"),
        ] {
            let found = aliases(path);
            assert!(found.contains(&expected.into()), "{path}: {found:?}");
        }
        assert_eq!(aliases("/var/lib/docker/x"), Vec::<PathBuf>::new());
        assert_eq!(aliases("/srv/x"), [PathBuf::from("/mnt/disk/srv/x")]);
    }

    #[test]
    fn mounts_below_a_folder_and_kinds_are_found() {
        let table = MountTable::read(TABLE);
        assert_eq!(
            table.below(Path::new("/mnt/disk")),
            [PathBuf::from("/mnt/disk/proc")]
        );
        assert_eq!(table.kind(Path::new("/mnt/disk/proc/1")), Some("proc"));
        assert_eq!(table.kind(Path::new("/mnt/disk/x")), Some("ext4"));
        assert_eq!(MountTable::read("").kind(Path::new("/")), None);
    }
}
