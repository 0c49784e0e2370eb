//! How the kubelet comes to know the plugin: the plugin calls it, and again after each start of the kubelet.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::proto::device_plugin::v1beta1::registration_client::RegistrationClient;
use crate::proto::device_plugin::v1beta1::{DevicePluginOptions, RegisterRequest};

use super::pods::connect;
use super::units::ResourceName;

/// The interface's version, as the kubelet compares it.
const VERSION: &str = "v1beta1";

/// From one look at the kubelet's socket to the next.
const LOOK: Duration = Duration::from_secs(1);

/// Before each start of a container the kubelet says so, and it asks which units a container had best.
pub(super) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// Registers whenever the plugin's socket is new, or the kubelet's.
pub(super) async fn run(
    kubelet: &Path,
    endpoint: &str,
    resource: &ResourceName,
    is_bound: &Notify,
) {
    is_bound.notified().await;
    let mut backoff = Backoff::default();
    loop {
        let before = identity(kubelet);
        match register(kubelet, endpoint, resource).await {
            Ok(()) => {
                tracing::info!(%resource, "registered with the kubelet as its device plugin");
                backoff.reset();
            }
            Err(why) => {
                let wait = backoff.next();
                tracing::warn!(
                    why,
                    ?wait,
                    "the kubelet does not know the device plugin; tried again"
                );
                tokio::time::sleep(wait).await;
                continue;
            }
        }
        let restarted = async {
            while identity(kubelet) == before {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = restarted => tracing::info!("the kubelet has started again"),
            () = is_bound.notified() => {}
        }
    }
}

async fn register(kubelet: &Path, endpoint: &str, resource: &ResourceName) -> Result<(), String> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_string(),
        options: Some(OPTIONS),
    };
    let mut client = RegistrationClient::new(connect(kubelet).await?);
    match client.register(request).await {
        Ok(_empty) => Ok(()),
        Err(status) => Err(format!("Register on {}: {status}", kubelet.display())),
    }
}

/// Device, inode and time of a socket: a kubelet that starts again makes another one, which may get the former one's inode.
fn identity(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let about = std::fs::symlink_metadata(path).ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}
