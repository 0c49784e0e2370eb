//! Asking a broker: one line of JSON to its control socket, one line back.
//!
//! Every question has one deadline, from connecting to the last byte, and several brokers are asked at once: who does not answer
//! costs the others nothing. No question is asked under the state lock but one that changes the asked container itself.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};

/// A broker answers within microseconds unless it hangs; `list` must not hang with it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A status is some 100 KiB at most (`docs/guide/limits.md`).
const ANSWER_MAX_BYTES: usize = 1 << 20;

/// As many are asked at the same time.
const MOST_AT_ONCE: usize = 64;

/// The broker's status; nothing if it does not answer, or not in time.
pub(crate) fn status(socket: &Path) -> Option<Value> {
    ask(socket, &json!({"op": "status"}))
        .inspect_err(|error| tracing::debug!(%error, socket = %socket.display(), "no status"))
        .ok()
}

/// The broker's answer to a request.
///
/// # Errors
/// The system's; it is not known then whether the broker has done it.
pub(crate) fn ask(socket: &Path, request: &Value) -> std::io::Result<Value> {
    ask_for(socket, request, PATIENCE)
}

/// [`ask`] of several at once, with one deadline for all; the answers come in the order of the questions.
pub(crate) fn ask_all<P: AsRef<Path> + Sync>(
    questions: &[(P, Value)],
) -> Vec<std::io::Result<Value>> {
    let deadline = Instant::now() + PATIENCE;
    let one = |(socket, request): &(P, Value)| ask_until(socket.as_ref(), request, deadline);
    let most = questions.len().min(MOST_AT_ONCE);
    if most < 2 {
        return questions.iter().map(one).collect();
    }
    // Each thread takes the next one that is left.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut answers: Vec<(usize, std::io::Result<Value>)> = std::thread::scope(|scope| {
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

/// [`ask`], with another patience.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_for(
    socket: &Path,
    request: &Value,
    patience: Duration,
) -> std::io::Result<Value> {
    ask_until(socket, request, Instant::now() + patience)
}

fn ask_until(socket: &Path, request: &Value, deadline: Instant) -> std::io::Result<Value> {
    let mut stream = connected(socket, deadline)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
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
            return Err(std::io::ErrorKind::InvalidData.into());
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

/// A broker that is stopped accepts nobody, and once its queue is full connecting waits as well.
fn connected(path: &Path, deadline: Instant) -> std::io::Result<UnixStream> {
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

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    Ok(left.max(Duration::from_micros(1)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn those_who_are_silent_are_waited_for_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        let listeners: Vec<UnixListener> = (0..100)
            .map(|number| UnixListener::bind(path(number)).unwrap())
            .collect();
        let questions: Vec<_> = (0..100)
            .map(|number| (path(number), json!({"op": number})))
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
        let answers = ask_all(&questions);
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
        let queued: Vec<_> = (0..3)
            .map(|_| ask_for(&path, &json!({}), patience).unwrap_err().kind())
            .collect();
        assert_eq!(queued.len(), 3);
        let path = folder.path().join("endless");
        let listener = UnixListener::bind(&path).unwrap();
        let endless = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"xxxxxxxx").is_ok() {}
        });
        let error = ask_for(&path, &json!({}), Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        endless.join().unwrap();
    }
}
