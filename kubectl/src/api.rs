//! What is asked of the API server.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::options::ClusterOptions;
use crate::text;

/// Objects of one page.
const PAGE: u32 = 500;
/// The same of kinds that tenants write: one may have 1.5 MB, and a page has to come within [`ANSWER`].
const SHORT_PAGE: u32 = 32;
/// How long the connection, and each page, may take.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// A list whose next page the server does not have any more is read again, so often.
const EXPIRED_MAX: u32 = 3;
/// Set in every pod.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// An object as it is read.
pub(crate) trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> Object for K {}

/// Why there is no answer. Texts of the server are other people's: they are cleaned where they are taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No usable kubeconfig.
    #[error("no cluster: {0}")]
    Access(String),
    /// The server cannot be reached, or does not answer.
    #[error("{operation}: the cluster does not answer: {why}")]
    Unreached { operation: String, why: String },
    /// The server refuses it.
    #[error("{operation}: {why}")]
    Refused { operation: String, why: String },
    /// No permission.
    #[error(
        "{operation}: no permission: {why}; ClusterRole cgpu-viewer has all that this command reads, `kubectl create clusterrolebinding` gives it"
    )]
    Forbidden { operation: String, why: String },
    /// There is no such object.
    #[error("{0}")]
    NotFound(String),
    /// The server knows no ResourceSlices.
    #[error(
        "{operation}: the cluster does not serve resource.k8s.io/v1; cgpu needs Kubernetes 1.36 or later"
    )]
    TooOld { operation: String },
    /// This machine.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Access(_)
            | Self::Unreached { .. }
            | Self::Refused { .. }
            | Self::TooOld { .. }
            | Self::Local(_) => 1,
            Self::Forbidden { .. } => 3,
            Self::NotFound(_) => 4,
        }
    }
}

/// A cluster, and the namespace of its pods.
pub(crate) struct Cluster {
    client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// Reads the configuration; nothing is asked yet.
    ///
    /// # Errors
    /// There is none, or it is broken.
    pub(crate) async fn connect(options: &ClusterOptions) -> Result<Self, Error> {
        let mut config = configuration(options).await?;
        config.connect_timeout = Some(CONNECT);
        let namespace = options.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        if !is_name(&namespace) {
            let shown = text::name(&namespace);
            return Err(Error::NotFound(format!("there is no namespace {shown}")));
        }
        let client = Client::try_from(config).map_err(|error| Error::Access(chain(&error)))?;
        Ok(Self { client, namespace })
    }

    /// All objects of a kind, each reduced to what is needed of it, in pages. `fields` is a field selector.
    ///
    /// # Errors
    /// The server's.
    pub(crate) async fn all<K, T>(
        &self,
        what: &str,
        fields: Option<&str>,
        reduce: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, Error>
    where
        K: Object,
    {
        self.pages(what, &Api::all(self.client.clone()), fields, reduce)
            .await
    }

    /// The same of a namespace.
    ///
    /// # Errors
    /// The server's.
    pub(crate) async fn all_in<K, T>(
        &self,
        what: &str,
        fields: Option<&str>,
        reduce: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope> + Object,
    {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        self.pages(what, &api, fields, reduce).await
    }

    async fn pages<K, T>(
        &self,
        what: &str,
        api: &Api<K>,
        fields: Option<&str>,
        reduce: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, Error>
    where
        K: Object,
    {
        let operation = || format!("list {what}");
        let first = || {
            let limit = match &*K::plural(&()) {
                "resourceclaims" | "events" => SHORT_PAGE,
                _ => PAGE,
            };
            let params = ListParams::default().limit(limit);
            match fields {
                Some(fields) => params.fields(fields),
                None => params,
            }
        };
        let (mut params, mut all, mut expired) = (first(), Vec::new(), 0);
        loop {
            let page = match answer(api.list(&params)).await {
                Err(Answer::Expired) if expired < EXPIRED_MAX => {
                    expired += 1;
                    (params, all) = (first(), Vec::new());
                    continue;
                }
                answered => answered.map_err(|error| error.into_error(operation()))?,
            };
            all.extend(page.items.into_iter().filter_map(&reduce));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(all),
            }
        }
    }

    /// One object without a namespace; `None`: there is none.
    ///
    /// # Errors
    /// The server's.
    pub(crate) async fn one<K>(&self, what: &str, name: &str) -> Result<Option<K>, Error>
    where
        K: Object,
    {
        self.get(what, &Api::all(self.client.clone()), name).await
    }

    /// One object of the namespace; `None`: there is none.
    ///
    /// # Errors
    /// The server's.
    pub(crate) async fn one_in<K>(&self, what: &str, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope> + Object,
    {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        self.get(what, &api, name).await
    }

    async fn get<K>(&self, what: &str, api: &Api<K>, name: &str) -> Result<Option<K>, Error>
    where
        K: Object,
    {
        if !is_name(name) {
            return Ok(None);
        }
        let operation = || format!("get {what} {name}");
        let answered = answer(api.get_opt(name)).await;
        answered.map_err(|error| error.into_error(operation()))
    }
}

async fn configuration(options: &ClusterOptions) -> Result<Config, Error> {
    let broken = |error: &dyn std::error::Error| Error::Access(chain(error));
    let read = match &options.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => {
            // Inside a pod there is mostly no file.
            let in_cluster =
                std::env::var_os(IN_CLUSTER).is_some() && std::env::var_os("KUBECONFIG").is_none();
            if in_cluster && options.context.is_none() {
                return Config::incluster().map_err(|error| broken(&error));
            }
            Kubeconfig::read()
        }
    };
    let read = read.map_err(|error| broken(&error))?;
    let chosen = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(read, &chosen).await;
    config.map_err(|error| broken(&error))
}

/// Whether a text can be an object's name: another one would be another path of the server's, or another selector.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    let is_dots = text.bytes().all(|byte| byte == b'.');
    !is_dots && text.len() <= 253 && text.bytes().all(is_plain)
}

/// What came instead of an answer.
enum Answer {
    /// The list's next page is gone.
    Expired,
    Late,
    Status {
        code: u16,
        reason: String,
        message: String,
    },
    Other(String),
}

impl Answer {
    fn into_error(self, operation: String) -> Error {
        match self {
            Self::Expired => Error::Refused {
                operation,
                why: "the server does not keep the list as long as it takes to read it".to_owned(),
            },
            Self::Late => Error::Unreached {
                operation,
                why: format!("nothing within {} s", ANSWER.as_secs()),
            },
            Self::Status {
                code: 403, message, ..
            } => Error::Forbidden {
                operation,
                why: message,
            },
            // A list is never without its kind but on a server that does not know it.
            Self::Status { code: 404, .. } => Error::TooOld { operation },
            Self::Status {
                code,
                reason,
                message,
            } => Error::Refused {
                operation,
                why: format!("{code} {reason}: {message}"),
            },
            Self::Other(why) => Error::Unreached { operation, why },
        }
    }
}

async fn answer<T>(question: impl Future<Output = kube::Result<T>>) -> Result<T, Answer> {
    match tokio::time::timeout(ANSWER, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == 410 => Err(Answer::Expired),
        Ok(Err(kube::Error::Api(status))) => Err(Answer::Status {
            code: status.code,
            reason: text::name(&status.reason),
            message: text::message(&status.message),
        }),
        Ok(Err(error)) => Err(Answer::Other(chain(&error))),
        Err(_late) => Err(Answer::Late),
    }
}

/// An error and what caused it, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !texts.iter().any(|former| former.contains(&text)) {
            texts.push(text);
        }
        cause = error.source();
    }
    text::message(&texts.join(": "))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hyper::{Request, Response};
    use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;

    #[test]
    fn claims_are_read_in_short_pages_to_the_last_one() {
        let questions = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&questions);
        let service = service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let next = if uri.contains("continue=") {
                ""
            } else {
                "more"
            };
            kept.lock().unwrap().push(uri);
            let items = serde_json::json!([{"metadata": {"name": "a"}, "spec": {"driver": "d", "pool": {
                "name": "p", "generation": 1, "resourceSliceCount": 1,
            }}}]);
            let list = serde_json::json!({"metadata": {"continue": next}, "items": items});
            let answer = Response::new(Body::from(list.to_string().into_bytes()));
            std::future::ready(Ok::<_, BoxError>(answer))
        });
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster {
                client: Client::new(service, "default"),
                namespace: "default".to_owned(),
            };
            let claims = cluster.all("claims", None, Some::<ResourceClaim>).await;
            assert_eq!(claims.unwrap().len(), 2);
            let slices = cluster.all("slices", None, Some::<ResourceSlice>).await;
            assert_eq!(slices.unwrap().len(), 2);
        });
        let questions = questions.lock().unwrap();
        let limits = questions.iter().map(|uri| uri.contains("limit=32"));
        assert_eq!(
            limits.collect::<Vec<_>>(),
            [true, true, false, false],
            "{questions:?}"
        );
    }
}
