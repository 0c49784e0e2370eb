//! `cgpu install` and `cgpu uninstall`: tells engines of cgpu's runtime, and takes it back.
//!
//! ```text
//!   engine (which, what version) ─► plan (files and changes) ─► change (json_text, toml_text: new texts)
//!                                                                  │
//!   report (diff, notes, what to reload) ◄─ transaction ◄─ work (by engine) ◄─ check (the engine's own, on a copy)
//!                                               │
//!                                               └─► journal (what was done, the originals), place (one step a file)
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;

use self::engine::{Engine, Requested};
use self::journal::{Journal, Phase};
use self::place::{RealDisk, Writer};
use self::plan::{AsDefault, InstallRequest};
use self::report::{Action, Report};
pub(super) use self::survey::survey;
use self::work::{Site, Work};
use super::Form;

mod change;
mod check;
mod engine;
mod journal;
mod json_text;
mod place;
mod plan;
mod report;
mod survey;
#[cfg(test)]
mod tests;
mod toml_text;
mod transaction;
mod work;

/// Below the help of `cgpu install`.
pub(super) const INSTALL_EXAMPLES: &str = "\
Each new file is checked by the engine's own program before it is put in place.

Examples:
  cgpu install --dry-run                          Show the changes for the engines found here
  cgpu install --restart                          Change the files and reload the engines
  cgpu install --engine docker --runtime gpu      docker alone, for `docker run --runtime gpu`
  cgpu install --engine containerd@2.1 --root /mnt/image";

/// Below the help of `cgpu uninstall`.
pub(super) const UNINSTALL_EXAMPLES: &str = "\
A file that was changed after `install` keeps those changes; only cgpu's entries are removed.

Examples:
  cgpu uninstall --dry-run
  cgpu uninstall --engine docker --restart";

/// The options of both.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Engines, with commas between: containerd, docker, podman, crio, podman-hook; NAME@VERSION if it is not installed here.
    /// Default: those that are found; for `uninstall` those that cgpu is installed in.
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    engine: Vec<Requested>,
    /// The root directory of the host to change, for images and packages.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Show what would be changed, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Reload or restart the engines afterwards; otherwise the commands are only printed.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    form: Form,
}

/// The options of `cgpu install`.
#[derive(Debug, Args)]
pub(super) struct InstallOptions {
    #[command(flatten)]
    common: Common,
    /// The runtime's name for `docker run --runtime NAME`, `podman --runtime NAME` and the handler of a RuntimeClass.
    #[arg(long, value_name = "NAME", default_value = "cgpu", value_parser = runtime_name)]
    runtime: String,
    /// Also make it the default runtime. Containers that ask for no GPU still run as under plain runc.
    #[arg(long)]
    default: bool,
    /// The folder of cgpu's programs as the engines see it. Default: this program's folder; with --root /usr/bin.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// The options of `cgpu uninstall`.
#[derive(Debug, Args)]
pub(super) struct UninstallOptions {
    #[command(flatten)]
    common: Common,
}

/// A name that every engine takes, a RuntimeClass included.
fn runtime_name(text: &str) -> Result<String, String> {
    let label = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
    };
    let taken = ["runc", "crun", "runsc", "kata", "nvidia"];
    if taken.contains(&text) {
        return Err(format!(
            "{text:?} is another runtime's name: choose another, for example cgpu"
        ));
    }
    if text.is_empty()
        || text.len() > 63
        || !text.chars().all(label)
        || text.starts_with('-')
        || text.ends_with('-')
    {
        return Err(
            "allowed are 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends, as for the handler of a RuntimeClass"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

pub(super) fn install(options: &InstallOptions) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let site = site(common)?;
    let programs = match &options.programs {
        Some(folder) if folder.is_absolute() => folder.clone(),
        Some(folder) => bail!("--programs {}: the path must be absolute", folder.display()),
        None if site.root == Path::new("/") => std::env::current_exe()
            .context("this program's own path")?
            .parent()
            .map(Path::to_owned)
            .context("this program's folder")?,
        None => PathBuf::from("/usr/bin"),
    };
    let request = InstallRequest {
        runtime: options.runtime.clone(),
        as_default: if options.default {
            AsDefault::Yes
        } else {
            AsDefault::No
        },
        programs: programs
            .into_os_string()
            .into_string()
            .map_err(|path| anyhow::anyhow!("the folder {} is not UTF-8", path.display()))?,
    };
    let plan = |journal: &Journal| work::plan_install(&site, journal, &common.engine, &request);
    act(&site, common, Action::Install, Some(&request.runtime), plan)
}

pub(super) fn uninstall(options: &UninstallOptions) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let site = site(common)?;
    let plan = |journal: &Journal| work::plan_uninstall(&site, journal, &common.engine);
    act(&site, common, Action::Uninstall, None, plan)
}

fn site(common: &Common) -> anyhow::Result<Site> {
    let root = std::fs::canonicalize(&common.root)
        .with_context(|| format!("--root {}", common.root.display()))?;
    if !root.is_dir() {
        bail!("--root {}: not a folder", root.display());
    }
    if common.restart && root != Path::new("/") {
        bail!("--restart is for the engines of this host and cannot be used with --root");
    }
    if common.restart && !common.dry_run && engine::find(Path::new("/"), "systemctl").is_none() {
        bail!(
            "--restart needs systemctl, which is not installed here; without --restart the commands are printed"
        );
    }
    let mut engines: Vec<Engine> = common
        .engine
        .iter()
        .map(|requested| requested.engine)
        .collect();
    engines.sort();
    if let Some([twice, _]) = engines.windows(2).find(|pair| pair.first() == pair.last()) {
        bail!("--engine names {twice} twice");
    }
    Ok(Site { root })
}

fn act(
    site: &Site,
    common: &Common,
    action: Action,
    runtime: Option<&str>,
    plan: impl Fn(&Journal) -> anyhow::Result<Vec<Work>>,
) -> anyhow::Result<ExitCode> {
    if common.dry_run {
        let journal = Journal::read(&site.state())?;
        let works = plan(&journal)?;
        let mut report = Report::new(action, site, runtime, &journal, &works);
        report.dry_run = true;
        common.form.print(&report, Report::text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let disk = RealDisk;
    let writer = Writer::new(&disk);
    let (lock, made) = transaction::lock(site, &writer)?;
    let done = Journal::read(&site.state()).and_then(|journal| {
        let works = plan(&journal)?;
        let unfinished = journal.phase == Phase::Changing;
        let needed = unfinished || works.iter().any(|work| work.needs_applying(&journal));
        if needed {
            transaction::apply(site, &writer, &journal, &works, &made)?;
        }
        Ok((Report::new(action, site, runtime, &journal, &works), needed))
    });
    let (mut report, applied) = match done {
        Ok(done) => done,
        Err(error) => {
            tidy(site, &writer, &made)?;
            return Err(error);
        }
    };
    if !applied {
        tidy(site, &writer, &made)?;
    }
    drop(lock);
    let mut code = ExitCode::SUCCESS;
    if common.restart {
        for engine in &mut report.engines {
            if !restart(engine)? {
                code = ExitCode::FAILURE;
            }
        }
    }
    common.form.print(&report, Report::text)?;
    Ok(code)
}

/// Where nothing is installed nothing of ours stays, the lock included.
fn tidy(site: &Site, writer: &Writer<'_>, made: &[PathBuf]) -> anyhow::Result<()> {
    let mut journal = Journal::read(&site.state())?;
    let known = journal.folders.len();
    transaction::record_folders(&mut journal, made);
    if journal.files.is_empty() || journal.folders.len() > known {
        transaction::settle(site, writer, journal)?;
    }
    Ok(())
}

/// Runs what makes an engine read its files again; whether that went well.
fn restart(engine: &mut report::EngineReport) -> anyhow::Result<bool> {
    let Some(line) = engine.then.clone() else {
        return Ok(true);
    };
    let mut arguments = line.split(' ');
    let program = arguments.next().context("a command has a program")?;
    let reply = engine::run(Command::new(program).args(arguments))?;
    match reply.problem() {
        None => {
            engine.then_done = true;
            Ok(true)
        }
        Some(problem) => {
            engine.remarks.push(format!("`{line}` failed: {problem}"));
            Ok(false)
        }
    }
}
