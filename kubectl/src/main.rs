//! The program `kubectl-cgpu`; see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl::main(std::env::args_os())
}
