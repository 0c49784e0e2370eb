//! Which templates the pods of a cluster name; pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::shape::Shape;

/// A template: its namespace and its name.
pub(super) type Key = (String, String);

/// What is kept of each translated pod that may still need a claim.
#[derive(Debug, Default)]
pub(super) struct Needed {
    pods: BTreeMap<String, Vec<Key>>,
    /// How many pods name each; one of them, to report to.
    keys: BTreeMap<Key, (usize, Waiting)>,
}

/// A pod, as an event names it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) name: String,
    pub(super) uid: String,
}

impl Needed {
    /// A pod as the server has it: what it named before is forgotten.
    pub(super) fn update(&mut self, pod: &Pod) {
        self.remove(pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let keys = named(pod);
        if keys.is_empty() {
            return;
        }
        for key in &keys {
            let (count, last) = self.keys.entry(key.clone()).or_default();
            *count += 1;
            *last = waiting(pod);
        }
        self.pods.insert(uid, keys);
    }

    /// A pod that is gone.
    pub(super) fn remove(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for key in self.pods.remove(uid).unwrap_or_default() {
            if let Some((count, _)) = self.keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(&key);
                }
            }
        }
    }

    /// Every template that some pod names, with a pod that does.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Waiting)> {
        self.keys.iter().map(|(key, (_, waiting))| (key, waiting))
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }
}

/// The pod as an event names it.
pub(super) fn waiting(pod: &Pod) -> Waiting {
    Waiting {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// Templates with a shape that a pod names and that it has no claim of yet, or may be made again with.
pub(super) fn named(pod: &Pod) -> Vec<Key> {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let claims = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten());
    let mut keys: Vec<Key> = claims
        .filter_map(|claim| claim.resource_claim_template_name.as_ref())
        .filter(|name| Shape::of_name(name).is_some())
        .map(|name| (namespace.clone(), name.clone()))
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, phase: &str, templates: &[&str]) -> Pod {
        let claims: Vec<_> = templates
            .iter()
            .enumerate()
            .map(|(index, name)| json!({"name": format!("c{index}"), "resourceClaimTemplateName": name}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": uid, "uid": uid},
            "spec": {"containers": [], "resourceClaims": claims},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn all(needed: &Needed) -> Vec<&str> {
        needed.all().map(|((_, name), _)| name.as_str()).collect()
    }

    #[test]
    fn a_template_is_needed_while_a_pod_names_it() {
        let mut needed = Needed::default();
        let (first, second) = ("cgpu-m4-c0-x1", "cgpu-m8-c0-x1");
        needed.update(&pod(
            "a",
            "Pending",
            &[first, second, first, "own", "cgpu-mine"],
        ));
        needed.update(&pod("b", "Pending", &[first]));
        assert_eq!(all(&needed), [first, second]);
        // The same again changes nothing, and its end is its end.
        needed.update(&pod("a", "Running", &[first, second]));
        needed.update(&pod("a", "Succeeded", &[first, second]));
        assert_eq!(all(&needed), [first]);
        needed.remove(&pod("a", "Succeeded", &[]));
        needed.remove(&pod("b", "Pending", &[]));
        assert_eq!(all(&needed), [""; 0]);
        assert!(needed.pods.is_empty() && needed.keys.is_empty());
    }
}
