//! How a container is held: words of annotations, configuration and options.

use cards::{CardFigures, ManagedMemory, Mode, OnViolation, RegisteredMemory};

use super::error::Error;
use super::values::bad_value;

/// What managed memory counts.
pub const MANAGED_KEY: &str = "cgpu.io/managed";
/// What happens on a violation.
pub const ON_VIOLATION_KEY: &str = "cgpu.io/on-violation";
/// Whose exports a container may import.
pub const SHARE_GROUP_KEY: &str = "cgpu.io/share-group";

/// From the loosest to the strictest.
pub const MANAGED: [(&str, ManagedMemory); 3] = [
    ("allow", ManagedMemory::Allow),
    ("charge", ManagedMemory::Charge),
    ("deny", ManagedMemory::Deny),
];
/// From the loosest to the strictest.
pub const ON_VIOLATION: [(&str, OnViolation); 2] =
    [("log", OnViolation::Log), ("kill", OnViolation::Kill)];
const CARD_FIGURES: [(&str, CardFigures); 2] =
    [("show", CardFigures::Show), ("refuse", CardFigures::Refuse)];
const REGISTERED_MEMORY: [(&str, RegisteredMemory); 2] = [
    ("allow", RegisteredMemory::Allow),
    ("refuse", RegisteredMemory::Refuse),
];
const MODES: [(&str, Mode); 2] = [("strict", Mode::Strict), ("compat", Mode::Compat)];

/// The longest DNS label.
pub const LABEL_CHARS_MAX: usize = 63;
const GROUP_ALLOWED: &str = "1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends";

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

/// Reads whether memory may be registered with the driver; `key` is for the error.
///
/// # Errors
/// Another word than `allow`, `refuse`.
pub fn registered_memory(key: &str, text: &str) -> Result<RegisteredMemory, Error> {
    named(&REGISTERED_MEMORY, key, text, "allow, refuse")
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
    if is_label(text) {
        Ok(text.to_owned())
    } else {
        Err(bad_value(key, text, GROUP_ALLOWED))
    }
}

/// Whether a text is a DNS label (RFC 1123).
#[must_use]
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_CHARS_MAX
        && bytes.iter().all(|byte| is_plain(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| is_plain(*byte))
        && bytes.last().is_some_and(|byte| is_plain(*byte))
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
