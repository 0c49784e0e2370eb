//! The labels of the node's object that the agent goes by, and a watch of them.

use cards::placement::Policy;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{WatchEvent, WatchParams};

use crate::api::{self, Connection};
use crate::error::Error;
use crate::given;
use crate::names::NodeName;
use crate::slice::{self, MODE_LABEL, Mode, PLACEMENT_LABEL};

/// What the node's labels say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLabels {
    /// How cards are offered.
    pub(crate) mode: Mode,
    /// Which card comes first; see [`slice::placement_of_label`].
    pub(crate) placement: Placement,
    /// What the agent itself has written, or somebody else in its place.
    pub(crate) given: Option<String>,
}

/// The order that a label names; or its value, where nobody knows that.
pub(crate) type Placement = Result<Option<Policy>, String>;

impl NodeLabels {
    pub(crate) fn of(node: &ObjectMeta) -> Self {
        let label = |name: &str| node.labels.as_ref()?.get(name).map(String::as_str);
        Self {
            mode: Mode::of_label(label(MODE_LABEL)),
            placement: slice::placement_of_label(label(PLACEMENT_LABEL)),
            given: label(given::LABEL).map(str::to_owned),
        }
    }
}

/// The labels of the node as they change from a version on. It never ends: where the server does not let it be watched, it says nothing, and
/// whoever watches looks again after a while anyway.
pub(crate) async fn watch(
    connection: &Connection,
    node: &NodeName,
    version: &str,
    seconds: u32,
) -> BoxStream<'static, NodeLabels> {
    match try_watch(connection, node, version, seconds).await {
        Ok(labels) => labels.chain(stream::pending()).boxed(),
        Err(error) => {
            tracing::debug!(error = %host_config::chain(&error), "the node's labels are not watched");
            stream::pending().boxed()
        }
    }
}

async fn try_watch(
    connection: &Connection,
    node: &NodeName,
    version: &str,
    seconds: u32,
) -> Result<impl Stream<Item = NodeLabels> + Send + use<>, Error> {
    let nodes = connection.all::<NodeObject>().await?;
    let params = WatchParams::default()
        .fields(&format!("metadata.name={node}"))
        .timeout(seconds);
    // Of a node that is large, the metadata alone.
    let question = nodes.watch_metadata(&params, version);
    let events = api::answer(|| "watch nodes".to_owned(), question).await?;
    Ok(events.filter_map(|event| async {
        match event {
            Ok(WatchEvent::Added(node) | WatchEvent::Modified(node)) => {
                Some(NodeLabels::of(&node.metadata))
            }
            _ => None,
        }
    }))
}
