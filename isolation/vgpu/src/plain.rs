//! Containers that ask for nothing: the driver's calls are closed to those that could be handed an open driver file ([`spec::edit::closed_to_driver`]).
//!
//! Nothing here stops a container. Which calls are closed is no matter of the host's configuration or driver: the rules are those of every
//! release, a driver may be loaded while the container runs, and a broken `cgpu.toml` is no concern of a plain container. To which containers
//! they stay open, which have the driver by others than cgpu, the host says (`other_ways`). One whose profile
//! cannot be kept exactly beside the rules starts as it is, with a warning.

use std::path::Path;

use host_config::{Config, chain};
use serde_json::Value;
use spec::edit;

use crate::bundle::Spec;
use crate::{Error, host, other_ways, runc};

/// The spec that a container is to have which asks for nothing; `None`: its own. `id`: its name in its engine.
#[must_use]
pub fn closed_to_driver(config: &Config, id: Option<&str>, spec: &Value) -> Option<Value> {
    match closed(config, id, spec) {
        Ok(closed) => closed,
        Err(error) => {
            warn(id, &error);
            None
        }
    }
}

/// The same of a bundle, which is written where it changes.
pub fn close_bundle(config: &Config, id: &str, bundle: &Path) {
    match Spec::read(bundle) {
        Ok(spec) => close_read(config, id, &spec),
        Err(error) => warn(Some(id), &error),
    }
}

pub(crate) fn close_read(config: &Config, id: &str, spec: &Spec) {
    let closed = closed_to_driver(config, Some(id), &spec.value);
    if let Some(Err(error)) = closed.map(|closed| spec.rewrite(&closed)) {
        warn(Some(id), &error);
    }
}

fn closed(config: &Config, id: Option<&str>, spec: &Value) -> Result<Option<Value>, Error> {
    let closed = edit::closed_to_driver(spec, id, other_ways::of_this_host)?;
    // A rootless engine's containers are in no namespace of one with a quota: whoever made those is root.
    if closed.is_none() || host::require_root().is_err() {
        return Ok(None);
    }
    // A runtime without seccomp would refuse the container, and holds none to a quota.
    let profile = spec.pointer("/linux/seccomp");
    if profile.is_none_or(Value::is_null) {
        runc::require_notify(config)?;
    }
    Ok(closed)
}

fn warn(id: Option<&str>, error: &Error) {
    let container = id.unwrap_or_default();
    tracing::warn!(container, error = %chain(error), "the driver's calls are not closed to this container, which asks for no vGPU");
}
