//! `cargo xtask guest`: the engines' checks and other tests under a kernel whose control groups have version 2 alone.
//!
//! The short form is part of `cargo xtask test`. The long one has this machine do the same, and writes docs/reports/hosts.md; where it
//! runs a part alone, the rest of that page stays.

mod arm64;
mod document;
mod packages;
mod plan;
mod starts;
mod steps;
mod whole;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use integration::guest::{Guest, Init, Storage};
use integration::packages::{Suite, ensure_installed};
use integration::programs::{Profile, Programs, target_folder};
use integration::whole::{DEBIAN_WITH_SELINUX, Distribution, UBUNTU};

use crate::suite::executables::{self, Executable};
use crate::suite::runner::Outcome;

use plan::{Place, Plan, Report};
use starts::Starts;
use steps::{LONG, OF_SYSTEMD, OF_UBUNTU, SHORT, Step};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// All that is worth its time there, and docs/reports/hosts.md.
    #[arg(long)]
    long: bool,
    /// Whose kernel runs.
    #[arg(long, value_enum, default_value_t = Kernel::Host)]
    kernel: Kernel,
    /// systemd is the guest's first process; of the long form that guest alone.
    #[arg(long)]
    systemd: bool,
    /// Of the long form these kinds of hosts alone; may be given again.
    #[arg(long, value_enum)]
    kind: Vec<Kind>,
    /// Only what has this in its name; may be given again.
    #[arg(long)]
    only: Vec<String>,
    /// Of rows only checks whose names contain this, in the place of those that are usual; may be given again.
    #[arg(long)]
    check: Vec<String>,
    /// Each of the rows' checks so many times.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Programs whose starts are measured, built already; those for containers are in `static` below. Default: a release build.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Measure starts here, and write them to this file.
    #[arg(long, hide = true)]
    starts: Option<PathBuf>,
    /// So many pairs of them.
    #[arg(long, hide = true, default_value_t = 1)]
    pairs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kernel {
    /// The release of Debian that this machine has.
    Host,
    /// Debian 13.
    Trixie,
    /// Ubuntu 24.04, which restricts user namespaces: the tests of AppArmor, and no page.
    Noble,
    /// Ubuntu 24.04 as a whole, with AppArmor as it ships it: a script, and no page.
    Ubuntu,
    /// Debian 13 as a whole, with SELinux that enforces its policy: a script, and no page.
    Selinux,
    /// Debian 12 for arm64, with programs and tests that are built for it; writes docs/reports/arm64.md.
    Arm64,
}

impl Kernel {
    fn suite(self) -> Suite {
        match self {
            Self::Host => Suite::Host,
            Self::Trixie | Self::Selinux => Suite::Trixie,
            Self::Noble | Self::Ubuntu => Suite::Noble,
            Self::Arm64 => Suite::Arm64,
        }
    }

    /// What its root is, where that is not this machine's.
    fn distribution(self) -> Option<&'static Distribution> {
        match self {
            Self::Ubuntu => Some(&UBUNTU),
            Self::Selinux => Some(&DEBIAN_WITH_SELINUX),
            Self::Host | Self::Trixie | Self::Noble | Self::Arm64 => None,
        }
    }

    /// Tests, and the folder of our programs.
    fn build(self) -> Result<(Vec<Executable>, PathBuf)> {
        Ok(match self {
            Self::Host | Self::Trixie | Self::Noble => {
                let executables = executables::build()?.tests;
                let programs = Programs::gather(Profile::Dev)?;
                (executables, programs.folder().to_owned())
            }
            Self::Ubuntu | Self::Selinux => {
                let programs = Programs::build(Profile::Dev)?;
                (Vec::new(), programs.folder().to_owned())
            }
            Self::Arm64 => (
                executables::build_for_arm64()?.tests,
                target_folder().join(executables::ARM64).join("debug"),
            ),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// This machine.
    Host,
    /// The guest without systemd.
    Shell,
    /// The same with control groups of version 1: the cost of a start alone.
    Version1,
    /// The guest with systemd.
    Systemd,
}

impl Kind {
    fn place(self) -> Place {
        match self {
            Self::Host => Place::Host,
            Self::Shell => Place::Guest(Init::Shell),
            Self::Version1 => Place::Guest(Init::ShellOfVersion1),
            Self::Systemd => Place::Guest(Init::Systemd),
        }
    }
}

const SHORT_LIMIT: Duration = Duration::from_secs(15 * 60);
const LONG_LIMIT: Duration = Duration::from_secs(5 * 60 * 60);

impl Options {
    fn places(&self) -> Vec<Place> {
        match (self.kind.as_slice(), self.long, self.systemd) {
            ([], true, false) if matches!(self.kernel, Kernel::Host | Kernel::Trixie) => {
                Place::ALL.to_vec()
            }
            ([], _, true) => vec![Place::Guest(Init::Systemd)],
            ([], _, false) if self.kernel.distribution().is_some() => {
                vec![Place::Guest(Init::Systemd)]
            }
            ([], _, false) => vec![Place::Guest(Init::Shell)],
            (kinds, _, _) => kinds.iter().map(|kind| kind.place()).collect(),
        }
    }

    fn steps(&self, place: Place) -> Vec<Step> {
        let is_needed = |step: &Step| {
            let name = step.name();
            let is_named = self.only.is_empty() || self.only.iter().any(|only| name.contains(only));
            // Only there to be compared with.
            let is_compared = matches!(step, Step::Starts(_));
            is_named && (place != Place::Guest(Init::ShellOfVersion1) || is_compared)
        };
        let all = match (self.kernel, self.long) {
            (Kernel::Arm64, _) => arm64::STEPS,
            (Kernel::Noble, _) => OF_UBUNTU,
            (Kernel::Ubuntu, _) => whole::UNDER_APPARMOR,
            (Kernel::Selinux, _) => whole::UNDER_SELINUX,
            (Kernel::Host | Kernel::Trixie, true) => LONG,
            (Kernel::Host | Kernel::Trixie, false) => SHORT,
        };
        let of_systemd = match (self.kernel, self.long, place) {
            (Kernel::Host | Kernel::Trixie, true, Place::Guest(Init::Systemd)) => OF_SYSTEMD,
            _ => &[],
        };
        let all = all.iter().chain(of_systemd).copied();
        all.filter(is_needed).collect()
    }

    /// Puts what has come of it on the page of such a host, where there is one.
    fn write(&self, guest: &Guest, place: Place, reports: &mut [Report]) -> Result<()> {
        match self.kernel {
            Kernel::Host | Kernel::Trixie if self.long => document::write(guest, place, reports),
            Kernel::Arm64 => arm64::write(guest, reports),
            Kernel::Host | Kernel::Trixie | Kernel::Noble | Kernel::Ubuntu | Kernel::Selinux => {
                Ok(())
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(file) = &options.starts {
        let folder = std::env::var_os("CGPU_BIN").context("CGPU_BIN names our programs")?;
        Starts::measure(&Programs::at(Path::new(&folder))?, options.pairs)?.write(file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (executables, programs) = options.kernel.build()?;
    // As long as this is there, so is its file.
    let disk = match options.kernel.distribution() {
        Some(distribution) => {
            packages::make(&Programs::at(&programs)?)?;
            Some((whole::disk(distribution, &programs)?, distribution))
        }
        None => None,
    };
    let first = match &disk {
        Some((disk, distribution)) => Storage::System {
            disk: disk.file(),
            options: distribution.kernel_options,
        },
        None => Storage::Memory,
    };
    let guest = Guest::of(options.kernel.suite())?;
    let guests = [guest.clone().with(first), guest.with(Storage::Disk)];
    let mut failed: u64 = 0;
    for place in options.places() {
        let steps = options.steps(place);
        if steps.iter().any(|step| step.installs_packages()) {
            ensure_installed(&packages::TOOLS)?;
            packages::make(&Programs::at(&programs)?)?;
        }
        for guest in &guests {
            let has_disk = *guest.storage() == Storage::Disk;
            let is_of_it = |step: &&Step| step.needs_disk() == has_disk;
            let steps: Vec<Step> = steps.iter().filter(is_of_it).copied().collect();
            if steps.is_empty() {
                continue;
            }
            let are_started = steps.iter().any(|step| matches!(step, Step::Starts(_)));
            let shipped = match (are_started, &options.programs) {
                (true, Some(folder)) => std::path::absolute(Programs::at(folder)?.folder())?,
                (true, None) => Programs::build(Profile::Release)?.folder().to_owned(),
                (false, _) => programs.clone(),
            };
            let plan = Plan {
                shipped: &shipped,
                steps: &steps,
                checks: &options.check,
                times: options.times,
                executables: &executables,
                programs: &programs,
                limit: match (options.kernel, options.long) {
                    (Kernel::Host | Kernel::Trixie, false) => SHORT_LIMIT,
                    _ => LONG_LIMIT,
                },
            };
            let mut reports = plan.run(guest, place)?;
            options.write(guest, place, &mut reports)?;
            failed += reports.iter().map(Report::show).sum::<u64>();
        }
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The short form, of executables that are built.
///
/// # Errors
/// A reason to skip aloud: there is no guest here.
pub(crate) fn short(executables: &[Executable], programs: &Path) -> Result<Vec<Outcome>> {
    let guest = Guest::of(Suite::Host)?;
    let plan = Plan {
        shipped: programs,
        steps: SHORT,
        checks: &[],
        times: 1,
        executables,
        programs,
        limit: SHORT_LIMIT,
    };
    let place = Place::Guest(Init::Shell);
    let reports = plan.run(&guest, place).unwrap_or_else(|error| {
        let failed = |step: &Step| Report::failed(place, *step, &format!("{error:#}"));
        SHORT.iter().map(failed).collect()
    });
    Ok(reports.into_iter().map(|report| report.outcome).collect())
}
