//! What procfs and sysfs show of cards that are not the container's and of what they cannot do for it, and what drivers take there from root.

use std::path::Path;

use cards::DriverSpec;
use host_config::walk::cleaned;
use serde_json::{Map, Value};

use super::Error;
use super::Plan;
use crate::json;

/// By these NCCL and UCX decide whether a card's memory can be registered with InfiniBand, which fails in a container with a quota
/// ([`crate::rdma`]) and is no reason for them to send through the host's. Folders: a file that is masked is still there.
const OF_PEER_MEMORY: [&str; 3] = [
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers",
];

/// runc puts nothing over what is not there.
pub(super) fn mask(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    let of_peer_memory: &[&str] = match plan.grant.driver {
        DriverSpec::Sim { .. } => &[],
        DriverSpec::Kernel => &OF_PEER_MEMORY,
    };
    let of_cards = plan.additions.masked_paths.iter().map(String::as_str);
    let mut hidden = of_peer_memory.iter().copied().chain(of_cards).peekable();
    if hidden.peek().is_none() {
        return Ok(());
    }
    let linux = json::child_object(root, "linux")?;
    let masked = json::child_array(linux, "maskedPaths")?;
    for path in hidden {
        if !masked.iter().any(|other| other.as_str() == Some(path)) {
            masked.push(Value::String(path.to_owned()));
        }
    }
    Ok(())
}

/// Drivers' files below a procfs.
const OF_DRIVERS: &str = "driver";

/// Nothing there is the container's to write: nvidia.ko keeps what root writes to `registry` for all cards, in memory that no control
/// group counts, and asks for no capability. By every procfs of the container; runtimes pass over what is not there.
pub(super) fn protect(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    match plan.grant.driver {
        DriverSpec::Sim { .. } => return Ok(()),
        DriverSpec::Kernel => {}
    }
    let text = |mount: &Value, key| mount.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut folders = vec!["/proc".to_owned()];
    for mount in json::list(root, "", "mounts")? {
        if text(mount, "type").as_deref() == Some("proc") {
            folders.extend(text(mount, "destination"));
        }
    }
    let linux = json::child_object(root, "linux")?;
    let protected = json::child_array(linux, "readonlyPaths")?;
    for folder in folders {
        let path = cleaned(&Path::new("/").join(folder)).join(OF_DRIVERS);
        let path = Value::String(path.display().to_string());
        if !protected.contains(&path) {
            protected.push(path);
        }
    }
    Ok(())
}
