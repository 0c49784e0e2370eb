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

/// What it is, for whoever starts it by hand.
const HELP: &str = concat!(
    "cgpu-limits ",
    env!("CARGO_PKG_VERSION"),
    ": asks NVML for a container, started by cgpu's frontends: one question as JSON on standard input, one answer on standard output"
);

fn run() -> std::io::Result<()> {
    match std::env::args_os().nth(1) {
        Some(flag)
            if ["--help", "-h", "--version", "-V"]
                .iter()
                .any(|known| flag == *known) =>
        {
            return writeln!(std::io::stdout(), "{HELP}");
        }
        Some(other) => {
            let text = format!("{} is no option: --help and --version are", other.display());
            return Err(std::io::Error::other(text));
        }
        None if std::io::stdin().is_terminal() => {
            return Err(std::io::Error::other(
                "standard input is a terminal, and a question is expected; see --help",
            ));
        }
        None => {}
    }
    let mut text = Vec::new();
    std::io::stdin()
        .take(QUESTION_MAX_BYTES)
        .read_to_end(&mut text)?;
    let question: Question = serde_json::from_slice(&text)?;
    let answer = serde_json::to_vec(&limits::answer(&question))?;
    std::io::stdout().write_all(&answer)
}
