//! Nodes by which a program would reach card memory from another device: GPUDirect RDMA, which no container with a quota has.
//!
//! `nvidia_p2p_get_pages`, which nvidia-peermem and gdrcopy's module call, looks for a third-party P2P object of the process that calls
//! it (p2p.c, `RmP2PGetInfoWithoutToken`); that object is the executor's, or the broker's, who made the call (third_party_p2p.c).
//! InfiniBand itself works, with host memory.

use std::path::Path;

use serde_json::Value;

use crate::json::{self, ShapeError};

/// Folder of the verbs' nodes, and gdrcopy's node.
const PLACES: [&str; 2] = ["/dev/infiniband", "/dev/gdrdrv"];

/// Such nodes that a container is given, as devices or by a mount, each once, in the spec's order.
///
/// # Errors
/// The spec's devices or mounts have another shape.
pub fn nodes(spec: &Value) -> Result<Vec<&str>, ShapeError> {
    let root = json::object(spec, "")?;
    let devices = match root.get("linux").filter(|linux| !linux.is_null()) {
        Some(linux) => json::list(json::object(linux, "linux")?, "linux", "devices")?,
        None => &[],
    };
    let mounts = json::list(root, "", "mounts")?;
    let ends = mounts
        .iter()
        .flat_map(|mount| [mount.get("source"), mount.get("destination")]);
    let paths = devices
        .iter()
        .map(|device| device.get("path"))
        .chain(ends)
        .filter_map(|path| path?.as_str());
    let mut found: Vec<&str> = Vec::new();
    for path in paths.filter(|path| is_such(Path::new(path))) {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_such(path: &Path) -> bool {
    PLACES.iter().any(|place| path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_are_found_among_devices_and_mounts_once_each() {
        let spec = json!({
            "linux": {"devices": [
                {"path": "/dev/infiniband/uverbs0"}, {"path": "/dev/infinibandit"}, {"path": "/dev/gdrdrv"}, {},
            ]},
            "mounts": [
                {"source": "/dev/infiniband", "destination": "/verbs"},
                {"source": "/srv", "destination": "/dev/infiniband/uverbs0"},
                {"source": "proc", "destination": "/proc"},
            ],
        });
        let found = nodes(&spec).unwrap();
        assert_eq!(
            found,
            ["/dev/infiniband/uverbs0", "/dev/gdrdrv", "/dev/infiniband"]
        );
        assert!(nodes(&json!({"linux": null})).unwrap().is_empty());
        nodes(&json!({"mounts": 1})).unwrap_err();
    }
}
