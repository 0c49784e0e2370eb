//! Messages with descriptors over Unix sockets.
//!
//! UNSAFETY: SCM_RIGHTS delivers bare descriptor numbers, which become owned here.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, listen, recvmsg, sendmsg, setsockopt, socket,
    sockopt::{ReceiveTimeout, SendTimeout},
};
use nix::sys::time::{TimeVal, TimeValLike};

/// Most descriptors that one message may carry here.
const MAX_FDS: usize = 8;

fn seqpacket() -> nix::Result<OwnedFd> {
    let family = AddressFamily::Unix;
    socket(family, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

/// Opens a listening SOCK_SEQPACKET socket at a path.
///
/// # Errors
/// The system's, e.g. `EADDRINUSE`.
pub fn listen_seqpacket(path: &Path) -> io::Result<OwnedFd> {
    let fd = seqpacket()?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(128)?)?;
    Ok(fd)
}

/// Connects to a listening SOCK_SEQPACKET socket.
///
/// # Errors
/// The system's, e.g. `ENOENT` or `ECONNREFUSED`.
pub fn connect_seqpacket(path: &Path) -> io::Result<OwnedFd> {
    let fd = seqpacket()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

/// [`connect_seqpacket`] to a listener that may be stopped: connecting, each message that is sent and each that is received take this
/// long at most.
///
/// # Errors
/// The system's, e.g. `ENOENT` or `ECONNREFUSED`; `EAGAIN` when the time is over.
pub fn connect_seqpacket_within(path: &Path, patience: Duration) -> io::Result<OwnedFd> {
    let fd = seqpacket()?;
    let micros = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
    let patience = TimeVal::microseconds(micros);
    setsockopt(&fd, SendTimeout, &patience)?;
    setsockopt(&fd, ReceiveTimeout, &patience)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

/// Accepts a connection.
///
/// # Errors
/// The system's.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: accept4 has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends one message with descriptors.
///
/// # Errors
/// The system's; `EPIPE` (never a signal) when the other side has gone, a short write of a stream socket as `WriteZero`.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
    loop {
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_short) => return Err(io::ErrorKind::WriteZero.into()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives one message (or a part of a stream) with the descriptors that came beside it; 0 bytes: the other side has closed.
///
/// # Errors
/// The system's; `InvalidData` when the message or its descriptors did not fit.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut slices = [IoSliceMut::new(into)];
    let message = loop {
        match recvmsg::<()>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            Ok(message) => break message,
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            for number in numbers {
                // SAFETY: the kernel has installed this descriptor with the message; each number comes once.
                fds.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
    if message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
    {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((message.bytes, fds))
}
