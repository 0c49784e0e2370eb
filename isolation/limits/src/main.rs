//! `cgpu-limits`: one question on standard input, one answer on standard output. See the library.

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use limits::Question;

/// A question names a few cards.
const QUESTION_MAX_BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "cgpu-limits: {error}"));
            ExitCode::FAILURE
        }
    }
}

const VERSION: &str = concat!("cgpu-limits ", env!("CARGO_PKG_VERSION"));

/// What it is, for whoever starts it by hand.
const HELP: &str = "\
Asks NVIDIA's management library (NVML) to limit a container's memory, for the backend driver-limit. cgpu starts it, with one
question as JSON on standard input, and reads one answer from standard output; do not start it yourself.

Usage: cgpu-limits";

fn run() -> std::io::Result<()> {
    if let Some(argument) = std::env::args_os().nth(1) {
        let about = match argument.to_str() {
            Some("--help" | "-h") => HELP,
            Some("--version" | "-V") => VERSION,
            _ => {
                return Err(std::io::Error::other(format!(
                    "unknown argument {}: allowed are --help and --version",
                    argument.display()
                )));
            }
        };
        return writeln!(std::io::stdout(), "{about}");
    }
    if std::io::stdin().is_terminal() {
        return Err(std::io::Error::other(
            "standard input is a terminal, and a question as JSON is expected; see --help",
        ));
    }
    let mut text = Vec::new();
    std::io::stdin()
        .take(QUESTION_MAX_BYTES)
        .read_to_end(&mut text)?;
    let question: Question = serde_json::from_slice(&text).map_err(|error| {
        std::io::Error::other(format!(
            "standard input is not a question as JSON: {error}; see --help"
        ))
    })?;
    let answer = serde_json::to_vec(&limits::answer(&question))?;
    std::io::stdout().write_all(&answer)
}
