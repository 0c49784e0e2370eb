//! The program `cgpu-tree`; see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match tree::run(&tree::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("cgpu-tree: {error:#}\n");
            let written = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            ExitCode::from(if written.is_ok() { 1 } else { 2 })
        }
    }
}
