//! What goes wrong around a container, as its broker sees it: told in events, counted, and shown in the status.
//!
//! ```text
//! hung (the shared state)  ─┐
//! incidents (driver, ├─▶ Health ─▶ events (ring, the container's log), counters (the shared state), log
//!   kernel's log)    │       │
//! reconcile (driver) ─┘      └─ cards/<uuid>/health.json, kill
//! throttle, refusals ◀─ serve
//! ```
//!
//! What is known is here; who looks is above the container: [`crate::watch`].

pub(crate) mod events;
pub(crate) mod hung;
mod kernel_log;
pub(crate) mod over_quota;
pub(crate) mod reach;
pub(crate) mod reconcile;
pub(crate) mod refusals;
pub(crate) mod shortage;
pub(crate) mod storage;
mod throttle;
pub(crate) mod unknown_calls;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use cards::{CardHealth, GpuUuid, OnViolation, Watch};

pub use events::Events;
pub use kernel_log::KernelLog;
pub(crate) use over_quota::Mib;
pub use reconcile::Comparison;
pub use shortage::{Lack, Shortage};
pub use throttle::Throttle;

use hung::Hung;
use over_quota::OverQuota;
use reconcile::Reconciler;
use refusals::Refusals;
use unknown_calls::UnknownCalls;

/// What a broker is told of its watch.
#[derive(Debug, Default)]
pub struct Plan {
    /// The folder of the container's log; `None`: events are kept in memory only.
    pub log_dir: Option<PathBuf>,
    /// The state folder, for the cards' health; `None`: nobody else is told.
    pub state_dir: Option<PathBuf>,
    /// Times.
    pub watch: Watch,
    /// What follows a violation.
    pub on_violation: OnViolation,
    /// The kernel's log; without one only the driver is asked.
    pub kernel_log: Option<KernelLog>,
}

/// Everything about one container that went wrong, and what keeps it from being noisy.
#[derive(Debug, Default)]
pub struct Health {
    pub(crate) plan: Plan,
    /// What happened.
    pub events: Events,
    /// Refused calls beyond a rate wait.
    pub throttle: Throttle,
    /// What the system does not give.
    pub shortage: Shortage,
    pub(crate) refusals: Refusals,
    pub(crate) over_quota: OverQuota,
    pub(crate) unknown_calls: UnknownCalls,
    /// Those that the log has.
    pub(crate) logged_inconsistencies: AtomicU64,
    pub(crate) reconciler: Reconciler,
    pub(crate) hung: Hung,
    pub(crate) storage: storage::Storage,
    pub(crate) reach: reach::Reach,
}

impl Health {
    /// The health of a container that is watched as planned; takes up the events that a former broker has written.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let events = plan.log_dir.as_deref().map(Events::in_folder);
        Self {
            events: events.unwrap_or_default(),
            plan,
            ..Self::default()
        }
    }

    /// Tells whoever places containers that a card serves nobody.
    pub(crate) fn condemn(&self, uuid: &str, reason: &str) {
        let Some(state_dir) = &self.plan.state_dir else {
            return;
        };
        let uuid_of_card = GpuUuid::new(uuid).map_err(cards::Error::from);
        let reported = uuid_of_card.and_then(|uuid| {
            let health = CardHealth {
                version: cards::health::VERSION,
                uuid,
                reason: reason.to_owned(),
                since_unix_ms: events::now_unix_ms(),
            };
            cards::health::report(state_dir, &health)
        });
        if let Err(error) = reported {
            tracing::error!(uuid, error = %error, "the card's health could not be written");
        }
    }
}
