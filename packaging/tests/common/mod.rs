//! Packages and the image, made once for a test executable.

mod build;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use packaging::write;

pub(crate) use self::build::{MAKERS, build, lacking};

/// The packages of revision 1, made once.
pub(crate) fn packages() -> Result<&'static Path> {
    static MADE: OnceLock<Result<(tempfile::TempDir, ()), String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let make = || -> Result<_> {
            let folder = tempfile::tempdir()?;
            write(&build(1)?, folder.path())?;
            Ok((folder, ()))
        };
        make().map_err(|error| format!("{error:#}"))
    });
    match made {
        Ok((folder, ())) => Ok(folder.path()),
        Err(error) => bail!("packages: {error}"),
    }
}

/// One of [`packages`].
pub(crate) fn package(folder: &Path, name: &str, ending: &str) -> Result<PathBuf> {
    let version = build(1)?.full_version();
    let between = match ending {
        ".deb" | ".oci.tar" => format!("_{version}_amd64"),
        ".rpm" => format!("-{version}.x86_64"),
        _ => format!("-{version}-x86_64"),
    };
    let path = folder.join(format!("{name}{between}{ending}"));
    ensure!(path.is_file(), "no {}", path.display());
    Ok(path)
}
