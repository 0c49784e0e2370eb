//! What is known, and its JSON: a contract, with [`JSON_VERSION`] in every document and a snapshot test for each.

pub mod smi;

/// Raised when a field of a document changes its meaning or goes. New fields may come without it.
pub const JSON_VERSION: u32 = 1;
