//! The little that the shim itself reads of `config.json`. Unknown fields and values stay unread, so that a newer
//! engine's spec never fails here (a full typed read fails on an unknown capability or namespace).

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use spec::strict_json::{self, Document};

use crate::error::{Error, Result, file};

/// As much as containerd lets through its own 4 MiB messages, with room.
const MOST_BYTES: u64 = 16 << 20;

/// What of the spec matters to the shim.
#[derive(Debug, Default, Deserialize)]
pub struct Spec {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
    #[serde(default)]
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    #[serde(default)]
    cgroups_path: Option<String>,
    #[serde(default)]
    namespaces: Option<Vec<Namespace>>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: Option<String>,
}

/// Whose end takes the rest of the container's processes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidNamespace {
    /// The container's own: the kernel kills all when init ends.
    Own,
    /// The host's or another container's: the shim has to.
    Shared,
}

impl Spec {
    /// Reads `config.json` of a bundle.
    ///
    /// # Errors
    /// It cannot be read, is larger than 16 MiB, or is not JSON of the right shape.
    pub fn read(bundle: &Path) -> Result<Self> {
        let path = bundle.join("config.json");
        let mut text = Vec::new();
        let opened = std::fs::File::open(&path).map_err(file("open", &path))?;
        opened
            .take(MOST_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(file("read", &path))?;
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > MOST_BYTES {
            let value = path.display().to_string();
            return Err(Error::Invalid {
                key: "config.json",
                value,
                allowed: "at most 16 MiB",
            });
        }
        strict_json::parse(Document::Spec, &text)
            .and_then(serde_json::from_value)
            .map_err(|source| Error::Json { path, source })
    }

    /// The name under which containers share one shim, if the spec gives one.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        // What CRI writes comes first: where a handler passes all of a pod's annotations on, the other is its author's word.
        const GROUPS: [&str; 2] = [
            "io.kubernetes.cri.sandbox-id",
            "io.containerd.runc.v2.group",
        ];
        let annotations = self.annotations.as_ref()?;
        GROUPS
            .iter()
            .find_map(|name| annotations.get(*name))
            .map(String::as_str)
    }

    /// `linux.cgroupsPath`.
    #[must_use]
    pub fn cgroups_path(&self) -> Option<&str> {
        self.linux.as_ref()?.cgroups_path.as_deref()
    }

    /// Whether init's end is the end of all.
    #[must_use]
    pub fn pid_namespace(&self) -> PidNamespace {
        let namespaces = self
            .linux
            .as_ref()
            .and_then(|linux| linux.namespaces.as_deref())
            .unwrap_or_default();
        let own =
            |ns: &Namespace| ns.kind == "pid" && ns.path.as_deref().unwrap_or_default().is_empty();
        if namespaces.iter().any(own) {
            PidNamespace::Own
        } else {
            PidNamespace::Shared
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Spec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn unknown_namespaces_and_fields_are_no_obstacle() {
        let read = spec(
            r#"{"future":1,"process":{"capabilities":{"bounding":["CAP_FUTURE"]}},
            "linux":{"namespaces":[{"type":"future"},{"type":"pid"}],"cgroupsPath":"/a","newField":{}}}"#,
        );
        assert_eq!(read.pid_namespace(), PidNamespace::Own);
        assert_eq!(read.cgroups_path(), Some("/a"));
        assert_eq!(read.group(), None);
    }

    #[test]
    fn a_joined_or_absent_pid_namespace_is_shared() {
        assert_eq!(spec("{}").pid_namespace(), PidNamespace::Shared);
        let joined = r#"{"linux":{"namespaces":[{"type":"pid","path":"/proc/1/ns/pid"}]}}"#;
        assert_eq!(spec(joined).pid_namespace(), PidNamespace::Shared);
        assert_eq!(
            spec(r#"{"linux":{"namespaces":null}}"#).pid_namespace(),
            PidNamespace::Shared
        );
    }

    #[test]
    fn a_pod_s_containers_are_in_its_own_shim_whatever_group_they_name() {
        let both = r#"{"annotations":{"io.containerd.runc.v2.group":"g","io.kubernetes.cri.sandbox-id":"s"}}"#;
        assert_eq!(spec(both).group(), Some("s"));
        let alone = r#"{"annotations":{"io.containerd.runc.v2.group":"g"}}"#;
        assert_eq!(spec(alone).group(), Some("g"));
        assert_eq!(
            spec(r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"s"}}"#).group(),
            Some("s")
        );
    }
}
