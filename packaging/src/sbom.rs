//! What a package's programs are made of, as CycloneDX 1.5 (`https://cyclonedx.org/docs/1.5/json/`).
//!
//! `scope` tells what is in the programs (`required`) from what only runs while they are built (`excluded`). There is no serial number:
//! it would differ between two builds.

use anyhow::Result;
use serde_json::{Value, json};

use crate::crates::{Crate, Id, Parts};
use crate::third_party::Library;
use crate::{Build, tool};

/// The document.
pub(crate) fn document(
    build: &Build,
    package: &str,
    parts: &Parts<'_>,
    libraries: &[Library],
) -> Result<String> {
    let timestamp = tool::time(build.epoch)?;
    let mut components: Vec<Value> = Vec::new();
    for (scope, crates) in [("required", &parts.linked), ("excluded", &parts.building)] {
        components.extend(crates.iter().map(|row| component(row, scope)));
    }
    components.extend(libraries.iter().map(|library| {
        json!({
            "type": "library",
            "bom-ref": library.reference(),
            "name": library.name,
            "version": library.version,
            "scope": "required",
            "licenses": [{"expression": library.expression}],
        })
    }));
    let mut dependencies: Vec<Value> = vec![json!({
        "ref": package,
        "dependsOn": libraries.iter().map(Library::reference).chain(roots(parts)).collect::<Vec<_>>(),
    })];
    dependencies.extend(parts.edges.iter().map(|(id, others)| {
        json!({
            "ref": reference(id),
            "dependsOn": others.iter().map(|id| reference(id)).collect::<Vec<_>>(),
        })
    }));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "tools": {"components": [{
                "type": "application",
                "name": "cgpu-packaging",
                "version": build.version,
            }]},
            "component": {
                "type": "application",
                "bom-ref": package,
                "name": package,
                "version": build.full_version(),
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// Those that no other depends on: the packages of the programs.
fn roots<'a>(parts: &'a Parts<'_>) -> impl Iterator<Item = String> + 'a {
    let is_below = |id: &Id| parts.edges.values().any(|others| others.contains(id));
    let roots = parts.linked.iter().filter(move |row| !is_below(&row.id));
    roots.map(|row| reference(&row.id))
}

/// A package URL, by which scanners know a crate.
fn reference(id: &Id) -> String {
    format!("pkg:cargo/{}@{}", id.name, id.version.replace('+', "%2B"))
}

fn component(row: &Crate, scope: &str) -> Value {
    let mut value = json!({
        "type": "library",
        "bom-ref": reference(&row.id),
        "name": row.id.name,
        "version": row.id.version,
        "scope": scope,
    });
    if let Some(expression) = row.expression() {
        value["licenses"] = json!([{"expression": expression}]);
    }
    if let Some(checksum) = &row.checksum {
        value["purl"] = json!(reference(&row.id));
        value["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &row.repository {
        value["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    value
}
