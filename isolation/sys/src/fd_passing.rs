//! Messages with descriptors over Unix sockets.
//!
//! UNSAFETY: SCM_RIGHTS delivers bare descriptor numbers, which become owned here.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, listen, sendmsg, setsockopt, socket,
    sockopt::{ReceiveTimeout, SendTimeout},
};
use nix::sys::time::{TimeVal, TimeValLike};

/// Most descriptors that one message may carry here.
const MAX_FDS: u32 = 8;

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
/// The system's; `InvalidData` when the message or its descriptors did not fit. Those that came are closed then.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = Control([0; CONTROL_BYTES]);
    let mut slice = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: integers and pointers, for which 0 is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = space.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let count = loop {
        // SAFETY: the header's pointers are to `slice`, which is all of `into`, and to `space`, each with its own length; both are borrowed
        // for writing by this function alone.
        let count =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_negative) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // Before anything is returned: what was cut short has brought some of its descriptors all the same.
    let fds = owned(&message);
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((count, fds))
}

/// Room for a message's descriptors, aligned as the kernel's headers are.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A header and [`MAX_FDS`] numbers, as `CMSG_SPACE` has it.
// SAFETY: it computes a number from a number.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(MAX_FDS * RawFd::BITS / 8) } as usize;

/// The descriptors that a received message has brought. nix gives none of a message that was cut short, though the kernel has installed them.
fn owned(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled the control data, and written their length into the header.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the macros give a header within the control data, or none.
    while let Some(header) = unsafe { next.as_ref() } {
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: it computes an address from one.
            let first = unsafe { libc::CMSG_DATA(next) };
            // SAFETY: it computes a number from a number.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let bytes = header.cmsg_len.saturating_sub(head);
            // SAFETY: the kernel has written so many bytes of numbers behind the header, within the control data (`scm_detach_fds`).
            let numbers = unsafe { std::slice::from_raw_parts(first, bytes) };
            for number in numbers.as_chunks().0 {
                let number = RawFd::from_ne_bytes(*number);
                // SAFETY: the kernel has installed this descriptor with the message; each number comes once.
                fds.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        // SAFETY: as for the first, and `next` is a header of this message's.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    fds
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{SockFlag, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        socketpair(AddressFamily::Unix, kind, None, flags).unwrap()
    }

    /// A pipe's reading end, whose writing end sees whether anybody has it.
    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap()
    }

    /// What is received of a message of so many bytes with so many duplicates of one descriptor, and whether nobody has that any more.
    fn received(bytes: usize, count: usize) -> (io::Result<(usize, usize)>, bool) {
        let (here, there) = pair();
        let (reader, writer) = pipe();
        send(here.as_fd(), &vec![1; bytes], &vec![reader.as_fd(); count]).unwrap();
        drop(reader);
        let received = receive(there.as_fd(), &mut [0; 16]);
        let received = received.map(|(length, fds)| (length, fds.len()));
        let closed = nix::unistd::write(&writer, &[1]) == Err(nix::errno::Errno::EPIPE);
        (received, closed)
    }

    #[test]
    fn descriptors_of_a_message_that_does_not_fit_are_closed() {
        let most = MAX_FDS as usize;
        for (bytes, count) in [(16, most + 1), (16, 200), (17, 1), (17, most + 1)] {
            let (received, closed) = received(bytes, count);
            assert!(closed, "{bytes} {count}");
            let kind = received.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidData, "{bytes} {count}");
        }
    }

    #[test]
    fn what_fits_comes_whole() {
        for count in [0, 1, MAX_FDS as usize] {
            let (received, closed) = received(16, count);
            assert_eq!(received.unwrap(), (16, count));
            assert!(closed);
        }
    }

    #[test]
    fn a_descriptor_is_the_one_that_was_sent_and_is_closed_at_an_execve() {
        let (here, there) = pair();
        let (reader, writer) = pipe();
        send(here.as_fd(), &[7], &[reader.as_fd()]).unwrap();
        let mut byte = [0];
        let (length, fds) = receive(there.as_fd(), &mut byte).unwrap();
        assert_eq!((length, byte, fds.len()), (1, [7], 1));
        nix::unistd::write(&writer, b"x").unwrap();
        assert_eq!(nix::unistd::read(&fds[0], &mut byte), Ok(1));
        let flags = nix::fcntl::fcntl(&fds[0], nix::fcntl::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        drop(here);
        assert_eq!(receive(there.as_fd(), &mut byte).unwrap().0, 0);
    }
}
