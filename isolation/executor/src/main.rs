//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    sys::signal::close_inherited().context("closing inherited descriptors")?;
    // Between the supervisor, without which nothing is left, and the broker, which is replaced: its memory is the container's
    // account at the driver. It inherits the supervisor's, and may only give up protection.
    // Without CAP_SYS_RESOURCE the supervisor has none to give up, and has said so.
    let _as_inherited = std::fs::write("/proc/self/oom_score_adj", "-500");
    executor::confine::confine()?;
    executor::serve::serve(&std::io::stdin(), &std::io::stdout())?;
    Ok(())
}
