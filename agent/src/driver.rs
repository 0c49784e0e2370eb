//! The cluster's driver beside the metrics: what it is started with.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
pub(crate) use cluster::Counts;
use cluster::{
    Access, Host, Interface, NodeName, PreemptionPace, ResourceName, Settings, TemplatesPace,
};
use host_config::Config;

use crate::options::ClusterOptions;

/// Set in the agent's pod.
const NODE_NAME: &str = "NODE_NAME";

/// The driver, before it serves.
#[derive(Debug)]
pub(crate) struct Driver {
    settings: Settings,
    host: Host,
    counts: Arc<Counts>,
}

impl Driver {
    /// What it counts while it serves.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }
}

/// The driver that the options name; `None`: this is no node of a cluster.
///
/// # Errors
/// Options that can never work.
pub(crate) fn of(
    options: &ClusterOptions,
    runtime_dir: &Path,
    config: &Config,
) -> anyhow::Result<Option<Driver>> {
    if !options.kubernetes {
        return Ok(None);
    }
    let name = options.node_name.clone();
    let name = name.or_else(|| std::env::var(NODE_NAME).ok());
    let name =
        name.context("--kubernetes needs this node's name: give --node-name or $NODE_NAME")?;
    let settings = Settings {
        node: NodeName::new(name)?,
        interface: match &options.device_plugin {
            None => Interface::Dra,
            Some(resource) => Interface::DevicePlugin(ResourceName::new(resource.as_str())?),
        },
        access: access(options),
        kubelet_dir: options.kubelet_dir.clone(),
        cdi_dir: options.cdi_dir.clone(),
        pod_uid: options.pod_uid.clone(),
        publisher_lock: runtime_dir.join("publisher.lock"),
        mode_file: config.state_dir.join("offered-mode"),
    };
    settings.check()?;
    let host = Host::new(Arc::new(config.clone()));
    Ok(Some(Driver {
        settings,
        host,
        counts: Arc::default(),
    }))
}

/// Serves the cluster until it is dropped: see `cluster::run_templates`.
///
/// # Errors
/// None: what cannot be done is tried again.
pub(crate) async fn run_templates(options: &ClusterOptions) -> anyhow::Result<()> {
    tracing::info!("serving the cluster: templates of classic pods");
    let never = std::future::pending();
    cluster::run_templates(access(options), TemplatesPace::default(), never).await;
    Ok(())
}

/// Serves the cluster until it is dropped: see `cluster::run_preemption`.
///
/// # Errors
/// None: what cannot be done is tried again.
pub(crate) async fn run_preemption(options: &ClusterOptions) -> anyhow::Result<()> {
    tracing::info!("serving the cluster: eviction for priority");
    let never = std::future::pending();
    cluster::run_preemption(access(options), PreemptionPace::default(), never).await;
    Ok(())
}

fn access(options: &ClusterOptions) -> Access {
    Access {
        kubeconfig: options.kubeconfig.clone(),
        server: options.api_server.clone(),
    }
}

/// Serves until it is dropped; without a driver, nothing is served.
///
/// # Errors
/// Settings that can never work.
pub(crate) async fn run(driver: Option<Driver>) -> anyhow::Result<()> {
    let Some(Driver {
        settings,
        host,
        counts,
    }) = driver
    else {
        return std::future::pending().await;
    };
    tracing::info!(node = %settings.node, "serving the kubelet");
    let never = std::future::pending();
    cluster::run(settings, Arc::new(host), counts, never).await?;
    Ok(())
}
