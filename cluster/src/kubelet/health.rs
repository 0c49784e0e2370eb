//! The health of devices, for pods' status. Evicts nothing: that is the taints' effect.

use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, Stream};
use tonic::{Request, Response, Status};

use crate::monitor::Sight;
use crate::names::NodeName;
use crate::node::{NodeCard, TroubleKind};
use crate::proto::health::{v1, v1alpha1};

/// All is sent again after this: a kubelet forgets what it has not heard of for 30 s.
const AGAIN: Duration = Duration::from_secs(10);

/// How long a kubelet is to believe it, seconds.
const TIMEOUT_S: i64 = 60;

/// Kubernetes cuts longer texts.
const MESSAGE_CHARS_MAX: usize = 1000;

/// Streams the health of the node's devices.
#[derive(Debug, Clone)]
pub(super) struct Health {
    node: NodeName,
    sight: Sight,
}

/// One device.
struct DeviceState {
    pool: String,
    device: String,
    status: v1::HealthStatus,
    message: String,
    looked_unix_s: i64,
}

impl Health {
    pub(super) fn new(node: NodeName, sight: Sight) -> Self {
        Self { node, sight }
    }

    /// All devices: at once, at each change, and now and then.
    fn states(&self) -> impl Stream<Item = Vec<DeviceState>> + Send + use<> {
        let first = (self.clone(), false);
        stream::unfold(first, |(mut this, is_later)| async move {
            if is_later {
                // A look that never comes again is no health: the stream ends.
                if let Ok(Err(_closed)) = tokio::time::timeout(AGAIN, this.sight.changed()).await {
                    return None;
                }
            }
            let states = this.now();
            Some((states, (this, true)))
        })
    }

    fn now(&mut self) -> Vec<DeviceState> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let seen = self.sight.borrow_and_update();
        let cards = seen.iter().flat_map(|seen| &seen.cards.cards);
        cards.map(|card| state(&self.node, card, now)).collect()
    }
}

fn state(node: &NodeName, card: &NodeCard, looked_unix_s: i64) -> DeviceState {
    let (status, message) = match &card.trouble {
        None => (v1::HealthStatus::Healthy, String::new()),
        Some(trouble) => {
            let status = match trouble.kind {
                TroubleKind::Unmonitored => v1::HealthStatus::Unknown,
                TroubleKind::Xid(_) | TroubleKind::Lost => v1::HealthStatus::Unhealthy,
            };
            (
                status,
                trouble.reason.chars().take(MESSAGE_CHARS_MAX).collect(),
            )
        }
    };
    DeviceState {
        pool: node.to_string(),
        device: card.device(),
        status,
        message,
        looked_unix_s,
    }
}

/// The two versions have the same messages.
macro_rules! health {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for Health {
            type NodeWatchResourcesStream = Pin<
                Box<dyn Stream<Item = Result<$version::NodeWatchResourcesResponse, Status>> + Send>,
            >;

            async fn node_watch_resources(
                &self,
                _request: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                use futures_util::StreamExt;
                let answers = self.states().map(|states| {
                    let devices = states.into_iter().map(|state| $version::DeviceHealth {
                        device: Some($version::DeviceIdentifier {
                            pool_name: state.pool,
                            device_name: state.device,
                        }),
                        health: state.status as i32,
                        last_updated_time: state.looked_unix_s,
                        health_check_timeout_seconds: TIMEOUT_S,
                        message: state.message,
                    });
                    Ok($version::NodeWatchResourcesResponse {
                        devices: devices.collect(),
                    })
                });
                Ok(Response::new(Box::pin(answers)))
            }
        }
    };
}

health!(v1);
health!(v1alpha1);
