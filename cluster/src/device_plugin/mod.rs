//! The device plugin: GPUs for clusters below Kubernetes 1.34, whose scheduler can only count.
//!
//! ```text
//!   kubelet ──ListAndWatch──▶ units of 1 GiB      kubelet ──Allocate(units)──▶ record, reserved; nobody is let in yet
//!                                                 kubelet ──PreStartContainer(units)──▶ pods: whose are they? ──▶ the record's pod
//! ```
//!
//! The kubelet hands `Allocate` units and does not say for which pod, and it never says when a pod has ended. So a record is named by its units,
//! a pod is let in when the kubelet names it for them, and a record whose units no container has is released ([`sweep`](service)). The container
//! has the same pointer as one with a claim has, in its environment, and the shim the same checks.
//!
//! - [`units`]: cards ↔ what the kubelet counts, pure; [`service`]: what the kubelet calls; [`pods`]: what it is asked; [`registration`]: how it
//!   comes to know the plugin.

mod pods;
mod registration;
mod service;
mod units;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Notify;
use tonic::service::Routes;

use crate::api::Connection;
use crate::error::Error;
use crate::kubelet::{check, keep};
use crate::monitor::Sight;
use crate::names::NodeName;
use crate::node::Node;
use crate::proto::device_plugin::v1beta1::device_plugin_server::DevicePluginServer;

use self::pods::PodResources;
use self::service::Plugin;

pub use self::units::ResourceName;
pub(crate) use self::units::is_ours;

/// Of the plugin, in the kubelet's folder.
const SOCKET: &str = "cgpu.sock";

/// Where the sockets are.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// The plugin's own. Two agents have one name for it: the second serves when the first has ended. The kubelet takes the resource from a plugin
    /// whose connection ends, also where another one has registered meanwhile (`PluginDisconnected`, by the resource's name).
    plugin: PathBuf,
    kubelet: PathBuf,
    pods: PathBuf,
}

impl Paths {
    /// Below the kubelet's folder.
    pub(crate) fn new(kubelet: &Path) -> Self {
        let plugins = kubelet.join("device-plugins");
        Self {
            plugin: plugins.join(SOCKET),
            kubelet: plugins.join("kubelet.sock"),
            pods: kubelet.join("pod-resources/kubelet.sock"),
        }
    }

    /// Whether the kernel takes them.
    ///
    /// # Errors
    /// [`Error::SocketPath`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        check(&self.plugin)?;
        check(&self.pods)
    }
}

/// Serves the kubelet until it is dropped.
pub(crate) async fn serve(
    paths: Paths,
    resource: ResourceName,
    name: NodeName,
    node: Arc<dyn Node>,
    connection: Arc<Connection>,
    sight: Sight,
) {
    let pods = PodResources::new(paths.pods.clone(), connection, name.clone());
    let plugin = Plugin::new(resource.clone(), name, node, pods, sight);
    let services = Routes::new(DevicePluginServer::new(plugin.clone()));
    let is_bound = Notify::new();
    tokio::select! {
        () = keep(&paths.plugin, &services, || is_bound.notify_one()) => {}
        () = registration::run(&paths.kubelet, SOCKET, &resource, &is_bound) => {}
        () = plugin.sweep_for_ever() => {}
    }
}
