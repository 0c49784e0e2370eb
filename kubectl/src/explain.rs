//! `kubectl cgpu explain`: why a pod is pending, card by card, or what it got.

mod document;
mod judge;
mod reasons;
mod show;

use std::collections::BTreeMap;

use fit::needs::Classes;
use fit::nodes::NodeFacts;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};

pub(crate) use self::document::Explained;
use self::document::Happened;
use self::judge::{ClaimFound, Facts};
pub(crate) use self::show::text;
use crate::api::{Cluster, Error};
use crate::inspect;
use crate::options::ExplainOptions;
use crate::text::name;

/// Claims of a pod that are read; the API has 64 at most.
const CLAIMS_MAX: usize = 64;

/// Reads what concerns the pod, and judges.
///
/// # Errors
/// The server's; there is no such pod.
pub(crate) async fn look(cluster: &Cluster, options: &ExplainOptions) -> Result<Explained, Error> {
    let namespace = &cluster.namespace;
    let pod: Option<Pod> = cluster.one_in("pod", &options.pod).await?;
    let pod = pod.ok_or_else(|| {
        let text = format!(
            "there is no pod {} in namespace {}",
            name(&options.pod),
            name(namespace)
        );
        Error::NotFound(text)
    })?;
    let claims = claims(cluster, &pod).await?;
    let classes = cluster
        .all("deviceclasses", None, named::<DeviceClass>)
        .await?;
    let classes: Classes = classes.into_iter().collect();
    let nodes = cluster
        .all("nodes", None, |node: Node| Some(NodeFacts::of(node)))
        .await?;
    let nodes = nodes.into_iter().map(|node| (node.name.clone(), node));
    let nodes: BTreeMap<String, NodeFacts> = nodes.collect();
    let offers = inspect::read(cluster, None).await?;
    let happened = events(cluster, &pod, &claims).await?;
    let facts = Facts {
        pod,
        claims,
        classes,
        nodes,
        offers,
        happened,
    };
    Ok(facts.judge(options.limit))
}

fn named<
    K: k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
>(
    object: K,
) -> Option<(String, K)> {
    Some((object.metadata().name.clone()?, object))
}

/// The pod's claims, those that the scheduler makes for extended resources among them.
async fn claims(cluster: &Cluster, pod: &Pod) -> Result<Vec<ClaimFound>, Error> {
    let mut found = Vec::new();
    let spec = pod.spec.clone().unwrap_or_default();
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_ref());
    for entry in spec.resource_claims.iter().flatten().take(CLAIMS_MAX) {
        let status = statuses
            .into_iter()
            .flatten()
            .find(|status| status.name == entry.name);
        let generated = status.and_then(|status| status.resource_claim_name.clone());
        let claim_name = entry.resource_claim_name.clone().or(generated);
        let mut claim = ClaimFound {
            name: entry.name.clone(),
            template: entry.resource_claim_template_name.clone(),
            claim_name,
            ..ClaimFound::default()
        };
        if let Some(name) = &claim.claim_name {
            claim.claim = cluster
                .one_in::<ResourceClaim>("resourceclaim", name)
                .await?;
        } else if let Some(template) = &claim.template {
            let there = cluster
                .one_in::<ResourceClaimTemplate>("resourceclaimtemplate", template)
                .await?;
            claim.has_template = there.is_some();
            claim.template_spec = there.map(|template| template.spec.spec);
        }
        found.push(claim);
    }
    let extended = pod
        .status
        .as_ref()
        .and_then(|status| status.extended_resource_claim_status.as_ref());
    if let Some(status) = extended {
        let name = &status.resource_claim_name;
        found.push(ClaimFound {
            name: "extended resources".to_owned(),
            claim_name: Some(name.clone()),
            claim: cluster
                .one_in::<ResourceClaim>("resourceclaim", name)
                .await?,
            ..ClaimFound::default()
        });
    }
    Ok(found)
}

/// Events of the pod and of its claims, the latest last.
async fn events(
    cluster: &Cluster,
    pod: &Pod,
    claims: &[ClaimFound],
) -> Result<Vec<Happened>, Error> {
    let of_claims = claims
        .iter()
        .filter_map(|claim| claim.claim.as_ref()?.metadata.uid.clone());
    let uids = pod.metadata.uid.clone().into_iter().chain(of_claims);
    let mut happened = Vec::new();
    for uid in uids {
        let fields = format!("involvedObject.uid={uid}");
        let of_one = |event: Event| Some(Happened::of(&event));
        happened.extend(cluster.all_in("events", Some(&fields), of_one).await?);
    }
    happened.sort_by(|a, b| a.at.cmp(&b.at));
    let from = happened.len().saturating_sub(judge::EVENTS_MAX);
    Ok(happened.split_off(from))
}
