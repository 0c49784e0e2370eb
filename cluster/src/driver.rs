//! The driver as a whole.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::{Access, Connection};
use crate::cdi::CdiFolder;
use crate::error::Error;
use crate::kubelet::{self, Paths};
use crate::monitor::{self, HANGS};
use crate::names::{self, NodeName};
use crate::node::Node;
use crate::prepare::Preparer;
use crate::publish::Publisher;
use crate::reconcile;
use crate::topology::SYSFS;

/// Where the driver works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name in the cluster.
    pub node: NodeName,
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
        self.paths().check()
    }

    fn paths(&self) -> Paths {
        Paths::new(&self.kubelet_dir, self.pod_uid.as_deref())
    }
}

/// Serves until `stop` is complete. What cannot be done yet is logged and tried again: no API server, no kubelet, no cards.
///
/// # Errors
/// Settings that can never work.
pub async fn run(
    settings: Settings,
    node: Arc<dyn Node>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    settings.check()?;
    let connection = Arc::new(Connection::new(settings.access.clone()));
    let cdi = CdiFolder::new(settings.cdi_dir.clone());
    let preparer = Preparer::new(
        settings.node.clone(),
        Arc::clone(&node),
        Arc::clone(&connection),
        cdi,
    );
    let (show, sight) = watch::channel(None);
    let served = kubelet::serve(
        settings.paths(),
        settings.node.clone(),
        preparer.clone(),
        sight.clone(),
    );
    let publisher = Publisher::new(settings.node.clone(), connection);
    tokio::select! {
        () = served => {}
        () = monitor::run(node, PathBuf::from(SYSFS), HANGS, show) => {}
        () = publisher.run(settings.publisher_lock.clone(), sight) => {}
        () = reconcile::run(preparer) => {}
        () = stop => {}
    }
    Ok(())
}
