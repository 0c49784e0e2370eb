//! A path followed link by link, as the kernel follows it, with all that decides where it leads.
//!
//! `canonicalize` says where a path ends today. It does not say whose links and folders it goes through, fails for what is not
//! there yet, and takes the text behind a link of procfs for the place that the link leads to.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};

/// As many as the kernel follows.
const LINKS_MAX: u32 = 40;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// Its end; what is absent is taken for a plain name. No link is in it, and no `..`.
    pub end: PathBuf,
    /// Folders and links that it goes through, the end not among them.
    pub through: Vec<PathBuf>,
    /// It follows a link of procfs, whose text does not say where it leads.
    pub is_magic: bool,
    /// It has more links than the kernel follows.
    pub is_endless: bool,
}

/// Follows an absolute path.
#[must_use]
pub fn walk(path: &Path) -> Walked {
    let mut walked = Walked {
        end: PathBuf::from("/"),
        through: vec![PathBuf::from("/")],
        is_magic: false,
        is_endless: false,
    };
    let mut links = 0;
    let mut rest: VecDeque<OsString> = names(path);
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            walked.end.pop();
            continue;
        }
        let next = walked.end.join(&name);
        let target = std::fs::read_link(&next).ok();
        if let Some(target) = target.filter(|_| links < LINKS_MAX) {
            links += 1;
            walked.is_endless = links == LINKS_MAX;
            walked.is_magic |= is_of_procfs(&walked.end);
            walked.through.push(next);
            if target.is_absolute() {
                walked.end = PathBuf::from("/");
            }
            let mut names = names(&target);
            names.append(&mut rest);
            rest = names;
        } else {
            walked.end = next;
            if !rest.is_empty() {
                walked.through.push(walked.end.clone());
            }
        }
    }
    walked
}

/// A path without `.`, `..` and double slashes, as runc cleans those of a spec.
#[must_use]
pub fn cleaned(path: &Path) -> PathBuf {
    path.components()
        .fold(PathBuf::from("/"), |mut clean, part| {
            match part {
                Component::Normal(name) => clean.push(name),
                Component::ParentDir => {
                    clean.pop();
                }
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
            clean
        })
}

fn is_of_procfs(folder: &Path) -> bool {
    // `/proc/self` and `/proc/mounts` are plain links: their text is where they lead.
    let is_process_s = folder
        .components()
        .any(|part| part.as_os_str().to_string_lossy().parse::<u32>().is_ok());
    is_process_s
        && statfs(folder).is_ok_and(|mounted| mounted.filesystem_type() == PROC_SUPER_MAGIC)
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_dots_and_what_is_absent_are_followed_as_by_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink(at("a/b"), at("absolute")).unwrap();
        symlink("absolute", at("chain")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (path, end) in [
            ("a/./b//", "a/b"),
            ("chain", "a/b"),
            ("chain/absent/x", "a/b/absent/x"),
            // Up from where the link leads, not from where it is.
            ("chain/..", "a"),
            ("absent/../a", "a"),
        ] {
            let walked = walk(&at(path));
            assert_eq!(walked.end, at(end), "{path}");
            assert!(!walked.is_magic && !walked.is_endless);
        }
        let through = walk(&at("chain/x")).through;
        for part in ["chain", "absolute", "a", "a/b"] {
            assert!(through.contains(&at(part)), "{part}");
        }
        assert!(!through.contains(&at("a/b/x")));
        assert!(walk(&at("loop")).is_endless);
        assert_eq!(walk(Path::new("/../..")).end, Path::new("/"));
    }

    #[test]
    fn links_of_procfs_report_nothing() {
        let pid = std::process::id();
        let dir = tempfile::tempdir().unwrap();
        symlink("/proc/self/root/etc", dir.path().join("x")).unwrap();
        for path in [
            "/proc/self/root",
            "/proc/self/cwd/x",
            "/proc/self/fd/0",
            "/proc/thread-self/root/etc",
            &format!("/proc/{pid}/root/home"),
            dir.path().join("x").to_str().unwrap(),
        ] {
            assert!(walk(Path::new(path)).is_magic, "{path}");
        }
        assert!(!walk(Path::new("/proc/mounts/x")).is_magic);
    }
}
