//! `cgpu-burn`: see [`cli::burn`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[expect(clippy::print_stderr, reason = "the program's error message")]
fn main() -> ExitCode {
    match cli::burn::run(&cli::burn::Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu-burn: {error:#}");
            ExitCode::FAILURE
        }
    }
}
