//! Sends events to containerd, in order and one at a time.

use std::time::Duration;

use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim_async::{Client, EventsClient};
use tokio::sync::mpsc;

use crate::task::Pending;

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Waits between attempts: a containerd that restarts is back within these, together half a minute.
const PAUSES_MS: [u64; 7] = [50, 200, 1_000, 2_000, 4_000, 8_000, 15_000];

/// An event to send, and what is to know that it is being sent.
pub type Queued = (Envelope, Option<Pending>);

/// Forwards until every sender is gone and the queue is empty. An event that containerd does not take after the last
/// attempt is logged and dropped: whoever missed it asks by State and Wait.
pub async fn run(address: Option<String>, mut queue: mpsc::UnboundedReceiver<Queued>) {
    let mut client = None;
    while let Some((envelope, pending)) = queue.recv().await {
        if let Some(pending) = pending {
            pending.end();
        }
        let Some(address) = &address else { continue };
        let topic = envelope.topic.clone();
        if !forward(address, &mut client, envelope).await {
            tracing::error!(topic, "containerd does not take the event; it is dropped");
        }
    }
}

async fn forward(address: &str, client: &mut Option<EventsClient>, envelope: Envelope) -> bool {
    let request = ForwardRequest {
        envelope: MessageField::some(envelope),
        ..ForwardRequest::default()
    };
    for pause_ms in PAUSES_MS.iter().copied().map(Some).chain([None]) {
        match attempt(address, client, &request).await {
            Ok(()) => return true,
            Err(error) => tracing::warn!(%error, "cannot publish an event"),
        }
        *client = None;
        if let Some(pause_ms) = pause_ms {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }
    false
}

async fn attempt(
    address: &str,
    client: &mut Option<EventsClient>,
    request: &ForwardRequest,
) -> ttrpc::Result<()> {
    let connected = match client {
        Some(connected) => connected,
        None => client.insert(EventsClient::new(Client::connect(&as_url(address)).await?)),
    };
    connected
        .forward(ttrpc::context::with_duration(ATTEMPT), request)
        .await
        .map(drop)
}

/// containerd gives a bare path.
fn as_url(address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else {
        format!("unix://{address}")
    }
}
