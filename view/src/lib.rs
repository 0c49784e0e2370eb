//! What is known of this host's cards and containers, as documents: what `cgpu … --json` prints, what tables are made of, and
//! what is served to Prometheus.
//!
//! A document is a contract, with [`JSON_VERSION`] in it and a snapshot test. Nothing here knows how it is shown.
//!
//! Without the feature `host` only what asks the driver's own nodes is built ([`smi`]): that can be linked statically and carried
//! into any container.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod moment;
pub mod share;
pub mod size;
pub mod smi;
pub mod version;

#[cfg(feature = "host")]
pub mod called;
#[cfg(feature = "host")]
pub mod cards;
#[cfg(feature = "host")]
pub mod doctor;
#[cfg(feature = "host")]
pub mod events;
#[cfg(feature = "host")]
pub mod explain;
#[cfg(feature = "host")]
pub mod filter;
#[cfg(feature = "host")]
pub mod host_driver;
#[cfg(feature = "host")]
pub mod inspect;
#[cfg(feature = "host")]
pub mod inventories;
#[cfg(feature = "host")]
pub mod metrics;
#[cfg(feature = "host")]
pub mod names;
#[cfg(feature = "host")]
pub mod ps;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod source;
#[cfg(feature = "host")]
pub mod top;

pub use dra::text::{is_hidden, printable};

pub use self::moment::{moment, parse_moment};

/// Raised when a field of a document changes its meaning or goes. New fields may come without it.
pub const JSON_VERSION: u32 = 1;

/// A document as `--json` prints it.
///
/// # Errors
/// None that our documents can meet; serde's signature has one.
pub fn json<T: serde::Serialize>(document: &T) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document)
}

#[cfg(test)]
pub(crate) mod snapshot {
    use serde::Serialize;

    /// Compares a document with `tests/snapshots/<name>.json`; with `UPDATE_SNAPSHOTS` in the environment, writes it.
    pub(crate) fn check<T: Serialize>(document: &T, name: &str) {
        let path = format!("{}/tests/snapshots/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let mut text = crate::json(document).unwrap();
        text.push('\n');
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let known = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text, known,
            "{path}: scripts rely on it; raise JSON_VERSION if a field goes or changes"
        );
    }
}
