//! Which container is meant by a name.

use anyhow::bail;
use cards::ContainerKey;
use host_config::Config;

/// The container of this name.
///
/// # Errors
/// A state folder that cannot be read; none, or several, of that name.
pub fn find(config: &Config, name: &str) -> anyhow::Result<ContainerKey> {
    let all: Vec<ContainerKey> = vgpu::list(config)?
        .into_iter()
        .map(|state| state.grant.key)
        .collect();
    pick(&all, name, "has a vGPU here")
}

/// The one of this name: an id, or a namespace and an id, in full or by its beginning. `what`: what those that there are do.
///
/// # Errors
/// None, or several, of that name.
pub fn pick(all: &[ContainerKey], name: &str, what: &str) -> anyhow::Result<ContainerKey> {
    let is_named = |key: &&ContainerKey| key.to_string() == name || key.id() == name;
    let begins = |key: &&ContainerKey| {
        !name.is_empty()
            && (key.to_string().starts_with(name) && name.contains('/')
                || key.id().starts_with(name))
    };
    let mut named: Vec<&ContainerKey> = all.iter().filter(is_named).collect();
    if named.is_empty() {
        named = all.iter().filter(begins).collect();
    }
    match named.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            // What was meant comes first.
            let mut known: Vec<&ContainerKey> = all.iter().collect();
            known.sort_by_cached_key(|key| strsim::osa_distance(key.id(), name) > SLIPS_MOST);
            let known: Vec<String> = known.into_iter().map(ToString::to_string).collect();
            bail!(
                "no container {name:?} {what}; containers that do: {}",
                or_none(&known)
            )
        }
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!(
                "{name:?} is the id of several containers, or the beginning of their ids; name one of {}",
                several.join(", ")
            )
        }
    }
}

/// Digits of an id that docker shows.
const SHORT_ID: usize = 12;

/// An id as docker shows it: a digest of 64 digits by its first twelve, every other one in full.
#[must_use]
pub fn short_id(id: &str) -> &str {
    let is_digest = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    id.get(..SHORT_ID).filter(|_| is_digest).unwrap_or(id)
}

/// Letters that are wrong in a name that is meant.
const SLIPS_MOST: usize = 2;

/// A host may have hundreds.
const NAMES_MOST: usize = 10;

fn or_none(names: &[String]) -> String {
    match names.get(..NAMES_MOST) {
        _ if names.is_empty() => "none".to_owned(),
        Some(first) if names.len() > NAMES_MOST => {
            format!("{} and {} more", first.join(", "), names.len() - NAMES_MOST)
        }
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_as_engines_show_it() {
        let key = |namespace: &str, id: &str| ContainerKey::new(namespace, id).unwrap();
        let all = [
            key("default", "dup"),
            key("moby", "dup"),
            key("moby", "e95e304dafa2aa"),
            key("moby", "e95f"),
            key("moby", "e95"),
        ];
        for (name, id) in [
            ("e95e304dafa2", "e95e304dafa2aa"),
            ("moby/e95e", "e95e304dafa2aa"),
            ("e95f", "e95f"),
            // Whole names come first.
            ("e95", "e95"),
            ("moby/dup", "dup"),
        ] {
            assert_eq!(
                pick(&all, name, "is here").unwrap(),
                key("moby", id),
                "{name}"
            );
        }
        let many: Vec<ContainerKey> = (0..12).map(|n| key("moby", &format!("c{n}"))).collect();
        let error = pick(&many, "web", "is here").unwrap_err().to_string();
        assert!(error.ends_with(" and 2 more"), "{error}");
        let error = pick(&many, "c-11", "is here").unwrap_err().to_string();
        assert!(
            error.contains("containers that do: moby/c1, moby/c10, moby/c11, "),
            "{error}"
        );
        for (name, part) in [
            ("dup", "default/dup, moby/dup"),
            ("e", "moby/e95e304dafa2aa, moby/e95f, moby/e95"),
            ("web", "no container \"web\""),
            ("", "no container \"\""),
            ("mob", "no container"),
        ] {
            let error = pick(&all, name, "is here").unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
