//! The program `cgpu-agent`; see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let (commit, time_unix_s) = build_info::build_info!();
    let build = view::version::Build {
        version: env!("CARGO_PKG_VERSION"),
        commit,
        time_unix_s,
    };
    match agent::run(&agent::Options::parse(), build) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("cgpu-agent: {error:#}\n");
            let written = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            ExitCode::from(if written.is_ok() { 1 } else { 2 })
        }
    }
}
