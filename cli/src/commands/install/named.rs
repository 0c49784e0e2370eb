//! The programs of ours that engines' files name, also where somebody else than `cgpu install` has written that.

use std::path::PathBuf;

use serde_json::Value;

use super::change::{Document, Format};
use super::plan::{HOOK, HOOK_JSON, SHIM, TYPE, WRAPPER};

/// The keys by which engines name their default runtime: docker, containerd, CRI-O, podman.
const DEFAULTS: [&str; 4] = [
    "default-runtime",
    "default_runtime_name",
    "default_runtime",
    "runtime",
];

/// How a file of an engine is written, by its name.
pub(super) fn format_of(path: &str) -> Format {
    match path.rsplit('.').next() {
        Some("json") => Format::Json,
        _ => Format::Toml,
    }
}

/// Every text that names a program of ours, or the shim's type.
pub(super) fn ours(value: &Value, into: &mut Vec<PathBuf>) {
    match value {
        Value::String(text) if is_ours(text) => into.push(PathBuf::from(text)),
        Value::Array(elements) => elements.iter().for_each(|element| ours(element, into)),
        Value::Object(members) => members.values().for_each(|member| ours(member, into)),
        _ => {}
    }
}

fn is_ours(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or_default();
    text.starts_with('/') && [SHIM, WRAPPER, HOOK].contains(&name) || text == TYPE
}

/// What is to be known of files of one engine from which everything is gone that `cgpu install` has written: those that still name a
/// program of ours. One that cannot be read, which the engine refuses as well, names nothing.
pub(super) fn left_by_hand<'a>(files: impl IntoIterator<Item = (&'a str, String)>) -> Vec<String> {
    let read = files.into_iter().filter_map(|(path, text)| {
        let document = Document::parse(format_of(path), &text).ok()?;
        Some((path, document.value().ok()?))
    });
    let read: Vec<(&str, Value)> = read.collect();
    let (mut defaults, mut runtimes) = (Vec::new(), Vec::new());
    for (_, value) in &read {
        names(value, &mut defaults, &mut runtimes);
    }
    let is_default = |name: &&str| is_ours(name) || runtimes.contains(name);
    let has_default = defaults.iter().any(is_default);
    let naming = read.iter().filter_map(|(path, value)| {
        let mut programs = Vec::new();
        ours(value, &mut programs);
        // A path comes before the type's name, by which a shim is looked for.
        Some((*path, programs.into_iter().min()?))
    });
    naming
        .map(|(path, program)| {
            let found = format!(
                "{path} names {}, which `cgpu install` did not write: take it out by hand",
                program.display()
            );
            // A hook is called for every container.
            match has_default || path == HOOK_JSON {
                true => format!("{found}; without cgpu's programs the engine starts no container"),
                false => found,
            }
        })
        .collect()
}

/// The names of default runtimes, and of runtimes that lead to a program of ours.
fn names<'a>(value: &'a Value, defaults: &mut Vec<&'a str>, runtimes: &mut Vec<&'a str>) {
    let Value::Object(members) = value else {
        return;
    };
    for (key, member) in members {
        match member {
            Value::String(name) if DEFAULTS.contains(&key.as_str()) => defaults.push(name),
            Value::Object(all) if key == "runtimes" => {
                let leads_to_ours = |runtime: &Value| {
                    let mut programs = Vec::new();
                    ours(runtime, &mut programs);
                    !programs.is_empty()
                };
                let named = all.iter().filter(|(_, runtime)| leads_to_ours(runtime));
                runtimes.extend(named.map(|(name, _)| name.as_str()));
            }
            _ => {}
        }
        names(member, defaults, runtimes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{CONTAINERD_MAIN, CONTAINERS_CONF, CRIO_CONF, DAEMON_JSON, DROP_IN};
    use super::*;

    const NO_CONTAINER: &str = "the engine starts no container";

    fn left(files: &[(&str, &str)]) -> Vec<String> {
        left_by_hand(files.iter().map(|(path, text)| (*path, (*text).to_owned())))
    }

    #[test]
    fn a_file_that_names_a_program_is_named_and_others_are_not() {
        let docker =
            r#"{"runtimes": {"gpu": {"path": "/opt/cgpu-runtime"}}, "default-runtime": "nvidia"}"#;
        let found = left(&[(DAEMON_JSON, docker)]);
        assert!(
            matches!(&found[..], [one] if one.starts_with("/etc/docker/daemon.json names /opt/cgpu-runtime")),
            "{found:?}"
        );
        assert!(!found[0].contains(NO_CONTAINER), "{found:?}");
        let others = [
            r#"{"runtimes": {"kata": {"path": "/usr/bin/kata"}}}"#,
            "{ // no JSON",
        ];
        for other in others {
            assert_eq!(left(&[(DAEMON_JSON, other)]), [""; 0]);
        }
    }

    #[test]
    fn a_default_runtime_is_one_by_each_engines_own_key() {
        let by_type = r#"{"default-runtime": "io.containerd.cgpu.v2"}"#;
        let podman =
            "[engine]\nruntime = \"x\"\n[engine.runtimes]\nx = [\"/usr/bin/cgpu-runtime\"]\n";
        let crio = "[crio.runtime]\ndefault_runtime = \"x\"\n[crio.runtime.runtimes.x]\nruntime_path = \"/usr/bin/cgpu-runtime\"\n";
        let hook = r#"{"hook": {"path": "/usr/bin/cgpu-hook"}}"#;
        for (path, text) in [
            (DAEMON_JSON, by_type),
            (CONTAINERS_CONF, podman),
            (CRIO_CONF, crio),
            (HOOK_JSON, hook),
        ] {
            let found = left(&[(path, text)]);
            assert!(found[0].contains(NO_CONTAINER), "{path}: {found:?}");
        }
        // containerd's may be in another file than the runtime.
        let main = "[plugins.x.containerd]\ndefault_runtime_name = \"x\"\n";
        let runtime =
            "[plugins.x.containerd.runtimes.x]\nruntime_type = \"io.containerd.cgpu.v2\"\n";
        let found = left(&[(CONTAINERD_MAIN, main), (DROP_IN, runtime)]);
        assert!(
            matches!(&found[..], [one] if one.starts_with(DROP_IN) && one.contains(NO_CONTAINER)),
            "{found:?}"
        );
    }
}
