//! Maintainer scripts of a package, in `scripts/<package>`: what both package managers do is written once, in `functions`.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// What of a script is replaced by the functions.
const PLACE: &str = "#FUNCTIONS#\n";

/// Those of a deb: name and text.
pub(crate) fn debian(repository: &Path, package: &str) -> Result<Vec<(&'static str, String)>> {
    read(
        repository,
        package,
        "deb",
        &["preinst", "postinst", "prerm", "postrm"],
    )
}

/// Those of an rpm: section and text.
pub(crate) fn rpm(repository: &Path, package: &str) -> Result<Vec<(&'static str, String)>> {
    read(
        repository,
        package,
        "rpm",
        &["pre", "post", "preun", "postun"],
    )
}

/// Those of these names that the package has; none where it has no folder.
fn read(
    repository: &Path,
    package: &str,
    kind: &str,
    names: &[&'static str],
) -> Result<Vec<(&'static str, String)>> {
    let folder = repository.join("packaging/scripts").join(package);
    let text = |path: &Path| -> Result<Option<String>> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    };
    let functions = text(&folder.join("functions"))?.unwrap_or_default();
    let mut scripts = Vec::new();
    for name in names {
        if let Some(script) = text(&folder.join(kind).join(name))? {
            scripts.push((*name, script.replace(PLACE, &functions)));
        }
    }
    Ok(scripts)
}
