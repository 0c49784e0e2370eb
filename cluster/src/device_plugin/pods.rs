//! Whose units are they? The kubelet says which container of which pod has them, and the API server which pod that is for its life.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cards::claims::PodOfClaim;
use fit::lean;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::api::{self, Connection};
use crate::names::NodeName;
use crate::proto::v1::ListPodResourcesRequest;
use crate::proto::v1::pod_resources_lister_client::PodResourcesListerClient;

use super::units::{ResourceName, Selection};

/// The kubelet gives `PreStartContainer` 30 s, and the API server has [`api::ANSWER`] of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node of 110 pods answers tens of kilobytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A channel to a socket of the kubelet's.
///
/// # Errors
/// That nobody serves there.
pub(super) async fn connect(path: &Path) -> Result<Channel, String> {
    let socket = path.to_owned();
    let connector = tower::service_fn(move |_uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The kubelet's own clients say this authority.
    let endpoint = Endpoint::from_static("http://localhost")
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE);
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| format!("{}: {}", path.display(), host_config::chain(&error)))
}

/// A container that has units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    pub(super) selection: Selection,
}

/// What the kubelet knows of its pods.
#[derive(Debug, Clone)]
pub(super) struct PodResources {
    socket: PathBuf,
    connection: Arc<Connection>,
    node: NodeName,
}

impl PodResources {
    pub(super) fn new(socket: PathBuf, connection: Arc<Connection>, node: NodeName) -> Self {
        Self {
            socket,
            connection,
            node,
        }
    }

    /// All containers that have units of the resource.
    ///
    /// # Errors
    /// No answer of the kubelet's; a container with units of several cards has none.
    pub(super) async fn holders(&self, resource: &ResourceName) -> Result<Vec<Holder>, String> {
        let client = PodResourcesListerClient::new(connect(&self.socket).await?);
        let listed = client
            .max_decoding_message_size(ANSWER_BYTES_MAX)
            .list(ListPodResourcesRequest {})
            .await;
        let listed = listed.map_err(|status| format!("{}: {status}", self.socket.display()))?;
        let mut holders = Vec::new();
        for pod in listed.into_inner().pod_resources {
            for container in pod.containers {
                let devices = container.devices.into_iter();
                // A kubelet that knows where devices are makes a list for each part of the machine.
                let ids: Vec<String> = devices
                    .filter(|devices| devices.resource_name == resource.as_str())
                    .flat_map(|devices| devices.device_ids)
                    .collect();
                if let Ok(selection) = Selection::of(&ids, resource) {
                    holders.push(Holder {
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        container: container.name,
                        selection,
                    });
                }
            }
        }
        Ok(holders)
    }

    /// The pod that has exactly these units, as the API server knows it.
    ///
    /// # Errors
    /// That there is none, or more than one.
    pub(super) async fn pod_of(
        &self,
        selection: &Selection,
        resource: &ResourceName,
    ) -> Result<PodOfClaim, String> {
        let holders = self.holders(resource).await?;
        let mut names: Vec<(String, String)> = holders
            .into_iter()
            .filter(|holder| holder.selection == *selection)
            .map(|holder| (holder.namespace, holder.pod))
            .collect();
        names.sort();
        names.dedup();
        let mut pods = Vec::new();
        for (namespace, name) in names {
            pods.extend(self.living(&namespace, &name).await?);
        }
        let mut pods = pods.into_iter();
        match (pods.next(), pods.next()) {
            (Some(pod), None) => Ok(pod),
            (None, _) => Err(format!(
                "the kubelet names no pod of this node that has these {} units of {resource}; it names no init container: one that asks, asks for as much as another \
                 container of its pod does, and has the same memory before it",
                selection.count()
            )),
            (Some(one), Some(other)) => Err(format!(
                "pods {} and {} both have these units of {resource}",
                one.name, other.name
            )),
        }
    }

    /// `None`: it is gone, has ended, or is another node's.
    async fn living(&self, namespace: &str, name: &str) -> Result<Option<PodOfClaim>, String> {
        let pods = self.connection.namespaced::<lean::Pod>(namespace).await;
        let pods = pods.map_err(|error| host_config::chain(&error))?;
        let operation = || format!("get pod {namespace}/{name}");
        let pod = match api::answer(operation, pods.get(name)).await {
            Ok(pod) => pod,
            Err(error) if error.is_absent(&format!("pods/{name}")) => return Ok(None),
            Err(error) => return Err(host_config::chain(&error)),
        };
        let phase = pod.status.phase;
        let has_ended = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        let node = pod.spec.node_name;
        let is_here = node.as_deref() == Some(self.node.as_str());
        let uid = pod.metadata.uid.filter(|_| is_here && !has_ended);
        Ok(uid.map(|uid| PodOfClaim {
            uid,
            name: name.to_owned(),
        }))
    }
}
