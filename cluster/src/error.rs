//! Why the driver cannot serve.

use std::io;
use std::path::{Path, PathBuf};

/// What keeps the driver from serving.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that no cluster has.
    #[error("{what} {text:?} is not allowed: {allowed}")]
    Name {
        /// Of what.
        what: &'static str,
        /// What was given, cut.
        text: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A failed file operation.
    #[error("{operation} {path}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A path that is no socket's address.
    #[error(
        "socket {path} has {bytes} bytes, and the kernel takes {most}: choose a shorter --kubelet-dir"
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// The longest.
        most: usize,
    },
    /// Somebody serves there.
    #[error(
        "another driver serves on {path}: end that agent, or give each its own --pod-uid for a rolling update"
    )]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// Which API server it is cannot be known.
    #[error("the API server is not known: {why}")]
    Access {
        /// Why.
        why: String,
    },
    /// A question that the API server did not answer as hoped for.
    #[error("{operation}: {why}")]
    Api {
        /// What was tried.
        operation: String,
        /// The status and its text.
        why: String,
        /// The status; `None`: no answer came.
        status: Option<u16>,
        /// What the server knows not to be there: its resource and name, as `pods/a`.
        absent: Option<String>,
    },
    /// The gRPC server ended.
    #[error("serve the kubelet on {path}")]
    Serve {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
}

impl Error {
    /// For `map_err` of a file operation.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }

    /// Whether the API server answered that there is no such object: its resource and name, as `pods/a`. A proxy's 404, or that of a server that
    /// does not serve the resource, tells nothing of it.
    pub(crate) fn is_absent(&self, object: &str) -> bool {
        matches!(self, Self::Api { absent: Some(absent), .. } if absent == object)
    }
}
