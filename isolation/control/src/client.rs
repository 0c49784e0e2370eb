//! Asking a broker: one line of JSON to its control socket, one line back.
//!
//! Every question has one deadline, from connecting to the last byte, and several brokers are asked at once: who does not answer
//! costs the others nothing. No question is asked under the state lock but one that changes the asked container itself.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Request, Status};

/// A broker answers within microseconds unless it hangs; `list` must not hang with it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A status is some 100 KiB at most (`docs/guide/limits.md`).
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// As many are asked at the same time: each has a descriptor, of which a process has 1024 where nobody has said otherwise.
const MOST_AT_ONCE: usize = 256;

/// How often it is tried to connect where a broker's queue is full.
const TRY_AGAIN: Duration = Duration::from_millis(2);

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
    let deadline = Instant::now() + patience;
    let mut lines = converse(&[(socket, request.clone())], deadline);
    let line = lines
        .pop()
        .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
    answer_in(line)
}

/// The status of several brokers; see [`ask_all`].
pub fn statuses<P: AsRef<Path>>(sockets: &[P]) -> Vec<Result<Status, AskError>> {
    let questions: Vec<(&Path, Request)> = sockets
        .iter()
        .map(|socket| (socket.as_ref(), Request::Status))
        .collect();
    ask_all(&questions)
}

/// [`ask`] of several at once, with one deadline for all; the answers come in the order of the questions. One thread asks all: threads of
/// a program that runs for a moment cost more than the questions, and each has to wait for a processor on a busy host.
pub fn ask_all<P: AsRef<Path>, T: DeserializeOwned>(
    questions: &[(P, Request)],
) -> Vec<Result<T, AskError>> {
    let lines = converse(questions, Instant::now() + PATIENCE);
    lines.into_iter().map(answer_in).collect()
}

/// What every request may get in the place of its own answer.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

fn answer_in<T: DeserializeOwned>(line: io::Result<Vec<u8>>) -> Result<T, AskError> {
    let line = line.map_err(AskError::Silent)?;
    // No answer has a field of this name.
    if let Ok(Refusal { error }) = serde_json::from_slice(&line) {
        return Err(AskError::Refused(error));
    }
    serde_json::from_slice(&line).map_err(AskError::Unknown)
}

/// The lines that are answered, in the order of the questions.
fn converse<P: AsRef<Path>>(
    questions: &[(P, Request)],
    deadline: Instant,
) -> Vec<io::Result<Vec<u8>>> {
    let mut lines: Vec<Option<io::Result<Vec<u8>>>> = Vec::new();
    lines.resize_with(questions.len(), || None);
    let mut waiting = questions.iter().enumerate();
    let mut open: Vec<Conversation<'_>> = Vec::new();
    loop {
        while open.len() < MOST_AT_ONCE
            && let Some((at, (socket, request))) = waiting.next()
        {
            open.push(Conversation::new(at, socket.as_ref(), request));
        }
        open.retain_mut(|one| match one.go_on() {
            Some(line) => {
                if let Some(place) = lines.get_mut(one.at) {
                    *place = Some(line);
                }
                false
            }
            None => true,
        });
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || open.is_empty() && waiting.len() == 0 {
            break;
        }
        // What has ended makes room for the next ones first.
        if !(open.len() < MOST_AT_ONCE && waiting.len() > 0) {
            await_any(&open, left);
        }
    }
    let silent = || Err(io::ErrorKind::TimedOut.into());
    let lines = lines.into_iter();
    lines.map(|line| line.unwrap_or_else(silent)).collect()
}

/// Waits until one of them may go on, or some time has passed.
fn await_any(open: &[Conversation<'_>], left: Duration) {
    let streams = open.iter().filter_map(|one| one.stream.as_ref());
    let mut fds: Vec<PollFd<'_>> = streams
        .map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN))
        .collect();
    let is_one_unconnected = fds.len() < open.len();
    let longest = if is_one_unconnected {
        left.min(TRY_AGAIN)
    } else {
        left
    };
    let millis = u16::try_from(longest.as_millis()).unwrap_or(u16::MAX);
    // A signal, or too little memory: all of them are tried again, until the deadline.
    let _woken = poll(&mut fds, PollTimeout::from(millis.max(1)));
}

/// One question.
struct Conversation<'a> {
    at: usize,
    socket: &'a Path,
    request: &'a Request,
    /// Absent before the broker has taken the question.
    stream: Option<UnixStream>,
    line: Vec<u8>,
}

impl<'a> Conversation<'a> {
    fn new(at: usize, socket: &'a Path, request: &'a Request) -> Self {
        Self {
            at,
            socket,
            request,
            stream: None,
            line: Vec::new(),
        }
    }

    /// The answered line, or why there is none; `None`: not yet.
    fn go_on(&mut self) -> Option<io::Result<Vec<u8>>> {
        match self.try_go_on() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
            Ok(()) => Some(Ok(std::mem::take(&mut self.line))),
        }
    }

    fn try_go_on(&mut self) -> io::Result<()> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connected(self.socket, self.request)?,
        };
        let read = read_line(&mut stream, &mut self.line);
        self.stream = Some(stream);
        read
    }
}

/// Reads what is there; `WouldBlock` before the line is whole.
fn read_line(stream: &mut UnixStream, line: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 16 << 10];
    while !line.ends_with(b"\n") {
        let count = match stream.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if count == 0 {
            break;
        }
        line.extend(piece.iter().take(count));
        if line.len() > ANSWER_MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// A stream on which the question is. A broker that is stopped accepts nobody, and once its queue is full connecting has to wait:
/// `WouldBlock`.
fn connected(path: &Path, request: &Request) -> io::Result<UnixStream> {
    let stream = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    let mut stream = UnixStream::from(stream);
    let mut question = serde_json::to_vec(request)?;
    question.push(b'\n');
    // A new stream has room for any question.
    match stream.write_all(&question) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::ErrorKind::StorageFull.into())
        }
        other => other.map(|()| stream),
    }
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
