//! Files below a root, found without ever leaving it, and the check that only root could swap them.
//!
//! Links are followed inside the root, as the program that lives there would (`openat2` with `RESOLVE_IN_ROOT` and
//! `RESOLVE_NO_MAGICLINKS`). What was found is open, so that no question about it is asked of another file.

use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use sys::failed;

use crate::error::Error;

/// A folder that is taken for `/`.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    dir: OwnedFd,
}

/// A file that was found, of any kind.
#[derive(Debug)]
pub(crate) struct Found {
    fd: OwnedFd,
    /// Where it is on this host, without links.
    path: PathBuf,
    metadata: Metadata,
}

/// What is at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    /// Followed, inside the root.
    Followed,
    /// Found as what it is.
    Kept,
}

impl Tree {
    /// Opens a folder.
    pub(crate) fn open(root: &Path) -> Result<Self, Error> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty())
            .map_err(|errno| failed("open the folder", root)(errno.into()))?;
        Ok(Self {
            root: root.to_owned(),
            dir,
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is this host's `/` itself, by whatever path; also where that cannot be told.
    pub(crate) fn is_the_host_s(&self) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        match (std::fs::metadata("/"), std::fs::metadata(magic(&self.dir))) {
            (Ok(host), Ok(own)) => identity(host) == identity(own),
            _ => true,
        }
    }

    /// The file at a path below the root; `None` where there is none.
    ///
    /// # Errors
    /// A path that cannot be followed: endless links, a magic link.
    pub(crate) fn find(&self, path: &Path, last: LastLink) -> Result<Option<Found>, Error> {
        let flags = OFlag::O_PATH
            | OFlag::O_CLOEXEC
            | match last {
                LastLink::Followed => OFlag::empty(),
                LastLink::Kept => OFlag::O_NOFOLLOW,
            };
        let how = OpenHow::new()
            .flags(flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let shown = || self.root.join(path.strip_prefix("/").unwrap_or(path));
        // A rename elsewhere while `..` is walked makes the kernel give up; it says so and may be asked again.
        let opened = (0..16)
            .map(|_attempt| openat2(&self.dir, path, how))
            .find(|opened| !matches!(opened, Err(Errno::EAGAIN)))
            .unwrap_or(Err(Errno::EAGAIN));
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(failed("find", shown())(errno.into()).into()),
        };
        let file = File::from(fd);
        let metadata = file.metadata().map_err(failed("look at", shown()))?;
        let path = std::fs::read_link(magic(&file)).map_err(failed("resolve", shown()))?;
        Ok(Some(Found {
            fd: file.into(),
            path,
            metadata,
        }))
    }
}

/// The kernel's own way back to an open file.
fn magic(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

impl Found {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn is_file(&self) -> bool {
        self.metadata.is_file()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The same file, for reading. Only of plain files: others may wait for somebody, or do something.
    pub(crate) fn read(&self) -> Result<File, Error> {
        if !self.is_file() {
            return Err(Error::Kind {
                path: self.path.clone(),
                expected: "a plain file",
            });
        }
        Ok(File::open(magic(&self.fd)).map_err(failed("open", &self.path))?)
    }

    /// The path, if nobody but root (or this process's user) can put another file there: the file and all folders above
    /// it are theirs, and no other may write them. In a sticky folder others cannot touch what is not theirs.
    pub(crate) fn trusted(&self) -> Result<&Path, Error> {
        let us = nix::unistd::geteuid().as_raw();
        let refuse = |culprit: &Path, metadata: &Metadata| Error::Untrusted {
            path: self.path.clone(),
            culprit: culprit.to_owned(),
            owner: metadata.uid(),
            mode: metadata.mode() & 0o7777,
        };
        let is_ours = |metadata: &Metadata| metadata.uid() == 0 || metadata.uid() == us;
        let others_write = |metadata: &Metadata| metadata.mode() & 0o022 != 0;
        if !is_ours(&self.metadata) || others_write(&self.metadata) {
            return Err(refuse(&self.path, &self.metadata));
        }
        let path = |problem| Error::Path {
            path: self.path.clone(),
            problem,
        };
        if self.path.to_str().is_none() {
            return Err(path("its name is not UTF-8"));
        }
        let there = std::fs::symlink_metadata(&self.path).map_err(failed("find", &self.path))?;
        if (there.dev(), there.ino()) != (self.metadata.dev(), self.metadata.ino()) {
            return Err(path("another file has come to stand there"));
        }
        for folder in self.path.ancestors().skip(1) {
            let metadata = std::fs::symlink_metadata(folder).map_err(failed("look at", folder))?;
            let is_sticky = metadata.mode() & 0o1000 != 0;
            if !is_ours(&metadata) || (others_write(&metadata) && !is_sticky) {
                return Err(refuse(folder, &metadata));
            }
        }
        Ok(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/deep")).unwrap();
        fs::write(dir.path().join("etc/file"), "inside").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        (dir, tree)
    }

    fn text(tree: &Tree, path: &str) -> Option<String> {
        let found = tree.find(Path::new(path), LastLink::Followed).unwrap()?;
        Some(std::io::read_to_string(found.read().unwrap()).unwrap())
    }

    #[test]
    fn links_and_dots_never_leave_the_root() {
        let (dir, tree) = tree();
        for (at, target) in [
            ("absolute", "/etc/file"),
            ("up", "../../../../../../etc/file"),
            ("chain", "absolute"),
            ("folder", "/etc"),
        ] {
            symlink(target, dir.path().join(at)).unwrap();
        }
        for path in [
            "/absolute",
            "up",
            "chain",
            "/folder/file",
            "/etc/deep/../../../../etc/file",
        ] {
            assert_eq!(text(&tree, path).as_deref(), Some("inside"), "{path}");
        }
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        assert_eq!(text(&tree, "/out"), None);
        symlink("loop", dir.path().join("loop")).unwrap();
        tree.find(Path::new("loop"), LastLink::Followed)
            .unwrap_err();
        let kept = tree
            .find(Path::new("loop"), LastLink::Kept)
            .unwrap()
            .unwrap();
        assert!(kept.metadata().is_symlink());
    }

    #[test]
    fn the_host_s_root_is_known_by_any_path() {
        let (dir, tree) = tree();
        assert!(!tree.is_the_host_s());
        symlink("/", dir.path().join("root")).unwrap();
        for path in [
            Path::new("/"),
            Path::new("/etc/.."),
            &dir.path().join("root"),
        ] {
            assert!(
                Tree::open(path).unwrap().is_the_host_s(),
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn magic_links_and_pipes_are_not_opened() {
        let root = Tree::open(Path::new("/")).unwrap();
        let own = PathBuf::from("/proc/self/exe");
        root.find(&own, LastLink::Followed).unwrap_err();
        let (dir, tree) = tree();
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&dir.path().join("pipe"), mode).unwrap();
        let pipe = tree.find(Path::new("pipe"), LastLink::Followed).unwrap();
        assert!(matches!(pipe.unwrap().read(), Err(Error::Kind { .. })));
    }

    #[test]
    fn what_others_could_swap_is_not_trusted() {
        let (dir, tree) = tree();
        let find = || {
            tree.find(Path::new("etc/file"), LastLink::Followed)
                .unwrap()
                .unwrap()
        };
        let real = dir.path().canonicalize().unwrap().join("etc/file");
        assert_eq!(find().trusted().unwrap(), real);
        let culprit = || match find().trusted() {
            Err(Error::Untrusted { culprit, .. }) => culprit,
            other => panic!("{other:?}"),
        };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        let folder = real.parent().unwrap();
        for bad in [0o664, 0o646] {
            mode(&real, bad);
            assert_eq!(culprit(), real);
        }
        mode(&real, 0o644);
        for bad in [0o775, 0o757] {
            mode(folder, bad);
            assert_eq!(culprit(), folder);
        }
        mode(folder, 0o1777);
        find().trusted().unwrap();
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return;
        }
        std::os::unix::fs::chown(&real, Some(1000), None).unwrap();
        assert_eq!(culprit(), real);
        std::os::unix::fs::chown(&real, Some(0), None).unwrap();
        std::os::unix::fs::chown(folder, Some(1000), None).unwrap();
        assert_eq!(culprit(), folder);
    }

    #[test]
    fn a_file_that_was_swapped_meanwhile_is_not_trusted() {
        let (dir, tree) = tree();
        let found = tree
            .find(Path::new("etc/file"), LastLink::Followed)
            .unwrap()
            .unwrap();
        fs::write(dir.path().join("etc/other"), "").unwrap();
        fs::rename(dir.path().join("etc/other"), dir.path().join("etc/file")).unwrap();
        found.trusted().unwrap_err();
    }
}
