//! How a container is held: keys and names of annotations, configuration and options.

use cards::{ManagedMemory, OnViolation};

use super::error::Error;
use super::values::bad_value;

/// What managed memory counts.
pub const MANAGED_KEY: &str = "cgpu.io/managed";
/// What happens on a violation.
pub const ON_VIOLATION_KEY: &str = "cgpu.io/on-violation";
/// Whose exports a container may import.
pub const SHARE_GROUP_KEY: &str = "cgpu.io/share-group";

/// From the loosest to the strictest.
pub const MANAGED: [ManagedMemory; 3] = [
    ManagedMemory::Allow,
    ManagedMemory::Charge,
    ManagedMemory::Deny,
];
/// From the loosest to the strictest.
pub const ON_VIOLATION: [OnViolation; 2] = [OnViolation::Log, OnViolation::Kill];

/// The longest DNS label.
pub const LABEL_CHARS_MAX: usize = 63;
const GROUP_ALLOWED: &str = "1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends";

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
