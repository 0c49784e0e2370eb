//! How a container wants to be held: only ever more strictly than the configuration says.
//!
//! These terms come from annotations alone. A share group lets others import what the container exports, so that its name
//! must be the choice of whoever starts the container, never of an image.

use std::collections::BTreeSet;

use cards::{Capability, CardFigures, Isolation, ManagedMemory, Mode, OnViolation};

use super::bad_value;
use super::native::NativeTerms;
use crate::config::IsolationConfig;
use crate::driver_libraries::capabilities::Capabilities;
use crate::{Config, Error, events};

pub(super) const MANAGED_KEY: &str = "cgpu.io/managed";
pub(super) const ON_VIOLATION_KEY: &str = "cgpu.io/on-violation";
pub(super) const SHARE_GROUP_KEY: &str = "cgpu.io/share-group";

/// From the loosest to the strictest.
const MANAGED: [(&str, ManagedMemory); 3] = [
    ("allow", ManagedMemory::Allow),
    ("charge", ManagedMemory::Charge),
    ("deny", ManagedMemory::Deny),
];
const ON_VIOLATION: [(&str, OnViolation); 2] =
    [("log", OnViolation::Log), ("kill", OnViolation::Kill)];
const CARD_FIGURES: [(&str, CardFigures); 2] =
    [("show", CardFigures::Show), ("refuse", CardFigures::Refuse)];
const MODES: [(&str, Mode); 2] = [("strict", Mode::Strict), ("compat", Mode::Compat)];

/// A DNS label (RFC 1123).
const GROUP_CHARS_MAX: usize = 63;
const GROUP_ALLOWED: &str = "1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends";

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
        warning: (!refused.is_empty()).then(|| events::not_served(&refused)),
        capabilities,
    })
}

/// Reads what managed memory counts; `key` is for the error.
///
/// # Errors
/// Another word than `charge`, `deny`, `allow`.
pub fn managed(key: &str, text: &str) -> Result<ManagedMemory, Error> {
    named(&MANAGED, key, text, "charge, deny, allow")
}

/// Reads a mode that a command may be given; `key` is for the error.
///
/// # Errors
/// Another word than `strict`, `compat`.
pub fn mode(key: &str, text: &str) -> Result<Mode, Error> {
    named(&MODES, key, text, "strict, compat")
}

/// Reads what becomes of the driver's page of figures; `key` is for the error.
///
/// # Errors
/// Another word than `show`, `refuse`.
pub fn card_figures(key: &str, text: &str) -> Result<CardFigures, Error> {
    named(&CARD_FIGURES, key, text, "show, refuse")
}

/// Reads what happens on a violation; `key` is for the error.
///
/// # Errors
/// Another word than `log`, `kill`.
pub fn on_violation(key: &str, text: &str) -> Result<OnViolation, Error> {
    named(&ON_VIOLATION, key, text, "log, kill")
}

/// Reads the name of a share group; `key` is for the error.
///
/// # Errors
/// A name that is no DNS label.
pub fn share_group(key: &str, text: &str) -> Result<String, Error> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let fits = bytes.len() <= GROUP_CHARS_MAX
        && bytes.iter().all(|byte| is_plain(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| is_plain(*byte))
        && bytes.last().is_some_and(|byte| is_plain(*byte));
    if fits {
        Ok(text.to_owned())
    } else {
        Err(bad_value(key, text, GROUP_ALLOWED))
    }
}

fn named<T: Copy>(
    names: &[(&'static str, T)],
    key: &str,
    text: &str,
    allowed: &str,
) -> Result<T, Error> {
    names
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| bad_value(key, text, allowed))
}

/// The configuration's terms, tightened by the annotations'.
pub(super) fn terms(config: &IsolationConfig, native: &NativeTerms) -> Result<Isolation, Error> {
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

/// Whichever is asked for, if it stands no earlier among `names` than what is configured.
fn tightened<T: Copy + PartialEq>(
    names: &[(&'static str, T)],
    configured: T,
    requested: Option<T>,
    (key, setting): (&'static str, &'static str),
) -> Result<T, Error> {
    let Some(requested) = requested else {
        return Ok(configured);
    };
    let strictness = |of: T| names.iter().position(|(_, value)| *value == of);
    if strictness(requested) >= strictness(configured) {
        return Ok(requested);
    }
    let name = |of: T| {
        strictness(of)
            .and_then(|at| names.get(at))
            .map_or("", |(name, _)| *name)
    };
    let allowed: Vec<&str> = names
        .iter()
        .skip(strictness(configured).unwrap_or(0))
        .map(|(name, _)| *name)
        .collect();
    Err(Error::Loosens {
        key,
        value: name(requested),
        setting,
        configured: name(configured),
        allowed: allowed.join(", "),
    })
}
