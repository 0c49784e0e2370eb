//! What `cgpu install` and `cgpu uninstall` say.

use serde::Serialize;
use similar::TextDiff;

use super::check::Checked;
use super::engine::Engine;
use super::journal::{How, Journal, Phase};
use super::work::{FileWork, Site, Work};
use view::JSON_VERSION;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    /// `cgpu install`.
    Install,
    /// `cgpu uninstall`.
    Uninstall,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: u32,
    /// What was done, or would be.
    action: Action,
    /// Nothing was done.
    pub(super) dry_run: bool,
    /// The folder that is the host's root.
    root: String,
    /// The runtime's name, of an install.
    runtime: Option<String>,
    /// An earlier run had been killed; this one went on from there.
    interrupted: bool,
    /// cgpu's own programs, where they are copied to the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) programs: Option<ProgramsReport>,
    /// One by one.
    pub(super) engines: Vec<EngineReport>,
}

/// cgpu's own programs on a host.
#[derive(Debug, Serialize)]
pub(super) struct ProgramsReport {
    /// Versions are below it.
    pub(super) folder: String,
    /// That which is there now.
    pub(super) version: Option<String>,
    /// What became of them.
    pub(super) state: ProgramsState,
    /// What people have to know besides.
    pub(super) remarks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProgramsState {
    /// They are copied.
    Copied,
    /// They were there.
    Unchanged,
    /// They are removed.
    Removed,
    /// The host has others.
    LeftAlone,
}

/// One engine.
#[derive(Debug, Serialize)]
pub(super) struct EngineReport {
    /// Its name.
    engine: Engine,
    /// What it reports of itself; absent where it cannot be run.
    version: Option<String>,
    /// Whether its files are changed.
    state: State,
    /// The files that name, or named, cgpu.
    files: Vec<FileReport>,
    /// Whether the engine took the new files, before they were put in place; absent where nothing was checked.
    check: Option<Checked>,
    /// What people have to know besides.
    pub(super) remarks: Vec<String>,
    /// What makes the engine read its files again.
    pub(super) then: Option<String>,
    /// It was run.
    pub(super) then_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// They are.
    Changed,
    /// They are right as they were.
    Unchanged,
    /// They are left as they were; a remark says why.
    Skipped,
}

/// One file.
#[derive(Debug, Serialize)]
struct FileReport {
    /// Where it is.
    path: String,
    /// What is done to it.
    action: FileAction,
    /// A unified diff; empty for an unchanged file.
    diff: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FileAction {
    /// It is new.
    Create,
    /// Its text is changed.
    Edit,
    /// It goes.
    Remove,
    /// The original is back, byte for byte.
    Restore,
    /// It stays.
    Unchanged,
}

impl Report {
    pub(super) fn new(
        action: Action,
        site: &Site,
        runtime: Option<&str>,
        journal: &Journal,
        works: &[Work],
    ) -> Self {
        Self {
            version: JSON_VERSION,
            action,
            dry_run: false,
            root: site.root.display().to_string(),
            runtime: runtime.map(str::to_owned),
            interrupted: journal.phase == Phase::Changing,
            programs: None,
            engines: works.iter().map(|work| engine(action, work)).collect(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut lines = Vec::new();
        if self.interrupted {
            lines.push(
                "An earlier run was interrupted; this one starts from what it left.".to_owned(),
            );
        }
        match &self.programs {
            Some(programs) => programs.report(&mut lines, self.dry_run),
            None if self.engines.is_empty() => {
                lines.push("cgpu is installed in no engine.".to_owned());
            }
            None => {}
        }
        for engine in &self.engines {
            engine.report(&mut lines, self.dry_run);
        }
        if self.dry_run {
            lines.push("Nothing was changed (--dry-run).".to_owned());
        }
        lines.join("\n")
    }
}

impl ProgramsReport {
    fn report(&self, lines: &mut Vec<String>, dry_run: bool) {
        let state = match (self.state, dry_run) {
            (ProgramsState::Copied, false) => "copied",
            (ProgramsState::Copied, true) => "would be copied",
            (ProgramsState::Unchanged, _) => "nothing to copy",
            (ProgramsState::Removed, false) => "removed",
            (ProgramsState::Removed, true) => "would be removed",
            (ProgramsState::LeftAlone, _) => "left alone",
        };
        lines.push(match &self.version {
            Some(version) => format!("programs {version} in {}: {state}", self.folder),
            None => format!("programs: {state}"),
        });
        let remarks = self.remarks.iter();
        lines.extend(remarks.map(|remark| format!("  note: {remark}")));
    }
}

/// What makes an engine read its configuration; `None` for one that reads it each time.
pub(super) fn reload(engine: Engine) -> Option<&'static str> {
    match engine {
        Engine::Containerd => Some("systemctl restart containerd"),
        Engine::Docker => Some("systemctl reload docker"),
        Engine::Crio => Some("systemctl restart crio"),
        Engine::Podman | Engine::PodmanHook => None,
    }
}

/// By reading moby's `reloadPlatform`: a key that is in the file no more changes nothing.
const KEEPS_DEFAULT: &str = "docker keeps the default runtime that is taken out until `systemctl restart docker`: a reload leaves a default that is in no file any more";

fn drops_default(work: &FileWork) -> bool {
    let names = |text: &str| text.contains("\"default-runtime\"");
    let before = work.before.as_ref().is_some_and(|found| names(&found.text));
    before && !work.after.as_deref().is_some_and(names)
}

fn engine(action: Action, work: &Work) -> EngineReport {
    let state = match &work.skipped {
        Some(_) => State::Skipped,
        None if work.changes() => State::Changed,
        None => State::Unchanged,
    };
    let then = reload(work.engine).filter(|_| state == State::Changed);
    let mut remarks: Vec<String> = work.skipped.iter().chain(&work.remarks).cloned().collect();
    if work.engine == Engine::Docker && work.files.iter().any(drops_default) {
        remarks.push(KEEPS_DEFAULT.to_owned());
    }
    EngineReport {
        engine: work.engine,
        version: work.version.map(|version| version.to_string()),
        state,
        files: work.files.iter().map(|one| file(action, one)).collect(),
        check: work.checked.clone(),
        remarks,
        then: then.map(str::to_owned),
        then_done: false,
    }
}

fn file(action: Action, work: &FileWork) -> FileReport {
    let before = work.before.as_ref().map(|found| found.text.as_str());
    let after = work.after.as_deref();
    let act = match (before, after) {
        _ if before == after => FileAction::Unchanged,
        (None, _) => FileAction::Create,
        (_, None) => FileAction::Remove,
        _ if action == Action::Uninstall && work.how == How::Exact => FileAction::Restore,
        _ => FileAction::Edit,
    };
    let name = |side: &str, text: Option<&str>| match text {
        Some(_) => format!("{side}{}", work.path),
        None => "/dev/null".to_owned(),
    };
    let diff = if act == FileAction::Unchanged {
        String::new()
    } else {
        TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default())
            .unified_diff()
            .header(&name("a", before), &name("b", after))
            .to_string()
    };
    FileReport {
        path: work.path.clone(),
        action: act,
        diff,
    }
}

impl EngineReport {
    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// An earlier run changed the files, and the engine was not restarted since.
    pub(super) fn has_not_read(&mut self) {
        self.then = reload(self.engine).map(str::to_owned);
    }

    fn report(&self, lines: &mut Vec<String>, dry_run: bool) {
        let name = match &self.version {
            Some(version) => format!("{} {version}", self.engine),
            None => self.engine.to_string(),
        };
        let state = match (self.state, dry_run) {
            (State::Changed, false) => "changed",
            (State::Changed, true) => "would change",
            (State::Unchanged, _) => "nothing to change",
            (State::Skipped, _) => "left alone",
        };
        lines.push(format!("{name}: {state}"));
        for file in &self.files {
            lines.extend(file.diff.lines().map(|line| format!("    {line}")));
        }
        lines.extend(
            self.remarks
                .iter()
                .map(|remark| format!("  note: {remark}")),
        );
        match &self.check {
            Some(Checked::Passed { command }) => {
                lines.push(format!("  checked: `{command}` accepts it"))
            }
            Some(Checked::NotRun { reason }) => lines.push(format!("  not checked: {reason}")),
            None => {}
        }
        match &self.then {
            Some(line) if self.then_done => lines.push(format!("  done: `{line}`")),
            Some(line) => lines.push(format!("  to take effect: `{line}`")),
            None => {}
        }
    }
}
