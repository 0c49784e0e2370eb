//! Bodies of the fuzz targets: plain functions from bytes to a panic, or to nothing.
//!
//! Each takes any bytes, makes a call, a sequence or a file of them, runs it through the real code and asserts what must
//! hold whatever the bytes are. `lab/fuzz` links them to libFuzzer; this crate's own tests replay the committed
//! corpus and some random inputs on a stable toolchain. See `docs/internals/fuzzing.md`.
//!
//! A body must not know of libFuzzer, of files or of time, and two runs over the same bytes do the same.

#![forbid(unsafe_code)]

pub mod decoder;
pub mod ledger;
pub mod notify;
pub mod policy;
pub mod wire;

/// One target: its name, which is also its folder's in the corpus, and its body.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name.
    pub name: &'static str,
    /// Takes any bytes; panics where something that must hold does not.
    pub body: fn(&[u8]),
    /// Longest input that makes sense, bytes.
    pub most_bytes: usize,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "decoder",
        body: decoder::run,
        most_bytes: 512,
    },
    Target {
        name: "ledger",
        body: ledger::run,
        most_bytes: 1024,
    },
    Target {
        name: "policy",
        body: policy::run,
        most_bytes: 1024,
    },
    Target {
        name: "wire",
        body: wire::run,
        most_bytes: 2048,
    },
    Target {
        name: "notify",
        body: notify::run,
        most_bytes: 512,
    },
];
