//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use std::io::Write;

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt};

/// What it is, for whoever starts it by hand.
const HELP: &str = concat!(
    "cgpu-executor ",
    env!("CARGO_PKG_VERSION"),
    ": makes a container's calls in mode strict, started by cgpu-broker: standard input is its listening socket, standard output the pipe that it lives by\n"
);

fn main() -> anyhow::Result<()> {
    match std::env::args_os().nth(1) {
        Some(flag)
            if ["--help", "-h", "--version", "-V"]
                .iter()
                .any(|known| flag == *known) =>
        {
            return std::io::stdout()
                .write_all(HELP.as_bytes())
                .context("writing the help");
        }
        Some(other) => bail!("{} is no option: --help and --version are", other.display()),
        None => {}
    }
    let is_listening = getsockopt(&std::io::stdin(), sockopt::AcceptConn);
    if !is_listening.unwrap_or(false) {
        bail!("standard input is no listening socket: cgpu-broker starts this program; see --help");
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
