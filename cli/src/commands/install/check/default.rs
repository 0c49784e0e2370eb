//! A default runtime that is to be taken out: where somebody else than cgpu has set it, the engine would start no container any more.

use anyhow::{Context, bail};
use serde_json::Value;

use super::super::change::{Document, Format};
use super::super::engine::Engine;
use super::super::{files, plan};
use super::Subject;

/// # Errors
/// The default is a runtime that is taken out, and none of its name is left.
pub(super) fn is_left(
    subject: &Subject<'_>,
    default: Option<&str>,
    is_there: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    match default {
        Some(name) if subject.gone.iter().any(|gone| gone == name) && !is_there(name) => bail!(
            "{} would have the default runtime {name:?}, which does not exist then: somebody else than cgpu made it the default; make another one the default first",
            subject.engine
        ),
        Some(_) | None => Ok(()),
    }
}

/// # Errors
/// As [`is_left`].
pub(super) fn of_docker(subject: &Subject<'_>) -> anyhow::Result<()> {
    let text = subject.after.get(plan::DAEMON_JSON).cloned().flatten();
    // dockerd itself says what is wrong with the rest.
    let read = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(read) = read else { return Ok(()) };
    let default = read.get("default-runtime").and_then(Value::as_str);
    is_left(subject, default, |name| {
        let runtimes = read.get("runtimes");
        runtimes.is_some_and(|runtimes| runtimes.get(name).is_some())
    })
}

/// By what `crio config` prints.
///
/// # Errors
/// As [`is_left`].
pub(super) fn of_crio(subject: &Subject<'_>, printed: &str) -> anyhow::Result<()> {
    if !printed.contains("default_runtime") {
        return Ok(());
    }
    let read = Document::parse(Format::Toml, printed).context("what `crio config` prints")?;
    let at = |path: &[&str]| read.at(&[&["crio", "runtime"], path].concat());
    let default = at(&["default_runtime"])?;
    is_left(subject, default.as_ref().and_then(Value::as_str), |name| {
        at(&["runtimes", name]).is_ok_and(|runtime| runtime.is_some())
    })
}

/// By the system's files, of which podman is shown one alone.
///
/// # Errors
/// As [`is_left`].
pub(super) fn of_podman(subject: &Subject<'_>) -> anyhow::Result<()> {
    let (mut default, mut runtimes) = (None, Vec::new());
    for path in files::read_by(subject.root, Engine::Podman) {
        let text = match subject.after.get(&path) {
            Some(text) => text.clone(),
            None => files::text(subject.root, &path),
        };
        // With one that cannot be read podman starts nothing as it is.
        let read = text.and_then(|text| Document::parse(Format::Toml, &text).ok());
        let Some(read) = read else { continue };
        let at = |key: &str| read.at(&["engine", key]).ok().flatten();
        if let Some(Value::String(name)) = at("runtime") {
            default = Some(name);
        }
        runtimes.extend(at("runtimes"));
    }
    is_left(subject, default.as_deref(), |name| {
        runtimes.iter().any(|table| table.get(name).is_some())
    })
}
