//! The host's time zones, which are bound read-only beside a grant.

use serde_json::{Map, Value};

use super::{Error, Plan};
use crate::{json, time_zone};

pub(super) fn protect(root: &mut Map<String, Value>, _plan: &Plan<'_>) -> Result<(), Error> {
    if root.get("mounts").is_none_or(Value::is_null) {
        return Ok(());
    }
    for mount in json::child_array(root, "mounts")? {
        let source = mount.get("source").and_then(Value::as_str);
        if !source.is_some_and(time_zone::is_one) {
            continue;
        }
        if let Some(mount) = mount.as_object_mut() {
            let options = json::child_array(mount, "options")?;
            // The last one counts, and `rrw` before all.
            options.retain(|option| option != "ro" && option != "rrw");
            options.push(Value::from("ro"));
        }
    }
    Ok(())
}
