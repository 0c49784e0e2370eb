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
//! What is known is here, and how it is reported; who looks is above the container: [`crate::watch`].

pub(crate) mod events;
mod hung;
mod kernel_log;
mod over_quota;
pub(crate) mod reach;
pub(crate) mod reconcile;
mod refusals;
mod shortage;
pub(crate) mod storage;
mod throttle;
mod unknown_calls;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cards::{CardHealth, GpuUuid, OnViolation, Watch};
use control::EventKind;
use driver::Driver;
use journal::Journal;
use journal::counters::{Counter, Counters};
use journal::shared_state::SharedState;
use nvabi::Release;
use verdict::Unknown;

pub use events::Events;
pub use kernel_log::KernelLog;
pub(crate) use over_quota::Mib;
pub use reconcile::Comparison;
pub use shortage::{Lack, Shortage};
pub use throttle::Throttle;

use hung::{Change, Hung};
use over_quota::OverQuota;
use reach::Reach;
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

/// Whose health it is.
pub struct Watched {
    /// `namespace/container`
    pub name: String,
    /// The UUIDs of its cards, in the grant's order.
    pub cards: Vec<String>,
    /// The driver's layouts.
    pub release: Release,
    /// Its account.
    pub journal: Arc<Journal>,
    /// Its counters, and which of its calls are at the driver.
    pub shared_state: Arc<SharedState>,
}

/// Everything about one container that went wrong, and what keeps it from being noisy.
#[derive(Debug)]
pub struct Health {
    pub(crate) plan: Plan,
    /// `namespace/container`, for the log.
    pub(crate) name: String,
    /// The UUIDs of its cards, in the grant's order.
    pub(crate) cards: Vec<String>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) counters: Counters,
    /// What happened.
    pub events: Events,
    /// Refused calls beyond a rate wait.
    pub throttle: Throttle,
    /// What the system does not give.
    pub shortage: Shortage,
    refusals: Refusals,
    over_quota: OverQuota,
    unknown_calls: UnknownCalls,
    /// Those that the log has.
    pub(crate) logged_inconsistencies: AtomicU64,
    pub(crate) reconciler: Reconciler,
    pub(crate) hung: Hung,
    pub(crate) storage: storage::Storage,
    pub(crate) reach: Reach,
}

impl Health {
    /// The health of a container that is watched as planned; takes up the events that a former broker has written.
    #[must_use]
    pub fn new(plan: Plan, watched: Watched) -> Self {
        let Watched {
            name,
            cards,
            release,
            journal,
            shared_state,
        } = watched;
        let events = plan.log_dir.as_deref().map(Events::in_folder);
        Self {
            events: events.unwrap_or_default(),
            plan,
            name,
            cards,
            counters: Counters::on(Arc::clone(&shared_state)),
            throttle: Throttle::default(),
            shortage: Shortage::default(),
            refusals: Refusals::default(),
            over_quota: OverQuota::default(),
            unknown_calls: UnknownCalls::default(),
            logged_inconsistencies: AtomicU64::new(0),
            reconciler: Reconciler::default(),
            hung: Hung::new(shared_state, Arc::clone(&journal), release),
            journal,
            storage: storage::Storage::default(),
            reach: Reach::default(),
        }
    }

    /// Says that something happened: in the log, in the ring, and in the file.
    pub fn tell(&self, kind: EventKind, text: String) {
        if self.events.add(kind, &text) {
            // The events have a throttle of their own, which knows more than the place of this line.
            let suppressed = tracing::field::Empty;
            tracing::warn!(
                container = self.name,
                kind = kind.name(),
                suppressed,
                "{text}"
            );
        } else {
            self.counters.count(Counter::SuppressedLogs);
        }
    }

    /// Says that a call was refused, unless that was said a moment ago.
    pub fn refused(&self, call: &dyn Display, reason: &dyn Display) {
        match self.refusals.admit(call, reason) {
            Some(suppressed) => {
                let (call, reason) = (call.to_string(), reason.to_string());
                tracing::info!(container = self.name, call, reason, suppressed, "refused");
            }
            None => self.counters.count(Counter::SuppressedLogs),
        }
    }

    /// Says that memory was asked for that does not fit, of each card once in a while.
    pub fn over_quota(&self, why: &ledger::Refusal) {
        if let Some(text) = self.over_quota.reported(&self.cards, why) {
            self.tell(EventKind::OverQuota, text);
        }
    }

    /// Counts a call that no row knows, and names it once.
    pub fn unknown(&self, call: Unknown) {
        self.counters.count(Counter::UnknownCalls);
        if let Some(text) = self.unknown_calls.reported(call) {
            self.tell(EventKind::UnknownCall, text);
        }
    }

    /// Before a refusal is answered: a tenant that is refused all the time waits.
    pub fn hold_up(&self) {
        if self.throttle.hold_up() {
            self.counters.count(Counter::Throttled);
        }
    }

    /// Reports calls that have been at the driver for too long, and those of them that have come back.
    pub(crate) fn look_for_hung_calls(&self, limit: Duration) {
        for change in self.hung.look(limit) {
            match change {
                Change::Hangs(text) => {
                    self.counters.count(Counter::HungCall);
                    self.tell(EventKind::HungCall, text);
                }
                Change::IsBack(text) => self.tell(EventKind::HungCallOver, text),
            }
        }
    }

    /// A call slot's call has come back from the driver.
    pub(crate) fn is_back(&self, call_slot: u32) {
        if let Some(text) = self.hung.is_back(call_slot) {
            self.tell(EventKind::HungCallOver, text);
        }
    }

    /// A request to the driver has ended so.
    pub(crate) fn take_reach<T>(&self, driver: &dyn Driver, result: &Result<T, driver::Error>) {
        if let Some((kind, text)) = self.reach.take(driver.binding(), result) {
            self.tell(kind, text);
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
