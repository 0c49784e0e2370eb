//! Prepare and Unprepare on the wire: two versions, one meaning.

use std::collections::HashMap;

use cards::claims::ClaimUid;
use futures_util::StreamExt;
use futures_util::stream;
use tonic::{Request, Response, Status};

use crate::allocation::{ClaimRef, PreparedDevice};
use crate::prepare::{Preparer, cdi_ids};
use crate::proto::dra;

/// A pod has few; more are refused as a whole.
const CLAIMS_MAX: usize = 1024;

/// Claims of one call that are looked up at the API server at once.
const AT_ONCE: usize = 8;

/// The driver, as the kubelet sees it.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    preparer: Preparer,
}

/// A claim as a request names it: namespace, uid, name.
type Named = (String, String, String);

impl Plugin {
    pub(super) fn new(preparer: Preparer) -> Self {
        Self { preparer }
    }

    /// Each claim of the request has an answer, by its uid as it came.
    async fn prepare(
        &self,
        claims: Vec<Named>,
    ) -> Result<HashMap<String, Result<(ClaimUid, Vec<PreparedDevice>), String>>, Status> {
        let one = |(namespace, uid, name): Named| async move {
            let prepared = match ClaimUid::new(uid.clone()) {
                Err(error) => Err(format!("claim {namespace}/{name}: {error}")),
                Ok(checked) => {
                    let claim = ClaimRef {
                        namespace,
                        name,
                        uid: checked.clone(),
                    };
                    let prepared = self.preparer.prepare(claim).await;
                    prepared.map(|devices| (checked, devices))
                }
            };
            if let Err(why) = &prepared {
                tracing::warn!(why, "not prepared");
            }
            (uid, prepared)
        };
        let claims = checked(claims)?;
        Ok(stream::iter(claims)
            .map(one)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await)
    }

    /// Each claim of the request has an answer, by its uid as it came: why it is still reserved, or nothing.
    async fn unprepare(&self, claims: Vec<Named>) -> Result<HashMap<String, String>, Status> {
        let mut answers = HashMap::new();
        for (namespace, uid, name) in checked(claims)? {
            let released = match ClaimUid::new(uid.clone()) {
                Err(error) => Err(error.to_string()),
                Ok(uid) => self.preparer.unprepare(uid).await,
            };
            let error = match released {
                Ok(()) => String::new(),
                Err(why) => format!("claim {namespace}/{name}: {why}"),
            };
            if error.is_empty() {
                tracing::info!(claim = format!("{namespace}/{name}"), "unprepared");
            } else {
                tracing::warn!(error, "not unprepared");
            }
            answers.insert(uid, error);
        }
        Ok(answers)
    }
}

fn checked(claims: Vec<Named>) -> Result<Vec<Named>, Status> {
    if claims.len() > CLAIMS_MAX {
        let text = format!(
            "{} claims in one call: {CLAIMS_MAX} are allowed",
            claims.len()
        );
        return Err(Status::invalid_argument(text));
    }
    Ok(claims)
}

/// The two versions have the same messages but for the share.
macro_rules! plugin {
    ($version:ident, $device:ident) => {
        #[tonic::async_trait]
        impl dra::$version::dra_plugin_server::DraPlugin for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<dra::$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<dra::$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|claim| (claim.namespace, claim.uid, claim.name));
                let prepared = self.prepare(claims.collect()).await?;
                let answers = prepared.into_iter().map(|(uid, prepared)| {
                    let answer = match prepared {
                        Ok((claim, devices)) => dra::$version::NodePrepareResourceResponse {
                            devices: devices
                                .into_iter()
                                .map(|device| $device(&claim, device))
                                .collect(),
                            error: String::new(),
                        },
                        Err(error) => dra::$version::NodePrepareResourceResponse {
                            devices: Vec::new(),
                            error,
                        },
                    };
                    (uid, answer)
                });
                Ok(Response::new(dra::$version::NodePrepareResourcesResponse {
                    claims: answers.collect(),
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<dra::$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<dra::$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|claim| (claim.namespace, claim.uid, claim.name));
                let released = self.unprepare(claims.collect()).await?;
                let answers = released.into_iter();
                let answers = answers.map(|(uid, error)| {
                    (uid, dra::$version::NodeUnprepareResourceResponse { error })
                });
                Ok(Response::new(
                    dra::$version::NodeUnprepareResourcesResponse {
                        claims: answers.collect(),
                    },
                ))
            }
        }
    };
}

plugin!(v1, device_v1);
plugin!(v1beta1, device_v1beta1);

fn device_v1(claim: &ClaimUid, device: PreparedDevice) -> dra::v1::Device {
    dra::v1::Device {
        cdi_device_ids: cdi_ids(claim, &device),
        request_names: vec![device.main_request().to_owned()],
        pool_name: device.pool,
        device_name: device.device,
        share_id: device.share_id,
    }
}

fn device_v1beta1(claim: &ClaimUid, device: PreparedDevice) -> dra::v1beta1::Device {
    dra::v1beta1::Device {
        cdi_device_ids: cdi_ids(claim, &device),
        request_names: vec![device.main_request().to_owned()],
        pool_name: device.pool,
        device_name: device.device,
    }
}
