//! `cgpu`: see [`cli::commands`].

use std::process::ExitCode;

use clap::Parser;

#[expect(clippy::print_stderr, reason = "the program's error message")]
fn main() -> ExitCode {
    match cli::commands::run(cli::commands::Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}
