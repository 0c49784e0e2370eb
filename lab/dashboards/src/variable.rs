//! What a dashboard lets its reader choose.

use serde_json::{Value, json};

/// A list of a label's values, of which one or more are chosen.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// Which values there are.
    pub(crate) query: &'static str,
}

impl Variable {
    /// Hosts.
    pub(crate) const INSTANCE: Self = Self {
        name: "instance",
        label: "Host",
        query: "label_values(cgpu_build_info, instance)",
    };
    /// Cards of the hosts.
    pub(crate) const CARD: Self = Self {
        name: "card",
        label: "GPU",
        query: "label_values(cgpu_card_info{instance=~\"$instance\"}, uuid)",
    };
    /// Pods' namespaces.
    pub(crate) const NAMESPACE: Self = Self {
        name: "namespace",
        label: "Namespace",
        query: "label_values(cgpu_container_info{instance=~\"$instance\"}, namespace)",
    };
    /// Pods of the namespaces.
    pub(crate) const POD: Self = Self {
        name: "pod",
        label: "Pod",
        query: "label_values(cgpu_container_info{instance=~\"$instance\", namespace=~\"$namespace\"}, pod)",
    };
    /// What engines call containers outside pods.
    pub(crate) const NAME: Self = Self {
        name: "name",
        label: "Container outside pods",
        query: "label_values(cgpu_container_info{instance=~\"$instance\"}, name)",
    };

    /// A name that is empty, as a pod's outside pods, is among all.
    pub(crate) fn json(&self) -> Value {
        json!({
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "definition": self.query,
            "query": {"query": self.query, "refId": self.name},
            "refresh": 2,
            "sort": 1,
            "multi": true,
            "includeAll": true,
            "allValue": ".*",
            "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        })
    }
}

/// Which Prometheus is asked: Grafana's default one, until its reader chooses.
pub(crate) fn datasource() -> Value {
    json!({
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {"selected": false, "text": "default", "value": "default"},
        "refresh": 1,
    })
}
