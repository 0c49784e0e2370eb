//! From objects to verdicts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use dra::DRIVER;
use fit::cards::{Card, Offer, node_of};
use fit::lack::Lack;
use fit::needs::{Classes, Needs};
use fit::nodes::{self, NodeFacts};
use fit::search::{self, Fit, Outcome};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec};

use super::document::{
    CardGiven, CardJudged, ClaimJudged, Explained, Happened, JSON_VERSION, NodeJudged,
};
use super::reasons::{NO_HANDLER, described, is_classic, listed, missing, not_together};
use crate::text;

/// The latest that are shown.
pub(super) const EVENTS_MAX: usize = 8;

/// Pods that a claim can be reserved for.
const USERS_MAX: usize = 256;

/// A claim of the pod, as far as it is there.
#[derive(Debug, Default)]
pub(super) struct ClaimFound {
    /// In the pod's list.
    pub(super) name: String,
    pub(super) template: Option<String>,
    pub(super) has_template: bool,
    pub(super) template_spec: Option<ResourceClaimSpec>,
    /// The object's name; `None`: it is to be made from the template.
    pub(super) claim_name: Option<String>,
    pub(super) claim: Option<ResourceClaim>,
}

/// What was read.
pub(super) struct Facts {
    pub(super) pod: Pod,
    pub(super) claims: Vec<ClaimFound>,
    pub(super) classes: Classes,
    pub(super) nodes: BTreeMap<String, NodeFacts>,
    pub(super) offers: BTreeMap<String, Offer>,
    pub(super) happened: Vec<Happened>,
}

impl Facts {
    /// The verdicts; `limit` nodes are judged card by card in the document, 0: all.
    pub(super) fn judge(self, limit: usize) -> Explained {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let status = self.pod.status.clone().unwrap_or_default();
        let phase = status.phase.clone().unwrap_or_default();
        let is_over = matches!(phase.as_str(), "Succeeded" | "Failed");
        let mut claims = Vec::new();
        let mut open = Vec::new();
        for found in &self.claims {
            let (judged, needs) = self.claim(found);
            claims.push(judged);
            open.extend(needs);
        }
        let (extended, mut hurdles) = self.extended();
        open.extend(extended);
        for gate in spec.scheduling_gates.iter().flatten() {
            hurdles.push(format!(
                "scheduling gate {}: the scheduler does not look at the pod until it is removed",
                text::name(&gate.name)
            ));
        }
        if claims.is_empty() && open.is_empty() && hurdles.is_empty() {
            hurdles.push("it needs no card: it has no claim".to_owned());
        }
        let has_cards = claims.iter().any(|claim| !claim.cards.is_empty())
            || open.iter().any(|needs| !needs.requests.is_empty());
        let names_handler = spec.runtime_class_name.is_some();
        let mut warnings = Vec::new();
        if has_cards && !names_handler {
            warnings.push(NO_HANDLER.to_owned());
        }
        let mut explained = Explained {
            version: JSON_VERSION,
            namespace: self.pod.metadata.namespace.clone().unwrap_or_default(),
            pod: self.pod.metadata.name.clone().unwrap_or_default(),
            phase,
            node: spec.node_name.clone(),
            hurdles,
            warnings,
            claims,
            nodes: Vec::new(),
            nodes_left_out: 0,
            reasons_left_out: BTreeMap::new(),
            nodes_that_fit: 0,
            scheduler: scheduler(&self.pod),
            events: Vec::new(),
        };
        if spec.node_name.is_none() && !is_over && !(open.is_empty() && self.claims.is_empty()) {
            let open: Vec<&Needs> = open.iter().collect();
            self.judge_nodes(&open, limit, &mut explained);
        }
        explained.events = self.happened;
        explained
    }

    fn judge_nodes(&self, open: &[&Needs], limit: usize, explained: &mut Explained) {
        let shown = if limit == 0 { usize::MAX } else { limit };
        for (name, offer) in &self.offers {
            let judged = self.node(name, offer, open);
            explained.nodes_that_fit += usize::from(judged.verdict == "fits");
            if explained.nodes.len() < shown {
                explained.nodes.push(judged);
            } else {
                explained.nodes_left_out += 1;
                let kinds: Vec<String> = judged.kinds.into_iter().collect();
                let reason = if kinds.is_empty() {
                    judged.verdict.to_owned()
                } else {
                    kinds.join("; ")
                };
                *explained.reasons_left_out.entry(reason).or_default() += 1;
            }
        }
    }

    fn claim(&self, found: &ClaimFound) -> (ClaimJudged, Option<Needs>) {
        let mut judged = ClaimJudged {
            name: found.name.clone(),
            claim: found.claim_name.clone(),
            state: "missing",
            hurdles: Vec::new(),
            needs: Vec::new(),
            cards: Vec::new(),
        };
        let spec = match (&found.claim, &found.template_spec) {
            (Some(claim), _) => &claim.spec,
            (None, Some(spec)) => {
                judged.hurdles.push("the claim is not made yet; where that fails, the pod's events below say why (FailedResourceClaimCreation)".to_owned());
                spec
            }
            (None, None) => {
                judged.hurdles.push(missing(found));
                return (judged, None);
            }
        };
        let needs = Needs::of(spec, &self.classes);
        judged.hurdles.extend(needs.hurdles.iter().cloned());
        judged.needs = described(&needs);
        let Some(claim) = &found.claim else {
            return (judged, Some(needs));
        };
        let status = claim.status.clone().unwrap_or_default();
        if claim.metadata.deletion_timestamp.is_some() {
            judged.hurdles.push("the claim is being deleted".to_owned());
        }
        let users = status.reserved_for.as_deref().unwrap_or_default();
        let uid = self.pod.metadata.uid.as_deref();
        let has_it = users.iter().any(|user| Some(user.uid.as_str()) == uid);
        if status.allocation.is_none() {
            judged.state = "pending";
            return (judged, Some(needs));
        }
        judged.state = if has_it { "reserved" } else { "allocated" };
        if !has_it && users.len() >= USERS_MAX {
            judged.hurdles.push(format!(
                "the claim is reserved for {USERS_MAX} other users, which is the most"
            ));
        } else if !has_it && !users.is_empty() {
            judged.hurdles.push(format!(
                "the claim is reserved for {}: the pod can only come to the same node",
                listed(users.iter().map(|user| &user.name))
            ));
        }
        judged.cards = self.given(claim);
        (judged, None)
    }

    fn given(&self, claim: &ResourceClaim) -> Vec<CardGiven> {
        let status = claim.status.clone().unwrap_or_default();
        let allocation = status.allocation.unwrap_or_default();
        let reports = status.devices.unwrap_or_default();
        let results = allocation
            .devices
            .and_then(|all| all.results)
            .unwrap_or_default();
        let results = results.into_iter().filter(|result| result.driver == DRIVER);
        results
            .map(|result| {
                let is_given =
                    |card: &&Card| card.pool == result.pool && card.device.name == result.device;
                let mut cards = self.offers.values().flat_map(|offer| &offer.cards);
                let card = cards.find(is_given);
                let report = reports.iter().find(|report| {
                    report.driver == DRIVER
                        && report.device == result.device
                        && report.pool == result.pool
                        && report.share_id == result.share_id
                });
                let consumed = |name: &str| {
                    let all = result.consumed_capacity.as_ref()?;
                    dra::quantity::whole(&all.get(name)?.0)
                };
                let conditions = report.and_then(|report| report.conditions.as_ref());
                let ready = conditions
                    .and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
                CardGiven {
                    memory_bytes: consumed(dra::MEMORY),
                    cores_percent: consumed(dra::CORES),
                    uuid: card.map(|card| card.uuid().to_owned()),
                    prepared: ready.map(|ready| {
                        if ready.status == "True" {
                            "Ready".to_owned()
                        } else {
                            ready.message.clone()
                        }
                    }),
                    node: result.pool,
                    device: result.device,
                    request: result.request,
                }
            })
            .collect()
    }

    /// What containers name as extended resources, and keys of other schedulers that nobody has translated.
    fn extended(&self) -> (Vec<Needs>, Vec<String>) {
        let (mut all, mut hurdles) = (Vec::new(), Vec::new());
        let status = self.pod.status.as_ref();
        let is_made = status.is_some_and(|status| status.extended_resource_claim_status.is_some());
        let spec = self.pod.spec.clone().unwrap_or_default();
        let containers = spec
            .containers
            .into_iter()
            .chain(spec.init_containers.into_iter().flatten());
        for container in containers {
            let resources = container.resources.unwrap_or_default();
            for (key, amount) in resources.limits.into_iter().flatten() {
                let class = self.classes.values().find(|class| {
                    let name = class.metadata.name.as_deref().unwrap_or_default();
                    class.spec.extended_resource_name.as_deref() == Some(&key)
                        || key == format!("deviceclass.resource.kubernetes.io/{name}")
                });
                let count = dra::quantity::whole(&amount.0).unwrap_or(0);
                match class {
                    Some(class) if !is_made && count > 0 => all.push(Needs::of_extended(&key, count, class)),
                    None if is_classic(&key) => hurdles.push(format!(
                        "container {}: {key} was not translated into a claim when the pod was made, and no node offers it: policy cgpu-classic is not installed, or the namespace has the label cgpu.io/classic=off",
                        text::name(&container.name)
                    )),
                    _ => {}
                }
            }
        }
        all.retain(|needs| !needs.requests.is_empty());
        (all, hurdles)
    }

    fn node(&self, name: &str, offer: &Offer, open: &[&Needs]) -> NodeJudged {
        let unknown = NodeFacts::default();
        let node = self.nodes.get(name);
        let mut reasons = match node {
            Some(node) => nodes::hurdles(&self.pod, node),
            None => vec!["there is no such node".to_owned()],
        };
        for found in &self.claims {
            let allocation = found
                .claim
                .as_ref()
                .and_then(|claim| claim.status.as_ref()?.allocation.as_ref());
            if let Some(selector) =
                allocation.and_then(|allocation| allocation.node_selector.as_ref())
                && !nodes::is_selected(selector, node.unwrap_or(&unknown))
            {
                let there = node_of(selector).unwrap_or("other nodes");
                reasons.push(format!(
                    "claim {} is allocated on {}",
                    text::name(&found.name),
                    text::name(there)
                ));
            }
        }
        if !offer.is_whole() {
            let (announced, there) = offer.slices;
            reasons.push(format!("{there} of its {announced} slices are there"));
        }
        let kinds: BTreeSet<String> = reasons.iter().cloned().collect();
        let mut judged = NodeJudged {
            name: name.to_owned(),
            verdict: "no",
            reasons,
            cards: Vec::new(),
            kinds,
        };
        if open.iter().any(|needs| !needs.hurdles.is_empty()) || self.is_missing() {
            judged
                .reasons
                .push("the claims cannot be judged before what is above is there".to_owned());
            return judged;
        }
        let outcome = search::search(open, &offer.cards);
        judged.cards_of(&outcome, offer, open);
        judged
    }

    /// Whether a claim is not known at all.
    fn is_missing(&self) -> bool {
        self.claims
            .iter()
            .any(|found| found.claim.is_none() && found.template_spec.is_none())
    }
}

impl NodeJudged {
    fn cards_of(&mut self, outcome: &Outcome, offer: &Offer, open: &[&Needs]) {
        let is_open = self.reasons.is_empty();
        match outcome {
            Outcome::Fits { unknown, .. } if is_open && unknown.is_empty() => self.verdict = "fits",
            Outcome::Fits { unknown, .. } if is_open => {
                self.verdict = "perhaps";
                let unknown = unknown.iter().map(|text| text::clean(text, 200));
                self.reasons.extend(unknown.map(|text| {
                    format!("if its cards are selected by {text}, which is not evaluated here")
                }));
            }
            Outcome::TooMany if is_open => {
                self.verdict = "perhaps";
                self.reasons.push(
                    "its cards can be given in too many ways to look at all of them".to_owned(),
                );
            }
            _ => {}
        }
        let mut is_each_served = true;
        let mut served = BTreeSet::new();
        for (index, card) in offer.cards.iter().enumerate() {
            let judged = judge_card(index, card, outcome, open, &mut self.kinds, &mut served);
            self.cards.push(judged);
        }
        for (claim, needs) in open.iter().enumerate() {
            is_each_served &=
                (0..needs.requests.len()).all(|request| served.contains(&(claim, request)));
        }
        if *outcome == Outcome::Not && is_each_served {
            let reason = not_together(open);
            self.kinds.insert(reason.clone());
            self.reasons.push(reason);
        }
    }
}

/// What a card is for each request by itself.
fn judge_card(
    index: usize,
    card: &Card,
    outcome: &Outcome,
    open: &[&Needs],
    kinds: &mut BTreeSet<String>,
    served: &mut BTreeSet<(usize, usize)>,
) -> CardJudged {
    let mut lacks = Vec::new();
    let is_one = open.iter().map(|needs| needs.requests.len()).sum::<usize>() == 1;
    for (claim, needs) in open.iter().enumerate() {
        for (number, ways) in needs.requests.iter().enumerate() {
            let mut of_request: Vec<Lack> = Vec::new();
            for need in ways {
                match search::fit(need, card, &[]) {
                    Fit::Fits { .. } => {
                        served.insert((claim, number));
                        of_request.clear();
                        break;
                    }
                    Fit::Lacks(lacks) => of_request = lacks,
                }
            }
            let request = ways
                .first()
                .map(|need| need.request.split('/').next().unwrap_or_default());
            for lack in of_request {
                kinds.insert(lack.kind());
                lacks.push(match request {
                    Some(request) if !is_one => format!("{}: {lack}", text::name(request)),
                    _ => lack.to_string(),
                });
            }
        }
    }
    let serves = match outcome {
        Outcome::Fits { given, .. } => given
            .iter()
            .filter(|(_, card)| *card == index)
            .map(|(request, _)| request.clone())
            .collect(),
        _ => Vec::new(),
    };
    CardJudged {
        device: card.device.name.clone(),
        index: card.index(),
        uuid: card.uuid().to_owned(),
        serves,
        lacks,
    }
}

/// The scheduler's own word of why the pod is not placed.
fn scheduler(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")?;
    if condition.status == "True" {
        return None;
    }
    let reason = condition.reason.as_deref().unwrap_or("?");
    let message = condition.message.as_deref().unwrap_or_default();
    Some(format!("{reason}: {message}"))
}

#[cfg(test)]
mod tests;
