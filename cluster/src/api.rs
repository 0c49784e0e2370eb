//! The connection to the API server.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::{Response, StatusCode};
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use sys::sync::lock;
use tower::util::MapResponseLayer;

use crate::error::Error;

/// How long a question may take, its repetitions included. The kubelet gives a call 45 s.
pub(crate) const ANSWER: Duration = Duration::from_secs(15);

/// How long one try may take.
const ONE_TRY: Duration = Duration::from_secs(10);

/// Objects of one answer. The server bounds answers by their number alone, and an object that a tenant writes may have 1.5 MB, 250 KiB of
/// annotations at no cost. An answer is in memory as its body, a copy of that and as objects before it is reduced to what is kept: so these two
/// at once take 72 MB, and a controller has 96 MiB.
pub(crate) const PAGE: u32 = 8;

/// Objects of one answer of kinds that no tenant writes: nodes, slices, classes and namespaces.
pub(crate) const LONG_PAGE: u32 = 500;

/// The reason of a status about an object that is not there.
const NOT_FOUND: &str = "NotFound";

/// Set in every pod.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// Where the API server is, and who asks.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// A kubeconfig file; absent: the pod's service account, else what `$KUBECONFIG` names.
    pub kubeconfig: Option<PathBuf>,
    /// Another address than these name, for nodes without kube-proxy.
    pub server: Option<String>,
}

/// The clients, made when one is first needed, and again where that failed or the server does not know any more who asks.
pub(crate) struct Connection {
    access: Access,
    clients: Mutex<Option<Clients>>,
    /// Whether they got a 401: the kubeconfig may have another token since.
    is_unauthorized: Arc<AtomicBool>,
}

/// Where the server has no time, which are 429, 503 and 504.
#[derive(Clone)]
struct Clients {
    /// Asks again, for as long as an answer may take: nobody sees the status.
    repeating: Client,
    /// Leaves that to its caller: of what admission or a budget keeps for longer, the status is the answer.
    once: Client,
}

impl Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.access.fmt(f)
    }
}

impl Connection {
    pub(crate) fn new(access: Access) -> Self {
        Self {
            access,
            clients: Mutex::default(),
            is_unauthorized: Arc::default(),
        }
    }

    /// Objects without a namespace.
    ///
    /// # Errors
    /// No configuration, or a broken one.
    pub(crate) async fn all<K>(&self) -> Result<Api<K>, Error>
    where
        K: Resource<DynamicType = ()>,
    {
        Ok(Api::all(self.clients().await?.repeating))
    }

    /// Objects of a namespace.
    ///
    /// # Errors
    /// No configuration, or a broken one.
    pub(crate) async fn namespaced<K>(&self, namespace: &str) -> Result<Api<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let clients = self.clients().await?;
        Ok(Api::namespaced(clients.repeating, namespace))
    }

    /// As [`Self::namespaced`], where each status is an answer: what is refused for one object is to hold up no other one.
    ///
    /// # Errors
    /// No configuration, or a broken one.
    pub(crate) async fn namespaced_once<K>(&self, namespace: &str) -> Result<Api<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Ok(Api::namespaced(self.clients().await?.once, namespace))
    }

    /// Reads all objects of a kind that a list has, page by page; returns the version from which they can be watched.
    ///
    /// # Errors
    /// No configuration, or what the server does not answer.
    pub(crate) async fn each<K>(
        &self,
        what: &str,
        mut list: ListParams,
        mut take: impl FnMut(K),
    ) -> Result<String, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        loop {
            let (page, version) = self.page(what, &mut list).await?;
            page.into_iter().for_each(&mut take);
            if let Some(version) = version {
                return Ok(version);
            }
        }
    }

    /// Reads one answer of a list, and makes the list one of what comes after it; after the last one returns the version from which all can be watched.
    ///
    /// # Errors
    /// No configuration, or what the server does not answer.
    pub(crate) async fn page<K>(
        &self,
        what: &str,
        list: &mut ListParams,
    ) -> Result<(Vec<K>, Option<String>), Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        page_of(&self.all().await?, what, list).await
    }

    async fn clients(&self) -> Result<Clients, Error> {
        if !self.is_unauthorized.load(Ordering::Relaxed)
            && let Some(clients) = &*lock(&self.clients)
        {
            return Ok(clients.clone());
        }
        let config = self.configuration().await?;
        let mut once = config.clone();
        once.default_retry = false;
        let clients = Clients {
            repeating: self.client(config)?,
            once: self.client(once)?,
        };
        *lock(&self.clients) = Some(clients.clone());
        self.is_unauthorized.store(false, Ordering::Relaxed);
        Ok(clients)
    }

    fn client(&self, config: Config) -> Result<Client, Error> {
        let builder = ClientBuilder::try_from(config).map_err(|error| unknown(&error))?;
        let is_unauthorized = Arc::clone(&self.is_unauthorized);
        let look = MapResponseLayer::new(move |response| looked_at(response, &is_unauthorized));
        Ok(builder.with_layer(&look).build())
    }

    async fn configuration(&self) -> Result<Config, Error> {
        let named = self.access.kubeconfig.clone();
        let named = named.or_else(|| {
            let in_cluster = std::env::var_os(IN_CLUSTER).is_some();
            let variable = std::env::var_os("KUBECONFIG").filter(|_| !in_cluster);
            variable.map(PathBuf::from)
        });
        let mut config = match named {
            Some(path) => {
                let read = Kubeconfig::read_from(&path).map_err(|error| unknown(&error))?;
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.map_err(|error| unknown(&error))?
            }
            None => Config::incluster().map_err(|error| Error::Access {
                why: format!(
                    "{error}; outside of a pod, name a kubeconfig file by --kubeconfig or $KUBECONFIG"
                ),
            })?,
        };
        if let Some(server) = &self.access.server {
            config.cluster_url = server.parse().map_err(|_uri| Error::Access {
                why: format!("--api-server {server:?} is no URL such as https://10.0.0.1:6443"),
            })?;
        }
        config.connect_timeout = Some(ONE_TRY);
        Ok(config)
    }
}

fn looked_at<B>(response: Response<B>, is_unauthorized: &AtomicBool) -> Response<B> {
    if response.status() == StatusCode::UNAUTHORIZED {
        is_unauthorized.store(true, Ordering::Relaxed);
    }
    response
}

fn unknown(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Access {
        why: host_config::chain(error),
    }
}

/// As [`Connection::page`], of these objects.
///
/// # Errors
/// What the server does not answer.
pub(crate) async fn page_of<K>(
    objects: &Api<K>,
    what: &str,
    list: &mut ListParams,
) -> Result<(Vec<K>, Option<String>), Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let page = answer(|| format!("list {what}"), objects.list(list)).await?;
    let version = match page.metadata.continue_.filter(|next| !next.is_empty()) {
        Some(next) => {
            list.continue_token = Some(next);
            None
        }
        None => Some(page.metadata.resource_version.unwrap_or_default()),
    };
    Ok((page.items, version))
}

/// Waits for an answer, no longer than [`ANSWER`].
///
/// # Errors
/// The server's word, or that none came.
pub(crate) async fn answer<T>(
    operation: impl FnOnce() -> String,
    question: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    let mut absent = None;
    let (why, status) = match tokio::time::timeout(ANSWER, question).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            let text = format!("{} {}: {}", status.code, status.reason, status.message);
            let object = status.details.filter(|_| status.reason == NOT_FOUND);
            absent = object.map(|object| format!("{}/{}", object.kind, object.name));
            (text, Some(status.code))
        }
        Ok(Err(error)) => (host_config::chain(&error), None),
        Err(_late) => (format!("no answer within {} s", ANSWER.as_secs()), None),
    };
    Err(Error::Api {
        operation: operation(),
        why,
        status,
        absent,
    })
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) use tests::fake;
