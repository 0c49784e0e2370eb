//! One call of `cgpu install` or `cgpu uninstall`, in its order: programs before the engines that start them, and after them when they go.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::Common;
use super::copies::Copies;
use super::engine::Engine;
use super::journal::{Journal, Phase};
use super::place::{RealDisk, Writer};
use super::processes::Running;
use super::programs::{self, Source};
use super::report::{self, Action, ProgramsReport, ProgramsState, Report};
use super::restart::{self, Restart};
use super::survey;
use super::transaction;
use super::work::{Site, Work};

/// One call of either command.
pub(super) struct Run<'a> {
    pub(super) site: &'a Site,
    pub(super) common: &'a Common,
    pub(super) action: Action,
    pub(super) runtime: Option<&'a str>,
}

/// What is copied, and below which folder.
pub(super) type Copying<'a> = Option<(&'a mut Source, &'a str)>;

impl Run<'_> {
    /// Does it, restarts the engines as requested, and prints what was done.
    pub(super) fn act(
        &self,
        copying: Copying<'_>,
        plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
    ) -> anyhow::Result<ExitCode> {
        let (site, common) = (self.site, self.common);
        let disk = RealDisk;
        let writer = Writer::new(&disk);
        if common.dry_run {
            let journal = Journal::read(&site.state())?;
            let mut report = self.report(&journal, &plan(&journal)?);
            report.dry_run = true;
            report.programs = self.intended_programs(copying.as_ref(), &journal);
            common.form.print(&report, Report::text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (_lock, made) = transaction::lock(site, &writer)?;
        let done = match self.action {
            Action::Install => self.install(&writer, &made, copying, plan),
            Action::Uninstall => self.uninstall(&writer, &made, plan),
        };
        // Where nothing is installed nothing of ours stays, the lock included.
        tidy(site, &writer, &made)?;
        let mut report = done?;
        let mut code = ExitCode::SUCCESS;
        for engine in &mut report.engines {
            if !restart::restart(engine, common.restart)? {
                code = ExitCode::FAILURE;
            } else if engine.then_done {
                has_read(site, &writer, engine.engine())?;
            }
        }
        common.form.print(&report, Report::text)?;
        Ok(code)
    }

    fn report(&self, journal: &Journal, works: &[Work]) -> Report {
        Report::new(self.action, self.site, self.runtime, journal, works)
    }

    /// What a run without `--dry-run` would do with the programs.
    fn intended_programs(
        &self,
        copying: Option<&(&mut Source, &str)>,
        journal: &Journal,
    ) -> Option<ProgramsReport> {
        let there = journal.programs.as_ref();
        let (folder, version, state) = match (copying, there) {
            (Some((source, folder)), there) => {
                let same = there.and_then(|there| there.current()) == Some(source.name());
                let state = if same {
                    ProgramsState::Unchanged
                } else {
                    ProgramsState::Copied
                };
                ((*folder).to_owned(), Some(source.name().to_owned()), state)
            }
            (None, Some(there)) if self.action == Action::Uninstall => (
                there.folder.clone(),
                there.current().map(str::to_owned),
                ProgramsState::Removed,
            ),
            (None, _) => return None,
        };
        Some(ProgramsReport {
            folder,
            version,
            state,
            remarks: Vec::new(),
        })
    }

    fn install(
        &self,
        writer: &Writer<'_>,
        made: &[PathBuf],
        copying: Copying<'_>,
        plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
    ) -> anyhow::Result<Report> {
        let site = self.site;
        let mut journal = Journal::read(&site.state())?;
        let former = journal.programs.clone();
        let mut programs = None;
        let copies = copying.is_some();
        if let Some((source, folder)) = copying {
            transaction::record_folders(&mut journal, made);
            let copied = programs::copy(site, writer, &mut journal, source, folder);
            let state = match copied {
                Ok(true) => ProgramsState::Copied,
                Ok(false) => ProgramsState::Unchanged,
                Err(error) => return Err(taken_back(site, writer, former.as_ref(), error)),
            };
            programs = Some(ProgramsReport {
                folder: folder.to_owned(),
                version: Some(source.name().to_owned()),
                state,
                remarks: Vec::new(),
            });
        }
        let done = self.tell_engines(writer, made, &journal, plan);
        let mut report = match done {
            Err(error) if copies => return Err(taken_back(site, writer, former.as_ref(), error)),
            other => other?,
        };
        if let Some(programs) = &mut programs {
            let kept = programs::prune(site, writer, &Journal::read(&site.state())?)?;
            programs.remarks.extend(
                kept.iter()
                    .map(|version| format!("{version} stays: containers run from it")),
            );
        }
        report.programs = programs;
        Ok(report)
    }

    /// The part that is about the engines' files.
    fn tell_engines(
        &self,
        writer: &Writer<'_>,
        made: &[PathBuf],
        journal: &Journal,
        plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
    ) -> anyhow::Result<Report> {
        let works = plan(journal)?;
        self.can_restart(&works)?;
        let mut next = journal.clone();
        let changed = works.iter().filter(|work| work.changes());
        let engines = changed.map(|work| work.engine);
        next.unread
            .extend(engines.filter(|engine| report::reload(*engine).is_some()));
        next.unread.sort();
        next.unread.dedup();
        let unfinished = journal.phase == Phase::Changing;
        if unfinished || works.iter().any(|work| work.needs_applying(journal)) {
            transaction::apply(self.site, writer, &next, &works, made)?;
        }
        let mut report = self.report(journal, &works);
        for report in &mut report.engines {
            let engine = report.engine();
            // Somebody may have restarted it since. A restart that is asked for and was not needed is one too many.
            let has_not_read = match self.common.restart {
                Restart::None => survey::has_not_read(self.site, journal, engine),
                restart => restart::is_for(restart, [engine]).is_ok(),
            };
            if journal.unread.contains(&engine) && has_not_read {
                report.has_not_read();
            }
        }
        Ok(report)
    }

    /// # Errors
    /// An engine whose files would change cannot be restarted as requested.
    fn can_restart(&self, works: &[Work]) -> anyhow::Result<()> {
        let changed = works.iter().filter(|work| work.changes());
        restart::is_for(self.common.restart, changed.map(|work| work.engine))
    }

    fn uninstall(
        &self,
        writer: &Writer<'_>,
        made: &[PathBuf],
        plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
    ) -> anyhow::Result<Report> {
        let site = self.site;
        let journal = Journal::read(&site.state())?;
        let works = plan(&journal)?;
        self.can_restart(&works)?;
        // With the last engine the programs go too.
        let named = |engine| works.iter().any(|work: &Work| work.engine == engine);
        let last = journal.files.iter().all(|entry| named(entry.engine));
        let copies = journal.programs.as_ref().filter(|_| last);
        if let Some(copies) = copies {
            not_running(&copies.running(&site.root)?)?;
        }
        let mut report = self.report(&journal, &works);
        if journal.phase == Phase::Changing
            || works.iter().any(|work| work.needs_applying(&journal))
        {
            transaction::apply(site, writer, &journal, &works, made)?;
        }
        if let Some(copies) = copies {
            report.programs = Some(ProgramsReport {
                folder: copies.folder.clone(),
                version: copies.current().map(str::to_owned),
                state: ProgramsState::Removed,
                remarks: Vec::new(),
            });
            programs::remove(site, writer, Journal::read(&site.state())?)?;
        }
        Ok(report)
    }
}

/// The error of a run that had copied programs.
fn taken_back(
    site: &Site,
    writer: &Writer<'_>,
    former: Option<&Copies>,
    error: anyhow::Error,
) -> anyhow::Error {
    match programs::take_back(site, writer, former) {
        Ok(()) => error,
        Err(_) => error.context("copied programs are left; `cgpu uninstall` removes them"),
    }
}

/// # Errors
/// Something runs from the programs that are to be removed.
fn not_running(running: &[Running]) -> anyhow::Result<()> {
    const SHOWN: usize = 8;
    if running.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = running
        .iter()
        .take(SHOWN)
        .map(|one| format!("{} ({})", one.program.display(), one.pid))
        .collect();
    let more = match running.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    bail!(
        "containers run from cgpu's programs, which stay until they have ended; nothing was changed: {}{more}",
        names.join(", ")
    )
}

/// An engine has read its files.
fn has_read(site: &Site, writer: &Writer<'_>, engine: Engine) -> anyhow::Result<()> {
    let mut journal = Journal::read(&site.state())?;
    let before = journal.unread.len();
    journal.unread.retain(|unread| *unread != engine);
    if journal.unread.len() < before {
        journal.write(&site.state(), writer)?;
    }
    Ok(())
}

/// Where nothing is installed nothing of ours stays, the lock included.
pub(super) fn tidy(site: &Site, writer: &Writer<'_>, made: &[PathBuf]) -> anyhow::Result<()> {
    let mut journal = Journal::read(&site.state())?;
    let known = journal.folders.len();
    transaction::record_folders(&mut journal, made);
    if journal.is_empty() || journal.folders.len() > known {
        transaction::settle(site, writer, journal)?;
    }
    Ok(())
}
