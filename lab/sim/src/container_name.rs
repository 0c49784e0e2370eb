//! Which container a fault is for, by what `cgpu ps` shows of it.

use std::fs;
use std::path::Path;

use anyhow::bail;
use cards::{Called, ContainerKey, Names, names_file};

/// Characters of an id that are enough of it.
const BEGINNING_LEAST: usize = 4;

/// The session of a container: `namespace/id`. What names none of cgpu's containers stays as it is: a session may be anybody's.
///
/// # Errors
/// A name of several containers; one without a namespace that is nobody's.
pub(crate) fn session_of(state_dir: &Path, name: String) -> anyhow::Result<String> {
    let all = containers(&state_dir.join("vgpus"));
    if all.iter().any(|(key, _)| key.to_string() == name) {
        return Ok(name);
    }
    let is_called = |(key, names): &&(ContainerKey, Names)| forms(key, names).contains(&name);
    let begins = |(key, _): &&(ContainerKey, Names)| {
        let id = name.rsplit('/').next().unwrap_or_default();
        let key_begins = key.to_string().starts_with(&name);
        id.len() >= BEGINNING_LEAST && (key.id().starts_with(&name) || key_begins)
    };
    let mut found: Vec<_> = all.iter().filter(is_called).collect();
    if found.is_empty() {
        found = all.iter().filter(begins).collect();
    }
    let listed = |some: &mut dyn Iterator<Item = &(ContainerKey, Names)>| {
        let texts = some.map(|(key, names)| Called::new(key, names).to_string());
        texts.collect::<Vec<_>>().join(", ")
    };
    match found.as_slice() {
        [(key, _)] => Ok(key.to_string()),
        [] if name.contains('/') => Ok(name),
        [] => bail!(
            "no container {name:?} here; those that there are: {}",
            listed(&mut all.iter())
        ),
        several => bail!(
            "{name:?} may be several containers: {}",
            listed(&mut several.iter().copied())
        ),
    }
}

/// What people call it.
fn forms(key: &ContainerKey, names: &Names) -> Vec<String> {
    let mut forms = vec![key.id().to_owned()];
    if let Some(name) = &names.name {
        forms.extend([name.to_string(), format!("{}/{name}", key.namespace())]);
    }
    if let Some(pod) = &names.pod {
        let in_pod = format!("{}/{}", pod.name, pod.container);
        forms.extend([format!("{}/{in_pod}", pod.namespace), in_pod]);
    }
    forms
}

/// Those that have a folder, with their names.
fn containers(vgpus: &Path) -> Vec<(ContainerKey, Names)> {
    let folders = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let all = folders(vgpus).flat_map(|namespace| {
        let text = namespace.file_name().to_string_lossy().into_owned();
        folders(&namespace.path()).filter_map(move |folder| {
            let id = folder.file_name().to_string_lossy().into_owned();
            let key = ContainerKey::new(text.clone(), id).ok()?;
            Some((key, names_file::read(&folder.path())))
        })
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_as_ps_shows_it() {
        let state = tempfile::tempdir().unwrap();
        let digest = format!("5a5219ab3a53{}", "0".repeat(52));
        let make = |key: &str, names: &str| {
            let folder = state.path().join("vgpus").join(key);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("names.json"), names).unwrap();
        };
        let web = format!("moby/{digest}");
        make(&web, r#"{"name":"web"}"#);
        make("podman/p1", r#"{"name":"db"}"#);
        make("default/d1", r#"{"name":"db"}"#);
        let pod = r#"{"pod":{"namespace":"team-a","name":"p1","container":"app"}}"#;
        make("k8s.io/c1", pod);
        let of = |name: &str| session_of(state.path(), name.to_owned());
        for name in ["web", "moby/web", "5a52", "moby/5a5219ab3a53", &web] {
            assert_eq!(of(name).unwrap(), web, "{name}");
        }
        for name in ["p1/app", "team-a/p1/app", "c1"] {
            assert_eq!(of(name).unwrap(), "k8s.io/c1", "{name}");
        }
        assert_eq!(of("podman/db").unwrap(), "podman/p1");
        // Anybody's session, which the simulator knows or not.
        assert_eq!(of("test/other").unwrap(), "test/other");
        let several = of("db").unwrap_err().to_string();
        assert!(
            several.contains("db (default/d1), db (podman/p1)"),
            "{several}"
        );
        let none = of("wab").unwrap_err().to_string();
        assert!(none.contains("web (moby/5a5219ab3a53)"), "{none}");
    }
}
