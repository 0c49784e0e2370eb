//! `cgpu install` and `cgpu uninstall`: tells engines of cgpu's runtime, and takes it back.
//!
//! ```text
//!   engine (which, what version) ─► plan (files and changes) ─► change (json_text, toml_text: new texts)
//!                                                                  │
//!   report (diff, notes, what to reload) ◄─ transaction ◄─ work (by engine) ◄─ check (the engine's own, on a copy)
//!                     │                         │
//!   restart ◄─────────┘                         └─► journal (what was done, the originals), place (one step a file)
//! ```
//!
//! From an image, with the host's root mounted: `host` (this process goes there), `programs` (copies of cgpu's own), before the engines
//! are told of them; `processes` says what runs from them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use self::engine::{Engine, Requested};
use self::journal::Journal;
use self::plan::{AsDefault, InstallRequest};
use self::programs::Source;
use self::report::{Action, ProgramsReport, ProgramsState, Report};
use self::restart::Restart;
use self::run::Run;
pub(super) use self::survey::survey;
use self::work::Site;
use super::{Form, not_understood};

mod by_hand;
mod change;
mod check;
mod copies;
mod engine;
mod files;
mod host;
mod journal;
mod json_text;
mod named;
mod place;
mod plan;
mod processes;
mod programs;
mod report;
mod restart;
mod run;
mod staging;
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
  cgpu install --engine containerd@2.1 --root /mnt/image
  cgpu install --host /host --restart=signal      In a container that has the host's root at /host: the programs too";

/// Below the help of `cgpu uninstall`.
pub(super) const UNINSTALL_EXAMPLES: &str = "\
A file that was changed after `install` keeps those changes; only cgpu's entries are removed.

Examples:
  cgpu uninstall --dry-run
  cgpu uninstall --engine docker --restart
  cgpu uninstall --host /host --restart=signal    In a container: what `cgpu install --host` brought, if nothing runs from it";

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
    /// The root directory of the host that this container runs on, with all that is mounted below it. cgpu goes there (chroot).
    /// A host that has cgpu by a package, or by hand, is left alone.
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    host: Option<PathBuf>,
    /// Show what would be changed, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Reload or restart the engines whose files were changed; otherwise the commands are only printed. HOW: systemd, the default;
    /// signal, which ends containerd by SIGHUP and waits until its service has started it again; none.
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "systemd",
        hide_default_value = true,
        hide_possible_values = true
    )]
    restart: Restart,
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
    /// With --host the folder below which they are copied, by version. Default: /opt/cgpu.
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
    // Opened while this installation can still be seen.
    let mut source = common.host.as_ref().map(|_| Source::own()).transpose()?;
    let site = site(common)?;
    let folder = programs_folder(options, &site)?;
    let request = InstallRequest {
        runtime: options.runtime.clone(),
        as_default: if options.default {
            AsDefault::Yes
        } else {
            AsDefault::No
        },
        programs: match source {
            Some(_) => format!("{folder}/current/bin"),
            None => folder.clone(),
        },
        are_there: !(source.is_some() && common.dry_run),
    };
    if source.is_some()
        && let Some(shim) = programs::of_a_package(&site, &folder)
    {
        let reason = format!(
            "{} is there, from a package or by hand: it stays, and nothing is changed; `cgpu install` on the host tells the engines of it",
            shim.display()
        );
        return left_alone(&site, common, Action::Install, &folder, reason);
    }
    let plan = |journal: &Journal| work::plan_install(&site, journal, &common.engine, &request);
    let run = Run {
        site: &site,
        common,
        action: Action::Install,
        runtime: Some(&request.runtime),
    };
    run.act(source.as_mut().map(|source| (source, &*folder)), plan)
}

/// Where the engines find the programs; with `--host`, below which folder they are copied.
fn programs_folder(options: &InstallOptions, site: &Site) -> anyhow::Result<String> {
    let host = options.common.host.is_some();
    let folder = match &options.programs {
        Some(folder) if folder.is_absolute() => folder.clone(),
        Some(folder) => {
            let folder = folder.display();
            return Err(not_understood(format!(
                "--programs {folder}: the path must be absolute"
            )));
        }
        None if host => PathBuf::from(programs::FOLDER),
        None => site.own_folder(),
    };
    if host {
        let plain = |part| matches!(part, std::path::Component::Normal(_));
        if !folder.components().skip(1).all(plain) || folder == Path::new("/") {
            return Err(not_understood(format!(
                "--programs {}: a folder of its own, without `..`, is needed",
                folder.display()
            )));
        }
    }
    // Without a `/` at its end.
    let folder: PathBuf = folder.components().collect();
    let folder = folder.into_os_string().into_string();
    folder.map_err(|path| anyhow::anyhow!("the folder {} is not UTF-8", path.display()))
}

pub(super) fn uninstall(options: &UninstallOptions) -> anyhow::Result<ExitCode> {
    let common = &options.common;
    let site = site(common)?;
    if common.host.is_some() && Journal::read(&site.state())?.programs.is_none() {
        let reason = "no programs were copied to this host: nothing is changed".to_owned();
        return left_alone(&site, common, Action::Uninstall, programs::FOLDER, reason);
    }
    let plan = |journal: &Journal| work::plan_uninstall(&site, journal, &common.engine);
    let run = Run {
        site: &site,
        common,
        action: Action::Uninstall,
        runtime: None,
    };
    run.act(None, plan)
}

/// Reports that a host is as it is to be.
fn left_alone(
    site: &Site,
    common: &Common,
    action: Action,
    folder: &str,
    reason: String,
) -> anyhow::Result<ExitCode> {
    let mut report = Report::new(action, site, None, &Journal::default(), &[]);
    report.dry_run = common.dry_run;
    report.programs = Some(ProgramsReport {
        folder: folder.to_owned(),
        version: None,
        state: ProgramsState::LeftAlone,
        remarks: vec![reason],
    });
    common.form.print(&report, Report::text)?;
    Ok(ExitCode::SUCCESS)
}

fn site(common: &Common) -> anyhow::Result<Site> {
    let root = match &common.host {
        Some(host) => {
            host::enter(host)?;
            PathBuf::from("/")
        }
        None => std::fs::canonicalize(&common.root)
            .with_context(|| format!("--root {}", common.root.display()))?,
    };
    if !root.is_dir() {
        bail!("--root {}: not a folder", root.display());
    }
    if common.restart != Restart::None && root != Path::new("/") {
        return Err(not_understood(
            "--restart is for the engines of this host and cannot be used with --root",
        ));
    }
    if common.restart == Restart::Systemd
        && !common.dry_run
        && engine::find(Path::new("/"), "systemctl").is_none()
    {
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
        return Err(not_understood(format!("--engine names {twice} twice")));
    }
    restart::is_for(common.restart, engines)
        .map_err(|error| not_understood(format!("{error:#}")))?;
    Ok(Site { root })
}
