//! `cgpu-top`: the full screen of `cgpu top`, which starts it.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use host_config::Config;

/// The full screen of `cgpu top`. Start that; this program has no options for people.
#[derive(Debug, Parser)]
#[command(name = "cgpu-top", version)]
struct Arguments {
    /// Time between two questions to the host, milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    period_ms: u64,
}

fn main() -> ExitCode {
    let period = Duration::from_millis(Arguments::parse().period_ms);
    let shown = Config::load()
        .map_err(anyhow::Error::from)
        .and_then(|config| top::run::run(config, period));
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu top: {error:#}");
            ExitCode::FAILURE
        }
    }
}
