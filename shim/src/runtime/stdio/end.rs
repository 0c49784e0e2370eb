//! One descriptor that is read or written without blocking the shim's thread.

use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::unix::AsyncFd;

use crate::error::{Result, system};

/// One end of what is copied, or a source of events; never blocks.
#[derive(Debug)]
pub(in crate::runtime) struct End(AsyncFd<OwnedFd>);

impl End {
    /// Takes a pipe, FIFO, terminal or event descriptor and makes it non-blocking.
    pub(in crate::runtime) fn new(fd: OwnedFd) -> Result<Self> {
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(system("read the flags of a stream"))?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags)).map_err(system("set the flags of a stream"))?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for types that may change their descriptor; OwnedFd cannot"
        )]
        let polled = AsyncFd::new(fd);
        Ok(Self(polled.map_err(system("poll a stream"))?))
    }

    /// The descriptor.
    pub(in crate::runtime) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// The most bytes that may wait in it to be read. A terminal has less than a pipe has by default.
    pub(super) fn holds_at_most(&self) -> usize {
        const PIPE_BYTES: usize = 64 * 1024;
        rustix::pipe::fcntl_getpipe_size(self.fd()).map_or(PIPE_BYTES, |size| size.max(PIPE_BYTES))
    }

    /// Reads what is there now.
    pub(super) fn read_now(&self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            match nix::unistd::read(self.fd(), chunk) {
                Err(Errno::EINTR) => {}
                // The last holder of a terminal's other side has closed it.
                Err(Errno::EIO) => return Ok(0),
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// Waits for something to read; 0 is the end.
    pub(in crate::runtime) async fn read(&self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(done) = ready.try_io(|_| self.read_now(chunk)) {
                return done;
            }
        }
    }

    /// Waits for room as often as needed.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready
                .try_io(|end| nix::unistd::write(end.get_ref(), bytes).map_err(io::Error::from))
            {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }
}
