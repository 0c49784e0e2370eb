//! Digests, as names and fingerprints.

use sha2::{Digest, Sha256};

/// The SHA-256 of these bytes, in hexadecimal digits. A format's precision takes the first of them.
#[must_use]
pub fn digest(bytes: impl AsRef<[u8]>) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Bytes in hexadecimal digits.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
