//! See the library.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use hook::{child, command_line, error_log, runtime, system_log};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let arguments: Vec<OsString> = arguments.collect();
    let log = error_log::ErrorLog::of(&command_line::logging(&arguments));
    let result = if name.as_deref() == Some(child::NAME.as_ref()) {
        child::become_runtime(&arguments)
    } else {
        system_log::warnings("cgpu-runtime");
        runtime::run(arguments, &log)
    };
    result.unwrap_or_else(|error| {
        log.report(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
