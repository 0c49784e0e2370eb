//! Pods that wait for claims.

use std::time::Duration;

use fit::lean;
use k8s_openapi::api::core::v1::{Affinity, Pod, PodSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;

use crate::api::{self, Connection};
use crate::error::Error;

/// A pod that the scheduler cannot place, and what of it counts.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) priority: i32,
    pub(super) since_unix_s: i64,
    /// Names of its claims.
    pub(super) claims: Vec<String>,
    /// What says where it may come to, and nothing else of it: a pod may have 1.5 MB, and many wait.
    pub(super) pod: Pod,
}

/// Pods of one namespace that are judged in one look. A look has one decision.
const OF_NAMESPACE_MAX: usize = 50;

/// All that wait.
///
/// # Errors
/// The server does not answer.
pub(super) async fn read(
    connection: &Connection,
    patience: Duration,
) -> Result<Vec<Waiter>, Error> {
    let list = ListParams::default()
        .fields("status.phase=Pending,spec.nodeName=")
        .limit(api::PAGE);
    let mut waiting = Vec::new();
    let take = |pod| {
        if let Some(waiter) = Waiter::of(pod, Timestamp::now(), patience) {
            kept(&mut waiting, waiter);
        }
    };
    connection.each("pods that wait", list, take).await?;
    Ok(waiting)
}

/// Adds one that waits. The server lists namespace by namespace: of one of them the first to be judged are kept.
fn kept(waiting: &mut Vec<Waiter>, waiter: Waiter) {
    let is_of = |other: &&Waiter| other.namespace == waiter.namespace;
    let of_namespace = waiting.iter().rev().take_while(is_of).count();
    waiting.push(waiter);
    if of_namespace < OF_NAMESPACE_MAX {
        return;
    }
    let before = waiting.len().saturating_sub(of_namespace + 1);
    let last = waiting.iter().enumerate().skip(before);
    let last =
        last.min_by_key(|(_, waiter)| (waiter.priority, std::cmp::Reverse(waiter.since_unix_s)));
    if let Some(index) = last.map(|(index, _)| index) {
        waiting.remove(index);
    }
}

impl Waiter {
    /// `None`: the pod does not wait for claims, has not waited for so long, is nothing that others have to go for, or says where it may be at a
    /// length that nobody reads.
    pub(super) fn of(pod: lean::Pod, now: Timestamp, patience: Duration) -> Option<Self> {
        let lean::Pod {
            metadata,
            spec,
            status,
            ..
        } = pod;
        let gates = spec.scheduling_gates.0?;
        let has_gate = gates.iter().flatten().next().is_some();
        let never = spec.preemption_policy.as_deref() == Some("Never");
        // The scheduler has made room for it by itself, as for CPU, and waits for that.
        let is_nominated = status
            .nominated_node_name
            .as_deref()
            .is_some_and(|node| !node.is_empty());
        let is_leaving = metadata.deletion_timestamp.is_some();
        if has_gate || never || is_nominated || is_leaving || spec.node_name.is_some() {
            return None;
        }
        let mut conditions = status.conditions.iter().flatten();
        let placed = conditions.find(|condition| condition.type_ == "PodScheduled")?;
        let marked = placed.last_transition_time.as_ref()?.0;
        let waited = now.as_second().saturating_sub(marked.as_second());
        let is_marked =
            placed.status == "False" && placed.reason.as_deref() == Some("Unschedulable");
        if !is_marked || waited < i64::try_from(patience.as_secs()).unwrap_or(i64::MAX) {
            return None;
        }
        let statuses = status.resource_claim_statuses.iter().flatten();
        let statuses: Vec<_> = statuses.collect();
        let name = |entry: &k8s_openapi::api::core::v1::PodResourceClaim| {
            let generated = statuses.iter().find(|status| status.name == entry.name);
            let generated = generated.and_then(|status| status.resource_claim_name.clone());
            entry.resource_claim_name.clone().or(generated)
        };
        // A claim that is not made yet is not why it waits.
        let claims = spec.resource_claims.0?;
        let claims: Option<Vec<String>> = claims.iter().flatten().map(name).collect();
        let claims = claims.filter(|claims| !claims.is_empty())?;
        Some(Self {
            namespace: metadata.namespace?,
            name: metadata.name?,
            uid: metadata.uid?,
            priority: spec.priority.unwrap_or(0),
            since_unix_s: metadata.creation_timestamp.as_ref()?.0.as_second(),
            claims,
            pod: Pod {
                spec: Some(PodSpec {
                    affinity: spec.affinity.0?.map(|affinity| Affinity {
                        node_affinity: affinity.node_affinity,
                        ..Affinity::default()
                    }),
                    node_selector: spec.node_selector.0?,
                    tolerations: spec.tolerations.0?,
                    ..PodSpec::default()
                }),
                ..Pod::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    type Change = Box<dyn Fn(&mut Value)>;

    fn pod(change: impl FnOnce(&mut Value)) -> lean::Pod {
        let mut pod = json!({
            "metadata": {"namespace": "team", "name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [], "priority": 7, "resourceClaims": [
                {"name": "own", "resourceClaimName": "mine"}, {"name": "made", "resourceClaimTemplateName": "t"},
            ]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "a-made-x"}], "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn waiter(change: impl FnOnce(&mut Value)) -> Option<Waiter> {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        Waiter::of(pod(change), now, Duration::from_secs(10))
    }

    #[test]
    fn a_pod_with_long_rules_for_its_node_is_not_judged() {
        let terms = vec![json!({}); 100_000];
        for (key, value) in [
            (
                "affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
            ),
            ("tolerations", json!(terms)),
            ("schedulingGates", json!("x".repeat(1 << 20))),
        ] {
            assert!(waiter(|pod| pod["spec"][key] = value).is_none(), "{key}");
        }
    }

    #[test]
    fn of_a_namespace_the_first_to_be_judged_are_kept() {
        let mut waiting = Vec::new();
        let of = |namespace: &str, name: usize, priority: usize| {
            let (namespace, name) = (json!(namespace), json!(name.to_string()));
            waiter(|pod| {
                pod["metadata"]["namespace"] = namespace;
                pod["metadata"]["name"] = name;
                pod["spec"]["priority"] = json!(priority);
            })
            .unwrap()
        };
        for namespace in ["a", "b"] {
            for name in 0..3 * OF_NAMESPACE_MAX {
                kept(&mut waiting, of(namespace, name, name % 3));
            }
        }
        assert_eq!(waiting.len(), 2 * OF_NAMESPACE_MAX);
        assert!(waiting.iter().all(|waiter| waiter.priority == 2));
    }

    #[test]
    fn a_pod_that_waits_for_its_claims_is_one() {
        let waiter = waiter(|_| ()).unwrap();
        assert_eq!(waiter.claims, ["mine", "a-made-x"]);
        assert_eq!((waiter.priority, waiter.name.as_str()), (7, "a"));
    }

    #[test]
    fn other_pods_are_none() {
        let at = |pod: &mut Value, text: &str| {
            pod["status"]["conditions"][0]["lastTransitionTime"] = json!(text)
        };
        let changes: [(&str, Change); 9] = [
            (
                "too short",
                Box::new(move |pod| at(pod, "2026-01-01T00:00:01Z")),
            ),
            (
                "a clock that is behind",
                Box::new(move |pod| at(pod, "2027-01-01T00:00:01Z")),
            ),
            (
                "never",
                Box::new(|pod| pod["spec"]["preemptionPolicy"] = json!("Never")),
            ),
            (
                "gated",
                Box::new(|pod| pod["spec"]["schedulingGates"] = json!([{"name": "g"}])),
            ),
            (
                "nominated",
                Box::new(|pod| pod["status"]["nominatedNodeName"] = json!("n1")),
            ),
            (
                "leaving",
                Box::new(|pod| {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
                }),
            ),
            (
                "placed",
                Box::new(|pod| pod["spec"]["nodeName"] = json!("n1")),
            ),
            (
                "a claim that is not made",
                Box::new(|pod| pod["status"]["resourceClaimStatuses"] = json!([])),
            ),
            (
                "gated by the scheduler",
                Box::new(|pod| pod["status"]["conditions"][0]["reason"] = json!("SchedulingGated")),
            ),
        ];
        for (name, change) in changes {
            assert!(waiter(change).is_none(), "{name}");
        }
        assert!(waiter(|pod| pod["spec"]["resourceClaims"] = json!([])).is_none());
    }
}
