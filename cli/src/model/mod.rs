//! What is known, and its JSON: a contract, with [`JSON_VERSION`] in every document and a snapshot test for each.

pub mod share;
pub mod smi;

#[cfg(feature = "host")]
pub mod cards;
#[cfg(feature = "host")]
pub mod doctor;
#[cfg(feature = "host")]
pub mod host_driver;
#[cfg(feature = "host")]
pub mod metrics;
#[cfg(feature = "host")]
pub mod ps;

/// Raised when a field of a document changes its meaning or goes. New fields may come without it.
pub const JSON_VERSION: u32 = 1;

#[cfg(test)]
pub(crate) mod snapshot {
    use serde::Serialize;

    /// Compares a document with `tests/snapshots/<name>.json`; with `UPDATE_SNAPSHOTS` in the environment, writes it.
    pub(crate) fn check<T: Serialize>(document: &T, name: &str) {
        let path = format!("{}/tests/snapshots/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let mut text = crate::render::json(document).unwrap();
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
