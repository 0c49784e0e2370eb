//! Who holds a container to its memory: one trait, several strengths, and the choice between them.
//!
//! | backend | strength | memory | offered |
//! |---|---|---|---|
//! | `broker` | exact | a broker decides every call | the driver's layouts are known; kernel and runc can hand calls over |
//! | `driver-limit` | hard | NVIDIA's limit of the container's control group | R615 and later, cgroup v2, whole cards |
//! | `share` | none | nobody | a real driver; only where it is asked for |
//!
//! `auto` takes the strongest that is offered. Nothing is taken below the host's `min_strength`, and `share` is never
//! a fallback. A backend's way around a container:
//!
//! ```text
//!   prepare ── runc create ── ready ── verify_filter ── (watch_start) start … (verify_exec) … ── teardown ── runc delete ── end
//! ```
//!
//! What `teardown` and `end` undo is read from the container's folder, so that both can be repeated, and a killed frontend's are
//! made up for by `reclaim`.

mod broker;
mod driver_limit;
mod filter;
mod init;
mod leaf;
mod quota;
mod share;
mod survey;

use cards::Grant;
pub use cards::grant::Backend as Kind;
use cards::lock::FileLock;
use cards::placement::Amount;
use host_config::chain;
use host_config::config::{BackendKind, Config, Strength};
use spec::request::Request;

use self::broker::Broker;
use self::driver_limit::DriverLimit;
pub(crate) use self::driver_limit::status as status_by_driver;
pub use self::filter::{StartWatch, Started};

use self::share::Share;
pub use self::survey::{Offer, Survey, survey};
use crate::broker::Starting;
use crate::error::{Error, WhyNot};
use crate::host::Host;
use crate::own_group::Patience;
use crate::process::{self, Process};
use crate::state::ContainerDir;

/// One way of holding a container.
pub(crate) trait Backend {
    /// Its name.
    fn kind(&self) -> Kind;

    /// How well it holds.
    fn strength(&self) -> Strength;

    /// Whether this host has what it needs.
    fn offered(&self, host: &Host) -> Result<(), WhyNot>;

    /// Before the container is created; the grant is durable. What it starts is waited for before the container may start.
    fn prepare(&self, dir: &ContainerDir, grant: &Grant) -> Result<Option<Starting>, Error>;

    /// Between create and start: from here on the container is held, or it must not start.
    fn verify_filter(&self, dir: &ContainerDir, grant: &Grant, init: i32) -> Result<(), Error>;

    /// Whether it is held at its start only, by [`Backend::watch_start`].
    fn is_verified_at_start(&self, _dir: &ContainerDir) -> bool {
        false
    }

    /// Just before start, where `verify_filter` could not hold it yet: follows it to its program. `None` where it is held.
    fn watch_start(
        &self,
        _dir: &ContainerDir,
        _grant: &Grant,
        _init: i32,
    ) -> Result<Option<StartWatch>, Error> {
        Ok(None)
    }

    /// While it runs: another process of it was started.
    fn verify_exec(
        &self,
        _dir: &ContainerDir,
        _grant: &Grant,
        _process: &Process,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// While it runs: the grant's quotas are new. Says what the container holds of each card.
    fn resize(&self, dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error>;

    /// Before the container's control group goes. Does nothing for a container of another backend.
    fn teardown(&self, dir: &ContainerDir) -> Result<(), Error>;

    /// When the grant ends; the state lock is not held, since this may wait. Does nothing for a container of another backend.
    fn end(&self, dir: &ContainerDir, ending: &Ending<'_>) -> Result<(), Error>;
}

/// How a vGPU is ended.
pub(crate) struct Ending<'a> {
    /// Whether it is still that vGPU: somebody else may have undone it meanwhile, and the name be the next one's.
    pub(crate) is_still: &'a dyn Fn() -> bool,
    /// With the control group of its own processes.
    pub(crate) patience: Patience,
}

/// What a container holds of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) uuid: String,
    pub(crate) used_bytes: u64,
}

/// What the container's calls go through until it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// An OCI runtime, which must be able to hand over a listener.
    Oci,
    /// `cgpu run`, which can.
    Own,
}

/// What a request asks of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Memory is held.
    Quota,
    /// Policy 5 without a quota: sharing without isolation.
    Sharing,
}

impl Needed {
    pub(crate) fn of(request: &Request) -> Self {
        match request.request.amount {
            Amount::Unmeasured => Self::Sharing,
            Amount::TotalBytes(_)
            | Amount::Share(_)
            | Amount::AtMost { .. }
            | Amount::PerCard(_) => Self::Quota,
        }
    }
}

/// What was chosen.
pub(crate) struct Choice<'a> {
    pub(crate) backend: Box<dyn Backend + 'a>,
    /// Why, for people.
    pub(crate) reason: String,
}

impl std::fmt::Debug for Choice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.backend.kind(), self.reason)
    }
}

/// The backend that a grant names.
pub(crate) fn of(config: &Config, kind: Kind) -> Box<dyn Backend + '_> {
    make(config, kind, Runtime::Own)
}

fn make(config: &Config, kind: Kind, runtime: Runtime) -> Box<dyn Backend + '_> {
    match kind {
        Kind::Broker => Box::new(Broker { config, runtime }),
        Kind::DriverLimit => Box::new(DriverLimit { config }),
        Kind::Share => Box::new(Share),
    }
}

/// Whether the frontend or the broker of a container lives, or a process of the container itself: that one has what it has of a card, whoever
/// else is gone. Nobody: its folder is stale.
///
/// # Errors
/// One of them cannot be looked at: the folder is not known to be stale.
pub(crate) fn is_live(dir: &ContainerDir) -> Result<bool, Error> {
    Ok(FileLock::is_held(&dir.frontend_lock())?
        || dir.has_broker()?
        || has_processes(dir)?
        || share::is_awaited(dir))
}

/// Whether a process of the container itself lives, as far as is recorded.
///
/// # Errors
/// One that may live cannot be looked at.
pub(crate) fn has_processes(dir: &ContainerDir) -> Result<bool, Error> {
    Ok(process::lives(dir)? || init::lives(dir)? || leaf::is_populated(dir)?)
}

/// Chooses for one container.
///
/// # Errors
/// Nothing that is offered is strong enough; the text says what each lacks.
pub(crate) fn choose<'a>(
    config: &'a Config,
    host: &Host,
    needed: Needed,
    runtime: Runtime,
) -> Result<Choice<'a>, Error> {
    let kinds = candidates(config.backend.kind, config.backend.min_strength, needed)?;
    let backends = kinds.iter().map(|kind| make(config, *kind, runtime));
    let choice = pick(
        backends.collect(),
        host,
        config.backend.min_strength,
        &requested(config.backend.kind, needed),
    )?;
    let (backend, reason) = (choice.backend.kind(), &choice.reason);
    if choice.backend.strength() == Strength::Exact {
        tracing::info!(%backend, %reason, "backend");
    } else {
        tracing::warn!(%backend, %reason, strength = choice.backend.strength().name(), "backend");
    }
    Ok(choice)
}

/// Strongest first.
fn candidates(
    kind: BackendKind,
    min_strength: Strength,
    needed: Needed,
) -> Result<Vec<Kind>, Error> {
    Ok(match (needed, kind) {
        (Needed::Sharing, BackendKind::Auto | BackendKind::Share)
            if min_strength == Strength::None =>
        {
            vec![Kind::Share]
        }
        (Needed::Sharing, _) => {
            return Err(Error::SharingRefused {
                kind: kind.name(),
                min_strength: min_strength.name(),
            });
        }
        (Needed::Quota, BackendKind::Auto) => vec![Kind::Broker, Kind::DriverLimit],
        (Needed::Quota, BackendKind::Broker) => vec![Kind::Broker],
        (Needed::Quota, BackendKind::DriverLimit) => vec![Kind::DriverLimit],
        (Needed::Quota, BackendKind::Share) => vec![Kind::Share],
    })
}

fn requested(kind: BackendKind, needed: Needed) -> String {
    match (needed, kind) {
        (Needed::Sharing, _) => "the container asks for policy native without a quota".to_owned(),
        (Needed::Quota, BackendKind::Auto) => "auto".to_owned(),
        (Needed::Quota, kind) => format!("backend.kind is {}", kind.name()),
    }
}

/// The first that is offered and strong enough. The others are asked only as far as needed: a question to NVML costs time.
fn pick<'a>(
    candidates: Vec<Box<dyn Backend + 'a>>,
    host: &Host,
    min: Strength,
    requested: &str,
) -> Result<Choice<'a>, Error> {
    let mut lacking: Vec<(Kind, WhyNot)> = Vec::new();
    for backend in candidates {
        let strength = backend.strength();
        let offered = if strength < min {
            Err(WhyNot::TooWeak { strength, min })
        } else {
            backend.offered(host)
        };
        match offered {
            Err(why) => lacking.push((backend.kind(), why)),
            Ok(()) if lacking.is_empty() => {
                return Ok(Choice {
                    backend,
                    reason: requested.to_owned(),
                });
            }
            Ok(()) => {
                return Ok(Choice {
                    backend,
                    reason: format!("{requested}, and {}", listed(&lacking)),
                });
            }
        }
    }
    // Simulated cards leave no choice: what the broker lacks is the reason.
    if lacking.len() > 1 {
        lacking.retain(|(_, why)| !matches!(why, WhyNot::Simulated));
    }
    match lacking.pop() {
        Some((kind, why)) if lacking.is_empty() => Err(why.into_error(kind)),
        last => {
            lacking.extend(last);
            Err(Error::NoBackend {
                lacks: listed(&lacking),
            })
        }
    }
}

fn listed(lacking: &[(Kind, WhyNot)]) -> String {
    lacking
        .iter()
        .map(|(kind, why)| format!("{kind} is not offered ({})", chain(why)))
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests;
