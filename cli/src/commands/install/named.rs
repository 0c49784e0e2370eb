//! The programs of ours that engines' files name, also where somebody else than `cgpu install` has written that.

use std::path::PathBuf;

use serde_json::Value;

use super::change::{Document, Format};
use super::files::TEMPLATE;
use super::plan::{HOOK, SHIM, TYPE, WRAPPER};

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
pub(super) fn ours(value: &Value) -> Vec<PathBuf> {
    let mut texts = Vec::new();
    texts_of(value, &mut texts);
    let ours = texts.into_iter().filter(|text| is_ours(text));
    ours.map(PathBuf::from).collect()
}

fn texts_of<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Array(elements) => elements.iter().for_each(|element| texts_of(element, into)),
        Value::Object(members) => members.values().for_each(|member| texts_of(member, into)),
        _ => {}
    }
}

fn is_ours(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or_default();
    text.starts_with('/') && [SHIM, WRAPPER, HOOK].contains(&name) || text == TYPE
}

/// What is to be known of files of one engine from which everything is gone that `cgpu install` has written: those that still name a
/// program of ours. `goes`: whether the engine is there, and this program, or that of the shim's type, is not there afterwards. A file
/// that cannot be read, which the engine refuses as well, names nothing.
pub(super) fn left_by_hand(
    files: impl IntoIterator<Item = (String, String)>,
    goes: impl Fn(&str) -> bool,
) -> Vec<String> {
    let read = files.into_iter().filter_map(|(path, text)| {
        let value = value_of(&path, &text)?;
        Some((path, value))
    });
    let read: Vec<(String, Value)> = read.collect();
    let goes = |text: &str| is_ours(text) && goes(text);
    let leads_away = |value: &Value| {
        let mut texts = Vec::new();
        texts_of(value, &mut texts);
        texts.into_iter().any(goes)
    };
    let (mut defaults, mut runtimes) = (Vec::new(), Vec::new());
    for (_, value) in &read {
        names(value, &leads_away, &mut defaults, &mut runtimes);
    }
    let is_default = |name: &&str| goes(name) || runtimes.contains(name);
    let has_default = defaults.iter().any(is_default);
    let naming = read.iter().filter_map(|(path, value)| {
        // A path comes before the type's name, by which a shim is looked for.
        let program = ours(value).into_iter().min()?;
        let found = format!(
            "{path} names {}, which `cgpu install` did not write: take it out by hand",
            program.display()
        );
        let is_needed = has_default || is_called_always(value);
        Some(match is_needed && leads_away(value) {
            true => format!("{found}; without cgpu's programs the engine starts no container"),
            false => found,
        })
    });
    naming.collect()
}

/// What a file has. A template is no TOML in the lines of its own language, and where these are needed the words of its text are left.
fn value_of(path: &str, text: &str) -> Option<Value> {
    let parsed = |text: &str| {
        let document = Document::parse(format_of(path), text).ok()?;
        document.value().ok()
    };
    if !path.ends_with(TEMPLATE) {
        return parsed(text);
    }
    let lines = text.lines().filter(|line| !line.contains("{{"));
    let lines: Vec<&str> = lines.collect();
    parsed(&lines.join("\n")).or_else(|| {
        let words = text.split(|c: char| c.is_whitespace() || "\"'=[],".contains(c));
        Some(words.collect())
    })
}

/// Whether it is a hook that is called for every container.
fn is_called_always(value: &Value) -> bool {
    value.get("hook").is_some() && value.pointer("/when/always") == Some(&Value::Bool(true))
}

/// The names of default runtimes, and of runtimes that lead to a program that goes.
fn names<'a>(
    value: &'a Value,
    leads_away: &impl Fn(&Value) -> bool,
    defaults: &mut Vec<&'a str>,
    runtimes: &mut Vec<&'a str>,
) {
    let Value::Object(members) = value else {
        return;
    };
    for (key, member) in members {
        match member {
            Value::String(name) if DEFAULTS.contains(&key.as_str()) => defaults.push(name),
            Value::Object(all) if key == "runtimes" => {
                let named = all.iter().filter(|(_, runtime)| leads_away(runtime));
                runtimes.extend(named.map(|(name, _)| name.as_str()));
            }
            _ => {}
        }
        names(member, leads_away, defaults, runtimes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{
        CONTAINERD_MAIN, CONTAINERS_CONF, CRIO_CONF, DAEMON_JSON, DROP_IN, HOOK_JSON,
    };
    use super::*;

    const NO_CONTAINER: &str = "the engine starts no container";

    fn left(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter();
        let files = files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        left_by_hand(files, |program| !program.starts_with("/opt/"))
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
        let hook = r#"{"hook": {"path": "/usr/bin/cgpu-hook"}, "when": {"always": true}}"#;
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

    #[test]
    fn an_engine_goes_on_without_what_it_does_not_need() {
        let elsewhere = r#"{"runtimes": {"x": {"path": "/opt/cgpu-runtime"}}, "default-runtime": "x", "y": "/usr/bin/cgpu-runtime"}"#;
        let by_path = r#"{"default-runtime": "/opt/cgpu-runtime"}"#;
        let seldom =
            r#"{"hook": {"path": "/usr/bin/cgpu-hook"}, "when": {"annotations": {"gpu": "yes"}}}"#;
        let other = r#"{"hook": {"path": "/opt/cgpu-hook"}, "when": {"always": true}}"#;
        for (path, text) in [
            (DAEMON_JSON, elsewhere),
            (DAEMON_JSON, by_path),
            (HOOK_JSON, seldom),
            (HOOK_JSON, other),
        ] {
            let found = left(&[(path, text)]);
            assert!(
                matches!(&found[..], [one] if !one.contains(NO_CONTAINER)),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn a_template_is_read_as_far_as_it_is_toml() {
        let path = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl";
        let runtime =
            "[plugins.x.containerd.runtimes.x]\nruntime_type = \"io.containerd.cgpu.v2\"\n";
        let default = "[plugins.x.containerd]\ndefault_runtime_name = \"x\"\n";
        for (text, is_needed) in [
            (format!("{{{{ template \"base\" . }}}}\n{runtime}"), false),
            (
                format!("{{{{ template \"base\" . }}}}\n{default}{runtime}"),
                true,
            ),
            (format!("x =\n{default}{runtime}"), false),
        ] {
            let found = left(&[(path, &text)]);
            assert!(
                matches!(&found[..], [one] if one.contains(NO_CONTAINER) == is_needed),
                "{text}: {found:?}"
            );
        }
    }
}
