//! How the kubelet comes to know the driver: it asks on a socket that appears in its folder.

use std::path::{Path, PathBuf};

use tonic::{Request, Response, Status};

use crate::names::DRIVER;
use crate::proto::registration::registration_server;
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The kubelet's word for drivers of its kind.
const KIND: &str = "DRAPlugin";

/// What the other socket has; kubelets take what they know.
const SERVICES: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];

/// Longer texts of a kubelet's are cut in the log.
const LOGGED_CHARS_MAX: usize = 500;

/// Answers who is there.
#[derive(Debug)]
pub(super) struct Registration {
    endpoint: PathBuf,
}

impl Registration {
    pub(super) fn new(endpoint: &Path) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
        }
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let error: String = status.error.chars().take(LOGGED_CHARS_MAX).collect();
        if status.plugin_registered {
            tracing::info!(driver = DRIVER, "registered with the kubelet");
        } else {
            tracing::error!(
                driver = DRIVER,
                error,
                "the kubelet has not registered the driver"
            );
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
