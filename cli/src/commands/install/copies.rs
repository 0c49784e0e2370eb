//! What the journal knows of programs that were copied to a host.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::processes::{self, Running};

/// The copies on a host, in its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copies {
    /// As the engine sees it, without the root.
    pub(super) folder: String,
    /// In the order in which they came; `current` leads to the last.
    pub(super) versions: Vec<Version>,
}

/// One version. Its files are in the journal before the first of them is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) name: String,
    /// From the version's folder.
    pub(super) files: Vec<String>,
}

impl Copies {
    fn folder_of(&self, version: &Version) -> String {
        format!("{}/versions/{}", self.folder, version.name)
    }

    /// Of one version.
    pub(super) fn files_of(&self, root: &Path, version: &Version) -> Vec<PathBuf> {
        let folder = self.folder_of(version);
        let files = version.files.iter();
        files
            .map(|file| at(root, &format!("{folder}/{file}")))
            .collect()
    }

    /// Of all versions.
    pub(super) fn files(&self, root: &Path) -> Vec<PathBuf> {
        let versions = self.versions.iter();
        versions
            .flat_map(|version| self.files_of(root, version))
            .collect()
    }

    /// The name that engines go by.
    pub(super) fn link(&self, root: &Path) -> PathBuf {
        at(root, &format!("{}/current", self.folder))
    }

    /// Whether one of the copies is in this folder.
    pub(super) fn need(&self, root: &Path, folder: &Path) -> bool {
        let files = self.files(root);
        let mut files = files.iter();
        self.link(root).starts_with(folder) || files.any(|file| file.starts_with(folder))
    }

    /// What runs from them.
    ///
    /// # Errors
    /// A process cannot be looked at.
    pub(super) fn running(&self, root: &Path) -> anyhow::Result<Vec<Running>> {
        processes::running(&at(root, "/proc"), &self.files(root))
    }

    /// The version that `current` leads to.
    pub(super) fn current(&self) -> Option<&str> {
        self.versions.last().map(|version| version.name.as_str())
    }
}

/// Where a path of the host's is below its root.
fn at(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
