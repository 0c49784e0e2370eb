//! Pods and claims that the policies are tried with: `integration/kubernetes/cases.yaml`.

use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::recorded::Answer;
use crate::cache::repository;

/// One of them, and what has to come of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it is about, and its name in the recorded answers.
    pub case: String,
    /// A namespace of [`super::prepare`]; `default` without.
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pod: Option<Value>,
    #[serde(default)]
    claim: Option<Value>,
    #[serde(default)]
    template: Option<Value>,
    /// The templates that the pod's claims are made from, its own among them; none for what has to be left alone.
    #[serde(default)]
    templates: Option<Vec<String>>,
    /// By what nodes it prefers: operators of terms by the label that agents keep, and how many other terms it has.
    #[serde(default)]
    prefers: Option<(String, usize)>,
    /// How many terms of its own it has where the policy adds none.
    #[serde(default)]
    own: usize,
    /// It is refused, and the reason has all of these.
    #[serde(default)]
    refused: Vec<String>,
    /// It is admitted with a warning that has all of these.
    #[serde(default)]
    warned: Vec<String>,
}

/// All cases.
///
/// # Errors
/// The file cannot be read.
pub fn cases() -> Result<Vec<Case>> {
    let path = repository().join("integration/kubernetes/cases.yaml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

impl Case {
    /// What the server is sent. What every pod has is filled in.
    ///
    /// # Errors
    /// The case has not exactly one object.
    pub fn object(&self) -> Result<Value> {
        let of = |kind: &str, spec: &Value| {
            json!({
                "apiVersion": "resource.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": "case"},
                "spec": spec,
            })
        };
        let mut object = match (&self.pod, &self.claim, &self.template) {
            (Some(pod), None, None) => whole_pod(pod),
            (None, Some(spec), None) => of("ResourceClaim", spec),
            (None, None, Some(spec)) => of("ResourceClaimTemplate", &json!({"spec": spec})),
            _ => bail!("{}: no object, or more than one", self.case),
        };
        let namespace = self.namespace.as_deref().unwrap_or("default");
        object["metadata"]["namespace"] = json!(namespace);
        Ok(object)
    }

    /// Compares an answer with what has to come of it.
    ///
    /// # Errors
    /// It is another one.
    pub fn check(&self, answer: &Answer) -> Result<()> {
        let all = |text: &str, parts: &[String]| parts.iter().all(|part| text.contains(part));
        if !self.refused.is_empty() {
            return match &answer.refused {
                Some(reason) if all(reason, &self.refused) => Ok(()),
                Some(reason) => bail!(
                    "{}: refused without {:?}: {reason}",
                    self.case,
                    self.refused
                ),
                None => bail!("{}: not refused: {answer:?}", self.case),
            };
        }
        if let Some(reason) = &answer.refused {
            bail!("{}: refused: {reason}", self.case);
        }
        if !all(&answer.warnings.join("\n"), &self.warned)
            || self.warned.is_empty() != answer.warnings.is_empty()
        {
            bail!(
                "{}: warnings {:?}, not {:?}",
                self.case,
                answer.warnings,
                self.warned
            );
        }
        self.check_preferences(answer)?;
        if let Some(expected) = &self.templates {
            let claims = answer.admitted["resourceClaims"].as_array();
            let seen: Vec<&str> = claims
                .into_iter()
                .flatten()
                .filter_map(|claim| claim["resourceClaimTemplateName"].as_str())
                .collect();
            if seen != *expected {
                bail!("{}: claims of {seen:?}, not {expected:?}", self.case);
            }
            let is_ours = expected.iter().any(|name| name.starts_with("cgpu-"));
            let is_labelled = answer.admitted["labels"]["cgpu.io/translated"] == "true";
            let has_keys = answer.admitted["resources"]
                .to_string()
                .contains("aliyun.com/gpu-")
                || answer.admitted["resources"]
                    .to_string()
                    .contains("nvidia.com/gpum");
            if is_ours && (!is_labelled || has_keys) {
                bail!("{}: not wholly translated: {answer:?}", self.case);
            }
        }
        Ok(())
    }
}

impl Case {
    /// Ten terms of equal weight by the label, or none; those of the author's own stay before them.
    fn check_preferences(&self, answer: &Answer) -> Result<()> {
        let path = "/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        let affinity = answer.admitted["affinity"].as_str().unwrap_or("null");
        let affinity: Value = serde_json::from_str(affinity)?;
        let terms = affinity.pointer(path).and_then(Value::as_array);
        let operator = |term: &Value| {
            let expression = &term["preference"]["matchExpressions"][0];
            let is_ours = expression["key"] == "cgpu.io/memory-given" && term["weight"] == 10;
            is_ours.then(|| {
                expression["operator"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
        };
        let seen: Vec<Option<String>> = terms.into_iter().flatten().map(operator).collect();
        let expected = match &self.prefers {
            None => vec![None; self.own],
            Some((operator, others)) => {
                [vec![None; *others], vec![Some(operator.clone()); 10]].concat()
            }
        };
        if seen != expected {
            bail!("{}: prefers by {seen:?}, not {expected:?}", self.case);
        }
        Ok(())
    }
}

fn whole_pod(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("case");
    for kind in ["containers", "initContainers"] {
        if let Some(containers) = pod["spec"][kind].as_array_mut() {
            for (index, container) in containers.iter_mut().enumerate() {
                container["image"] = json!("busybox");
                if container.get("name").is_none() {
                    container["name"] = json!(format!("c{index}"));
                }
            }
        }
    }
    pod
}
