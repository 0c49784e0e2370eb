//! Table `[driver]`: whose calls, and whose files, containers get.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Table `[driver]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriverConfig {
    /// Which one.
    pub kind: DriverKind,
    /// Below what the driver's user libraries are installed; a driver container's root, for example.
    pub root: PathBuf,
    /// Where CDI specs are looked for.
    pub cdi: CdiFolders,
    /// Whence containers get the driver's user libraries.
    pub libraries: LibrarySource,
    /// Where files of driver versions are that this cgpu has no release for, `VERSION.json`.
    pub releases: PathBuf,
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self {
            kind: DriverKind::Auto,
            root: PathBuf::from("/"),
            cdi: CdiFolders::Auto,
            libraries: LibrarySource::Auto,
            releases: PathBuf::from("/etc/cgpu/drivers.d"),
        }
    }
}

/// The drivers to choose from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// The kernel's if it is loaded, else the simulated one if it runs.
    #[default]
    Auto,
    /// The kernel's only.
    Kernel,
    /// The simulated one only.
    Sim,
}

/// Whence the driver's user libraries come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LibrarySource {
    /// A CDI spec that has the granted cards, else discovery.
    #[default]
    Auto,
    /// A CDI spec only.
    Cdi,
    /// Discovery below `root` only.
    Discover,
    /// Containers get none: the image has them, or the engine's own CDI support gives them.
    None,
}

/// Where CDI specs are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CdiFolders {
    /// Where the specification has them.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// In these folders; the last counts most.
    Folders(Vec<PathBuf>),
}

impl CdiFolders {
    /// The folders; `None`: specs are not looked for.
    #[must_use]
    pub fn folders(&self, usual: &[&str]) -> Option<Vec<PathBuf>> {
        match self {
            Self::Auto => Some(usual.iter().map(PathBuf::from).collect()),
            Self::Off => None,
            Self::Folders(folders) => Some(folders.clone()),
        }
    }
}

impl<'de> Deserialize<'de> for CdiFolders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;

        impl<'de> Visitor<'de> for Words {
            type Value = CdiFolders;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", \"off\", or a list of folders by their absolute paths")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CdiFolders, E> {
                match text {
                    "auto" => Ok(CdiFolders::Auto),
                    "off" => Ok(CdiFolders::Off),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CdiFolders, A::Error> {
                let mut folders: Vec<PathBuf> = Vec::new();
                while let Some(folder) = list.next_element::<String>()? {
                    if !Path::new(&folder).is_absolute() {
                        let found = serde::de::Unexpected::Str(&folder);
                        return Err(A::Error::invalid_value(found, &self));
                    }
                    folders.push(PathBuf::from(folder));
                }
                if folders.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(CdiFolders::Folders(folders))
            }
        }

        deserializer.deserialize_any(Words)
    }
}
