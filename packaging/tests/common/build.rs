//! What packages and the image are made from in tests, and by what.

use anyhow::Result;
use integration::cache::repository;
use integration::command::find;
use integration::programs::Programs;
use integration::skip;
use packaging::{Build, CargoPackages};

/// What makes packages and the image.
pub(crate) const MAKERS: [&str; 7] = ["cargo", "rustc", "dpkg-deb", "ldd", "strip", "tar", "zstd"];

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

/// Why packages cannot be made or installed here.
pub(crate) fn lacking(programs: &[&'static str]) -> Option<String> {
    let absent = programs.iter().find(|program| find(program).is_none());
    let root = skip::lacks_root().map(str::to_owned);
    root.or_else(|| absent.map(|program| format!("no {program}")))
}
