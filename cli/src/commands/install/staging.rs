//! A folder for copies that an engine is asked to read.

use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use anyhow::Context;

/// The attribute that SELinux reads a file's label from.
const LABEL: &str = "security.selinux";
/// The label of the files that this thread makes; an empty one means the policy's choice. A program that is started does not have it.
const FILES_OF_THIS_THREAD: &str = "/proc/thread-self/attr/fscreate";
/// A longer label is taken for none.
const LABEL_MOST: usize = 4096;

/// As long as it is there, what this thread writes has the SELinux label of the engine's own file: an engine in a domain of its own may
/// read no other. Without SELinux it is a temporary folder.
pub(super) struct Staging {
    folder: tempfile::TempDir,
    _label: LabelOfThread,
}

/// Not to be sent to another thread.
struct LabelOfThread(PhantomData<*const ()>);

impl LabelOfThread {
    fn set(label: &[u8]) -> Self {
        // A kernel without SELinux refuses it: its files have labels from another life then.
        drop(fs::write(FILES_OF_THIS_THREAD, label));
        Self(PhantomData)
    }
}

impl Drop for LabelOfThread {
    fn drop(&mut self) {
        drop(fs::write(FILES_OF_THIS_THREAD, "\n"));
    }
}

impl Staging {
    /// For a copy of `original`, or of what is to be there.
    ///
    /// # Errors
    /// Those of making a folder.
    pub(super) fn of(original: &Path) -> anyhow::Result<Self> {
        let existing = original.ancestors().find(|path| path.exists());
        let label = existing.and_then(label).unwrap_or_default();
        let label = LabelOfThread::set(&label);
        Ok(Self {
            folder: tempfile::tempdir().context("a folder for the check")?,
            _label: label,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn label(path: &Path) -> Option<Vec<u8>> {
    let mut label = vec![0; LABEL_MOST];
    let length = rustix::fs::getxattr(path, LABEL, &mut label[..]).ok()?;
    label.truncate(length);
    Some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_made_with_and_without_labels() {
        let host = tempfile::tempdir().unwrap();
        let original = host.path().join("etc/docker/daemon.json");
        let staging = Staging::of(&original).unwrap();
        let first = staging.path().to_owned();
        fs::write(first.join("daemon.json"), "{}").unwrap();
        assert_eq!(label(&original), None);
        drop(staging);
        assert!(!first.exists());

        // Without SELinux root may write any label that a file system has room for.
        let folder = original.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        let engines = b"system_u:object_r:container_config_t:s0\0";
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::setxattr(folder, LABEL, engines, flags) {
            println!("SKIP: copies_are_made_with_and_without_labels: no label can be set: {error}");
            return;
        }
        assert_eq!(label(folder).unwrap(), engines);
        let staging = Staging::of(&original).unwrap();
        let copy = staging.path().join("daemon.json");
        fs::write(&copy, "{}").unwrap();
        if Path::new("/sys/fs/selinux/enforce").exists() {
            assert_eq!(label(&copy).unwrap(), engines);
        }
    }
}
