//! `notify.sock`: where runc (or `cgpu run`) hands over a seccomp listener.
//!
//! One message of JSON, the OCI container process state, with the descriptor beside it. runc 1.1 leaves the connection open,
//! so the message is read until the JSON is complete, not until the stream ends.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{getsockopt, setsockopt};
use nix::sys::time::TimeVal;
use serde::Deserialize;

/// A state of a container is a few hundred bytes; its bundle and metadata may be long.
const MOST_BYTES: usize = 256 * 1024;
/// runc sends at once; whoever does not is not runc.
const PATIENCE: Duration = Duration::from_secs(5);

/// A listener, and the process that it came with.
#[derive(Debug)]
pub struct Handed {
    /// The listener.
    pub listener: OwnedFd,
    /// The process, in the host's pid namespace; absent where the runtime does not say (crun on exec sends 0).
    pub pid: Option<i32>,
}

/// Why a connection was turned away.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system's.
    #[error("{step}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// Its error.
        #[source]
        source: std::io::Error,
    },
    /// The other side is not the host's root.
    #[error("the peer has uid {0}, only 0 may hand over a listener")]
    NotRoot(u32),
    /// The message is longer than any state.
    #[error("the state is longer than {MOST_BYTES} bytes")]
    TooLong,
    /// Not a container process state.
    #[error("the state is not complete JSON of a container process state")]
    Malformed(#[source] Option<serde_json::Error>),
    /// No descriptor came.
    #[error("the state names no seccomp descriptor, or none came with it")]
    NoListener,
}

/// `ContainerProcessState` of the OCI runtime specification, as far as it matters here.
#[derive(Debug, Deserialize)]
struct State {
    #[serde(default)]
    fds: Vec<String>,
    #[serde(default)]
    pid: i32,
}

/// Reads one hand-over.
///
/// # Errors
/// [`Error`]; the connection is closed then, and runc fails the container.
pub fn receive(connection: &OwnedFd) -> Result<Handed, Error> {
    let io = |step| {
        move |errno: nix::errno::Errno| Error::Io {
            step,
            source: errno.into(),
        }
    };
    let peer =
        getsockopt(connection, PeerCredentials).map_err(io("reading the peer's credentials"))?;
    if peer.uid() != 0 {
        return Err(Error::NotRoot(peer.uid()));
    }
    let patience = TimeVal::new(i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX), 0);
    setsockopt(connection, ReceiveTimeout, &patience).map_err(io("setting a time limit"))?;

    let mut text = Vec::new();
    let mut fds = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let state = loop {
        let received = sys::fd_passing::receive(connection.as_fd(), &mut buffer);
        let (bytes, more) = received.map_err(|source| Error::Io {
            step: "reading the state",
            source,
        })?;
        fds.extend(more);
        if bytes == 0 {
            return Err(Error::Malformed(None));
        }
        text.extend(buffer.get(..bytes).unwrap_or_default());
        if text.len() > MOST_BYTES {
            return Err(Error::TooLong);
        }
        match serde_json::from_slice::<State>(&text) {
            Ok(state) => break state,
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(Error::Malformed(Some(error))),
        }
    };
    let at = state
        .fds
        .iter()
        .position(|name| name == "seccompFd")
        .ok_or(Error::NoListener)?;
    let listener = if at < fds.len() {
        fds.swap_remove(at)
    } else {
        return Err(Error::NoListener);
    };
    Ok(Handed {
        listener,
        pid: (state.pid > 0).then_some(state.pid),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::Unix,
            SockType::Stream,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap()
    }

    #[test]
    fn a_state_in_two_pieces_is_read_without_the_end_of_the_stream() {
        let (ours, theirs) = pair();
        let listener = std::fs::File::open("/dev/null").unwrap();
        let state = br#"{"ociVersion":"1.0.2","fds":["seccompFd"],"pid":42,"metadata":"x","state":{"id":"c"}}"#;
        let (head, tail) = state.split_at(20);
        sys::fd_passing::send(theirs.as_fd(), head, &[listener.as_fd()]).unwrap();
        sys::fd_passing::send(theirs.as_fd(), tail, &[]).unwrap();
        let handed = receive(&ours).unwrap();
        assert_eq!(handed.pid, Some(42));
    }

    #[test]
    fn what_is_no_state_is_turned_away() {
        for (text, needed) in [
            (&b"not json"[..], "malformed"),
            (br#"{"fds":["seccompFd"],"pid":1}"#, "no listener"),
            (br#"{"fds":[],"pid":1}"#, "no listener"),
            (br#"{"fds":["seccompFd"],"pid":"one"}"#, "malformed"),
        ] {
            let (ours, theirs) = pair();
            sys::fd_passing::send(theirs.as_fd(), text, &[]).unwrap();
            drop(theirs);
            let error = receive(&ours).unwrap_err();
            let seen = match error {
                Error::Malformed(_) => "malformed",
                Error::NoListener => "no listener",
                Error::Io { .. } | Error::NotRoot(_) | Error::TooLong => "other",
            };
            assert_eq!(seen, needed, "{}", String::from_utf8_lossy(text));
        }
    }
}
