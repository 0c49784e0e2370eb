//! `cgpu-executor`: standard input is the listening socket, standard output the pipe whose other end it lives by.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;

fn main() -> anyhow::Result<()> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    let lifeline = std::io::stdout().as_fd().try_clone_to_owned()?;
    executor::confine::confine()?;
    executor::serve::serve(&listener, &lifeline)?;
    Ok(())
}
