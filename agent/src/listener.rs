//! The socket that Prometheus connects to.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::options::Listen;

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// Another program has the port or the socket; the system's.
    pub(crate) async fn bind(listen: &Listen) -> anyhow::Result<Self> {
        match listen {
            Listen::Tcp(address) => bind_tcp(*address).await.map(Self::Tcp),
            Listen::Unix(path) => bind_unix(path).map(Self::Unix),
        }
    }

    /// Where it listens; a port that the system chose is in it.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            Self::Unix(listener) => {
                let path = listener.local_addr().ok();
                let path = path.and_then(|address| Some(address.as_pathname()?.to_owned()));
                format!("unix:{}", path.unwrap_or_default().display())
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Stream::Tcp(TokioIo::new(listener.accept().await?.0)),
            Self::Unix(listener) => Stream::Unix(TokioIo::new(listener.accept().await?.0)),
        })
    }
}

async fn bind_tcp(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => anyhow::anyhow!(
                "another program listens on {address}; name another address with --listen"
            ),
            _ => anyhow::Error::new(error).context(format!("listen on {address}")),
        })
}

/// A socket that a killed agent left is replaced. Only one agent comes here at a time (`single`), so that nobody else removes ours.
fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            bail!("{} is there and is no socket", path.display())
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            bail!("another program listens on {}", path.display())
        }
        Ok(_) => std::fs::remove_file(path)
            .with_context(|| format!("remove the socket {}", path.display()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    // Root's alone until here: the folder above it and the process's mask say so.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .with_context(|| format!("set the mode of {}", path.display()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(path: &Path) -> Result<Listener, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let bound = runtime.block_on(Listener::bind(&Listen::Unix(path.to_owned())));
        bound.map_err(|error| error.to_string())
    }

    #[test]
    fn a_socket_is_taken_from_the_dead_and_from_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = listen(&path).unwrap();
        assert_eq!(listener.address(), format!("unix:{}", path.display()));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(listener);
        let other = std::os::unix::net::UnixListener::bind(folder.path().join("other")).unwrap();
        let error = listen(&folder.path().join("other")).unwrap_err();
        assert!(error.contains("another program listens"), "{error}");
        drop(other);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = listen(&file).unwrap_err();
        assert!(error.contains("is no socket"), "{error}");
    }
}
