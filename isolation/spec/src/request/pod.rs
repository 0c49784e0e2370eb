//! Pods: which of a pod's terms are a container's.
//!
//! Engines give a pod's annotations to every container of it, and to the sandbox. So a term can name its container,
//! `cgpu.io/memory.app`, and what an unnamed one means depends on what it is:
//!
//! - **An amount** (`cgpu.io/memory`) is the pod's, and is granted once: to the container that is created first, as long as it
//!   runs. An init container's comes back before the next container starts, and a container that is started again gets it
//!   again. Another container of the pod is refused meanwhile, since nobody has said which of them is meant.
//! - **Every other** term is a default for the containers that have an amount, by name or by cGPU's environment, which is a
//!   container's own. It asks for nothing by itself.
//!
//! As soon as one amount names its container, those that are not named ask for nothing.

use host_config::terms::{
    self, ALLOWED_KEYS, APPLIED_KEY, ISOLATION_KEY, MEMORY_KEY, NODES_KEY, PREFIX,
};

use super::engine::InPod;
use super::error::Error;

/// A DNS label (RFC 1123), as Kubernetes wants containers' names to be.
const NAME_CHARS_MAX: usize = 63;

/// Where in a pod a container stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlace {
    /// The sandbox's name in its engine.
    pub sandbox: String,
    /// The container's name in the pod; it stays when the container is started again.
    pub container: String,
    /// Whose amount of memory it asks for.
    pub amount: AmountOf,
}

/// Whose an amount of memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmountOf {
    /// The container's own.
    Container,
    /// The pod's, which one container has at a time.
    Pod,
}

/// The terms of one container.
#[derive(Debug)]
pub(super) struct PodTerms<'a> {
    /// Without the containers' names.
    pub(super) annotations: Vec<(&'a str, &'a str)>,
    pub(super) place: Option<PodPlace>,
    /// Whether they ask for anything; else they are defaults, for a container whose environment asks.
    pub(super) ask: bool,
    /// Whether the pod's author has said which other container gets memory.
    pub(super) name_another: bool,
}

/// Takes from all annotations those that are this container's.
///
/// # Errors
/// A name where there is no pod, or in no key of ours; an amount for the pod beside one for a container.
pub(super) fn terms<'a>(
    annotations: &[(&'a str, &'a str)],
    place: Option<InPod<'_>>,
) -> Result<PodTerms<'a>, Error> {
    let Some(InPod { sandbox, container }) = place else {
        return Ok(PodTerms {
            annotations: annotations.to_vec(),
            place: None,
            ask: true,
            name_another: false,
        });
    };
    let mut own = Vec::new();
    let mut others_amount = None;
    let mut of_pod = Vec::new();
    for (key, value) in annotations {
        if !key.starts_with(PREFIX) || [APPLIED_KEY, ISOLATION_KEY, NODES_KEY].contains(key) {
            continue;
        }
        match named(key)? {
            (_, None) => of_pod.push((*key, *value)),
            (base, Some(name)) if name == container => own.push((base, *value)),
            (MEMORY_KEY, Some(_)) => others_amount = Some(*key),
            (_, Some(_)) => {}
        }
    }
    let amount = |terms: &[(&str, &str)]| terms.iter().any(|(key, _)| *key == MEMORY_KEY);
    let has_own = amount(&own);
    let named_amount = others_amount.or_else(|| has_own.then_some("cgpu.io/memory.<container>"));
    if let (true, Some(named)) = (amount(&of_pod), named_amount) {
        return Err(Error::Contradiction {
            one: format!("{MEMORY_KEY}, which is for the pod,"),
            other: format!("{named:.128}, which is for one container of it: name all of them"),
        });
    }
    let is_pod_s = amount(&of_pod);
    // An unnamed default of a pod asks for nothing; what names this container wants something for it.
    let ask = is_pod_s || !own.is_empty();
    of_pod.retain(|(key, _)| !own.iter().any(|(own, _)| own == key));
    own.extend(of_pod);
    Ok(PodTerms {
        annotations: own,
        place: Some(PodPlace {
            sandbox: sandbox.to_owned(),
            container,
            amount: if is_pod_s {
                AmountOf::Pod
            } else {
                AmountOf::Container
            },
        }),
        ask,
        name_another: others_amount.is_some(),
    })
}

/// A key of ours and the container that it names. Our own keys have no dot.
fn named(key: &str) -> Result<(&'static str, Option<&str>), terms::Error> {
    let unknown = || terms::Error::UnknownKey {
        key: key.chars().take(128).collect(),
        allowed: format!("{}, each also as KEY.CONTAINER", ALLOWED_KEYS.join(", ")),
    };
    let (base, name) = match key.split_at(PREFIX.len()).1.split_once('.') {
        Some((term, name)) => (PREFIX.len() + term.len(), Some(name)),
        None => (key.len(), None),
    };
    let base = key.get(..base).unwrap_or(key);
    let known = ALLOWED_KEYS.into_iter().find(|known| *known == base);
    if name.is_some_and(|name| !is_name(name)) {
        return Err(unknown());
    }
    Ok((known.ok_or_else(unknown)?, name))
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}
