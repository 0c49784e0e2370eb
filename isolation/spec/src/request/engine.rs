//! What an orchestrator's engine says of a container: whether it is a pod's sandbox, which pod it is in, under which name.
//!
//! In `config.json` an engine's own annotations are beside those that a pod's author wrote. containerd writes its own last;
//! CRI-O passes on all of a pod's, writes a container's own over them, and a sandbox's below them. So neither may be asked
//! for what the other one writes, and what can be compared with something that no pod can know or change (the container's own
//! id, what CRI-O says twice) is compared.
//!
//! A container that is taken for a sandbox gets no limit, so that a sandbox is believed only as far as it asks for nothing.

use cards::{Name, PodNames};
use host_config::config::{Config, EnvironmentRule};
use host_config::terms::{APPLIED_KEY, ISOLATION_KEY, PREFIX, QUOTED_CHARS_MAX};
use serde_json::Value;

use super::cgpu_environment::EnvironmentTerms;
use super::claim;
use super::error::Error;
use crate::{escape_checks, json};

/// The engines that make pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    /// containerd's CRI.
    Containerd,
    /// CRI-O, and podman, which borrows its keys.
    Crio,
}

/// What containerd writes into every container of a pod. Other keys of its prefix are for pods' authors
/// (`io.kubernetes.cri.rdt-class`).
const CONTAINERD: [&str; 7] = [
    CONTAINERD_TYPE,
    CONTAINERD_SANDBOX,
    CONTAINERD_SANDBOX_NAME,
    CONTAINERD_NAMESPACE,
    CONTAINERD_UID,
    CONTAINERD_NAME,
    "io.kubernetes.cri.image-name",
];
const CONTAINERD_TYPE: &str = "io.kubernetes.cri.container-type";
const CONTAINERD_SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
const CONTAINERD_SANDBOX_NAME: &str = "io.kubernetes.cri.sandbox-name";
const CONTAINERD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const CONTAINERD_UID: &str = "io.kubernetes.cri.sandbox-uid";
const CONTAINERD_NAME: &str = "io.kubernetes.cri.container-name";

/// What CRI-O writes into every container of a pod, or into its sandbox. Other keys of its prefix are for pods' authors
/// (`io.kubernetes.cri-o.userns-mode`).
const CRIO: [&str; 9] = [
    CRIO_TYPE,
    CRIO_SANDBOX,
    CRIO_SANDBOX_NAME,
    CRIO_CONTAINER,
    CRIO_METADATA,
    "io.kubernetes.cri-o.ContainerName",
    "io.kubernetes.cri-o.Namespace",
    CRIO_OF_SANDBOXES[0],
    CRIO_OF_SANDBOXES[1],
];
const CRIO_TYPE: &str = "io.kubernetes.cri-o.ContainerType";
const CRIO_SANDBOX: &str = "io.kubernetes.cri-o.SandboxID";
const CRIO_SANDBOX_NAME: &str = "io.kubernetes.cri-o.SandboxName";
const CRIO_CONTAINER: &str = "io.kubernetes.cri-o.ContainerID";
const CRIO_METADATA: &str = "io.kubernetes.cri-o.Metadata";
/// What it writes into sandboxes alone.
const CRIO_OF_SANDBOXES: [&str; 2] = [
    "io.kubernetes.cri-o.KubeName",
    "io.kubernetes.cri-o.NamespaceOptions",
];

/// Labels of the kubelet's, which CRI-O writes as annotations over the pod's own.
const LABEL_NAME: &str = "io.kubernetes.container.name";
const LABEL_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const LABEL_POD: &str = "io.kubernetes.pod.name";
const LABEL_UID: &str = "io.kubernetes.pod.uid";

/// A container in its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InPod<'a> {
    pub(super) sandbox: &'a str,
    pub(super) container: String,
}

/// What the engine says of one container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role<'a> {
    /// It is a pod's sandbox, which asks for nothing whatever its annotations say.
    Sandbox,
    /// It is a container, of a pod or of none.
    Container(Option<InPod<'a>>),
}

/// Finds out what a container is. `id`: its own name in its engine.
///
/// # Errors
/// The annotations are of two engines; they contradict each other, or what is known otherwise, and the container asks for a vGPU.
pub(super) fn role<'a>(
    config: &Config,
    spec: &Value,
    annotations: &[(&'a str, &'a str)],
    id: Option<&str>,
) -> Result<Role<'a>, Error> {
    let Some(engine) = engine(annotations)? else {
        return Ok(Role::Container(None));
    };
    let value = |key: &str| value_of(annotations, key);
    let (kind_key, sandbox_key) = match engine {
        Engine::Containerd => (CONTAINERD_TYPE, CONTAINERD_SANDBOX),
        Engine::Crio => (CRIO_TYPE, CRIO_SANDBOX),
    };
    let sandbox = value(sandbox_key);
    let forged = |key: &'static str, why: &'static str| Error::ForgedRole {
        key,
        value: value(key)
            .unwrap_or_default()
            .chars()
            .take(QUOTED_CHARS_MAX)
            .collect(),
        why,
    };
    if value(kind_key) == Some("sandbox") {
        let is_itself = id.is_some() && sandbox == id;
        if !asks(config, spec, annotations)? {
            return Ok(Role::Sandbox);
        }
        if !is_itself {
            return Err(forged(kind_key, "the sandbox that is named is another one"));
        }
        if value(CONTAINERD_NAME).is_some() {
            return Err(forged(kind_key, "no sandbox has a container's name"));
        }
        if asks_by_environment(config, spec)? {
            return Err(forged(kind_key, "no sandbox asks by its environment"));
        }
        if escape_checks::has_a_card(spec)? {
            return Err(forged(kind_key, "no sandbox is given a card's node"));
        }
        return Ok(Role::Sandbox);
    }
    let contradiction = match engine {
        Engine::Containerd => None,
        Engine::Crio => {
            let sandboxes = CRIO_OF_SANDBOXES
                .into_iter()
                .find(|key| value(key).is_some());
            let other = id.is_some_and(|id| value(CRIO_CONTAINER).is_some_and(|own| own != id));
            sandboxes
                .map(|key| (key, "only a sandbox has it, and this is none"))
                .or_else(|| other.then_some((CRIO_CONTAINER, "the container has another id")))
        }
    };
    let itself = (id.is_some() && sandbox == id)
        .then_some((sandbox_key, "a container is not its own sandbox"));
    if let Some((key, why)) = contradiction.or(itself)
        && asks(config, spec, annotations)?
    {
        return Err(forged(key, why));
    }
    let container = match engine {
        Engine::Containerd => value(CONTAINERD_NAME).map(str::to_owned),
        Engine::Crio => {
            let label = value(LABEL_NAME);
            let own = value(CRIO_METADATA).and_then(name_in);
            if let (Some(label), Some(own)) = (label, &own)
                && label != own
                && asks(config, spec, annotations)?
            {
                return Err(forged(LABEL_NAME, "the container has another name"));
            }
            own.or_else(|| label.map(str::to_owned))
        }
    };
    Ok(Role::Container(
        sandbox
            .zip(container)
            .map(|(sandbox, container)| InPod { sandbox, container }),
    ))
}

/// Whether an engine says that a container is a pod's. Its author can take none of the engine's annotations away.
///
/// # Errors
/// The annotations are of two engines.
pub(super) fn is_in_pod(annotations: &[(&str, &str)]) -> Result<bool, Error> {
    Ok(engine(annotations)?.is_some())
}

/// Whether a container has others beside it in a pod. A sandbox has not: its image does nothing. It is believed where it names itself,
/// by an id that nobody else knows before it is made.
pub(crate) fn is_in_company(annotations: &[(&str, &str)], id: Option<&str>) -> bool {
    let value = |key: &str| value_of(annotations, key);
    let is_sandbox = |kind_key, sandbox_key| {
        value(kind_key) == Some("sandbox") && id.is_some() && value(sandbox_key) == id
    };
    match engine(annotations) {
        Ok(None) => false,
        Ok(Some(Engine::Containerd)) => !is_sandbox(CONTAINERD_TYPE, CONTAINERD_SANDBOX),
        Ok(Some(Engine::Crio)) => !is_sandbox(CRIO_TYPE, CRIO_SANDBOX),
        Err(_two_engines) => true,
    }
}

/// The pod's namespace, where an orchestrator says it: its tenants share one namespace of the engine, and a group's name
/// must not be theirs to guess.
///
/// # Errors
/// The annotations are of two engines, or CRI-O says two namespaces.
pub(super) fn pod_namespace(annotations: &[(&str, &str)]) -> Result<Option<String>, Error> {
    let value = |key: &str| value_of(annotations, key);
    match engine(annotations)? {
        Some(Engine::Containerd) => Ok(value(CONTAINERD_NAMESPACE).map(str::to_owned)),
        Some(Engine::Crio) => {
            let own = crio_pod(annotations).map(|pod| pod.namespace);
            let why = "the sandbox is of another namespace";
            let label = agreeing(annotations, LABEL_NAMESPACE, own, why)?;
            Ok(own.or(label).map(str::to_owned))
        }
        None => Ok(None),
    }
}

/// The uid of the pod that a container is in, where its engine says it.
///
/// # Errors
/// The annotations are of two engines, or CRI-O says two uids.
pub(super) fn pod_uid<'a>(annotations: &[(&'a str, &'a str)]) -> Result<Option<&'a str>, Error> {
    let value = |key: &str| value_of(annotations, key);
    match engine(annotations)? {
        Some(Engine::Containerd) => Ok(value(CONTAINERD_UID)),
        Some(Engine::Crio) => {
            let own = crio_pod(annotations).map(|pod| pod.uid);
            let _label = agreeing(annotations, LABEL_UID, own, "the sandbox is of another pod")?;
            // A label alone is the pod's author's word.
            Ok(own)
        }
        None => Ok(None),
    }
}

/// A label, which says the same as CRI-O's own word where that is there.
fn agreeing<'a>(
    annotations: &[(&'a str, &'a str)],
    key: &'static str,
    own: Option<&str>,
    why: &'static str,
) -> Result<Option<&'a str>, Error> {
    match (own, value_of(annotations, key)) {
        (Some(own), Some(label)) if own != label => Err(Error::ForgedRole {
            key,
            value: label.chars().take(QUOTED_CHARS_MAX).collect(),
            why,
        }),
        (_, label) => Ok(label),
    }
}

/// What people call a container of a pod: the pod's namespace, the pod, and the container in it. Nothing where the engine does not say
/// all three, or says one of them in two ways.
pub(super) fn pod_names(annotations: &[(&str, &str)]) -> Option<PodNames> {
    let value = |key: &str| value_of(annotations, key);
    // Where one is said, it is the same.
    let agreed = |own: Option<&str>, label: Option<&str>| {
        let contradicts = own.zip(label).is_some_and(|(own, label)| own != label);
        own.or(label).filter(|_| !contradicts).and_then(Name::new)
    };
    match engine(annotations).ok()?? {
        Engine::Containerd => Some(PodNames {
            namespace: Name::new(value(CONTAINERD_NAMESPACE)?)?,
            name: Name::new(value(CONTAINERD_SANDBOX_NAME)?)?,
            container: Name::new(value(CONTAINERD_NAME)?)?,
        }),
        Engine::Crio => {
            let pod = crio_pod(annotations);
            let own = value(CRIO_METADATA).and_then(name_in);
            Some(PodNames {
                namespace: agreed(pod.map(|pod| pod.namespace), value(LABEL_NAMESPACE))?,
                name: agreed(pod.map(|pod| pod.name), value(LABEL_POD))?,
                container: agreed(own.as_deref(), value(LABEL_NAME))?,
            })
        }
    }
}

/// A pod as CRI-O's name of its sandbox has it.
#[derive(Debug, Clone, Copy)]
struct CrioPod<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

/// Reads CRI-O's name of a sandbox, `k8s_<pod>_<namespace>_<uid>_<attempt>`; none of these has an underscore in a cluster.
fn crio_pod<'a>(annotations: &[(&'a str, &'a str)]) -> Option<CrioPod<'a>> {
    let name = value_of(annotations, CRIO_SANDBOX_NAME)?;
    let parts: Vec<&str> = name.split('_').collect();
    match parts.as_slice() {
        ["k8s", name, namespace, uid, _] => Some(CrioPod {
            name,
            namespace,
            uid,
        }),
        _ => None,
    }
}

/// Which engine made the container. Both cannot have: one of them would be played by whoever wrote the other one's keys.
fn engine(annotations: &[(&str, &str)]) -> Result<Option<Engine>, Error> {
    let first = |keys: &[&'static str]| {
        keys.iter()
            .copied()
            .find(|key| value_of(annotations, key).is_some())
    };
    match (first(&CONTAINERD), first(&CRIO)) {
        (Some(one), Some(other)) => Err(Error::TwoEngines { one, other }),
        (Some(_), None) => Ok(Some(Engine::Containerd)),
        (None, Some(_)) => Ok(Some(Engine::Crio)),
        (None, None) => Ok(None),
    }
}

/// Whether anything in the spec could ask for a vGPU, for whomever it is meant.
fn asks(config: &Config, spec: &Value, annotations: &[(&str, &str)]) -> Result<bool, Error> {
    let is_term =
        |key: &str| key.starts_with(PREFIX) && ![APPLIED_KEY, ISOLATION_KEY].contains(&key);
    Ok(annotations.iter().any(|(key, _)| is_term(key)) || asks_by_environment(config, spec)?)
}

fn asks_by_environment(config: &Config, spec: &Value) -> Result<bool, Error> {
    if claim::asks(&json::environment(spec)?) {
        return Ok(true);
    }
    if config.request.environment == EnvironmentRule::TightenOnly {
        return Ok(false);
    }
    let environment = EnvironmentTerms::read_if_asking(&json::environment(spec)?)?;
    Ok(environment.share.is_some())
}

fn value_of<'a>(annotations: &[(&'a str, &'a str)], needed: &str) -> Option<&'a str> {
    let mut found = annotations.iter().filter(|(key, _)| *key == needed);
    found.next().map(|(_, value)| *value)
}

/// The container's name in CRI-O's own record of it.
fn name_in(metadata: &str) -> Option<String> {
    let metadata: Value = serde_json::from_str(metadata).ok()?;
    Some(metadata.get("name")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests;
