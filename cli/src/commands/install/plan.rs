//! What each engine is to be told: files, and the changes in them. Pure: texts in, texts out.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::change::{Change, Document, Format};
use super::engine::{Engine, Version};

mod containerd;
#[cfg(test)]
pub(super) mod tests;

pub(super) use containerd::{DROP_IN, MAIN as CONTAINERD_MAIN, absolute, section};

pub(super) const DAEMON_JSON: &str = "/etc/docker/daemon.json";
pub(super) const CONTAINERS_CONF: &str = "/etc/containers/containers.conf.d/cgpu.conf";
pub(super) const CRIO_CONF: &str = "/etc/crio/crio.conf.d/99-cgpu.conf";
/// The folder of vendors' hooks, which every podman reads.
pub(super) const HOOK_JSON: &str = "/usr/share/containers/oci/hooks.d/cgpu.json";

pub(super) const SHIM: &str = "containerd-shim-cgpu-v2";
/// The shim's runtime type; containerd looks for its program in its own `PATH`.
pub(super) const TYPE: &str = "io.containerd.cgpu.v2";
pub(super) const WRAPPER: &str = "cgpu-runtime";
pub(super) const HOOK: &str = "cgpu-hook";

/// A hook without an environment of its own may get the container's (CVE-2025-23266).
const HOOK_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a file of ours begins with.
const HEADER: &str = "# Written by `cgpu install`; `cgpu uninstall` takes it out again.\n";

/// Whether the runtime becomes the one of containers that name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsDefault {
    Yes,
    No,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) struct InstallRequest {
    /// The runtime's name.
    pub(super) runtime: String,
    pub(super) as_default: AsDefault,
    /// The folder of our programs, as the engine sees it.
    pub(super) programs: String,
    /// They are looked for there before an engine gets their names.
    pub(super) are_there: bool,
}

impl InstallRequest {
    pub(super) fn program(&self, name: &str) -> String {
        format!("{}/{name}", self.programs.trim_end_matches('/'))
    }
}

/// One file as it is to be.
#[derive(Debug, Clone)]
pub(super) struct Needed {
    /// As the engine sees it, without the root.
    pub(super) path: &'static str,
    pub(super) format: Format,
    /// What a file that is not there begins with.
    pub(super) fresh: String,
    pub(super) changes: Vec<Change>,
}

/// What one engine is to be told.
#[derive(Debug, Clone)]
pub(super) enum Plan {
    /// In this order: after each file the engine's configuration is whole.
    Files(Vec<Needed>),
    /// It needs nothing, or nothing would help; why.
    Nothing(String),
}

/// The texts that a plan is made from, without what an earlier run did to them.
pub(super) type Texts = BTreeMap<&'static str, Option<String>>;

/// The files whose texts [`plan`] looks at.
pub(super) fn files_of(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Containerd => &[DROP_IN, CONTAINERD_MAIN],
        Engine::Docker => &[DAEMON_JSON],
        Engine::Podman => &[CONTAINERS_CONF],
        Engine::Crio => &[CRIO_CONF],
        Engine::PodmanHook => &[HOOK_JSON],
    }
}

/// The programs of ours that an engine starts.
pub(super) fn programs_of(engine: Engine, version: Option<Version>) -> &'static [&'static str] {
    match engine {
        Engine::Containerd => &[SHIM],
        Engine::Docker if version >= Some(DOCKER_WITH_SHIMS) => &[SHIM],
        Engine::Docker | Engine::Podman | Engine::Crio => &[WRAPPER],
        Engine::PodmanHook => &[HOOK],
    }
}

/// The first docker whose `daemon.json` knows `runtimeType`.
pub(super) const DOCKER_WITH_SHIMS: Version = Version(24, 0);

/// What the admin must see to, and files cannot.
pub(super) fn remark(
    engine: Engine,
    version: Option<Version>,
    request: &InstallRequest,
) -> Option<String> {
    let searched = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
    let by_type = engine == Engine::Containerd && version < Some(containerd::WITH_PATHS);
    (by_type && !searched.contains(&request.programs.trim_end_matches('/'))).then(|| {
        format!(
            "containerd before 1.7 looks for {SHIM} in its own PATH, which must have {}",
            request.programs
        )
    })
}

/// What to tell an engine of this version. `effective`: containerd's configuration as it reads it, where it was asked.
pub(super) fn plan(
    engine: Engine,
    version: Option<Version>,
    request: &InstallRequest,
    texts: &Texts,
    effective: Option<&Value>,
) -> anyhow::Result<Plan> {
    let version = || {
        version.with_context(|| {
            format!(
                "no {} is here to be asked for its version; name it: --engine {engine}@VERSION",
                engine.program()
            )
        })
    };
    let text = |path: &'static str| texts.get(path).and_then(Option::as_deref);
    let files = match engine {
        Engine::Containerd => return containerd::plan(version()?, request, texts, effective),
        Engine::Docker => vec![docker(version()?, request, text(DAEMON_JSON))?],
        Engine::Podman => vec![podman(request, text(CONTAINERS_CONF))?],
        Engine::Crio => vec![crio(request, text(CRIO_CONF))?],
        Engine::PodmanHook => vec![podman_hook(request)],
    };
    Ok(Plan::Files(files))
}

fn docker(
    version: Version,
    request: &InstallRequest,
    text: Option<&str>,
) -> anyhow::Result<Needed> {
    if version < Version(20, 10) {
        bail!("docker {version} is older than 20.10, the oldest that cgpu was run with");
    }
    let runtime = if version >= DOCKER_WITH_SHIMS {
        json!({ "runtimeType": request.program(SHIM) })
    } else {
        json!({ "path": request.program(WRAPPER) })
    };
    let at = ["runtimes", request.runtime.as_str()];
    not_anothers(Format::Json, DAEMON_JSON, text, &at, request)?;
    let mut changes = vec![Change::set(&at, runtime)];
    if request.as_default == AsDefault::Yes {
        changes.push(Change::set(&["default-runtime"], json!(request.runtime)));
    }
    Ok(Needed {
        path: DAEMON_JSON,
        format: Format::Json,
        fresh: String::new(),
        changes,
    })
}

fn podman(request: &InstallRequest, text: Option<&str>) -> anyhow::Result<Needed> {
    let at = ["engine", "runtimes", request.runtime.as_str()];
    not_anothers(Format::Toml, CONTAINERS_CONF, text, &at, request)?;
    let mut changes = vec![Change::set(&at, json!([request.program(WRAPPER)]))];
    if request.as_default == AsDefault::Yes {
        changes.push(Change::set(&["engine", "runtime"], json!(request.runtime)));
    }
    Ok(Needed {
        path: CONTAINERS_CONF,
        format: Format::Toml,
        fresh: HEADER.to_owned(),
        changes,
    })
}

fn crio(request: &InstallRequest, text: Option<&str>) -> anyhow::Result<Needed> {
    let at = ["crio", "runtime", "runtimes", request.runtime.as_str()];
    not_anothers(Format::Toml, CRIO_CONF, text, &at, request)?;
    let mut changes = Vec::new();
    if request.as_default == AsDefault::Yes {
        changes.push(Change::set(
            &["crio", "runtime", "default_runtime"],
            json!(request.runtime),
        ));
    }
    changes.push(Change::set(
        &at,
        json!({ "runtime_path": request.program(WRAPPER), "runtime_type": "oci" }),
    ));
    Ok(Needed {
        path: CRIO_CONF,
        format: Format::Toml,
        fresh: HEADER.to_owned(),
        changes,
    })
}

fn podman_hook(request: &InstallRequest) -> Needed {
    Needed {
        path: HOOK_JSON,
        format: Format::Json,
        fresh: String::new(),
        changes: vec![
            Change::set(&["version"], json!("1.0.0")),
            Change::set(
                &["hook"],
                json!({ "path": request.program(HOOK), "args": [HOOK, "precreate"], "env": [HOOK_PATH] }),
            ),
            Change::set(&["when"], json!({ "always": true })),
            Change::set(&["stages"], json!(["precreate"])),
        ],
    }
}

/// Refuses a name that stands for another's runtime: it would be replaced.
fn not_anothers(
    format: Format,
    file: &str,
    text: Option<&str>,
    at: &[&str],
    request: &InstallRequest,
) -> anyhow::Result<()> {
    let Some(text) = text else { return Ok(()) };
    let document = Document::parse(format, text).with_context(|| file.to_owned())?;
    let there = document.at(at).with_context(|| file.to_owned())?;
    match there {
        Some(there) if !is_ours(&there) => bail!(
            "{file} already has another runtime named {:?}, {there}: choose another name with --runtime",
            request.runtime
        ),
        _ => Ok(()),
    }
}

/// Whether a runtime's entry names one of our programs.
pub(super) fn is_ours(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            [SHIM, WRAPPER].contains(&text.rsplit('/').next().unwrap_or_default()) || text == TYPE
        }
        Value::Array(elements) => elements.iter().any(is_ours),
        Value::Object(members) => members.values().any(is_ours),
        _ => false,
    }
}
