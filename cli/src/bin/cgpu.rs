//! `cgpu`: see [`cli::commands`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use cli::commands::NotUnderstood;
use tracing::level_filters::LevelFilter;

#[expect(clippy::print_stderr, reason = "the program's error message")]
fn main() -> ExitCode {
    let (filter, problem) = logfile::filter::of_environment(LevelFilter::WARN);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    let (commit, time_unix_s) = build_info::build_info!();
    let build = view::version::Build {
        version: env!("CARGO_PKG_VERSION"),
        commit,
        time_unix_s,
    };
    match cli::commands::run(cli::commands::Arguments::parse(), build) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cgpu: {error:#}");
            match error.is::<NotUnderstood>() {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}
