//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    sys::signal::close_inherited().context("closing inherited descriptors")?;
    executor::confine::confine()?;
    executor::serve::serve(&std::io::stdin(), &std::io::stdout())?;
    Ok(())
}
