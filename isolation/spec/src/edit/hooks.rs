//! NVIDIA's runtime hook, which is beside a grant where an engine adds it to every container (CRI-O's `always`) or `docker --gpus` does.
//!
//! By its other ways than the environment it gives cards all the same: mounts below `/var/run/nvidia-container-devices`, and the variables of
//! `swarm-resource` (`cmd/nvidia-container-runtime-hook/container_config.go` of NVIDIA's Container Toolkit, by reading).

use std::path::Path;

use serde_json::{Map, Value};

use super::{Error, Plan};
use crate::json;

/// Its program's names. `nvidia-ctk` and `nvidia-cdi-hook` are of a CDI specification, which the engine has applied, and give no card.
const NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Where it can be among the hooks.
const BEFORE_START: [&str; 2] = ["prestart", "createRuntime"];

/// Takes it out.
pub(super) fn remove_nvidia_s(
    root: &mut Map<String, Value>,
    _plan: &Plan<'_>,
) -> Result<(), Error> {
    if root.get("hooks").is_none_or(Value::is_null) {
        return Ok(());
    }
    let hooks = json::child_object(root, "hooks")?;
    for name in BEFORE_START {
        if hooks.get(name).is_some_and(|hooks| !hooks.is_null()) {
            json::child_array(hooks, name)?.retain(|hook| !is_nvidia_s(hook));
        }
    }
    Ok(())
}

fn is_nvidia_s(hook: &Value) -> bool {
    let path = hook.get("path").and_then(Value::as_str);
    let name = path.and_then(|path| Path::new(path).file_name());
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}
