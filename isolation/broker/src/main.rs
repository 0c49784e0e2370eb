//! `cgpu-broker --dir FOLDER`: started by a door, ends with its container.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use broker::start::Broker;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The door shows the last line of the log as the reason.
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let dir = match (args.next(), args.next(), args.next()) {
        (Some(flag), Some(dir), None) if flag == "--dir" => PathBuf::from(dir),
        _ => anyhow::bail!("usage: cgpu-broker --dir FOLDER"),
    };
    let broker = Broker::start(&dir)?;
    broker.say_ready().context("saying ready")?;
    Ok(broker.run()?)
}
