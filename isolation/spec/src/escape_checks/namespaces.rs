//! `linux.namespaces`: which of the host's a container is in.

use std::path::Path;

use cards::Weakness;
use host_config::host_files::HostFiles;
use serde_json::{Map, Value};

use super::Error;
use super::Finding;
use crate::json;

/// What the other checks need of the namespaces.
#[derive(Debug)]
pub(super) struct Namespaces {
    own: Vec<String>,
    maps_host_root: bool,
}

/// Whether a `uid_map` has the host's root: lines of `INSIDE OUTSIDE COUNT`.
fn has_root(users: &str) -> bool {
    users.lines().any(|line| {
        line.split_whitespace()
            .nth(1)
            .is_none_or(|outside| outside == "0")
    })
}

impl Namespaces {
    /// None of its own.
    pub(super) fn of_the_host() -> Self {
        Self {
            own: Vec::new(),
            maps_host_root: true,
        }
    }

    pub(super) fn read(root: &Map<String, Value>, host: &dyn HostFiles) -> Result<Self, Error> {
        let Some(linux) = root.get("linux").filter(|linux| !linux.is_null()) else {
            return Ok(Self::of_the_host());
        };
        let linux = json::object(linux, "linux")?;
        let mut own = Vec::new();
        let mut joined = None;
        for entry in json::list(linux, "linux", "namespaces")? {
            let kind = entry.get("type").and_then(Value::as_str).unwrap_or("");
            let path = entry.get("path").and_then(Value::as_str).unwrap_or("");
            if path.is_empty() || host.is_foreign_namespace(kind, Path::new(path)) {
                own.push(kind.to_owned());
            }
            if kind == "user" && !path.is_empty() {
                joined = Some(Path::new(path));
            }
        }
        let mappings = json::list(linux, "linux", "uidMappings")?;
        let reaches_root =
            |mapping: &Value| mapping.get("hostID").and_then(Value::as_u64).unwrap_or(0) == 0;
        // One that is joined has its own mappings, whatever the spec's are.
        let maps_host_root = match joined {
            Some(path) => host.users_of(path).is_none_or(|users| has_root(&users)),
            None => mappings.is_empty() || mappings.iter().any(reaches_root),
        };
        Ok(Self {
            own,
            maps_host_root,
        })
    }

    fn has_own(&self, kind: &str) -> bool {
        self.own.iter().any(|own| own == kind)
    }

    /// In a user namespace without the host's root. Capabilities are then none on the host, and files that only its root may write are
    /// not the container's to write.
    pub(super) fn shields_root_s_files(&self) -> bool {
        self.has_own("user") && !self.maps_host_root
    }

    pub(super) fn has_own_cgroup(&self) -> bool {
        self.has_own("cgroup")
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        [("pid", Weakness::HostPid), ("mount", Weakness::HostRoot)]
            .into_iter()
            .filter(|(kind, _)| !self.has_own(kind))
            .map(|(kind, weakness)| {
                Finding::new(
                    weakness,
                    "linux.namespaces",
                    format!("the host's {kind} namespace"),
                )
            })
            .collect()
    }
}
