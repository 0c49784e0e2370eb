//! Carries a plan out, by the Eviction API.

use std::time::Duration;

use fit::preempt::Holder;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::PostParams;
use serde_json::Value;
use tokio::time::sleep;

use super::facts::{Cluster, NodePlan};
use super::pauses::Standing;
use super::waiter::Waiter;
use crate::api::{self, Connection};
use crate::error::Error;
use crate::object_event::{ObjectEvent, Reporter};

/// As whom it reports.
const REPORTER: Reporter = Reporter {
    component: "cgpu.io/preemption",
    instance: "cgpu-preemption",
};

/// How often an eviction is tried that a dry run has allowed, while the server has no time: pods of its plan may be gone already.
const TRIES_MAX: usize = 4;

/// From one of these tries to the next.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// What became of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Pods were evicted.
    Evicted,
    /// The server does not let them go, as by a budget.
    Denied,
    /// The cluster is another one than was judged.
    Outdated,
}

/// Evicts the plan's pods, if all of them may be evicted and the pod that waits still does.
///
/// # Errors
/// What the server does not answer.
pub(super) async fn carry_out(
    connection: &Connection,
    waiter: &Waiter,
    plan: &NodePlan,
    cluster: &Cluster,
) -> Result<Outcome, Error> {
    let (namespace, name) = (&waiter.namespace, &waiter.name);
    if standing(connection, namespace, name, &waiter.uid).await? != Standing::Waits {
        return Ok(Outcome::Outdated);
    }
    for uid in &plan.victims {
        let answer = evict(connection, cluster, uid, Run::Dry).await?;
        if answer != Outcome::Evicted {
            return Ok(answer);
        }
    }
    let mut count = 0;
    for uid in &plan.victims {
        match evict(connection, cluster, uid, Run::Real).await {
            Ok(Outcome::Evicted) => count += 1,
            // What the dry runs did not see, as a budget of several of them, leaves the rest for the next look.
            Ok(Outcome::Denied | Outcome::Outdated) => break,
            Err(error) if count == 0 => return Err(error),
            // Pods are gone already, which the pause of the pod that waits has to follow.
            Err(error) => {
                tracing::warn!(error = %host_config::chain(&error), "a plan is carried out in part");
                break;
            }
        }
        report_victim(connection, waiter, plan, cluster, uid).await;
    }
    if count == 0 {
        return Ok(Outcome::Denied);
    }
    tracing::info!(
        namespace = waiter.namespace,
        pod = waiter.name,
        priority = waiter.priority,
        node = plan.node,
        pods = count,
        "evicted pods of lower priority"
    );
    let event = ObjectEvent {
        namespace: &waiter.namespace,
        name: &waiter.name,
        uid: &waiter.uid,
        kind: "Normal",
        reason: "GpuPreempting",
        action: "Preempt",
        // Not which: they may be other people's.
        message: format!(
            "pods of lower priority evicted on node {}, whose claims are in the way: {count}",
            plan.node
        ),
        reporter: REPORTER,
    };
    report(connection, event).await;
    Ok(Outcome::Evicted)
}

/// An event that is not taken changes nothing of what was done: the pods are gone.
async fn report(connection: &Connection, event: ObjectEvent<'_>) {
    let reason = event.reason;
    if let Err(error) = event.report(connection).await {
        tracing::warn!(error = %host_config::chain(&error), reason, "an event is lost");
    }
}

/// What became of a pod that waited.
///
/// # Errors
/// What the server does not answer.
pub(super) async fn standing(
    connection: &Connection,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Standing, Error> {
    let pods = connection.namespaced::<Pod>(namespace).await?;
    let operation = || format!("get pod {namespace}/{name}");
    let pod = api::answer(operation, pods.get_opt(name)).await?;
    let is_it = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid);
    let Some(pod) = pod.filter(is_it) else {
        return Ok(Standing::Gone);
    };
    Ok(match pod.metadata.deletion_timestamp {
        _ if pod.spec.is_some_and(|spec| spec.node_name.is_some()) => Standing::Placed,
        Some(_) => Standing::Gone,
        None => Standing::Waits,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    /// The server decides, and does nothing.
    Dry,
    Real,
}

/// Evicts the pod that was judged, and no other one of its name. kube's own call writes the options under a key that the server does not read.
async fn evict(
    connection: &Connection,
    cluster: &Cluster,
    uid: &str,
    run: Run,
) -> Result<Outcome, Error> {
    let Some(holder) = cluster.holders.get(uid) else {
        return Ok(Outcome::Outdated);
    };
    let (namespace, name) = (&holder.namespace, &holder.name);
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    };
    let operation = || format!("evict pod {namespace}/{name}");
    let params = PostParams {
        dry_run: run == Run::Dry,
        ..PostParams::default()
    };
    // A budget denies with 429, which is an answer.
    let pods = connection.namespaced_once::<Pod>(namespace).await?;
    let mut tries_left = match run {
        Run::Dry => 0,
        Run::Real => TRIES_MAX - 1,
    };
    loop {
        let question = pods.create_subresource::<_, Value>("eviction", name, &params, &eviction);
        let answer = api::answer(operation, question).await;
        if tries_left == 0 || !is_late(&answer) {
            return outcome(holder, answer);
        }
        tries_left -= 1;
        sleep(BETWEEN_TRIES).await;
    }
}

/// Whether the server, or a budget that it is at, has no time now.
fn is_late(answer: &Result<Value, Error>) -> bool {
    matches!(
        answer,
        Err(Error::Api {
            status: Some(429 | 503 | 504),
            ..
        })
    )
}

/// What an answer makes of a plan. A refusal of whatever kind denies this plan alone: a tenant can bring it about, as by a second budget on its
/// pod, which the server answers with 500, and others wait behind it. Only a server that does not answer ends the look.
fn outcome(holder: &Holder, answer: Result<Value, Error>) -> Result<Outcome, Error> {
    match answer {
        Ok(_) => Ok(Outcome::Evicted),
        // It is gone, or another one of its name is there.
        Err(Error::Api {
            status: Some(404 | 409),
            ..
        }) => Ok(Outcome::Outdated),
        Err(Error::Api {
            status: Some(status),
            why,
            ..
        }) => {
            let (namespace, name) = (&holder.namespace, &holder.name);
            tracing::info!(namespace, name, status, why, "not evicted");
            Ok(Outcome::Denied)
        }
        Err(error) => Err(error),
    }
}

async fn report_victim(
    connection: &Connection,
    waiter: &Waiter,
    plan: &NodePlan,
    cluster: &Cluster,
    uid: &str,
) {
    let Some(holder) = cluster.holders.get(uid) else {
        return;
    };
    let event = ObjectEvent {
        namespace: &holder.namespace,
        name: &holder.name,
        uid,
        kind: "Normal",
        reason: "GpuPreempted",
        action: "Preempt",
        // By its uid, as the scheduler has it: its name may be another team's.
        message: format!(
            "evicted from node {}: pod {} of priority {} needs what the claims of this pod, of priority {}, hold",
            plan.node, waiter.uid, waiter.priority, holder.priority
        ),
        reporter: REPORTER,
    };
    report(connection, event).await;
}

#[cfg(test)]
mod tests {
    use fit::preempt::Standing;

    use super::*;

    fn refused(status: Option<u16>) -> Result<Value, Error> {
        Err(Error::Api {
            operation: "evict pod team/a".to_owned(),
            why: "This pod has more than one PodDisruptionBudget".to_owned(),
            status,
            absent: None,
        })
    }

    #[test]
    fn whatever_the_server_refuses_denies_the_plan_and_nothing_else() {
        let holder = Holder {
            namespace: "team".to_owned(),
            name: "a".to_owned(),
            priority: 0,
            since_unix_s: 0,
            standing: Standing::Evictable,
            budgets: Vec::new(),
        };
        let of = |answer| outcome(&holder, answer).ok();
        assert_eq!(of(Ok(Value::Null)), Some(Outcome::Evicted));
        for status in [400, 403, 422, 429, 500, 503] {
            assert_eq!(of(refused(Some(status))), Some(Outcome::Denied), "{status}");
        }
        for status in [404, 409] {
            assert_eq!(
                of(refused(Some(status))),
                Some(Outcome::Outdated),
                "{status}"
            );
        }
        assert_eq!(of(refused(None)), None, "nobody answers");
    }
}
