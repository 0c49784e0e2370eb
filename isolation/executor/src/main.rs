//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt};

const VERSION: &str = concat!("cgpu-executor ", env!("CARGO_PKG_VERSION"), "\n");

/// What it is, for whoever starts it by hand.
const HELP: &str = "\
The unprivileged process that makes a container's GPU calls in strict mode. cgpu-broker starts it, with a listening socket as
standard input; do not start it yourself.

Usage: cgpu-executor [--node NUMBER --cpus LIST]

Options:
  --node NUMBER  memory node of the container's card: memory is taken from there first
  --cpus LIST    processors of that node, for example 0-15,32-47
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
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|it| it.to_str()).collect();
    let near = match words.as_slice() {
        [] if arguments.is_empty() => None,
        ["--help" | "-h"] => return about(HELP),
        ["--version" | "-V"] => return about(VERSION),
        ["--node", node, "--cpus", cpus] => {
            let number = node.parse::<u32>();
            Some((number.with_context(|| format!("--node {node}"))?, *cpus))
        }
        _ => bail!(
            "unknown argument {}: allowed are --help, --version, and --node with --cpus",
            arguments.first().cloned().unwrap_or_default().display()
        ),
    };
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
    // A container whose executor is far from its card runs, and is slower.
    if let Some((node, cpus)) = near
        && let Err(error) = executor::near::move_to(node, cpus)
    {
        let error = anyhow::Error::from(error);
        drop(writeln!(std::io::stderr(), "cgpu-executor: {error:#}"));
    }
    executor::confine::confine()?;
    executor::serve::serve(&std::io::stdin(), &std::io::stdout())?;
    Ok(())
}

fn about(text: &str) -> anyhow::Result<()> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing the help")
}
