//! What driver versions are known by, and a version that is known by a file of the host's operator.
//!
//! [`Facts`] are sizes, offsets, numbers and the texts of structs, by the names of the driver's public headers: those that the tables of
//! `nvabi` were written from, and those of a source tree that `cargo xtask headers` reads. A [`Known`] is a release that another
//! version's facts fit.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

mod facts;
mod known;

pub use facts::{Facts, What, structs};
pub use known::{Error, Known, file_of};
