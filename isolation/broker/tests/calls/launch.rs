//! A process that has the filter, and its listener on our side.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nvabi::Release;
use sys::seccomp::Wait;
use verdict::filter::{Coverage, FilterSpec, program};

/// What a started process is to be; the value is [`WITH_FILTER`] or [`PLAIN`], and whatever the program adds.
pub(crate) const ROLE: &str = "CGPU_TEST_ROLE";
/// It installs the filter and sends the listener.
pub(crate) const WITH_FILTER: &str = "filter";
/// It has inherited a filter, or has none.
pub(crate) const PLAIN: &str = "plain";

/// Two ends of a message socket.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Starts this program anew with one end of a socket as its standard input, and returns the other end.
pub(crate) fn start(role: &str) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = pair()?;
    let child = Command::new(std::env::current_exe()?)
        .env(ROLE, role)
        .stdin(Stdio::from(theirs))
        .spawn()?;
    Ok((child, ours))
}

/// In the started process: installs the filter on it and hands over the listener, which it does not keep.
pub(crate) fn confine(socket: &OwnedFd, wait: Wait) -> io::Result<()> {
    let spec = FilterSpec {
        release: Release::R570,
        coverage: Coverage::Simulated,
        arch: arch::Arch::NATIVE,
    };
    let listener = sys::seccomp::install_with_listener(&program(&spec), wait)?;
    sys::fd_passing::send(socket.as_fd(), b"listener", &[listener.as_fd()])
}

/// Takes the listener that [`confine`] sends.
pub(crate) fn listener(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (_, fds) = sys::fd_passing::receive(socket.as_fd(), &mut [0; 16])?;
    fds.into_iter()
        .next()
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
