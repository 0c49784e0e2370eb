//! The environment: other NVIDIA hooks on this host must not add cards, and what the driver's libraries need.

use serde_json::{Map, Value};

use super::Error;
use super::Plan;
use crate::json::{self, ShapeError};

/// What NVIDIA's runtime hook reads, and the value at which it does nothing.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const HIDDEN: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// What a CDI spec says, in the first process alone, as engines do with CDI.
pub(super) fn add(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    let added = &plan.additions.environment;
    let Some(process) = root
        .get_mut("process")
        .filter(|value| !value.is_null() && !added.is_empty())
    else {
        return Ok(());
    };
    let process = process.as_object_mut().ok_or_else(|| ShapeError {
        field: "process".to_owned(),
        expected: "an object",
    })?;
    json::process_environment(process)?;
    let environment = json::child_array(process, "env")?;
    for variable in added {
        let name = variable.split('=').next();
        environment.retain(|entry| {
            entry
                .as_str()
                .is_none_or(|entry| entry.split('=').next() != name)
        });
    }
    environment.extend(added.iter().cloned().map(Value::String));
    Ok(())
}

/// In the container's first process.
pub(super) fn hide_from_other_hooks(
    root: &mut Map<String, Value>,
    _plan: &Plan<'_>,
) -> Result<(), Error> {
    match root.get_mut("process") {
        None | Some(Value::Null) => Ok(()),
        Some(process) => super::apply_to_exec(process),
    }
}

/// In any process spec. Every earlier value goes: with two, programs disagree which one holds.
pub(super) fn hide_in_process(process: &mut Map<String, Value>) -> Result<(), Error> {
    json::process_environment(process)?;
    let environment = json::child_array(process, "env")?;
    environment.retain(|entry| {
        entry
            .as_str()
            .is_none_or(|entry| entry.split('=').next() != Some(VISIBLE))
    });
    environment.push(Value::String(HIDDEN.to_owned()));
    Ok(())
}
