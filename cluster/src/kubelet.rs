//! What the kubelet calls: a registration socket in its folder, and a socket with the services that are named there.

mod claims;
mod health;
mod registration;
mod socket;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::monitor::Sight;
use crate::names::{DRIVER, NodeName};
use crate::prepare::Preparer;
use crate::proto::dra::v1::dra_plugin_server::DraPluginServer;
use crate::proto::dra::v1beta1::dra_plugin_server::DraPluginServer as DraPluginBetaServer;
use crate::proto::health::v1::dra_resource_health_server::DraResourceHealthServer;
use crate::proto::health::v1alpha1::dra_resource_health_server::DraResourceHealthServer as DraResourceHealthAlphaServer;
use crate::proto::registration::registration_server::RegistrationServer;

use self::claims::Plugin;
use self::health::Health;
use self::registration::Registration;
use self::socket::Socket;
pub(crate) use self::socket::check;

/// A kubelet gives a call 45 s.
const CALL: Duration = Duration::from_secs(40);

/// Calls of one connection that are answered at once. A node has 110 pods by default.
const CALLS_AT_ONCE: usize = 64;

/// From one look at a socket to the next.
const LOOK: Duration = Duration::from_secs(1);

/// Where the sockets are.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    registration: PathBuf,
    plugin: PathBuf,
}

impl Paths {
    /// Below the kubelet's folder. With the uid of the agent's pod in their names, the sockets of two agents are there beside each other.
    pub(crate) fn new(kubelet: &Path, pod_uid: Option<&str>) -> Self {
        let suffix = pod_uid.map(|uid| format!("-{uid}")).unwrap_or_default();
        let prefix = pod_uid.map(|uid| format!("{uid}-")).unwrap_or_default();
        Self {
            // The kubelet says the whole path in the request's `:authority`, with `%2F` for each slash (grpc-go, `encodeAuthority`). Percents are
            // allowed before an @ alone (RFC 3986, 3.2.1), and h2 refuses a request with others.
            registration: kubelet.join(format!("plugins_registry/{DRIVER}@{prefix}reg.sock")),
            plugin: kubelet.join(format!("plugins/{DRIVER}/dra{suffix}.sock")),
        }
    }

    /// Whether the kernel takes them.
    ///
    /// # Errors
    /// [`Error::SocketPath`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        check(&self.registration)?;
        check(&self.plugin)
    }
}

/// Serves both sockets. They are removed when this is dropped: the kubelet finds the driver gone then.
pub(crate) async fn serve(paths: Paths, node: NodeName, preparer: Preparer, sight: Sight) {
    let plugin = Plugin::new(preparer);
    let health = Health::new(node, sight);
    let services = Routes::new(DraPluginServer::new(plugin.clone()))
        .add_service(DraPluginBetaServer::new(plugin))
        .add_service(DraResourceHealthServer::new(health.clone()))
        .add_service(DraResourceHealthAlphaServer::new(health));
    let registration = Registration::new(&paths.plugin);
    let registration = Routes::new(RegistrationServer::new(registration));
    let is_bound = Notify::new();
    let registered = async {
        // The kubelet calls the other socket as soon as it finds this one.
        is_bound.notified().await;
        keep(&paths.registration, &registration, || ()).await;
    };
    tokio::select! {
        () = keep(&paths.plugin, &services, || is_bound.notify_one()) => {}
        () = registered => {}
    }
}

/// Serves on a socket, and makes it again where it is gone: somebody has emptied the folder, or made it anew.
pub(crate) async fn keep(path: &Path, services: &Routes, bound: impl Fn()) {
    let mut backoff = Backoff::default();
    loop {
        match Socket::bind(path).await {
            Ok(socket) => {
                bound();
                backoff.reset();
                match one(socket, services.clone()).await {
                    Ok(()) => {
                        tracing::warn!(socket = %path.display(), "the socket was removed: made again")
                    }
                    Err(error) => {
                        tracing::warn!(error = %host_config::chain(&error), "served again")
                    }
                }
            }
            Err(error) => {
                let wait = backoff.next();
                tracing::warn!(error = %host_config::chain(&error), ?wait, "the kubelet cannot call; tried again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Serves on one socket for as long as it is there.
async fn one(socket: Socket, services: Routes) -> Result<(), Error> {
    let path = socket.path().to_owned();
    let (listener, bound) = socket.split();
    let removed = async {
        while bound.is_there() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let served = Server::builder()
        .timeout(CALL)
        .concurrency_limit_per_connection(CALLS_AT_ONCE)
        .add_routes(services)
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::select! {
        () = removed => Ok(()),
        served = served => served.map_err(|source| Error::Serve { path, source }),
    }
}
