//! Which templates the pods of a cluster name; pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fit::lean::Pod;

use super::shape::Shape;

/// A template: its namespace and its name.
pub(super) type Key = (String, String);

/// Templates of one pod. Admission translates each container's keys to one; a pod that its author has labelled by hand may name thousands.
const OF_POD_MAX: usize = 64;

/// Templates of one namespace's pods that are made and reported. Past these the pods wait.
pub(super) const OF_NAMESPACE_MAX: usize = 1000;

/// What is kept of each translated pod that may still need a claim.
#[derive(Debug, Default)]
pub(super) struct Needed {
    pods: BTreeMap<String, Vec<Arc<Key>>>,
    /// How many pods name each; one of them, to report to.
    keys: BTreeMap<Arc<Key>, (usize, Waiting)>,
    /// How many keys a namespace has.
    of_namespaces: BTreeMap<String, usize>,
    /// Namespaces with keys past the maximum, which are not kept: one of these, and its pod.
    full: BTreeMap<String, (Key, Waiting)>,
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
        let mut kept = Vec::new();
        for key in named(pod) {
            kept.extend(self.add(key, pod));
        }
        if !kept.is_empty() {
            self.pods.insert(uid, kept);
        }
    }

    /// `None`: the namespace has too many.
    fn add(&mut self, key: Key, pod: &Pod) -> Option<Arc<Key>> {
        let known = self.keys.get_key_value(&key).map(|(known, _)| known);
        let key = match known {
            Some(known) => Arc::clone(known),
            None => {
                let of_namespace = self.of_namespaces.entry(key.0.clone()).or_default();
                if *of_namespace >= OF_NAMESPACE_MAX {
                    self.full.insert(key.0.clone(), (key, waiting(pod)));
                    return None;
                }
                *of_namespace += 1;
                Arc::new(key)
            }
        };
        let (count, last) = self.keys.entry(Arc::clone(&key)).or_default();
        *count += 1;
        *last = waiting(pod);
        Some(key)
    }

    /// A pod that is gone.
    pub(super) fn remove(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for key in self.pods.remove(uid).unwrap_or_default() {
            let Some((count, _)) = self.keys.get_mut(&key) else {
                continue;
            };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            self.keys.remove(&key);
            let (namespace, _) = key.as_ref();
            if let Some(count) = self.of_namespaces.get_mut(namespace) {
                *count -= 1;
                if *count == 0 {
                    self.of_namespaces.remove(namespace);
                }
            }
        }
    }

    /// Every template that some pod names, with a pod that does.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Waiting)> {
        let keys = self.keys.iter();
        keys.map(|(key, (_, waiting))| (key.as_ref(), waiting))
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Whether pods that were left out may have their templates now: all are to be listed again.
    pub(super) fn is_outdated(&self) -> bool {
        let of = |namespace| self.of_namespaces.get(namespace).copied().unwrap_or(0);
        self.full
            .keys()
            .any(|namespace| of(namespace) < OF_NAMESPACE_MAX)
    }

    /// Of each namespace that names too many, a template that is left out and a pod that names it.
    pub(super) fn left_out(&self) -> impl Iterator<Item = (&Key, &Waiting)> {
        self.full.values().map(|(key, waiting)| (key, waiting))
    }
}

/// The pod as an event names it.
pub(super) fn waiting(pod: &Pod) -> Waiting {
    Waiting {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// Templates with a shape that a pod names and that it has no claim of yet, or may be made again with: the first ones by their names.
pub(super) fn named(pod: &Pod) -> Vec<Key> {
    if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let claims = pod.spec.resource_claims.0.iter().flatten().flatten();
    let names = claims.filter_map(|claim| claim.resource_claim_template_name.as_ref());
    let mut keys = BTreeSet::new();
    for name in names.filter(|name| Shape::of_name(name).is_some()) {
        keys.insert((namespace.clone(), name.clone()));
        if keys.len() > OF_POD_MAX {
            keys.pop_last();
        }
    }
    keys.into_iter().collect()
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
        assert!(needed.of_namespaces.is_empty() && !needed.is_outdated());
    }

    /// A pod that names 800 templates, each another one: about as many as are read of a pod.
    fn many(uid: &str, from: usize) -> Pod {
        let names: Vec<String> = (from..from + 800)
            .map(|at| format!("cgpu-m{}mi-c0-x1", at * 2 + 1))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        pod(uid, "Pending", &names)
    }

    #[test]
    fn a_pod_and_a_namespace_that_name_templates_by_the_thousand_have_a_bounded_number() {
        let mut needed = Needed::default();
        needed.update(&many("a", 0));
        assert_eq!(all(&needed).len(), OF_POD_MAX);
        let others: Vec<Pod> = (1..100)
            .map(|at| many(&format!("p{at}"), at * 800))
            .collect();
        for other in &others {
            needed.update(other);
        }
        assert_eq!(all(&needed).len(), OF_NAMESPACE_MAX);
        let mut elsewhere = many("other", 0);
        elsewhere.metadata.namespace = Some("other".to_owned());
        needed.update(&elsewhere);
        assert_eq!(all(&needed).len(), OF_NAMESPACE_MAX + OF_POD_MAX);
        // Who was left out is listed again when there is a place.
        assert!(!needed.is_outdated());
        let left_out: Vec<_> = needed.left_out().map(|(key, _)| key.0.as_str()).collect();
        assert_eq!(left_out, ["team"]);
        needed.remove(&many("a", 0));
        assert!(needed.is_outdated());
        // Nobody names so many.
        let names = vec!["cgpu-m4-c0-x1"; 10_000];
        assert_eq!(named(&pod("b", "Pending", &names)), []);
    }
}
