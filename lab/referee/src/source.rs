//! Where the resource server's source comes from.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use integration::packages;

/// Names source trees that are at hand, with `:` between them.
pub const SOURCE_VARIABLE: &str = "CGPU_REFEREE_SOURCE";

/// The same for those whose whole core is compiled, which takes minutes a tree.
pub const CORE_VARIABLE: &str = "CGPU_REFEREE_CORE";

/// Debian's source package of the open kernel modules.
const PACKAGE: &str = "nvidia-open-gpu-kernel-modules";

/// A release of Debian that has a source package of the open kernel modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debian {
    /// Debian 12: branch 535.
    Bookworm,
    /// Debian 13: branch 550.
    Trixie,
}

impl Debian {
    const fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// A source tree of the open kernel modules.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Its top folder.
    pub folder: PathBuf,
    /// The driver's version.
    pub version: String,
}

impl Tree {
    /// The tree in a folder.
    ///
    /// # Errors
    /// The folder is no source tree of the open kernel modules.
    pub fn at(folder: &Path) -> Result<Self> {
        let path = folder.join("version.mk");
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("NVIDIA_VERSION = "))
            .with_context(|| format!("no NVIDIA_VERSION in {}", path.display()))?;
        Ok(Self {
            folder: folder.to_owned(),
            version: version.trim().to_owned(),
        })
    }

    /// The tree of Debian's source package, fetched once.
    ///
    /// # Errors
    /// A reason to skip aloud: the package cannot be fetched or unpacked.
    pub fn of_debian(debian: Debian) -> Result<Self> {
        Self::at(&packages::upstream_source(
            debian.release(),
            "contrib",
            PACKAGE,
        )?)
    }

    /// The trees that a variable names, [`SOURCE_VARIABLE`] or [`CORE_VARIABLE`].
    ///
    /// # Errors
    /// One of them is none.
    pub fn at_hand(variable: &str) -> Result<Vec<Self>> {
        let named = std::env::var_os(variable).unwrap_or_default();
        std::env::split_paths(&named)
            .filter(|folder| !folder.as_os_str().is_empty())
            .map(|folder| Self::at(&folder))
            .collect()
    }
}
