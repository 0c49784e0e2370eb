//! Maintainer scripts: what both package managers do is written once, in `scripts/functions`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// What of a script is replaced by the functions.
const PLACE: &str = "#FUNCTIONS#\n";

/// Those of a deb: name and text.
pub(crate) fn debian(repository: &Path) -> Result<Vec<(&'static str, String)>> {
    read(
        repository,
        "deb",
        &["preinst", "postinst", "prerm", "postrm"],
    )
}

/// Those of an rpm: section and text.
pub(crate) fn rpm(repository: &Path) -> Result<Vec<(&'static str, String)>> {
    read(repository, "rpm", &["pre", "post", "preun", "postun"])
}

fn read(
    repository: &Path,
    kind: &str,
    names: &[&'static str],
) -> Result<Vec<(&'static str, String)>> {
    let folder = repository.join("packaging/scripts");
    let text =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let functions = text(&folder.join("functions"))?;
    names
        .iter()
        .map(|name| {
            let script = text(&folder.join(kind).join(name))?;
            Ok((*name, script.replace(PLACE, &functions)))
        })
        .collect()
}
