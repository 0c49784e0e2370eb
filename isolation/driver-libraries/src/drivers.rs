//! By which release a driver's calls are decoded: that of its version, or that which a file of the host's operator shows it to have.

use std::path::PathBuf;

use host_config::trusted::{self, DRIVER_FILE};
use host_config::{Config, chain};
use nvabi::{DriverVersion, Release, UnsupportedRelease};
use releases::Known;

/// A file of facts has about a thousand of them.
const SIZE_MAX_BYTES: u64 = 1 << 20;

/// Why a file of a driver version is not obeyed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others can change it.
    #[error(transparent)]
    Trusted(#[from] trusted::Error),
    /// It cannot be read, or is too long.
    #[error(transparent)]
    Read(#[from] cards::Error),
    /// A file that should tell of the driver's version and does not.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: releases::Error,
    },
}

/// A driver that no release is known for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnknownDriver {
    /// Nobody has said anything of it.
    #[error(transparent)]
    Version(#[from] UnsupportedRelease),
    /// There is a file, and it does not make it known.
    #[error("{version}; and {} does not make it known: {why}", path.display())]
    File {
        /// The driver.
        version: UnsupportedRelease,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// How a driver is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// The layouts.
    pub release: Release,
    /// Where a file says so.
    pub by_file: Option<Known>,
}

/// Whether a driver can be decoded.
///
/// # Errors
/// It cannot, and why.
pub fn check(config: &Config, version: DriverVersion) -> Result<(), UnknownDriver> {
    decoding(config, version).map(drop)
}

/// The release of a driver.
///
/// # Errors
/// None is known, and why.
pub fn decoding(config: &Config, version: DriverVersion) -> Result<Decoding, UnknownDriver> {
    let unsupported = match Release::of(version) {
        Ok(release) => {
            return Ok(Decoding {
                release,
                by_file: None,
            });
        }
        Err(unsupported) => unsupported,
    };
    let Some((path, known)) = by_file(config, version) else {
        return Err(unsupported.into());
    };
    let release = known.and_then(|known| Ok((known.release().map_err(of(&path))?, known)));
    match release {
        Ok((release, known)) => Ok(Decoding {
            release,
            by_file: Some(known),
        }),
        Err(error) => Err(UnknownDriver::File {
            version: unsupported,
            path,
            why: chain(&error),
        }),
    }
}

/// What the operator's file of a version says, and where it is; `None`: there is no such file.
#[must_use]
pub fn by_file(config: &Config, version: DriverVersion) -> Option<(PathBuf, Result<Known, Error>)> {
    let path = config.driver.releases.join(format!("{version}.json"));
    // A link that leads nowhere is somebody's mistake, not nothing.
    std::fs::symlink_metadata(&path).ok()?;
    let known = trusted::file(DRIVER_FILE, &path)
        .map_err(Error::from)
        .and_then(|()| {
            Ok(cards::store::read_capped(
                DRIVER_FILE,
                &path,
                SIZE_MAX_BYTES,
            )?)
        })
        .and_then(|text| Known::of_file(&text, version).map_err(of(&path)));
    Some((path, known))
}

fn of(path: &std::path::Path) -> impl Fn(releases::Error) -> Error + '_ {
    |source| Error::File {
        path: path.to_owned(),
        source,
    }
}
