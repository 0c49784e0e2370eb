//! Whether the scheduler would look at a node at all for a pod, as far as the objects say: selector, affinity, taints. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint,
};

use crate::text;
use crate::toleration::tolerates;

/// What of a node matters here.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub is_unschedulable: bool,
}

impl NodeFacts {
    /// Of a node.
    pub fn of(node: Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            is_unschedulable: spec.unschedulable == Some(true),
        }
    }
}

/// Why the pod cannot come to the node; nothing: no reason is known.
pub fn hurdles(pod: &Pod, node: &NodeFacts) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mut hurdles = Vec::new();
    if let Some(name) = spec.node_name.as_ref().filter(|name| **name != node.name) {
        hurdles.push(format!("the pod is bound to node {}", text::name(name)));
    }
    for (key, value) in spec.node_selector.iter().flatten() {
        if node.labels.get(key) != Some(value) {
            hurdles.push(format!(
                "nodeSelector {}={}",
                text::name(key),
                text::name(value)
            ));
        }
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|all| all.node_affinity.as_ref());
    let required = affinity.and_then(|all| {
        all.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    if required.is_some_and(|selector| !is_selected(selector, node)) {
        hurdles.push("nodeAffinity".to_owned());
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let unschedulable = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let is_tolerated = |taint: &Taint| tolerations.iter().any(|one| tolerates(one, taint));
    if node.is_unschedulable && !is_tolerated(&unschedulable) {
        hurdles.push("the node is cordoned".to_owned());
    }
    for taint in &node.taints {
        let is_kept_away = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        if is_kept_away && taint.key != unschedulable.key && !is_tolerated(taint) {
            let value = taint.value.as_deref().unwrap_or_default();
            let equals = if value.is_empty() { "" } else { "=" };
            let taint = format!("{}{equals}{value}:{}", taint.key, taint.effect);
            hurdles.push(format!("taint {} of the node", text::name(&taint)));
        }
    }
    hurdles
}

/// Whether one of a selector's terms has the node. A term without a requirement has none.
pub fn is_selected(selector: &NodeSelector, node: &NodeFacts) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| has(term, node))
}

fn has(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && meets(requirement, Some(&node.name))
    };
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|requirement| {
            meets(
                requirement,
                node.labels.get(&requirement.key).map(String::as_str),
            )
        })
        && fields.iter().all(field)
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    let compared = || {
        let value: i64 = value?.parse().ok()?;
        let bound: i64 = values.first()?.parse().ok()?;
        Some(value.cmp(&bound))
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn node(spec: Value) -> NodeFacts {
        let labels = json!({"disk": "ssd", "size": "7"});
        let node = json!({"metadata": {"name": "n1", "labels": labels}, "spec": spec});
        NodeFacts::of(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn nodes_are_left_out_for_the_scheduler_s_reasons() {
        let plain = node(json!({}));
        let affine = |expression: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
        };
        for (spec, count) in [
            (json!({}), 0),
            (json!({"nodeName": "n1"}), 0),
            (json!({"nodeName": "n2"}), 1),
            (json!({"nodeSelector": {"disk": "ssd"}}), 0),
            (json!({"nodeSelector": {"disk": "hdd", "other": ""}}), 2),
            (
                affine(json!({"key": "size", "operator": "Gt", "values": ["6"]})),
                0,
            ),
            (
                affine(json!({"key": "size", "operator": "Lt", "values": ["7"]})),
                1,
            ),
            (
                affine(json!({"key": "none", "operator": "NotIn", "values": ["7"]})),
                0,
            ),
            (affine(json!({"key": "none", "operator": "Exists"})), 1),
        ] {
            let hurdles = hurdles(&pod(spec.clone()), &plain);
            assert_eq!(hurdles.len(), count, "{spec}: {hurdles:?}");
        }
        let tainted = node(json!({
            "unschedulable": true,
            "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                {"key": "gpu", "value": "only", "effect": "NoSchedule"},
                {"key": "soft", "effect": "PreferNoSchedule"},
            ],
        }));
        assert_eq!(
            hurdles(&pod(json!({})), &tainted),
            [
                "the node is cordoned",
                "taint gpu=only:NoSchedule of the node"
            ]
        );
        let tolerations = json!({"tolerations": [{"operator": "Exists"}]});
        assert!(hurdles(&pod(tolerations), &tainted).is_empty());
        let one = json!({"tolerations": [{"key": "gpu", "value": "only"}]});
        assert_eq!(hurdles(&pod(one), &tainted), ["the node is cordoned"]);
    }
}
