//! Prometheus and its tool.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use integration::command::find;
use integration::packages::{Suite, unpacked};

/// `prometheus` or `promtool`: the machine's, else Debian's package's, unpacked.
///
/// # Errors
/// A reason to skip aloud: neither is there.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    if let Some(installed) = find(name) {
        return Ok(installed);
    }
    let package = unpacked(Suite::Host, "prometheus", &["prometheus"])?;
    let path = package.join("usr/bin").join(name);
    ensure!(path.is_file(), "package prometheus has no {name}");
    Ok(path)
}
