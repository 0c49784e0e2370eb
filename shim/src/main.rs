//! The program `containerd-shim-cgpu-v2`; see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match shim::run(std::env::args_os().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // containerd puts what a failed shim wrote into the error that the user reads.
            let text = format!(
                "containerd-shim-cgpu-v2: {:#}\n",
                anyhow::Error::from(error)
            );
            let written = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            ExitCode::from(if written.is_ok() { 1 } else { 2 })
        }
    }
}
