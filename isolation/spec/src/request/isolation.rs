//! How a container wants to be held: only ever more strictly than the configuration says.
//!
//! These terms come from annotations alone. A share group lets others import what the container exports, so that its name
//! must be the choice of whoever starts the container, never of an image.

use std::collections::BTreeSet;

use cards::{Capability, Isolation};
use host_config::Config;
use host_config::config::IsolationConfig;
use host_config::terms::{Annotated, MANAGED, MANAGED_KEY, ON_VIOLATION, ON_VIOLATION_KEY};

use super::error::Error;
use crate::capabilities::{self, Capabilities};

/// What a program of the host's may ask for beside compute and utility, and what it asks for in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// What a broker admits for it.
    pub capabilities: BTreeSet<Capability>,
    /// What is to be said where it asks for more by name.
    pub warning: Option<String>,
}

/// Reads `NVIDIA_DRIVER_CAPABILITIES` of a program that is no container.
///
/// # Errors
/// A word that is no capability.
pub fn driver_capabilities(config: &Config, value: Option<&str>) -> Result<Admitted, Error> {
    let requested = match value {
        Some(value) => Capabilities::parse(value)?,
        None => Capabilities::by_default(),
    };
    let capabilities = requested.admitted(&config.isolation.capabilities);
    let refused = requested.refused(&capabilities);
    Ok(Admitted {
        warning: (!refused.is_empty()).then(|| capabilities::not_served(&refused)),
        capabilities,
    })
}

/// The configuration's terms, tightened by the annotations'.
pub(super) fn terms(config: &IsolationConfig, native: &Annotated) -> Result<Isolation, Error> {
    let configured = config.terms();
    Ok(Isolation {
        managed: tightened(
            &MANAGED,
            configured.managed,
            native.managed,
            (MANAGED_KEY, "managed"),
        )?,
        on_violation: tightened(
            &ON_VIOLATION,
            configured.on_violation,
            native.on_violation,
            (ON_VIOLATION_KEY, "on_violation"),
        )?,
        share_group: native.share_group.clone(),
        ..configured
    })
}

/// Whichever is asked for, if it stands no earlier in `order` than what is configured.
fn tightened<T: Copy + PartialEq + Into<&'static str>>(
    order: &[T],
    configured: T,
    requested: Option<T>,
    (key, setting): (&'static str, &'static str),
) -> Result<T, Error> {
    let Some(requested) = requested else {
        return Ok(configured);
    };
    let strictness = |of: T| order.iter().position(|value| *value == of);
    if strictness(requested) >= strictness(configured) {
        return Ok(requested);
    }
    let allowed: Vec<&str> = order
        .iter()
        .skip(strictness(configured).unwrap_or(0))
        .map(|value| (*value).into())
        .collect();
    Err(Error::Loosens {
        key,
        value: requested.into(),
        setting,
        configured: configured.into(),
        allowed: allowed.join(", "),
    })
}
