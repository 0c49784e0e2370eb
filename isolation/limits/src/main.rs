//! `cgpu-limits`: one question on standard input, one answer on standard output. See the library.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
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

fn run() -> std::io::Result<()> {
    let mut text = Vec::new();
    std::io::stdin()
        .take(QUESTION_MAX_BYTES)
        .read_to_end(&mut text)?;
    let question: Question = serde_json::from_slice(&text)?;
    let answer = serde_json::to_vec(&limits::answer(&question))?;
    std::io::stdout().write_all(&answer)
}
