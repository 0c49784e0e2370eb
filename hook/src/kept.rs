//! Where the container of a runtime's command has its bundle, which the command line of `create` alone names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Where a runtime keeps its containers' states if its caller names no folder.
const DEFAULT_ROOT: &str = "/run/runc";
/// runc's and crun's names of a container's state.
const NAMES: [&str; 2] = ["state.json", "status"];
/// A state is some hundred KiB at most: it has the container's spec.
const STATE_MAX_BYTES: u64 = 32 << 20;

/// By what the runtime itself has written down of the container: runc as a label, crun by name. `None` where it knows none.
pub(crate) fn bundle_of(root: Option<&Path>, id: &str) -> Option<PathBuf> {
    if id.is_empty() || id.contains('/') || id == ".." {
        return None;
    }
    let folder = root.unwrap_or_else(|| Path::new(DEFAULT_ROOT)).join(id);
    NAMES.iter().find_map(|name| {
        let mut text = Vec::new();
        let file = File::open(folder.join(name)).ok()?;
        file.take(STATE_MAX_BYTES).read_to_end(&mut text).ok()?;
        bundle_in(&serde_json::from_slice(&text).ok()?)
    })
}

fn bundle_in(state: &Value) -> Option<PathBuf> {
    let by_label = || {
        let labels = state.get("config")?.get("labels")?.as_array()?;
        let mut labels = labels.iter().filter_map(Value::as_str);
        labels.find_map(|label| label.strip_prefix("bundle="))
    };
    let bundle = state.get("bundle").and_then(Value::as_str);
    bundle.or_else(by_label).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_found_as_both_runtimes_write_it() {
        let root = tempfile::tempdir().unwrap();
        for (id, name, text) in [
            (
                "a",
                "state.json",
                r#"{"id": "a", "config": {"labels": ["x=y", "bundle=/b/a"]}}"#,
            ),
            ("b", "status", r#"{"pid": 1, "bundle": "/b/b"}"#),
            ("c", "state.json", r#"{"config": {"labels": null}}"#),
            ("d", "state.json", "{"),
        ] {
            std::fs::create_dir(root.path().join(id)).unwrap();
            std::fs::write(root.path().join(id).join(name), text).unwrap();
        }
        let bundle = |id: &str| bundle_of(Some(root.path()), id);
        assert_eq!(bundle("a"), Some("/b/a".into()));
        assert_eq!(bundle("b"), Some("/b/b".into()));
        for id in ["c", "d", "e", "", "..", "../a", "a/../a"] {
            assert_eq!(bundle(id), None, "{id}");
        }
    }
}
