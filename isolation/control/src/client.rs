//! Asking a broker: one line of JSON to its control socket, one line back.
//!
//! Every question has one deadline, from connecting to the last byte, and several brokers are asked at once: who does not answer
//! costs the others nothing. No question is asked under the state lock but one that changes the asked container itself.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Request, Status};

/// A broker answers within microseconds unless it hangs; `list` must not hang with it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A status is some 100 KiB at most (`docs/guide/limits.md`).
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// As many are asked at the same time.
const MOST_AT_ONCE: usize = 64;

/// Why a question has no answer. After [`Silent`](Self::Silent) it is not known whether the broker has done what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not reached, or not in time, or what it sent is too long.
    #[error("it does not answer: {0}")]
    Silent(io::Error),
    /// It has not done it, and says why.
    #[error("{0}")]
    Refused(String),
    /// What it sent is not the answer to the question.
    #[error("its answer is none: {0}")]
    Unknown(serde_json::Error),
}

/// The broker's answer to a request, which it has half a second for.
///
/// # Errors
/// See [`AskError`].
pub fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, AskError> {
    ask_for(socket, request, PATIENCE)
}

/// [`ask`], with another patience.
///
/// # Errors
/// As [`ask`].
pub fn ask_for<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    patience: Duration,
) -> Result<T, AskError> {
    ask_until(socket, request, Instant::now() + patience)
}

/// The status of several brokers; see [`ask_all`].
pub fn statuses<P: AsRef<Path> + Sync>(sockets: &[P]) -> Vec<Result<Status, AskError>> {
    let questions: Vec<(&Path, Request)> = sockets
        .iter()
        .map(|socket| (socket.as_ref(), Request::Status))
        .collect();
    ask_all(&questions)
}

/// [`ask`] of several at once, with one deadline for all; the answers come in the order of the questions.
pub fn ask_all<P: AsRef<Path> + Sync, T: DeserializeOwned + Send>(
    questions: &[(P, Request)],
) -> Vec<Result<T, AskError>> {
    let deadline = Instant::now() + PATIENCE;
    let one = |(socket, request): &(P, Request)| ask_until(socket.as_ref(), request, deadline);
    let most = questions.len().min(MOST_AT_ONCE);
    if most < 2 {
        return questions.iter().map(one).collect();
    }
    // Each thread takes the next one that is left.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut answers: Vec<(usize, Result<T, AskError>)> = std::thread::scope(|scope| {
        let asking = || {
            let mut answers = Vec::new();
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(question) = questions.get(at) else {
                    return answers;
                };
                answers.push((at, one(question)));
            }
        };
        let threads: Vec<_> = (1..most)
            .map_while(|_| {
                // This thread asks what no other can be started for.
                let thread = std::thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, asking).ok()
            })
            .collect();
        let mut answers = asking();
        for thread in threads {
            answers.extend(thread.join().unwrap_or_default());
        }
        answers
    });
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// What every request may get in the place of its own answer.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

fn ask_until<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    deadline: Instant,
) -> Result<T, AskError> {
    let line = line_until(socket, request, deadline).map_err(AskError::Silent)?;
    // No answer has a field of this name.
    if let Ok(Refusal { error }) = serde_json::from_slice(&line) {
        return Err(AskError::Refused(error));
    }
    serde_json::from_slice(&line).map_err(AskError::Unknown)
}

fn line_until(socket: &Path, request: &Request, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = connected(socket, deadline)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    let mut question = serde_json::to_vec(request)?;
    question.push(b'\n');
    stream.write_all(&question)?;
    let mut line = Vec::new();
    let mut piece = vec![0; 16 << 10];
    while !line.ends_with(b"\n") {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            break;
        }
        line.extend(piece.iter().take(count));
        if line.len() > ANSWER_MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(line)
}

/// A broker that is stopped accepts nobody, and once its queue is full connecting waits as well.
fn connected(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let stream = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let micros = i64::try_from(left(deadline)?.as_micros()).unwrap_or(i64::MAX);
    setsockopt(&stream, SendTimeout, &TimeVal::microseconds(micros))?;
    connect(
        std::os::fd::AsRawFd::as_raw_fd(&stream.as_fd()),
        &UnixAddr::new(path)?,
    )?;
    Ok(stream.into())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left.max(Duration::from_micros(1)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use serde_json::Value;

    use super::*;
    use crate::Quotas;

    #[test]
    fn those_who_are_silent_are_waited_for_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        let listeners: Vec<UnixListener> = (0..100)
            .map(|number| UnixListener::bind(path(number)).unwrap())
            .collect();
        let questions: Vec<_> = (0..100)
            .map(|number| (path(number), Request::Status))
            .collect();
        let talkative = |number: usize| !number.is_multiple_of(10);
        let (silent, answering): (Vec<_>, Vec<_>) = listeners
            .into_iter()
            .enumerate()
            .partition(|(number, _)| !talkative(*number));
        for (number, listener) in answering {
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                // In pieces, as a long answer comes.
                for piece in [format!("{{\"number\": {number}"), "}\n".to_owned()] {
                    stream.write_all(piece.as_bytes()).unwrap();
                }
            });
        }
        let answers = ask_all::<_, Value>(&questions);
        assert_eq!(answers.len(), 100);
        for (number, answer) in answers.into_iter().enumerate() {
            if talkative(number) {
                assert_eq!(answer.unwrap()["number"], number);
            } else {
                answer.unwrap_err();
            }
        }
        drop(silent);
    }

    #[test]
    fn a_full_queue_and_an_endless_answer_have_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let listener = UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let patience = Duration::from_millis(20);
        for _ in 0..3 {
            let answer = ask_for::<Value>(&path, &Request::Status, patience);
            assert!(matches!(answer, Err(AskError::Silent(_))), "{answer:?}");
        }
        let path = folder.path().join("endless");
        let listener = UnixListener::bind(&path).unwrap();
        let endless = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"xxxxxxxx").is_ok() {}
        });
        match ask_for::<Value>(&path, &Request::Status, Duration::from_secs(60)) {
            Err(AskError::Silent(error)) => assert_eq!(error.kind(), io::ErrorKind::InvalidData),
            other => panic!("{other:?}"),
        }
        endless.join().unwrap();
    }

    #[test]
    fn a_refusal_is_neither_an_answer_nor_nonsense() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker");
        let listener = UnixListener::bind(&path).unwrap();
        let broker = std::thread::spawn(move || {
            for line in [r#"{"error":"no such card"}"#, r#"{"cards":[]}"#, "[1]", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                assert_eq!(question, "{\"op\":\"set_quota\",\"cards\":[]}\n");
                writeln!(stream, "{line}").unwrap();
            }
        });
        let request = Request::SetQuota { cards: Vec::new() };
        let next = || ask::<Quotas>(&path, &request);
        assert_eq!(next().unwrap_err().to_string(), "no such card");
        assert_eq!(next().unwrap().cards, []);
        for _ in 0..2 {
            let answer = next();
            assert!(matches!(answer, Err(AskError::Unknown(_))), "{answer:?}");
        }
        broker.join().unwrap();
    }
}
