//! An engine's own check of its configuration, on a copy: nothing is in its place yet.

mod crio;
mod daemon;
mod default;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;

use super::change::{Change, Document, Format};
use super::engine::{self, Engine, Version};
use super::journal::How;
use super::plan::{self, AsDefault, InstallRequest};
use super::staging::Staging;

/// What became of an engine's check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Checked {
    /// It accepts the new configuration.
    Passed {
        /// The command that says so.
        command: String,
    },
    /// It could not be asked, and why.
    NotRun {
        /// Why.
        reason: String,
    },
}

/// Files by the path that the engine sees; `None`: no file.
pub(super) type Tree = BTreeMap<String, Option<String>>;

/// What is checked.
pub(super) struct Subject<'a> {
    pub(super) engine: Engine,
    pub(super) root: &'a Path,
    pub(super) program: Option<&'a Path>,
    pub(super) version: Option<Version>,
    /// The engine's files as they are.
    pub(super) before: &'a Tree,
    /// As they are to be.
    pub(super) after: &'a Tree,
    /// `None`: the runtime is taken out.
    pub(super) request: Option<&'a InstallRequest>,
    /// The runtimes that are taken out.
    pub(super) gone: &'a [String],
    /// [`How::KeysTaken`] where one of the files is restored so.
    pub(super) how: How,
}

/// Asks the engine.
///
/// # Errors
/// It refuses the new configuration; or reads something else from it than is meant.
pub(super) fn check(subject: &Subject<'_>) -> anyhow::Result<Checked> {
    let Some(program) = subject.program else {
        let place = if subject.root == Path::new("/") {
            "here".to_owned()
        } else {
            format!("below {}", subject.root.display())
        };
        let program = subject.engine.program();
        return Ok(not_run(format!("{program} is not installed {place}")));
    };
    match subject.engine {
        Engine::Containerd => containerd(subject, program),
        Engine::Docker => docker(subject, program),
        Engine::Podman => podman(subject, program),
        Engine::Crio => crio::crio(subject, program),
        Engine::PodmanHook => Ok(not_run(
            "podman reads hooks when it creates a container, and has no check of them".to_owned(),
        )),
    }
}

fn not_run(reason: String) -> Checked {
    Checked::NotRun { reason }
}

/// What containerd reads from a configuration, its own defaults included. `None`: there is no file, which 1.x can only be
/// asked about in its own place.
pub(super) fn containerd_reads(
    root: &Path,
    program: &Path,
    tree: &Tree,
) -> anyhow::Result<Result<Value, String>> {
    let staging = Staging::of(&below(root, plan::CONTAINERD_MAIN))?;
    let main = tree.get(plan::CONTAINERD_MAIN).cloned().flatten();
    let path = staging_containerd(root, staging.path(), main.as_deref().unwrap_or(""), tree)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(&path).args(["config", "dump"]);
    let reply = engine::run(&mut command)?;
    if let Some(problem) = reply.problem() {
        return Ok(Err(
            problem.replace(&staging.path().display().to_string(), "")
        ));
    }
    let document = Document::parse(Format::Toml, &reply.stdout)
        .with_context(|| format!("what `{}` prints", reply.line))?;
    Ok(Ok(document.value()?))
}

/// A copy of the main file whose imports lead to copies.
fn staging_containerd(
    root: &Path,
    staging: &Path,
    main: &str,
    tree: &Tree,
) -> anyhow::Result<PathBuf> {
    let place = |path: &str| staging.join(path.trim_start_matches('/'));
    let mut document = toml_edit::DocumentMut::new();
    if !main.trim().is_empty() {
        document = main.parse().context(plan::CONTAINERD_MAIN)?;
    }
    let imports: Vec<String> = document
        .get("imports")
        .and_then(toml_edit::Item::as_array)
        .into_iter()
        .flatten()
        .filter_map(|element| element.as_str().map(plan::absolute))
        .collect();
    for pattern in &imports {
        let (folder, _) = pattern.rsplit_once('/').unwrap_or(("", pattern));
        fs::create_dir_all(place(folder))?;
        let there = fs::read_dir(below(root, folder));
        for entry in there.into_iter().flatten() {
            let entry = entry?;
            let seen = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if !tree.contains_key(&seen) && entry.path().is_file() {
                fs::copy(entry.path(), place(&seen))
                    .with_context(|| format!("copy {}", entry.path().display()))?;
            }
        }
    }
    for (path, text) in tree {
        if let (Some(text), true) = (text, path != plan::CONTAINERD_MAIN) {
            let to = place(path);
            fs::create_dir_all(to.parent().unwrap_or(staging))?;
            fs::write(to, text)?;
        }
    }
    if !imports.is_empty() {
        let staged: toml_edit::Array = imports
            .iter()
            .map(|pattern| place(pattern).display().to_string())
            .collect();
        document.insert("imports", toml_edit::value(staged));
    }
    let path = place(plan::CONTAINERD_MAIN);
    fs::create_dir_all(path.parent().unwrap_or(staging))?;
    // 1.x takes a file without a version for one of version 1, and says so; an empty one is meant as its defaults.
    if document.is_empty() {
        document.insert("version", toml_edit::value(2));
    }
    fs::write(&path, document.to_string())?;
    Ok(path)
}

fn containerd(subject: &Subject<'_>, program: &Path) -> anyhow::Result<Checked> {
    let command = format!("{} config dump", program.display());
    let reads = |tree| containerd_reads(subject.root, program, tree);
    let after = match reads(subject.after)? {
        Ok(after) => after,
        // What it says of the files as they are cannot come from taking something out.
        Err(problem)
            if subject.request.is_none() && reads(subject.before)?.as_ref() == Err(&problem) =>
        {
            return Ok(not_run(format!(
                "containerd says the same of its configuration as it is now: {problem}"
            )));
        }
        Err(problem) => bail!("containerd refuses the new configuration: {problem}"),
    };
    default::is_left(subject, default_of(&after), |name| {
        handler(&after, name).is_some()
    })?;
    let before = match reads(subject.before)? {
        Ok(before) => before,
        // The new one passes; the old one could not be read.
        Err(_) => return Ok(Checked::Passed { command }),
    };
    for name in subject.gone {
        // What is restored byte for byte may have one of the admin's own.
        let is_looked_for = subject.request.is_some() || subject.how == How::KeysTaken;
        if is_looked_for && handler(&after, name).is_some() {
            bail!("containerd still has a runtime {name:?} from elsewhere than cgpu's entries");
        }
    }
    if let Some(request) = subject.request {
        let seen = handler(&after, &request.runtime).is_some_and(|handler| {
            let at = |name| handler.get(name).and_then(Value::as_str);
            at("runtime_type") == Some(plan::TYPE)
                || at("runtime_path") == Some(&request.program(plan::SHIM))
        });
        if !seen {
            bail!(
                "containerd would not see the runtime {:?}: a file that {} imports replaces its section",
                request.runtime,
                plan::CONTAINERD_MAIN
            );
        }
        if request.as_default == AsDefault::Yes && default_of(&after) != Some(&request.runtime) {
            bail!(
                "containerd would have {} as default runtime: another file sets it",
                default_of(&after).unwrap_or("none")
            );
        }
        let mut lost = Vec::new();
        losses(&before, &after, &mut Vec::new(), &mut lost);
        // What the install is for, and what an earlier one set and this one does not.
        let is_default_free = request.as_default == AsDefault::Yes
            || default_of(&before).is_some_and(|name| is_ours(&before, name));
        let ours = |lost: &Vec<String>| {
            let of_default = lost.last().is_some_and(|key| key == "default_runtime_name");
            let of_runtime = |name: &String| is_of_runtime(lost, name);
            *lost == ["imports"]
                || of_default && is_default_free
                || of_runtime(&request.runtime)
                || subject.gone.iter().any(of_runtime)
        };
        lost.retain(|lost| !ours(lost));
        if !lost.is_empty() {
            let lost: Vec<String> = lost.iter().map(|path| path.join(".")).collect();
            bail!(
                "containerd would read other values than now for {}",
                lost.join(", ")
            );
        }
    }
    Ok(Checked::Passed { command })
}

fn cri(dump: &Value, version: i64) -> Option<&Value> {
    plan::section(version)
        .into_iter()
        .try_fold(dump, |at, name| at.get(name))
}

fn handler<'a>(dump: &'a Value, name: &str) -> Option<&'a Value> {
    [3, 2]
        .into_iter()
        .find_map(|version| cri(dump, version)?.get("runtimes")?.get(name))
}

fn default_of(dump: &Value) -> Option<&str> {
    [3, 2]
        .into_iter()
        .find_map(|version| cri(dump, version)?.get("default_runtime_name")?.as_str())
}

fn is_ours(dump: &Value, name: &str) -> bool {
    handler(dump, name).is_some_and(plan::is_ours)
}

/// Whether this is a key of the handler of that very name.
fn is_of_runtime(path: &[String], name: &str) -> bool {
    path.windows(2).any(|pair| {
        pair.first().is_some_and(|table| table == "runtimes")
            && pair.last().is_some_and(|last| last == name)
    })
}

/// The paths of keys whose value in `before` is not in `after`. A default that is spelt out is as good as an absent key.
fn losses(before: &Value, after: &Value, at: &mut Vec<String>, lost: &mut Vec<Vec<String>>) {
    match before {
        Value::Object(members) => {
            for (name, value) in members {
                at.push(name.clone());
                losses(value, after.get(name).unwrap_or(&Value::Null), at, lost);
                at.pop();
            }
        }
        other if other == after => {}
        other if is_empty(other) && is_empty(after) => {}
        _ => lost.push(at.clone()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// The first dockerd with `--validate`.
const WITH_VALIDATE: Version = Version(23, 0);

fn docker(subject: &Subject<'_>, program: &Path) -> anyhow::Result<Checked> {
    default::of_docker(subject)?;
    if subject.version < Some(WITH_VALIDATE) {
        let version = subject
            .version
            .map_or_else(|| "this".to_owned(), |version| version.to_string());
        return Ok(not_run(format!(
            "dockerd {version} has no --validate (23.0 and later have)"
        )));
    }
    // A flag and the file that say the same thing stop dockerd, so its own flags belong to the check.
    let flags = if subject.root == Path::new("/") {
        daemon::flags_of_the_daemon(program)
    } else {
        Vec::new()
    };
    let validate = |tree: &Tree| {
        let staging = Staging::of(&below(subject.root, plan::DAEMON_JSON))?;
        let path = staging.path().join("daemon.json");
        let text = tree.get(plan::DAEMON_JSON).cloned().flatten();
        fs::write(&path, text.as_deref().unwrap_or("{}\n"))?;
        let mut command = with_own_folder(program);
        // Of a flag that is given twice the last counts.
        command
            .args(&flags)
            .arg("--validate")
            .arg("--config-file")
            .arg(&path);
        let reply = engine::run(&mut command)?;
        let shown = path.display().to_string();
        anyhow::Ok(
            reply
                .problem()
                .map(|problem| problem.replace(&shown, plan::DAEMON_JSON)),
        )
    };
    let command = format!("{} --validate", program.display());
    match validate(subject.after)? {
        None => Ok(Checked::Passed { command }),
        // What it says of the file as it is cannot come from the change.
        Some(problem) if validate(subject.before)?.as_ref() == Some(&problem) => Ok(not_run(
            format!("dockerd says the same of the file as it is now: {problem}"),
        )),
        Some(problem) => bail!("dockerd refuses the new configuration: {problem}"),
    }
}

fn podman(subject: &Subject<'_>, program: &Path) -> anyhow::Result<Checked> {
    default::of_podman(subject)?;
    let Some(text) = subject.after.get(plan::CONTAINERS_CONF).cloned().flatten() else {
        return Ok(not_run("nothing of the file is left to be read".to_owned()));
    };
    let staging = Staging::of(&below(subject.root, plan::CONTAINERS_CONF))?;
    let file = staging.path().join("containers.conf");
    let mut command = with_own_folder(program);
    command.env("CONTAINERS_CONF", &file);
    // A store of its own: the host's is neither locked nor made by a check.
    for option in ["--root", "--runroot", "--tmpdir"] {
        command
            .arg(option)
            .arg(staging.path().join(option.trim_start_matches('-')));
    }
    command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
    let mut staged = text;
    if let Some(request) = subject.request {
        // Podman looks for the program, which is below the root.
        let path = below(subject.root, &request.program(plan::WRAPPER));
        let at = ["engine", "runtimes", request.runtime.as_str()];
        let there = Change::set(&at, serde_json::json!([path]));
        staged = super::change::changed(Format::Toml, &staged, &[there])?.0;
        command.args(["--runtime", &request.runtime]);
    }
    fs::write(&file, staged)?;
    command.args(["info", "--format", "{{.Host.OCIRuntime.Name}}"]);
    let reply = engine::run(&mut command)?;
    let shown = file.display().to_string();
    if let Some(problem) = reply.problem() {
        let problem = problem.replace(&shown, plan::CONTAINERS_CONF);
        // A store that cannot be opened here says nothing about the file.
        let mut bare = with_own_folder(program);
        fs::write(&file, "")?;
        bare.args(command.get_args().filter(|argument| {
            subject.request.is_none_or(|request| {
                *argument != "--runtime" && argument.to_string_lossy() != request.runtime
            })
        }))
        .env("CONTAINERS_CONF", &file);
        if engine::run(&mut bare)?.problem().is_some() {
            return Ok(not_run(format!("podman cannot be asked here: {problem}")));
        }
        bail!("podman refuses the new configuration: {problem}");
    }
    if let Some(request) = subject.request
        && reply.stdout.trim() != request.runtime
    {
        bail!(
            "podman would not see the runtime {:?}; it says {:?}",
            request.runtime,
            reply.everything().trim()
        );
    }
    Ok(Checked::Passed {
        command: format!("{} info", program.display()),
    })
}

/// Where an engine's file is for us.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// An engine's helpers are beside it (`docker-proxy`, `conmon`).
fn with_own_folder(program: &Path) -> Command {
    let mut command = Command::new(program);
    let mut folders: Vec<PathBuf> = program.parent().map(Path::to_owned).into_iter().collect();
    folders.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

#[cfg(test)]
mod tests;
