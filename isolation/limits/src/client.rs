//! Starting `cgpu-limits` for one question.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::question::{Answer, Question, Refusal};

/// An answer names a few cards.
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// A killed program is gone in this time, unless a driver holds it.
const KILLED: Duration = Duration::from_millis(100);
/// How often a program that is about to end is looked at.
const PAUSE: Duration = Duration::from_millis(1);

/// Programs that were killed and have not ended. The driver holds them: while there is one, no other is started.
static STUCK: Mutex<Vec<Child>> = Mutex::new(Vec::new());

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
        source: io::Error,
    },
    /// It cannot be spoken to.
    #[error("cannot speak with {}", path.display())]
    Pipe {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended without an answer: NVML may have taken it down.
    #[error("{} ended with {status} and no answer", path.display())]
    NoAnswer {
        /// The program.
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
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

/// Asks the program. A refusal is an error here; any other answer is the caller's to look at. A program without an answer after `in_all`
/// is killed, and not waited for if the driver keeps it from ending.
///
/// # Errors
/// No answer, or a refusal.
pub fn ask(program: &Path, question: &Question, in_all: Duration) -> Result<Answer, Error> {
    let until = Instant::now() + in_all;
    let pipe = |source| Error::Pipe {
        path: program.to_owned(),
        source,
    };
    let bytes = serde_json::to_vec(question).map_err(|source| Error::Answer {
        path: program.to_owned(),
        source,
    })?;
    if is_one_stuck() {
        return Err(pipe(ErrorKind::TimedOut.into()));
    }
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
    let (text, status) = match exchange(&mut child, &bytes, until) {
        Ok(answered) => answered,
        Err(error) => {
            kill(child);
            return Err(pipe(error));
        }
    };
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

/// What the program answers, and how it ends.
fn exchange(child: &mut Child, bytes: &[u8], until: Instant) -> io::Result<(Vec<u8>, ExitStatus)> {
    // A question fits into the pipe: nothing is waited for. A program that ends before it has read is known by its silence.
    if let Some(mut stdin) = child.stdin.take() {
        drop(stdin.write_all(bytes));
    }
    let text = match child.stdout.take() {
        Some(stdout) => read_until(stdout, until)?,
        None => Vec::new(),
    };
    match ended_by(child, until)? {
        Some(status) => Ok((text, status)),
        None => Err(unanswered()),
    }
}

fn unanswered() -> io::Error {
    io::Error::new(
        ErrorKind::TimedOut,
        "no answer in time: without persistence mode (nvidia-persistenced) the driver finds its cards anew for each question",
    )
}

fn read_until(mut stdout: ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    while text.len() < ANSWER_MAX_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => return Err(unanswered()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match stdout.read(&mut part) {
            Ok(0) => break,
            Ok(read) => text.extend(part.iter().take(read)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(text)
}

/// How the program has ended; `None` if it has not by then.
fn ended_by(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= until {
            return Ok(ended);
        }
        std::thread::sleep(PAUSE);
    }
}

fn kill(mut child: Child) {
    // One that has ended is fine.
    drop(child.kill());
    if let Ok(None) = ended_by(&mut child, Instant::now() + KILLED) {
        stuck().push(child);
    }
}

fn is_one_stuck() -> bool {
    let mut stuck = stuck();
    stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    !stuck.is_empty()
}

fn stuck() -> MutexGuard<'static, Vec<Child>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}
