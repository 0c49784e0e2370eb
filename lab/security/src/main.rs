//! `cgpu-tenant`: see [`security`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[expect(clippy::print_stderr, reason = "the program's error message")]
fn main() -> ExitCode {
    match security::run(std::env::args().skip(1)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu-tenant: {error:#}");
            ExitCode::FAILURE
        }
    }
}
