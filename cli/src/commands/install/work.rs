//! What is done to each engine, from what is asked to the files as they are to be. Nothing is changed here.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use super::by_hand;
use super::change::changed;
use super::check::{self, Checked, Subject, Tree};
use super::engine::{self, Engine, Requested, Version};
use super::files;
use super::journal::{Entry, FOLDER, How, Journal, Original};
use super::place::{self, Found};
use super::plan::{self, InstallRequest, Plan, Texts};

/// A file system's top, and what is below it.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) root: PathBuf,
}

impl Site {
    /// Where a path of the engine's stands here.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The folder of this installation's programs, as an engine sees it: the packages' in another root, and in one without `/proc`, where nobody
    /// says which program this is.
    pub(super) fn own_folder(&self) -> PathBuf {
        let program = std::env::current_exe().ok();
        let program = program.filter(|_| self.root == Path::new("/"));
        let folder = program.as_deref().and_then(Path::parent);
        folder.unwrap_or_else(|| Path::new("/usr/bin")).to_owned()
    }

    /// The folder of the journal.
    pub(super) fn state(&self) -> PathBuf {
        self.at(FOLDER)
    }
}

/// What is done to one engine.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) engine: Engine,
    pub(super) version: Option<Version>,
    pub(super) files: Vec<FileWork>,
    pub(super) checked: Option<Checked>,
    /// Why nothing is done.
    pub(super) skipped: Option<String>,
    pub(super) remarks: Vec<String>,
}

impl Work {
    pub(super) fn changes(&self) -> bool {
        self.files.iter().any(FileWork::changes)
    }

    /// Whether somebody has changed one of its files since.
    fn how(&self) -> How {
        match self.files.iter().any(|file| file.how == How::KeysTaken) {
            true => How::KeysTaken,
            false => How::Exact,
        }
    }

    /// Whether files or the journal change.
    pub(super) fn needs_applying(&self, journal: &Journal) -> bool {
        self.files.iter().any(|file| {
            file.changes() || file.entry.is_some() != journal.entry(&file.path).is_some()
        })
    }
}

/// What is done to one file.
#[derive(Debug)]
pub(super) struct FileWork {
    /// As the engine sees it.
    pub(super) path: String,
    pub(super) before: Option<Found>,
    /// `None`: no file.
    pub(super) after: Option<String>,
    /// The journal's entry then; `None`: none.
    pub(super) entry: Option<Entry>,
    /// What is kept to be restored.
    pub(super) original: Option<Found>,
    pub(super) how: How,
}

impl FileWork {
    pub(super) fn changes(&self) -> bool {
        self.before.as_ref().map(|found| &found.text) != self.after.as_ref()
    }
}

/// The file's original: what is there, without what an earlier run did.
fn original(
    site: &Site,
    journal: &Journal,
    path: &str,
) -> anyhow::Result<(Option<Found>, Original)> {
    let now = place::read(&site.at(path))?;
    let original = match journal.entry(path) {
        Some(entry) => entry.original(&site.state(), now.as_ref())?,
        None => Original {
            found: now.clone(),
            remarks: Vec::new(),
            how: How::Untouched,
        },
    };
    Ok((now, original))
}

/// # Errors
/// The host's containerd is none that reads a file of the host's.
fn not_embedded(site: &Site) -> anyhow::Result<()> {
    let there = files::EMBEDDED
        .iter()
        .find(|(_, folder)| site.at(folder).is_dir());
    match there {
        None => Ok(()),
        Some((name, folder)) => bail!(
            "{name} has a containerd of its own and writes its configuration from a template in {folder}: cgpu changes no template; write the handler into it as configs/containerd has it"
        ),
    }
}

/// Which engines, with their programs: those asked for, or those found.
fn engines(
    site: &Site,
    requested: &[Requested],
) -> anyhow::Result<Vec<(Requested, Option<PathBuf>)>> {
    let with_program = |requested: Requested| {
        (
            requested,
            engine::find(&site.root, requested.engine.program()),
        )
    };
    if !requested.is_empty() {
        let engines: Vec<_> = requested.iter().copied().map(with_program).collect();
        let unknown = |(one, program): &(Requested, Option<PathBuf>)| {
            one.engine == Engine::Containerd && one.version.is_none() && program.is_none()
        };
        if engines.iter().any(unknown) {
            not_embedded(site)?;
        }
        return Ok(engines);
    }
    let found: Vec<_> = Engine::FOUND
        .into_iter()
        .map(|engine| {
            with_program(Requested {
                engine,
                version: None,
            })
        })
        .filter(|(_, program)| program.is_some())
        .collect();
    if found.is_empty() {
        not_embedded(site)?;
        bail!(
            "no engine is below {}: {} were looked for; name one with --engine",
            site.root.display(),
            Engine::FOUND.map(Engine::program).join(", ")
        );
    }
    Ok(found)
}

/// Works out an install; nothing is changed.
pub(super) fn plan_install(
    site: &Site,
    journal: &Journal,
    requested: &[Requested],
    request: &InstallRequest,
) -> anyhow::Result<Vec<Work>> {
    let named = !requested.is_empty();
    let mut works = Vec::new();
    for (requested, program) in engines(site, requested)? {
        let work = plan_engine(site, journal, requested, program.as_deref(), request)
            .with_context(|| requested.engine.name())?;
        if let (Some(reason), true) = (&work.skipped, named) {
            bail!("{}: {reason}", requested.engine);
        }
        works.push(work);
    }
    Ok(works)
}

fn plan_engine(
    site: &Site,
    journal: &Journal,
    requested: Requested,
    program: Option<&Path>,
    request: &InstallRequest,
) -> anyhow::Result<Work> {
    let engine = requested.engine;
    let version = match (requested.version, program) {
        (Some(version), _) => Some(version),
        (None, Some(program)) => Some(engine::version_of(program)?),
        (None, None) => None,
    };
    let mut texts = Texts::new();
    let mut originals = Vec::new();
    for path in plan::files_of(engine) {
        let (now, original) = original(site, journal, path)?;
        let text = original.found.as_ref().map(|found| found.text.clone());
        texts.insert(*path, text);
        originals.push((*path, now, original));
    }
    let mut work = Work {
        engine,
        version,
        files: Vec::new(),
        checked: None,
        skipped: None,
        remarks: Vec::new(),
    };
    let effective = effective(site, engine, program, &texts)?;
    let needed = match plan::plan(engine, version, request, &texts, effective.as_ref())? {
        Plan::Files(needed) => needed,
        Plan::Nothing(reason) => {
            work.skipped = Some(reason);
            return Ok(work);
        }
    };
    if request.are_there {
        programs_are_there(site, engine, version, request)?;
    }
    work.remarks.extend(plan::remark(engine, version, request));
    for needed in &needed {
        let mut originals_left = originals.iter();
        let at = originals_left
            .position(|(path, ..)| *path == needed.path)
            .context("a plan names files that were read")?;
        let (_, now, original) = originals.swap_remove(at);
        let of_original = original.remarks.iter();
        let of_original = of_original.filter(|remark| remark.contains("original"));
        work.remarks.extend(of_original.cloned());
        let earlier = journal.entry(needed.path);
        let file = file_work(engine, request, needed, (now, original), earlier)?;
        work.files.push(file);
    }
    // What an earlier install needed and this one does not.
    for (path, now, original) in originals {
        if journal.entry(path).is_some() {
            let file = restoration(path, now, original, &mut work.remarks);
            work.files.push(file);
        }
    }
    let gone: Vec<String> = journal
        .files
        .iter()
        .filter(|entry| entry.engine == engine && entry.runtime != request.runtime)
        .map(|entry| entry.runtime.clone())
        .collect();
    work.checked = Some(checked(site, &work, program, Some(request), &gone)?);
    Ok(work)
}

/// How containerd reads its files as they are.
fn effective(
    site: &Site,
    engine: Engine,
    program: Option<&Path>,
    texts: &Texts,
) -> anyhow::Result<Option<Value>> {
    let (Engine::Containerd, Some(program)) = (engine, program) else {
        return Ok(None);
    };
    let files = texts.iter();
    let tree = files.map(|(path, text)| ((*path).to_owned(), text.clone()));
    Ok(check::containerd_reads(&site.root, program, &tree.collect())?.ok())
}

/// A file with what it needs; `earlier`: what an earlier install did to it.
fn file_work(
    engine: Engine,
    request: &InstallRequest,
    needed: &plan::Needed,
    (before, original): (Option<Found>, Original),
    earlier: Option<&Entry>,
) -> anyhow::Result<FileWork> {
    let text = match &original.found {
        Some(found) => found.text.as_str(),
        None => needed.fresh.as_str(),
    };
    let (after, made) =
        changed(needed.format, text, &needed.changes).with_context(|| needed.path.to_owned())?;
    let mut entry = Entry::new(
        engine,
        needed.path,
        needed.format,
        &request.runtime,
        original.found.as_ref(),
        &after,
        &needed.fresh,
        made,
    );
    if let Some(earlier) = earlier {
        entry.also_left(earlier);
    }
    // An engine that has the runtime already, from the admin's own hand, is left alone.
    let ours = entry.changes_something() || earlier.is_some();
    Ok(FileWork {
        path: needed.path.to_owned(),
        before,
        after: Some(after),
        entry: ours.then_some(entry),
        original: original.found.filter(|_| ours),
        how: original.how,
    })
}

/// Works out an uninstall of these engines, or of all; nothing is changed. What somebody else has written stays, and is named.
pub(super) fn plan_uninstall(
    site: &Site,
    journal: &Journal,
    requested: &[Requested],
) -> anyhow::Result<Vec<Work>> {
    let installed = |engine| journal.files.iter().any(|entry| entry.engine == engine);
    let mut works = Vec::new();
    for engine in Engine::ALL {
        let named = requested.iter().find(|one| one.engine == engine);
        if requested.is_empty() || named.is_some() {
            let version = named.and_then(|one| one.version);
            works.extend(unplan_engine(site, journal, engine, version)?);
        }
    }
    let found = |engine| works.iter().any(|work: &Work| work.engine == engine);
    if let Some(other) = requested.iter().find(|one| !found(one.engine)) {
        let names = Engine::ALL.into_iter().filter(|engine| installed(*engine));
        let names: Vec<&str> = names.map(Engine::name).collect();
        bail!(
            "cgpu is not installed in {}; it is installed in: {}",
            other.engine,
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        );
    }
    Ok(works)
}

/// What taking cgpu out of one engine is; `None`: no file of it names cgpu.
fn unplan_engine(
    site: &Site,
    journal: &Journal,
    engine: Engine,
    version: Option<Version>,
) -> anyhow::Result<Option<Work>> {
    let mut files = Vec::new();
    let mut remarks = Vec::new();
    let entries = journal.files.iter().filter(|entry| entry.engine == engine);
    // Last first: whatever names a file goes before the file.
    for entry in entries.clone().rev() {
        if !plan::files_of(engine).contains(&entry.path.as_str()) {
            bail!(
                "{} is no file of {engine} that cgpu installs itself in: {FOLDER}/install.json was changed by another; nothing was changed",
                entry.path
            );
        }
        let (now, original) = original(site, journal, &entry.path)?;
        files.push(restoration(&entry.path, now, original, &mut remarks));
    }
    let restored = files.iter();
    let restored = restored.map(|file| (file.path.clone(), file.after.clone()));
    let own = site.own_folder();
    let mut by_hand = by_hand::left(&site.root, &own, journal, engine, &restored.collect());
    if files.is_empty() {
        return Ok(by_hand.pop().map(|reason| Work {
            engine,
            version: None,
            files,
            checked: None,
            skipped: Some(reason),
            remarks: by_hand,
        }));
    }
    remarks.extend(by_hand);
    let program = engine::find(&site.root, engine.program());
    let answer = program.as_deref().map(engine::version_of);
    let answer = answer.and_then(Result::ok);
    let mut work = Work {
        engine,
        version: version.or(answer),
        files,
        checked: None,
        skipped: None,
        remarks,
    };
    // Also where every file is restored as it was: another one may have made the runtime the default since. A program that does
    // not give its version cannot be asked about its files either.
    if work.how() == How::KeysTaken || answer.is_some() && work.changes() {
        let gone: Vec<String> = entries.map(|entry| entry.runtime.clone()).collect();
        let outcome = checked(site, &work, program.as_deref(), None, &gone)
            .with_context(|| format!("{engine} without cgpu; nothing was changed"))?;
        work.checked = Some(outcome);
    }
    Ok(Some(work))
}

fn restoration(
    path: &str,
    now: Option<Found>,
    original: Original,
    remarks: &mut Vec<String>,
) -> FileWork {
    remarks.extend(original.remarks);
    FileWork {
        path: path.to_owned(),
        before: now,
        after: original.found.map(|found| found.text),
        entry: None,
        original: None,
        how: original.how,
    }
}

fn checked(
    site: &Site,
    work: &Work,
    program: Option<&Path>,
    request: Option<&InstallRequest>,
    gone: &[String],
) -> anyhow::Result<Checked> {
    // Files that stay as they are belong to the picture too.
    let mut before = Tree::new();
    for path in plan::files_of(work.engine) {
        let text = place::read(&site.at(path))?.map(|found| found.text);
        before.insert((*path).to_owned(), text);
    }
    let mut after = before.clone();
    for file in &work.files {
        after.insert(file.path.clone(), file.after.clone());
    }
    check::check(&Subject {
        engine: work.engine,
        root: &site.root,
        program,
        version: work.version,
        before: &before,
        after: &after,
        request,
        gone,
        how: work.how(),
    })
}

/// An engine starts no container with a program that is not there.
fn programs_are_there(
    site: &Site,
    engine: Engine,
    version: Option<Version>,
    request: &InstallRequest,
) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    for name in plan::programs_of(engine, version) {
        let path = site.at(&request.program(name));
        let about = std::fs::metadata(&path)
            .with_context(|| format!("{} is to be started by the engine", path.display()))?;
        if !about.is_file() || about.mode() & 0o111 == 0 {
            bail!("{} is no program", path.display());
        }
        if site.root == Path::new("/") && (about.uid() != 0 || about.mode() & 0o022 != 0) {
            bail!(
                "{} belongs to user {} with mode {:o}: engines start it as root, so it must be root's and writable by no other",
                path.display(),
                about.uid(),
                about.mode() & 0o7777
            );
        }
    }
    Ok(())
}
