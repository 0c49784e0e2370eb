//! The socket over which runc sends the terminal it made inside the container.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::net::UnixListener;

use crate::error::{Error, Result, file, system};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A listening socket in the bundle, removed when dropped.
pub(super) struct Console {
    listener: UnixListener,
    /// Through `/proc`, because a bundle's own path is often longer than a socket's may be (108 bytes).
    short: PathBuf,
    _dir: OwnedFd,
}

impl Console {
    /// Binds the socket.
    ///
    /// # Errors
    /// The bundle is not there or not writable.
    pub(super) fn bind(bundle: &Path) -> Result<Self> {
        let dir = open(
            bundle,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| file("open", bundle)(errno.into()))?;
        let name = format!("pty-{}.sock", NEXT.fetch_add(1, Ordering::Relaxed));
        let short = PathBuf::from(format!(
            "/proc/{}/fd/{}/{name}",
            std::process::id(),
            dir.as_raw_fd()
        ));
        let listener = UnixListener::bind(&short).map_err(file("bind", bundle.join(name)))?;
        Ok(Self {
            listener,
            short,
            _dir: dir,
        })
    }

    /// What runc is told.
    #[must_use]
    pub(super) fn path(&self) -> &Path {
        &self.short
    }

    /// Receives the terminal's master side.
    ///
    /// # Errors
    /// The connection fails or carries no descriptor.
    pub(super) async fn receive(&self) -> Result<OwnedFd> {
        let (stream, _) = self
            .listener
            .accept()
            .await
            .map_err(system("accept runc's connection"))?;
        loop {
            stream
                .readable()
                .await
                .map_err(system("wait for the terminal"))?;
            let received = stream.try_io(tokio::io::Interest::READABLE, || receive_fd(&stream));
            match received {
                Ok(Some(master)) => return Ok(master),
                Ok(None) => return Err(Error::NoConsole),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(system("receive the terminal")(error)),
            }
        }
    }
}

fn receive_fd(stream: &tokio::net::UnixStream) -> std::io::Result<Option<OwnedFd>> {
    let mut name = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut name)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let rights = ancillary.drain().find_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fds.next()
        } else {
            None
        }
    });
    Ok(rights)
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.short) {
            tracing::warn!(%error, "cannot remove the console socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_descriptor_arrives_through_a_path_longer_than_a_socket_may_have() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("b".repeat(150));
        std::fs::create_dir(&bundle).unwrap();
        let console = Console::bind(&bundle).unwrap();
        let sender = std::os::unix::net::UnixStream::connect(console.path()).unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [std::os::fd::AsFd::as_fd(&write)];
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let name = [std::io::IoSlice::new(b"/dev/ptmx")];
        rustix::net::sendmsg(
            &sender,
            &name,
            &mut ancillary,
            rustix::net::SendFlags::empty(),
        )
        .unwrap();
        let received = console.receive().await.unwrap();
        drop(write);
        nix::unistd::write(&received, b"x").unwrap();
        drop(received);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut &read, &mut all).unwrap();
        assert_eq!(all, b"x");
        drop(console);
        assert_eq!(std::fs::read_dir(&bundle).unwrap().count(), 0);
    }
}
