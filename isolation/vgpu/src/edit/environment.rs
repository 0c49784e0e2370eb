//! The environment: other NVIDIA hooks on this host must not add cards.

use serde_json::{Map, Value};

use super::Plan;
use crate::{Error, spec};

/// What NVIDIA's runtime hook reads, and the value at which it does nothing.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const HIDDEN: &str = "NVIDIA_VISIBLE_DEVICES=void";

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
    spec::process_environment(process)?;
    let environment = spec::child_array(process, "env")?;
    environment.retain(|entry| {
        entry
            .as_str()
            .is_none_or(|entry| entry.split('=').next() != Some(VISIBLE))
    });
    environment.push(Value::String(HIDDEN.to_owned()));
    Ok(())
}
