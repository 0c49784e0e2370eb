//! containerd: a CRI runtime handler.
//!
//! How a file that `imports` names is taken in differs, as `containerd config dump` of each shows:
//!
//! - 1.6 and 1.7 replace a plugin's whole section by the imported one. A drop-in would take the node's own CRI settings
//!   away (pause image, CNI, registries, the other runtimes): the handler goes into `config.toml` itself.
//! - 2.x joins sections, but reads the main file's as of the newest version among the files: a drop-in of version 3 beside a
//!   main file of version 2 takes its CRI settings away. The drop-in is of the main file's version.
//!
//! A table `runtimes` without `runc` takes 1.x's own runc entry away, so the first one that is made brings it along.

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{AsDefault, HEADER, InstallRequest, Needed, Plan, SHIM, TYPE, Texts, not_anothers};
use crate::commands::install::change::{Change, Document, Format};
use crate::commands::install::engine::Version;

pub(in super::super) const FOLDER: &str = "/etc/containerd";
pub(in super::super) const MAIN: &str = "/etc/containerd/config.toml";
pub(in super::super) const DROP_IN: &str = "/etc/containerd/conf.d/cgpu.toml";
/// A pattern, so that a drop-in which somebody removes by hand is no error to containerd.
const IMPORT: &str = "/etc/containerd/conf.d/cgpu*.toml";

/// The newest version of the file that is known. Version 4 came with containerd 2.3 and moved what is beside the plugins only.
const NEWEST: i64 = 4;

/// The CRI runtime's section, by the file's version.
pub(in super::super) fn section(version: i64) -> [&'static str; 3] {
    if version >= 3 {
        ["plugins", "io.containerd.cri.v1.runtime", "containerd"]
    } else {
        ["plugins", "io.containerd.grpc.v1.cri", "containerd"]
    }
}

pub(super) fn plan(
    version: Version,
    request: &InstallRequest,
    texts: &Texts,
    effective: Option<&Value>,
) -> anyhow::Result<Plan> {
    if version < Version(1, 6) {
        bail!("containerd {version} is older than 1.6, the oldest that cgpu was run with");
    }
    let text = |path: &'static str| texts.get(path).and_then(Option::as_deref);
    let main = text(MAIN);
    let document =
        Document::parse(Format::Toml, main.unwrap_or_default()).with_context(|| MAIN.to_owned())?;
    if let Some(reason) = cri_is_off(&document)? {
        return Ok(Plan::Nothing(reason));
    }
    let file_version = match document.at(&["version"])? {
        None => None,
        Some(value) => Some(
            value
                .as_i64()
                .with_context(|| format!("{MAIN}: version is {value}, not a number"))?,
        ),
    };
    if version.0 >= 2 {
        joined(
            request,
            file_version,
            &document,
            text(DROP_IN),
            main,
            effective,
        )
    } else {
        in_place(version, request, file_version, &document, main, effective)
    }
}

/// Why no pod would ever come to a handler of this containerd.
fn cri_is_off(document: &Document) -> anyhow::Result<Option<String>> {
    let disabled = document.at(&["disabled_plugins"])?.unwrap_or(Value::Null);
    let cri = [
        "cri",
        "io.containerd.grpc.v1.cri",
        "io.containerd.cri.v1.runtime",
    ];
    let off = disabled
        .as_array()
        .into_iter()
        .flatten()
        .any(|name| name.as_str().is_some_and(|name| cri.contains(&name)));
    Ok(off.then(|| {
        format!(
            "{MAIN} disables the CRI plugin, and handlers are CRI's alone; `--runtime io.containerd.cgpu.v2` needs no configuration"
        )
    }))
}

/// 1.x: the handler is in `config.toml`.
fn in_place(
    version: Version,
    request: &InstallRequest,
    file_version: Option<i64>,
    document: &Document,
    main: Option<&str>,
    effective: Option<&Value>,
) -> anyhow::Result<Plan> {
    let mut changes = Vec::new();
    let keys_of_version_1 = ["plugins", "required_plugins"];
    match file_version {
        Some(2) => {}
        None if main.is_none() => {}
        None => {
            for key in keys_of_version_1 {
                if document.at(&[key])?.is_some() {
                    bail!(
                        "{MAIN} is of version 1 (it has `{key}` and no `version`): rewrite it as version 2 first, whose plugins have full names"
                    );
                }
            }
            changes.push(Change::set(&["version"], json!(2)));
        }
        Some(other) => bail!(
            "{MAIN} is of version {other}, and containerd 1.6 and 1.7 read handlers from version 2: rewrite it first"
        ),
    }
    let [plugins, cri, containerd] = section(2);
    let runtimes = [plugins, cri, containerd, "runtimes"];
    let handler = [
        plugins,
        cri,
        containerd,
        "runtimes",
        request.runtime.as_str(),
    ];
    not_anothers(Format::Toml, MAIN, main, &handler, request)?;
    if document.at(&runtimes)?.is_none() {
        changes.push(Change::set(
            &[plugins, cri, containerd, "runtimes", "runc"],
            own_runc(version),
        ));
    }
    if request.as_default == AsDefault::Yes {
        changes.push(Change::set(
            &[plugins, cri, containerd, "default_runtime_name"],
            json!(request.runtime),
        ));
    }
    let cgroups = systemd_cgroup(document, 2, effective)?;
    let runtime = if version < WITH_PATHS {
        runtime_by_type()
    } else {
        runtime(request, cgroups)
    };
    changes.push(Change::set(&handler, runtime));
    Ok(Plan::Files(vec![Needed {
        path: MAIN,
        format: Format::Toml,
        fresh: format!("{HEADER}version = 2\n"),
        changes,
    }]))
}

/// containerd's own entry, as its defaults have it.
fn own_runc(version: Version) -> Value {
    let mut runc = json!({ "runtime_type": "io.containerd.runc.v2" });
    if version >= Version(1, 7) {
        runc["sandbox_mode"] = json!("podsandbox");
    }
    runc
}

/// 2.x: a drop-in, and one line in `config.toml` where nothing there names its folder.
fn joined(
    request: &InstallRequest,
    file_version: Option<i64>,
    document: &Document,
    drop_in: Option<&str>,
    main: Option<&str>,
    effective: Option<&Value>,
) -> anyhow::Result<Plan> {
    let version = match file_version {
        None => 3,
        Some(version @ 2..=NEWEST) => version,
        Some(other) if other < 2 => bail!(
            "{MAIN} is of version {other}, and cgpu knows 2 to {NEWEST}: `containerd config migrate` rewrites it"
        ),
        Some(other) => bail!(
            "{MAIN} is of version {other}, which is newer than this cgpu: it knows 2 to {NEWEST}"
        ),
    };
    let [plugins, cri, containerd] = section(version);
    let handler = [
        plugins,
        cri,
        containerd,
        "runtimes",
        request.runtime.as_str(),
    ];
    not_anothers(Format::Toml, DROP_IN, drop_in, &handler, request)?;
    not_anothers(Format::Toml, MAIN, main, &handler, request)?;
    let mut changes = Vec::new();
    if request.as_default == AsDefault::Yes {
        changes.push(Change::set(
            &[plugins, cri, containerd, "default_runtime_name"],
            json!(request.runtime),
        ));
    }
    let cgroups = systemd_cgroup(document, version, effective)?;
    changes.push(Change::set(&handler, runtime(request, cgroups)));
    let mut files = vec![Needed {
        path: DROP_IN,
        format: Format::Toml,
        fresh: format!("{HEADER}version = {version}\n"),
        changes,
    }];
    let imports = document.at(&["imports"])?.unwrap_or_else(|| json!([]));
    let imports = imports
        .as_array()
        .with_context(|| format!("{MAIN}: imports is {imports}, not a list"))?;
    let covered = imports
        .iter()
        .filter_map(Value::as_str)
        .any(|pattern| matches(&absolute(pattern), DROP_IN));
    if !covered {
        files.push(Needed {
            path: MAIN,
            format: Format::Toml,
            fresh: format!("{HEADER}version = 3\n"),
            changes: vec![Change::include(&["imports"], IMPORT)],
        });
    }
    Ok(Plan::Files(files))
}

/// The form that lets CRI read runc's options and report features: runc's type, our path.
fn runtime(request: &InstallRequest, systemd_cgroup: bool) -> Value {
    json!({
        "runtime_type": "io.containerd.runc.v2",
        "runtime_path": request.program(SHIM),
        "pod_annotations": ["cgpu.io/*"],
        "container_annotations": ["cgpu.io/*"],
        "options": { "SystemdCgroup": systemd_cgroup },
    })
}

/// The first containerd that starts the program of `runtime_path`: 1.6 reads the key, and starts runc's shim all the same.
pub(super) const WITH_PATHS: Version = Version(1, 7);

/// For 1.6. It has no options: those of a type of its own would be sent in a form without them. The shim takes systemd's
/// control groups from the form of the container's path.
fn runtime_by_type() -> Value {
    json!({
        "runtime_type": TYPE,
        "pod_annotations": ["cgpu.io/*"],
        "container_annotations": ["cgpu.io/*"],
    })
}

/// As the node's runc has it: the handler must have its cgroups where the kubelet expects them.
fn systemd_cgroup(
    document: &Document,
    version: i64,
    effective: Option<&Value>,
) -> anyhow::Result<bool> {
    let options = |version| {
        let [plugins, cri, containerd] = section(version);
        [
            plugins,
            cri,
            containerd,
            "runtimes",
            "runc",
            "options",
            "SystemdCgroup",
        ]
    };
    let mut reply = effective.and_then(|effective| {
        [3, 2].into_iter().find_map(|version| {
            options(version)
                .into_iter()
                .try_fold(effective, |at, name| at.get(name))
        })
    });
    let written = document.at(&options(version))?;
    if reply.is_none() {
        reply = written.as_ref();
    }
    Ok(reply.and_then(Value::as_bool).unwrap_or(false))
}

/// A relative import is meant from the main file's folder.
pub(in super::super) fn absolute(pattern: &str) -> String {
    if pattern.starts_with('/') {
        pattern.to_owned()
    } else {
        format!("{FOLDER}/{pattern}")
    }
}

/// Go's `filepath.Match` for `*` and `?`, neither of which is a `/`. A pattern with a class is said not to match: then
/// a line is added that need not be.
fn matches(pattern: &str, path: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => path.is_empty(),
        Some('[' | '\\') => false,
        Some('*') => path
            .char_indices()
            .take_while(|(_, character)| *character != '/')
            .map(|(at, character)| at + character.len_utf8())
            .chain([0])
            .any(|from| matches(rest.as_str(), &path[from..])),
        Some(needed) => path.chars().next().is_some_and(|first| {
            (first == needed || (needed == '?' && first != '/'))
                && matches(rest.as_str(), &path[first.len_utf8()..])
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_matched_as_containerd_does() {
        for (pattern, is) in [
            ("/etc/containerd/conf.d/*.toml", true),
            ("conf.d/*.toml", true),
            ("conf.d/cgpu.toml", true),
            ("/etc/containerd/*/cgpu.toml", true),
            ("/etc/containerd/conf.d/cgp?.toml", true),
            ("/etc/containerd/*.toml", false),
            ("/etc/containerd/conf.d/*.tom", false),
            ("/etc/containerd/conf.d/nvidia.toml", false),
            ("/etc/containerd/conf.d/[c]gpu.toml", false),
        ] {
            assert_eq!(matches(&absolute(pattern), DROP_IN), is, "{pattern}");
        }
        assert!(matches(IMPORT, DROP_IN));
    }
}
