//! What procfs shows of cards that are not the container's.

use serde_json::{Map, Value};

use super::Error;
use super::Plan;
use crate::json;

/// runc puts nothing over what is not there.
pub(super) fn mask(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    if plan.additions.masked_paths.is_empty() {
        return Ok(());
    }
    let linux = json::child_object(root, "linux")?;
    let masked = json::child_array(linux, "maskedPaths")?;
    for path in &plan.additions.masked_paths {
        if !masked.iter().any(|other| other.as_str() == Some(path)) {
            masked.push(Value::String(path.clone()));
        }
    }
    Ok(())
}
