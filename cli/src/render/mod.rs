//! Tables for people. Their shape is no contract; scripts read the JSON.

#[cfg(feature = "host")]
pub mod cards;
pub mod columns;
#[cfg(feature = "host")]
pub mod doctor;
#[cfg(feature = "host")]
pub mod explain;
#[cfg(feature = "host")]
pub mod inspect;
#[cfg(feature = "host")]
pub mod ps;
pub mod query;
pub mod smi;

pub use columns::Look;

/// `-` for what is not known.
pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
