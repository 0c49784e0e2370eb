//! See the library.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use hook::{command_line, error_log};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut log = error_log::ErrorLog::default();
    let result = command_line::parse(&arguments)
        .map_err(anyhow::Error::from)
        .and_then(|invocation| {
            log = error_log::ErrorLog::of(&invocation);
            hook::run(arguments, &invocation)
        });
    result.unwrap_or_else(|error| {
        log.report(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
