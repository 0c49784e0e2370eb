//! An answer as it is sent to a broker: encoded once, so that a call which is asked for again gets the same bytes and the same file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use driver::wire::Answer;

/// An answer as it is sent, and may be sent again.
#[derive(Debug)]
pub(crate) struct Sealed {
    message: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Sealed {
    pub(crate) fn new(answer: &Answer, file: Option<OwnedFd>) -> io::Result<Self> {
        let message = postcard::to_stdvec(answer).map_err(io::Error::other)?;
        Ok(Self { message, file })
    }

    pub(crate) fn send(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        match &self.file {
            Some(file) => sys::fd_passing::send(connection, &self.message, &[file.as_fd()]),
            None => sys::fd_passing::send(connection, &self.message, &[]),
        }
    }
}
