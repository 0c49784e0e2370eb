//! `cgpu-burn`: see [`burn`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[expect(clippy::print_stderr, reason = "the program's error message")]
fn main() -> ExitCode {
    match burn::run(&burn::Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu-burn: {error:#}");
            ExitCode::FAILURE
        }
    }
}
