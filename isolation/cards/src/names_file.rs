//! What is recorded of a container's names, `names.json` in its folder.

use std::path::Path;

use crate::called::Called;
use crate::identity::ContainerKey;
use crate::names::Names;
use crate::store;

/// The file's name.
pub const FILE: &str = "names.json";

/// Four names of 253 bytes, and their keys.
const SIZE_MAX_BYTES: u64 = 4 << 10;

/// What is recorded in a container's folder; none where nothing is, or nothing that can be read.
#[must_use]
pub fn read(folder: &Path) -> Names {
    let text = store::read_capped("names", &folder.join(FILE), SIZE_MAX_BYTES);
    text.ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// A container of this state folder as an answer to a person names it.
#[must_use]
pub fn called_in(state_dir: &Path, key: &ContainerKey) -> Called {
    let folder = state_dir.join("vgpus").join(key.relative_dir());
    Called::new(key, &read(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_called_by_its_name_and_the_beginning_of_a_digest() {
        let digest = format!("5a5219ab3a53{}", "0".repeat(52));
        let key = |id: &str| ContainerKey::new("moby", id).unwrap();
        let state = tempfile::tempdir().unwrap();
        let called = |id: &str| called_in(state.path(), &key(id)).to_string();
        assert_eq!(called(&digest), "moby/5a5219ab3a53");
        let folder = state.path().join("vgpus/moby").join(&digest);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(FILE), r#"{"name":"web"}"#).unwrap();
        assert_eq!(called(&digest), "web (moby/5a5219ab3a53)");
        // Whoever chooses an id chooses all of it.
        let chosen = "x".repeat(64);
        assert_eq!(called(&chosen), format!("moby/{chosen}"));
    }
}
