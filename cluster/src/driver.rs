//! The driver as a whole.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::{Access, Connection};
use crate::cdi::CdiFolder;
use crate::counts::Counts;
use crate::device_plugin::{self, ResourceName};
use crate::error::Error;
use crate::events::EventSink;
use crate::kubelet::{self, Paths};
use crate::monitor::{self, HANGS, Sight};
use crate::names::{self, NodeName};
use crate::node::Node;
use crate::prepare::Preparer;
use crate::publish::Publisher;
use crate::reconcile;
use crate::topology::SYSFS;

/// By which of its interfaces the kubelet is served: by one, since the schedulers of the two do not know of each other's pods.
#[derive(Debug, Clone)]
pub enum Interface {
    /// Dynamic Resource Allocation: the scheduler knows the cards.
    Dra,
    /// A device plugin: the scheduler counts GiB of this resource.
    DevicePlugin(ResourceName),
}

/// Where the driver works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name in the cluster.
    pub node: NodeName,
    /// How the kubelet is served.
    pub interface: Interface,
    /// Where the API server is.
    pub access: Access,
    /// The kubelet's folder, `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// The folder of CDI files that the engine reads, `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// The uid of the agent's pod: two agents may run during a rolling update.
    pub pod_uid: Option<String>,
    /// Held by the agent that publishes.
    pub publisher_lock: PathBuf,
    /// How it offers the cards: it lives as long as the records of claims that were given so.
    pub mode_file: PathBuf,
}

impl Settings {
    /// Whether the driver can work so.
    ///
    /// # Errors
    /// A pod uid that is no file's name; a socket whose path is too long.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(uid) = &self.pod_uid
            && !names::is_label(uid)
        {
            return Err(Error::Name {
                what: "pod uid",
                text: uid.chars().take(names::LABEL_CHARS_MAX).collect(),
                allowed: "1 to 63 of a-z, 0-9 and -",
            });
        }
        match self.interface {
            Interface::Dra => self.paths().check(),
            Interface::DevicePlugin(_) => self.plugin_paths().check(),
        }
    }

    fn paths(&self) -> Paths {
        Paths::new(&self.kubelet_dir, self.pod_uid.as_deref())
    }

    fn plugin_paths(&self) -> device_plugin::Paths {
        device_plugin::Paths::new(&self.kubelet_dir)
    }
}

/// Serves until `stop` is complete. What cannot be done yet is logged and tried again: no API server, no kubelet, no cards. What was done is
/// in `counts`.
///
/// # Errors
/// Settings that can never work.
pub async fn run(
    settings: Settings,
    node: Arc<dyn Node>,
    counts: Arc<Counts>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    settings.check()?;
    let connection = Arc::new(Connection::new(settings.access.clone()));
    let (show, sight) = watch::channel(None);
    let serve = async {
        match settings.interface.clone() {
            Interface::Dra => serve_claims(&settings, &node, counts, connection, sight).await,
            Interface::DevicePlugin(resource) => {
                let (paths, name) = (settings.plugin_paths(), settings.node.clone());
                let node = Arc::clone(&node);
                device_plugin::serve(paths, resource, name, node, connection, sight).await;
            }
        }
    };
    tokio::select! {
        () = serve => {}
        () = monitor::run(Arc::clone(&node), PathBuf::from(SYSFS), HANGS, show) => {}
        () = stop => {}
    }
    Ok(())
}

/// Claims, the node's slices, and records that nobody has any more.
async fn serve_claims(
    settings: &Settings,
    node: &Arc<dyn Node>,
    counts: Arc<Counts>,
    connection: Arc<Connection>,
    sight: Sight,
) {
    let cdi = CdiFolder::new(settings.cdi_dir.clone());
    let (events, recorder) = EventSink::new(
        settings.node.clone(),
        Arc::clone(node),
        Arc::clone(&connection),
        Arc::clone(&counts),
    );
    let preparer = Preparer::new(
        settings.node.clone(),
        Arc::clone(node),
        Arc::clone(&connection),
        cdi,
        events.clone(),
        counts,
    );
    let served = kubelet::serve(
        settings.paths(),
        settings.node.clone(),
        preparer.clone(),
        sight.clone(),
    );
    let publisher = Publisher::new(
        settings.node.clone(),
        connection,
        events,
        settings.mode_file.clone(),
    );
    tokio::select! {
        () = served => {}
        () = publisher.run(settings.publisher_lock.clone(), sight.clone()) => {}
        () = recorder.run(sight) => {}
        () = reconcile::run(preparer) => {}
    }
}
