//! Starting `cgpu-limits` for one question.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::question::{Answer, Question, Refusal};

/// An answer names a few cards.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// Why there is no answer, or not the one that was wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program cannot be started.
    #[error("cannot start {}", path.display())]
    Spawn {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It cannot be spoken to.
    #[error("cannot speak with {}", path.display())]
    Pipe {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended without an answer: NVML may have taken it down.
    #[error("{} ended with {status} and no answer", path.display())]
    NoAnswer {
        /// The program.
        path: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// It said something else.
    #[error("the answer of {} is not understood", path.display())]
    Answer {
        /// The program.
        path: PathBuf,
        /// Where it breaks off.
        #[source]
        source: serde_json::Error,
    },
    /// It answered something that was not asked.
    #[error("{} answered another question: {answer:?}", path.display())]
    Unasked {
        /// The program.
        path: PathBuf,
        /// The answer.
        answer: Box<Answer>,
    },
    /// It was not done.
    #[error(transparent)]
    Refused(Box<Refusal>),
}

/// Asks the program. A refusal is an error here; any other answer is the caller's to look at.
///
/// # Errors
/// No answer, or a refusal.
pub fn ask(program: &Path, question: &Question) -> Result<Answer, Error> {
    let pipe = |source| Error::Pipe {
        path: program.to_owned(),
        source,
    };
    let bytes = serde_json::to_vec(question).map_err(|source| Error::Answer {
        path: program.to_owned(),
        source,
    })?;
    // The environment decides which libraries are loaded: none is passed on.
    let mut child = sys::open_files::restore_before_exec(&mut Command::new(program))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| Error::Spawn {
            path: program.to_owned(),
            source,
        })?;
    // A program that ends before it has read is known by its silence.
    if let Some(mut stdin) = child.stdin.take() {
        drop(stdin.write_all(&bytes));
    }
    let mut text = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(ANSWER_MAX_BYTES).read_to_end(&mut text),
        None => Ok(0),
    };
    let status = child.wait().map_err(pipe)?;
    read.map_err(pipe)?;
    if text.is_empty() {
        return Err(Error::NoAnswer {
            path: program.to_owned(),
            status,
        });
    }
    match serde_json::from_slice(&text).map_err(|source| Error::Answer {
        path: program.to_owned(),
        source,
    })? {
        Answer::Refused { refusal } => Err(Error::Refused(Box::new(refusal))),
        answer @ (Answer::Offered { .. } | Answer::Set | Answer::Found { .. }) => Ok(answer),
    }
}
