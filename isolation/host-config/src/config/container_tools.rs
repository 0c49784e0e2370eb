//! `container_tools`: the `cgpu` that GPU containers find.

use std::path::PathBuf;

use serde::Deserialize;

use crate::programs;

/// Which static `cgpu` GPU containers find at `/usr/bin/cgpu`, read-only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "PathBuf")]
pub enum ContainerTools {
    /// That of this installation, where it has one.
    #[default]
    Installed,
    /// None.
    Off,
    /// This file.
    File(PathBuf),
}

impl From<PathBuf> for ContainerTools {
    fn from(value: PathBuf) -> Self {
        if value.as_os_str() == "off" {
            Self::Off
        } else {
            Self::File(value)
        }
    }
}

impl ContainerTools {
    /// The file. It need not exist where the configuration names it.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Installed => programs::inside_containers("cgpu"),
            Self::Off => None,
            Self::File(path) => Some(path.clone()),
        }
    }
}
