//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt};

const VERSION: &str = concat!("cgpu-executor ", env!("CARGO_PKG_VERSION"), "\n");

/// What it is, for whoever starts it by hand.
const HELP: &str = "\
The unprivileged process that makes a container's GPU calls in strict mode. cgpu-broker starts it, with a listening socket as
standard input; do not start it yourself.

Usage: cgpu-executor
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody listens nothing can be done about it.
            drop(writeln!(std::io::stderr(), "cgpu-executor: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    if let Some(argument) = std::env::args_os().nth(1) {
        let about = match argument.to_str() {
            Some("--help" | "-h") => HELP,
            Some("--version" | "-V") => VERSION,
            _ => bail!(
                "unknown argument {}: allowed are --help and --version",
                argument.display()
            ),
        };
        return std::io::stdout()
            .write_all(about.as_bytes())
            .context("writing the help");
    }
    let is_listening = getsockopt(&std::io::stdin(), sockopt::AcceptConn);
    if !is_listening.unwrap_or(false) {
        bail!(
            "standard input is not a listening socket: cgpu-broker starts this program; see --help"
        );
    }
    sys::signal::close_inherited().context("closing inherited descriptors")?;
    // Between the supervisor, without which nothing is left, and the broker, which is replaced: its memory is the container's
    // account at the driver. It inherits the supervisor's, and may only give up protection.
    // Without CAP_SYS_RESOURCE the supervisor has none to give up, and has said so.
    let _as_inherited = std::fs::write("/proc/self/oom_score_adj", "-500");
    executor::confine::confine()?;
    executor::serve::serve(&std::io::stdin(), &std::io::stdout())?;
    Ok(())
}
