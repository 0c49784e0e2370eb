//! The load that `cgpu-burn` puts on a card: an open tenant for tests, demonstrations and measurements.
//!
//! Every report is a JSON document with a version, printed with `--json`; without it, one line for people. Exit codes:
//! 0 done, 1 something that must not happen, 3 [`NO_MEMORY`].
//!
//! It speaks to the driver's own nodes alone and can be linked statically: it runs inside any container.

#![forbid(unsafe_code)]

pub mod allocate;
pub mod calls;
pub mod churn;
pub mod flood;
pub mod load;
pub mod mallocs;
pub mod managed;
pub mod references;
pub mod share;
pub mod storm;
pub mod vectors;
pub mod views;
pub mod watch;

mod arguments;
mod output;
mod random;
pub mod size;

pub use arguments::{Arguments, run};

use std::process::ExitCode;

/// The version in every report. Raised when a field changes its meaning or goes.
pub const JSON_VERSION: u32 = 1;

/// The exit code for `NV_ERR_NO_MEMORY`.
pub const NO_MEMORY: u8 = 3;

/// A finished load: what to print, and whether it went well.
#[derive(Debug)]
pub struct Outcome {
    /// One line for people.
    pub text: String,
    /// The report.
    pub json: serde_json::Value,
    /// The exit code.
    pub code: u8,
}

impl Outcome {
    /// Prints in the form asked for.
    fn print(&self, form: Printed) -> std::io::Result<()> {
        match form {
            Printed::Text => output::print(&self.text),
            Printed::Json => output::print(&self.json.to_string()),
        }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// How reports are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Printed {
    /// For people.
    Text,
    /// For scripts: one document on one line.
    Json,
}
