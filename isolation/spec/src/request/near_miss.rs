//! What a container that makes no request says that is nearly one: misspelt names, half a request, and what other systems call
//! it. Such a container starts without a card, and nobody would learn why.
//!
//! A misspelt name is found by its distance from the names that there are; what others write is in [`FOREIGN`]. Nothing
//! here grants anything: what is found becomes a text, for an event or a refusal.

use std::fmt;
use std::path::Path;

use cards::placement::MIB;
use host_config::config::EnvironmentRule;
use host_config::terms::{self, ALLOWED_KEYS, MEMORY_KEY, PREFIX};
use host_config::walk::cleaned;
use serde_json::Value;

use super::Parts;
use super::cgpu_environment::{self, CONTAINER, REQUESTS, VISIBLE_CARDS};
use crate::json::{self, ShapeError};

/// So many are named; an event has one line.
const NAMED_MAX: usize = 3;

/// Of a value that is quoted. It comes from strangers.
const VALUE_CHARS_MAX: usize = 40;

/// Of a name that is quoted, or looked at: longer ones are near to nothing.
const NAME_BYTES_MAX: usize = 64;

/// Fewer letters of a name may begin anything.
const BEGINNING_MIN: usize = 3;

/// All of cGPU's variables begin so, and nobody else's do.
const VARIABLE_PREFIX: &str = "ALIYUN_COM_GPU_";

/// gpushare's sum over a pod's containers.
const OF_POD: &str = "ALIYUN_COM_GPU_MEM_POD";

/// Where CRI-O writes a container's labels, one JSON object.
const CRIO_LABELS: &str = "io.kubernetes.cri-o.Labels";

/// NVIDIA's hooks: docker 20.10 and later write the first for `--gpus`, CDI the last two (also for `podman --device nvidia.com/gpu=all`).
/// Whether each does nothing where [`VISIBLE_CARDS`] names no card.
const HOOKS: [(&str, bool); 4] = [
    ("nvidia-container-runtime-hook", true),
    ("nvidia-container-toolkit", true),
    ("nvidia-ctk", false),
    ("nvidia-cdi-hook", false),
];

/// The points of a container's life at which hooks are called before its program runs.
const HOOK_POINTS: [&str; 4] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
];

/// What another system calls what cgpu calls otherwise.
struct Foreign {
    place: Place,
    /// The name, or, for variables that are numbered by card, its beginning.
    name: &'static str,
    of: &'static str,
    is: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Annotation,
    Variable,
}

/// What its value is, and so what to write.
#[derive(Clone, Copy)]
enum Meaning {
    /// Memory; without a unit in so many bytes.
    Memory(u64),
    /// A part of each card's memory, percent.
    MemoryPercent,
    /// A part of a card's time, percent.
    Compute,
    /// A number of cards.
    Cards,
}

/// Sources: HAMi's "GPU Partitioning" (resources of a pod), which people write as annotations, and the README of its library HAMi-core
/// (variables; `1g`, `1024m`, or bytes).
const FOREIGN: [Foreign; 6] = [
    Foreign {
        place: Place::Annotation,
        name: "nvidia.com/gpumem",
        of: "HAMi",
        is: Meaning::Memory(MIB),
    },
    Foreign {
        place: Place::Annotation,
        name: "nvidia.com/gpumem-percentage",
        of: "HAMi",
        is: Meaning::MemoryPercent,
    },
    Foreign {
        place: Place::Annotation,
        name: "nvidia.com/gpucores",
        of: "HAMi",
        is: Meaning::Compute,
    },
    Foreign {
        place: Place::Annotation,
        name: "nvidia.com/gpu",
        of: "NVIDIA's device plugin",
        is: Meaning::Cards,
    },
    Foreign {
        place: Place::Variable,
        name: "CUDA_DEVICE_MEMORY_LIMIT",
        of: "HAMi",
        is: Meaning::Memory(1),
    },
    Foreign {
        place: Place::Variable,
        name: "CUDA_DEVICE_SM_LIMIT",
        of: "HAMi",
        is: Meaning::Compute,
    },
];

/// What was found, for people: names and values quoted and cut, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearMiss {
    text: String,
}

impl fmt::Display for NearMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NearMiss {
    /// Looks through a spec that makes no request.
    pub(super) fn find(parts: &Parts<'_>) -> Option<Self> {
        let (variables, annotations) = (&parts.variables, &parts.annotations);
        let may_ask = parts.config.request.environment == EnvironmentRule::Request;
        let labels = annotations.iter().filter(|(key, _)| *key == CRIO_LABELS);
        let mut found = Found::default();
        found.extend(variables.iter().filter_map(misspelt_variable));
        found.extend(annotations.iter().filter_map(misspelt_annotation));
        found.extend(labels.filter_map(|(_, labels)| label(labels)));
        if found.named.is_empty() {
            // A right name beside the misspelt one needs no word of its own.
            found.extend(variables.iter().find_map(|entry| half(entry, may_ask)));
        }
        let of_variable = |entry: &(&str, &str)| foreign(Place::Variable, entry);
        let of_annotation = |entry: &(&str, &str)| foreign(Place::Annotation, entry);
        found.extend(variables.iter().filter_map(of_variable));
        found.extend(annotations.iter().filter_map(of_annotation));
        found.extend(hook(parts).or_else(|| visible_cards(variables)));
        found.text().map(|text| Self { text })
    }
}

/// What was found, however much of it there is.
#[derive(Default)]
struct Found {
    named: Vec<String>,
    more: usize,
}

impl Found {
    fn extend(&mut self, found: impl IntoIterator<Item = String>) {
        for one in found {
            if self.named.len() < NAMED_MAX {
                self.named.push(one);
            } else {
                self.more += 1;
            }
        }
    }

    fn text(self) -> Option<String> {
        if self.named.is_empty() {
            return None;
        }
        let mut text = self.named.join("; ");
        if self.more > 0 {
            text.push_str(&format!("; and {} more", self.more));
        }
        text.push_str(&format!(
            " (4 GiB of a card of 24 GiB are requested by the annotation {MEMORY_KEY}=4Gi, or by {CONTAINER}=4 and ALIYUN_COM_GPU_MEM_DEV=24 in the environment)"
        ));
        Some(text)
    }
}

/// A name and its value, as they are shown.
fn shown(name: &str, value: &str) -> String {
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    let is_long = value.chars().nth(VALUE_CHARS_MAX).is_some();
    let value: String = value.chars().take(VALUE_CHARS_MAX).collect();
    let dots = if is_long { "…" } else { "" };
    // What is not printed as it is could be read as the log's own.
    format!("{} = {value:?}{dots}", name.escape_debug())
}

/// Whether a word is a misspelt name: one slip, and one more for every eight letters. `None`: it is far from it. A slip is a letter
/// too many, too few, another one, or two that changed places.
fn distance(word: &str, name: &str) -> Option<usize> {
    let slips = 1 + name.len() / 8;
    (word.len().abs_diff(name.len()) <= slips)
        .then(|| strsim::osa_distance(word, name))
        .filter(|distance| *distance <= slips)
}

/// One of cGPU's variables, misspelt, or one of our terms that was written as a variable.
fn misspelt_variable((name, value): &(&str, &str)) -> Option<String> {
    if name.len() > NAME_BYTES_MAX || REQUESTS.contains(name) {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    let nearest = REQUESTS
        .into_iter()
        .filter_map(|known| Some((distance(&upper, known)?, known)))
        .min();
    let what = match nearest {
        // It is as near to the card's size as to its index.
        _ if upper == OF_POD => {
            format!("is the sum over a pod's containers, which is not read: write {CONTAINER}")
        }
        Some((_, known)) => format!("is unknown: write {known}"),
        None if upper.starts_with(VARIABLE_PREFIX) => format!("is unknown: write {CONTAINER}"),
        None => {
            let key = term(&upper.strip_prefix("CGPU_")?.to_ascii_lowercase())?;
            let write = written(key, value);
            format!("is not a variable of cgpu: write the annotation {write}")
        }
    };
    Some(format!("{} {what}", shown(name, value)))
}

/// Our annotation whose term is written so, or nearly so.
fn term(word: &str) -> Option<&'static str> {
    let word = word.replace('_', "-");
    let distance_of = |key: &&'static str| {
        let term = key.strip_prefix(PREFIX)?;
        if word.len() >= BEGINNING_MIN && term.starts_with(&word) {
            return Some(0);
        }
        distance(&word, term)
    };
    ALLOWED_KEYS
        .into_iter()
        .filter_map(|key| Some((distance_of(&key)?, key)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, key)| key)
}

/// An annotation with its value, where that would be taken.
fn written(key: &str, value: &str) -> String {
    // A number may have any number of zeros before it, and space of any kind behind it.
    let amount: String = value.split_whitespace().collect();
    let is_amount = amount.len() <= VALUE_CHARS_MAX && terms::memory(key, &amount).is_ok();
    match key {
        MEMORY_KEY if is_amount => format!("{key}={amount}"),
        MEMORY_KEY => format!("{key}=4Gi"),
        _ => format!("{key} beside {MEMORY_KEY}"),
    }
}

/// One of our annotations under another domain, or without one.
fn misspelt_annotation((key, value): &(&str, &str)) -> Option<String> {
    if key.len() > NAME_BYTES_MAX || key.starts_with(PREFIX) {
        return None;
    }
    if *key == CONTAINER {
        return Some(format!(
            "the annotation {} is a variable of the environment: write it there, or the annotation {MEMORY_KEY}",
            shown(key, value)
        ));
    }
    let lower = key.to_ascii_lowercase();
    let word = match lower.rsplit_once('/') {
        Some((domain, word)) => {
            let is_near =
                distance(domain, "cgpu.io").is_some() || domain.split('.').next() == Some("cgpu");
            // In a pod a container's name may follow.
            is_near.then(|| word.split_once('.').map_or(word, |(word, _)| word))?
        }
        None => {
            let word = lower.strip_prefix("cgpu")?;
            let word = word.strip_prefix(".io").unwrap_or(word);
            word.strip_prefix(['.', '-', '_', ':'])?
        }
    };
    Some(format!(
        "the annotation {} is unknown: write {}",
        shown(key, value),
        written(term(word)?, value)
    ))
}

/// A label that has one of our names: of all engines CRI-O alone passes labels on.
fn label(labels: &str) -> Option<String> {
    let labels: Value = serde_json::from_str(labels).ok()?;
    let ours = labels
        .as_object()?
        .iter()
        .find(|(key, _)| key.starts_with(PREFIX))?;
    let shown = shown(ours.0, ours.1.as_str().unwrap_or_default());
    Some(format!(
        "the label {shown} asks for nothing: write it as an annotation"
    ))
}

/// A right name that asks for nothing: alone, or on a host where no variable may.
fn half((name, value): &(&str, &str), may_ask: bool) -> Option<String> {
    if !REQUESTS.contains(name) {
        return None;
    }
    let shown = shown(name, value);
    if *name == CONTAINER && !may_ask {
        return Some(format!(
            "{shown} may not ask on this host (`[request] environment = \"tighten_only\"` of cgpu.toml): write the annotation {MEMORY_KEY}"
        ));
    }
    (*name != CONTAINER).then(|| format!("{shown} asks for nothing without {CONTAINER}"))
}

/// Another system's request.
fn foreign(place: Place, (name, value): &(&str, &str)) -> Option<String> {
    let is_it = |foreign: &&Foreign| {
        foreign.place == place
            && match place {
                Place::Annotation => *name == foreign.name,
                // `…_0`, `…_1` are those of one card.
                Place::Variable => name.strip_prefix(foreign.name).is_some_and(|rest| {
                    rest.strip_prefix('_').map_or(rest.is_empty(), |card| {
                        card.bytes().all(|byte| byte.is_ascii_digit())
                    })
                }),
            }
    };
    let foreign = FOREIGN.iter().find(is_it)?;
    let number = value
        .trim()
        .parse::<u64>()
        .ok()
        .filter(|number| *number > 0);
    let write = match (foreign.is, number) {
        (Meaning::Memory(unit_bytes), Some(number)) => {
            let mebibytes = number.saturating_mul(unit_bytes) / MIB;
            format!("{MEMORY_KEY}={}Mi", mebibytes.max(1))
        }
        (Meaning::Memory(_), None) => written(MEMORY_KEY, value),
        (Meaning::MemoryPercent, Some(percent @ 1..=100)) => format!("{MEMORY_KEY}={percent}%"),
        (Meaning::MemoryPercent, _) => format!("{MEMORY_KEY}=25%"),
        (Meaning::Compute, Some(percent @ 1..=100)) => {
            format!("cgpu.io/compute={percent} beside {MEMORY_KEY}")
        }
        (Meaning::Compute, _) => format!("cgpu.io/compute beside {MEMORY_KEY}"),
        (Meaning::Cards, Some(count)) => format!("cgpu.io/cards={count} beside {MEMORY_KEY}"),
        (Meaning::Cards, None) => MEMORY_KEY.to_owned(),
    };
    let what = match place {
        Place::Annotation => "the annotation ",
        Place::Variable => "",
    };
    Some(format!(
        "{what}{} is for {}: write the annotation {write}",
        shown(name, value),
        foreign.of
    ))
}

/// NVIDIA's variable, which asks NVIDIA's own runtime for whole cards.
fn visible_cards(variables: &[(&str, &str)]) -> Option<String> {
    if cgpu_environment::wants_no_visible_card(variables) {
        return None;
    }
    let (name, value) = variables.iter().find(|(name, _)| *name == VISIBLE_CARDS)?;
    Some(format!(
        "{} is for NVIDIA's own runtime, and says nothing of memory: write the annotation {MEMORY_KEY}, or {VISIBLE_CARDS}=void where no card is wanted",
        shown(name, value)
    ))
}

/// A hook of NVIDIA's, which gives whole cards that nobody holds the container to.
fn hook(parts: &Parts<'_>) -> Option<String> {
    let (point, name) = hook_of(parts.spec, &parts.variables)?;
    Some(format!(
        "{} (`docker --gpus`, CDI) gives whole cards: leave it out, and write the annotation {MEMORY_KEY}",
        shown(&format!("the hook {point}"), name)
    ))
}

/// From whom the hook of NVIDIA's toolkit takes which cards a container gets: what its configuration on this host says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toolkit {
    /// From the environment of a container without CAP_SYS_ADMIN, which whoever writes a pod or an image chooses.
    pub reads_variable: bool,
    /// From mounts of `/dev/null` below `/var/run/nvidia-container-devices`.
    pub reads_mounts: bool,
}

/// Whether a container gets whole cards by a hook of NVIDIA's. Engines may have it in every spec (CRI-O's `always: true`): one that reads
/// the variable does nothing where that names no card, or where the toolkit does not take this container's word.
pub(crate) fn has_hook(spec: &Value, toolkit: Toolkit) -> Result<bool, ShapeError> {
    let variables = json::environment(spec)?;
    let has = |variable: &str| variables.iter().any(|(name, _)| *name == variable);
    // Images of before the variable are given all cards: NVIDIA's toolkit tells them by these two.
    let is_legacy = has("CUDA_VERSION") && !has("NVIDIA_REQUIRE_CUDA");
    let is_named = has(VISIBLE_CARDS) || is_legacy;
    let is_given = is_named
        && (toolkit.reads_variable
            || is_privileged(spec)
            || toolkit.reads_mounts && mounts_name_cards(spec)?);
    let none = [(VISIBLE_CARDS, "void")];
    let obeyed = if is_given { &variables[..] } else { &none };
    Ok(hook_of(spec, obeyed).is_some())
}

/// As the toolkit tells it.
fn is_privileged(spec: &Value) -> bool {
    let bounding = spec.pointer("/process/capabilities/bounding");
    bounding
        .and_then(Value::as_array)
        .is_some_and(|bounding| bounding.iter().any(|name| name == "CAP_SYS_ADMIN"))
}

/// How the device plugin names cards to a toolkit that takes no variable. That such a mount's source is `/dev/null` is what makes it the
/// node's word: no volume of a pod has that one but a `hostPath`.
fn mounts_name_cards(spec: &Value) -> Result<bool, ShapeError> {
    let leads = |mount: &Value, end: &str| {
        let path = mount.get(end).and_then(Value::as_str).unwrap_or_default();
        cleaned(Path::new(path))
    };
    let names_a_card = |mount: &Value| {
        let destination = leads(mount, "destination");
        leads(mount, "source") == Path::new("/dev/null")
            && destination
                .strip_prefix("/var/run/nvidia-container-devices")
                .is_ok_and(|name| !name.as_os_str().is_empty())
    };
    let mounts = json::list(json::object(spec, "")?, "", "mounts")?;
    Ok(mounts.iter().any(names_a_card))
}

fn hook_of<'a>(spec: &'a Value, variables: &[(&str, &str)]) -> Option<(&'static str, &'a str)> {
    let wants_none = cgpu_environment::wants_no_visible_card(variables);
    let hooks = spec.get("hooks")?;
    HOOK_POINTS.iter().find_map(|point| {
        let hooks = hooks.get(point)?.as_array()?;
        let mut names = hooks
            .iter()
            .filter_map(|hook| Path::new(hook.get("path")?.as_str()?).file_name()?.to_str());
        let is_nvidia_s = |name: &&str| {
            HOOKS
                .iter()
                .any(|(hook, reads)| hook == name && !(*reads && wants_none))
        };
        Some((*point, names.find(is_nvidia_s)?))
    })
}

#[cfg(test)]
mod tests;
