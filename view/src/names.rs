//! Which container is meant by a name.
//!
//! A name is any of what people see: `namespace/id`; the id; what docker, podman or nerdctl call the container, also behind the engine's
//! namespace; `pod/container`, also behind the pod's namespace; or the beginning of an id. Whoever makes a container chooses its names, so that none of them ever stands
//! for a container that is named by its engine's own digest.

use anyhow::bail;
use cards::called::is_digest;
pub use cards::called::short_id;
use cards::{ContainerKey, Name, Names, events};
use host_config::Config;

/// A container, and what people call it.
pub type Named = (ContainerKey, Names);

/// Characters of an id that are enough of it; docker takes fewer, of ids that nobody chooses.
const BEGINNING_LEAST: usize = 4;

/// Digits of an id that docker shows.
const SHORT_ID: usize = 12;

/// Characters that are wrong in a name that is meant.
const SLIPS_MOST: usize = 2;

/// A host may have hundreds.
const NAMES_MOST: usize = 10;

/// The container of this name, among those that have a vGPU.
///
/// # Errors
/// A state folder that cannot be read; none, or several, of that name.
pub fn find(config: &Config, name: &str) -> anyhow::Result<ContainerKey> {
    let named = vgpu::named(config)?;
    let found = pick(&named, name, "has a vGPU here");
    if found.is_err() && !has_beginning(&named, name) && has_events(config, name) {
        bail!(
            "no container {name:?} has a vGPU here; `cgpu events {name}` says what happened to one of that name"
        );
    }
    found
}

fn has_beginning(all: &[Named], name: &str) -> bool {
    all.iter()
        .any(|it| is_called(&it.0, &it.1, name) || begins(&it.0, name))
}

/// Whether anything is logged of a container of this name, which has no vGPU any more, or never had one.
fn has_events(config: &Config, name: &str) -> bool {
    let keys = events::containers(&config.state_dir).unwrap_or_default();
    keys.into_iter().any(|key| {
        let is_named = key.to_string() == name || key.id() == name;
        is_named || is_called(&key, &events::names_of(&config.state_dir, &key), name)
    })
}

/// The one of this name. `what`: what those that there are do.
///
/// # Errors
/// None, or several, of that name.
pub fn pick(all: &[Named], name: &str, what: &str) -> anyhow::Result<ContainerKey> {
    match every(all, name, what)?.as_slice() {
        [one] => Ok(one.clone()),
        several => {
            let several: Vec<&Named> = all.iter().filter(|it| several.contains(&it.0)).collect();
            bail!(
                "{name:?} is the name of several containers; use the id of one of {}",
                listed(&several, all)
            )
        }
    }
}

/// All of this name: several where it is a name of each, as of containers that came one after the other.
///
/// # Errors
/// None of that name; the beginning of several ids.
pub fn every(all: &[Named], name: &str, what: &str) -> anyhow::Result<Vec<ContainerKey>> {
    if let Some((key, _)) = all.iter().find(|(key, _)| key.to_string() == name) {
        return Ok(vec![key.clone()]);
    }
    let is_of_id = |(key, _): &&Named| key.id() == name;
    let digest = all.iter().filter(is_of_id).find(|it| is_digest(it.0.id()));
    if let Some((key, _)) = digest {
        return Ok(vec![key.clone()]);
    }
    let called: Vec<&Named> = all
        .iter()
        .filter(|it| is_of_id(it) || is_called(&it.0, &it.1, name))
        .collect();
    let begins: Vec<&Named> = all.iter().filter(|it| begins(&it.0, name)).collect();
    let is_short_digest = |it: &&Named| {
        beginning(name).len() >= SHORT_ID && is_digest(it.0.id()) && !called.contains(it)
    };
    let short: Vec<&Named> = begins.iter().copied().filter(is_short_digest).collect();
    let found = match (called.is_empty(), short.is_empty()) {
        (false, true) => return Ok(called.into_iter().map(|it| it.0.clone()).collect()),
        // A name that looks like another container's id.
        (false, false) => [called, short].concat(),
        (true, _) => begins,
    };
    match found.as_slice() {
        [one] if beginning(name).len() >= BEGINNING_LEAST => Ok(vec![one.0.clone()]),
        [] => bail!(
            "no container {name:?} {what}; containers that do: {}",
            known(all, name)
        ),
        [one] => bail!(
            "{name:?} is too short: give at least {BEGINNING_LEAST} characters of an id; is it {}?",
            listed(&[one], all)
        ),
        several => bail!(
            "{name:?} may be several containers; use more of the id of one of {}",
            listed(several, all)
        ),
    }
}

/// Whether people call it so.
fn is_called(key: &ContainerKey, names: &Names, name: &str) -> bool {
    let is_in_pod = names.pod.as_ref().is_some_and(|pod| {
        let in_pod = format!("{}/{}", pod.name, pod.container);
        name == in_pod || name == format!("{}/{in_pod}", pod.namespace)
    });
    let behind_namespace = name
        .split_once('/')
        .filter(|(namespace, _)| *namespace == key.namespace());
    let own = names.name.as_ref().map(Name::as_str);
    is_in_pod || own == Some(name) || (own.is_some() && own == behind_namespace.map(|(_, it)| it))
}

/// What of a name is an id's beginning.
fn beginning(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, id)| id)
}

fn begins(key: &ContainerKey, name: &str) -> bool {
    match name.split_once('/') {
        Some((namespace, id)) => {
            key.namespace() == namespace && !id.is_empty() && key.id().starts_with(id)
        }
        None => !name.is_empty() && key.id().starts_with(name),
    }
}

/// [`short_id`], in full where another one of `ids` begins alike.
#[must_use]
pub fn short_among<'a, 'b>(id: &'a str, ids: impl IntoIterator<Item = &'b str>) -> &'a str {
    let short = short_id(id);
    let alike = ids.into_iter().filter(|other| other.starts_with(short));
    if alike.count() > 1 { id } else { short }
}

/// The containers that there are, those first that may have been meant.
fn known(all: &[Named], name: &str) -> String {
    let is_near = |text: &str| strsim::osa_distance(text, name) <= SLIPS_MOST;
    let may_be_meant =
        |(key, names): &Named| is_near(key.id()) || names.text().is_some_and(|text| is_near(&text));
    let mut known: Vec<&Named> = all.iter().collect();
    known.sort_by_cached_key(|it| !may_be_meant(it));
    listed(&known, all)
}

/// Containers with their names, no more than can be read.
fn listed(some: &[&Named], all: &[Named]) -> String {
    let text = |(key, names): &Named| {
        let id = short_among(key.id(), all.iter().map(|(other, _)| other.id()));
        let called = names.text().map(|text| format!(" ({text})"));
        format!("{}/{id}{}", key.namespace(), called.unwrap_or_default())
    };
    let texts: Vec<String> = some.iter().map(|it| text(it)).collect();
    match texts.get(..NAMES_MOST) {
        _ if texts.is_empty() => "none".to_owned(),
        Some(first) if texts.len() > NAMES_MOST => {
            format!("{} and {} more", first.join(", "), texts.len() - NAMES_MOST)
        }
        _ => texts.join(", "),
    }
}

#[cfg(test)]
mod tests;
