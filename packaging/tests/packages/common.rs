//! Packages and the image, made once for all tests.

#[path = "../common/build.rs"]
mod build;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use packaging::{Form, write};

pub(crate) use self::build::{MAKERS, build, lacking};

/// A folder of packages, or why there is none.
type Made = OnceLock<Result<tempfile::TempDir, String>>;

/// The packages of revision 1.
pub(crate) fn packages() -> Result<&'static Path> {
    static MADE: Made = Made::new();
    once(&MADE, 1, &Form::ALL)
}

/// Those of revision 2, as package managers take them.
pub(crate) fn newer() -> Result<&'static Path> {
    static MADE: Made = Made::new();
    once(&MADE, 2, &[Form::Deb, Form::Rpm])
}

fn once(made: &'static Made, revision: u32, forms: &[Form]) -> Result<&'static Path> {
    let made = made.get_or_init(|| {
        let make = || -> Result<_> {
            let folder = tempfile::tempdir()?;
            write(&build(revision)?, forms, folder.path())?;
            Ok(folder)
        };
        make().map_err(|error| format!("{error:#}"))
    });
    match made {
        Ok(folder) => Ok(folder.path()),
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
