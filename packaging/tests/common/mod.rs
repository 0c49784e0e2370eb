//! Packages and the image, made once for a test executable.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use integration::cache::repository;
use integration::command::find;
use integration::programs::Programs;
use integration::skip;
use packaging::{Build, CargoPackages, write};

/// What `dpkg -i` would get, of one revision.
pub(crate) fn build(revision: u32) -> Result<Build> {
    Ok(Build {
        revision,
        ..Build::for_tests(
            repository(),
            Programs::for_tests()?.folder(),
            CargoPackages {
                host: Programs::host_packages(),
                containers: Programs::static_packages(),
            },
        )
    })
}

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

/// Why packages cannot be made or installed here.
pub(crate) fn lacking(programs: &[&'static str]) -> Option<String> {
    let absent = programs.iter().find(|program| find(program).is_none());
    let root = skip::lacks_root().map(str::to_owned);
    root.or_else(|| absent.map(|program| format!("no {program}")))
}

/// What makes packages and the image.
pub(crate) const MAKERS: [&str; 7] = ["cargo", "rustc", "dpkg-deb", "ldd", "strip", "tar", "zstd"];

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
