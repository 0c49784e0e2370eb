//! What `kubectl describe resourceclaim` shows of a claim's devices. For people: nothing is decided by it, and nobody waits for it.

use std::sync::Arc;

use cards::claims::{Pointer, Record};
use fit::lean;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::allocation::Allocation;
use crate::api::{self, Connection};
use crate::names::{DRIVER, FIELD_MANAGER};

/// Writes that are on their way. What comes meanwhile is left out: the next Prepare of the claim writes it.
const AT_ONCE: usize = 8;

/// Writes claims' status, beside everything else.
#[derive(Debug, Clone)]
pub(crate) struct StatusWriter {
    connection: Arc<Connection>,
    free: Arc<Semaphore>,
}

impl StatusWriter {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            free: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Writes what a claim was given, some time.
    pub(crate) fn write(&self, allocation: &Allocation, strength: &'static str) {
        let claim = allocation.record.claim.clone();
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            tracing::debug!(%claim, "its status is not written: too many are on their way");
            return;
        };
        let patch = patch(allocation, strength, Timestamp::now());
        let connection = Arc::clone(&self.connection);
        tokio::spawn(async move {
            let written = async {
                let claims = connection
                    .namespaced::<lean::Claim>(&claim.namespace)
                    .await?;
                let params = PatchParams::apply(FIELD_MANAGER).force();
                let patch = Patch::Apply(&patch);
                let question = claims.patch_status(&claim.name, &params, &patch);
                api::answer(|| format!("write the status of claim {claim}"), question).await
            };
            if let Err(error) = written.await {
                // It may be gone, or be another one's by now: its uid is in the patch.
                tracing::info!(error = %host_config::chain(&error), "a claim's status is not written");
            }
            drop(permit);
        });
    }
}

fn patch(allocation: &Allocation, strength: &str, now: Timestamp) -> Value {
    let record = &allocation.record;
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let devices: Vec<Value> = allocation
        .devices
        .iter()
        .map(|device| {
            let mut fields = json!({
                "driver": DRIVER,
                "pool": device.pool,
                "device": device.device,
                "conditions": [{
                    "type": "Ready",
                    "status": "True",
                    "reason": "Prepared",
                    "message": "reserved on the node for the claim's containers",
                    "lastTransitionTime": now.to_string(),
                }],
                "data": data(record, &device.request, &device.share, strength),
            });
            if let Some(share_id) = &device.share_id {
                fields["shareID"] = json!(share_id);
            }
            fields
        })
        .collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": record.claim.name,
            "namespace": record.claim.namespace,
            // A claim of the same name that was made since is refused.
            "uid": record.claim.uid.as_str(),
        },
        "status": {"devices": devices},
    })
}

fn data(record: &Record, request: &str, share: &str, strength: &str) -> Value {
    let pointer = Pointer {
        claim: record.claim.uid.clone(),
        request: request.to_owned(),
        share: share.to_owned(),
    };
    let Some((share, given)) = record.share(&pointer) else {
        return Value::Null;
    };
    let compute = &given.compute;
    let mut fields = serde_json::Map::new();
    fields.insert("uuid".to_owned(), json!(share.card.as_str()));
    fields.insert("memoryBytes".to_owned(), json!(share.memory_bytes));
    fields.insert("strength".to_owned(), json!(strength));
    fields.insert("priority".to_owned(), json!(compute.priority.name()));
    for (key, value) in [
        ("cores", compute.percent.map(|percent| json!(percent))),
        ("policy", compute.policy.map(|policy| json!(policy.name()))),
        ("weight", compute.weight.map(|weight| json!(weight))),
        (
            "shareGroup",
            given.share_group.as_ref().map(|group| json!(group)),
        ),
    ] {
        fields.extend(value.map(|value| (key.to_owned(), value)));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::tests::allocation;
    use crate::api::fake;

    #[tokio::test]
    async fn as_many_writes_are_on_their_way_as_the_guide_has() {
        let guide = include_str!("../../docs/guide/limits.md");
        let row = format!("| writes of claims' status on their way | {AT_ONCE} |");
        assert!(guide.contains(&row), "{row}");
        let claim = json!({"metadata": {"name": "c"}, "spec": {}});
        let (connection, questions) = fake::serve(move |_, _, _| (200, claim.clone()));
        let writer = StatusWriter::new(Arc::new(connection));
        for _ in 0..AT_ONCE * 2 {
            writer.write(&allocation(), "exact");
        }
        // All of them are written.
        let all = u32::try_from(AT_ONCE).unwrap();
        drop(writer.free.acquire_many(all).await.unwrap());
        assert_eq!(sys::sync::lock(&questions).len(), AT_ONCE);
    }

    #[test]
    fn a_claim_s_status_has_card_quota_and_strength() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let patch = patch(&allocation(), "exact", now);
        let device = &patch["status"]["devices"][0];
        assert_eq!(
            device["conditions"][0]["lastTransitionTime"],
            "2026-01-02T03:04:05Z"
        );
        assert_eq!(device["shareID"], "7007bb35-0000-4000-8000-000000000000");
        let expected = json!({
            "uuid": "GPU-00000000-0000-0000-0000-000000000000", "memoryBytes": 8_u64 << 30, "strength": "exact",
            "priority": "normal", "cores": 30, "policy": "soft",
        });
        assert_eq!(device["data"], expected);
        assert_eq!(
            patch["metadata"]["uid"],
            "11111111-2222-3333-4444-555555555555"
        );
    }
}
