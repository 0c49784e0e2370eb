//! Who looks whether a container is well, and what is done about it.
//!
//! Two threads look: one at the shared state and the kernel's log, which never wait, and one that asks the driver, which may. Neither is
//! waited for by anybody, so that a driver that hangs holds up nothing else.

mod hung;
mod incidents;
mod kill;
pub mod managed;
mod reach;
mod shortage;
mod storage;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cards::OnViolation;
use control::{EventKind, HealthStatus, IncidentCounts, Watching};
use verdict::Unknown;

pub use incidents::Source;
use journal::counters::Counter;

use crate::container::Container;
use crate::health::reconcile::Standing;
use crate::health::{Comparison, Health};

/// The threads look at least so often.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl Health {
    /// For the status.
    #[must_use]
    pub fn status(&self, container: &Container) -> HealthStatus {
        let value = |counter| container.counters.value(counter);
        HealthStatus {
            reconciled: value(Counter::Reconciled),
            violations: value(Counter::Violations),
            drift: self.reconciler.drift(),
            incidents: IncidentCounts {
                xid: value(Counter::Xid),
                card_lost: value(Counter::CardLost),
                hung_call: value(Counter::HungCall),
            },
            hung_calls: self.hung.count(),
            suppressed_logs: value(Counter::SuppressedLogs),
            throttled: value(Counter::Throttled),
            unknown_calls: value(Counter::UnknownCalls),
            inconsistencies: container.journal.change().inconsistencies(),
            unwritten: crate::health::storage::trouble(&self.events),
            short_of: self.shortage.text(),
            unreachable: self.reach.trouble(),
        }
    }

    /// For the status.
    #[must_use]
    pub fn watching(&self, container: &Container) -> Watching {
        let (sums, sums_reason) = match self.reconciler.standing() {
            Standing::Unasked => (None, None),
            Standing::Compared => (Some(true), None),
            Standing::Uncompared(why) => (Some(false), Some(why)),
        };
        Watching {
            sums,
            sums_reason,
            incidents: incidents::source(container).to_string(),
        }
    }

    /// Says that something happened: in the log, in the ring, and in the file.
    pub fn tell(&self, container: &Container, kind: EventKind, text: String) {
        if self.events.add(kind, &text) {
            // The events have a throttle of their own, which knows more than the place of this line.
            let suppressed = tracing::field::Empty;
            tracing::warn!(
                container = container.name,
                kind = kind.name(),
                suppressed,
                "{text}"
            );
        } else {
            container.counters.count(Counter::SuppressedLogs);
        }
    }

    /// Says that a call was refused, unless that was said a moment ago.
    pub fn refused(&self, container: &Container, call: &dyn Display, reason: &dyn Display) {
        match self.refusals.admit(call, reason) {
            Some(suppressed) => {
                let (call, reason) = (call.to_string(), reason.to_string());
                tracing::info!(
                    container = container.name,
                    call,
                    reason,
                    suppressed,
                    "refused"
                );
            }
            None => container.counters.count(Counter::SuppressedLogs),
        }
    }

    /// Says that memory was asked for that does not fit, of each card once in a while.
    pub fn over_quota(&self, container: &Container, why: &ledger::Refusal) {
        let slots = container.account.slots();
        if let Some(text) = self.over_quota.reported(slots, why) {
            self.tell(container, EventKind::OverQuota, text);
        }
    }

    /// Counts a call that no row knows, and names it once.
    pub fn unknown(&self, container: &Container, call: Unknown) {
        container.counters.count(Counter::UnknownCalls);
        if let Some(text) = self.unknown_calls.reported(call) {
            self.tell(container, EventKind::UnknownCall, text);
        }
    }

    /// Before a refusal is answered: a tenant that is refused all the time waits.
    pub fn hold_up(&self, container: &Container) {
        if self.throttle.hold_up() {
            container.counters.count(Counter::Throttled);
        }
    }

    /// Says that the account was asked for what cannot be, once for all that came since it was said last.
    fn look_for_inconsistencies(&self, container: &Container) {
        let times = container.journal.change().inconsistencies();
        if self.logged_inconsistencies.swap(times, Ordering::Relaxed) < times {
            tracing::error!(
                container = container.name,
                times,
                "the account was asked for what cannot be: a bug of cgpu's"
            );
        }
    }

    /// Looks for calls that have been at the driver for too long, and at the kernel's log. Waits for nothing.
    pub fn look(&self, container: &Container) {
        self.look_for_inconsistencies(container);
        hung::look(
            container,
            Duration::from_millis(self.plan.watch.hung_call_ms),
        );
        if let Some(log) = &self.plan.kernel_log {
            let is_own = |pid| incidents::is_own(container, pid);
            incidents::take(container, log.read(is_own));
        }
        shortage::look(container);
        storage::look(container);
    }

    /// A call slot's call has come back from the driver.
    pub(crate) fn is_back(&self, container: &Container, call_slot: u32) {
        if let Some(since_ms) = container.shared_state.is_back(call_slot) {
            hung::is_back(container, call_slot, since_ms);
        }
    }

    /// Asks the driver for a sign of life, and for incidents. It may take as long as it likes.
    pub fn ask_the_driver(&self, container: &Container) {
        let mut reached = container.driver.reach();
        if matches!(&reached, Err(driver::Error::Anew { .. })) {
            let change = container.journal.change();
            if change.holds_nothing() {
                container.driver.begin_anew();
                drop(change);
                reached = container.begin_session();
            }
        }
        self.take_reach(container, &reached);
        if reached.is_ok() {
            incidents::ask(container);
        }
    }

    /// A request to the driver has ended so.
    pub(crate) fn take_reach<T>(&self, container: &Container, result: &Result<T, driver::Error>) {
        reach::take(container, result);
    }

    /// Compares the ledger with the driver's sums once. It may take as long as the driver likes.
    pub fn reconcile(&self, container: &Container) {
        self.compare(container);
    }

    /// Compares twice with a moment between, so that a difference that stands is known as one; the answer to `reconcile`.
    ///
    /// # Errors
    /// Why there is nothing to compare with.
    pub fn reconcile_now(&self, container: &Container) -> Result<Comparison, String> {
        self.compare(container);
        std::thread::sleep(Duration::from_millis(20));
        let comparison = self.compare(container);
        match (comparison, self.reconciler.standing()) {
            (_, Standing::Uncompared(why)) => Err(why),
            (Some(comparison), _) => Ok(comparison),
            (None, _) => Err(UNREPORTED.to_owned()),
        }
    }

    fn compare(&self, container: &Container) -> Option<Comparison> {
        let (comparison, standing) = match self.reconciler.compare(
            &container.account,
            &container.journal,
            &*container.driver,
        ) {
            Ok(Some(comparison)) => {
                let unseen = self.reconciler.unseen();
                let standing = unseen.map_or(Standing::Compared, |uuid| {
                    Standing::Uncompared(format!(
                        "it counts nothing for this container on card {uuid}, where the ledger has memory"
                    ))
                });
                (Some(comparison), standing)
            }
            Ok(None) => (None, Standing::Uncompared(UNREPORTED.to_owned())),
            Err(error) => (None, Standing::Uncompared(reported(&error))),
        };
        if standing == Standing::Compared {
            container.counters.count(Counter::Reconciled);
        }
        self.report_whether_compared(container, standing);
        // Where one card is not counted, another may be, and counted for too much.
        let comparison = comparison?;
        if comparison.violations.is_empty() {
            return Some(comparison);
        }
        container.counters.count(Counter::Violations);
        if comparison.is_news {
            let found: Vec<String> = comparison
                .violations
                .iter()
                .map(ToString::to_string)
                .collect();
            self.tell(container, EventKind::Violation, found.join("; "));
        }
        self.punish(container);
        Some(comparison)
    }

    /// A container whose ledger is compared with nothing must not be taken for one whose ledger is: it is reported once, and once
    /// more when it is over. That a driver never says anything is its nature, and is in the status alone.
    fn report_whether_compared(&self, container: &Container, standing: Standing) {
        let Some(before) = self.reconciler.confirmed(standing.clone()) else {
            return;
        };
        match (before, standing) {
            (_, Standing::Uncompared(why)) if why == UNREPORTED => {
                tracing::info!(container = container.name, "not reconciled: {why}");
            }
            (_, Standing::Uncompared(why)) => {
                let text = format!("the ledger is not compared with the driver's sums: {why}");
                self.tell(container, EventKind::NotReconciled, text);
            }
            (Standing::Uncompared(why), Standing::Compared) => {
                let text =
                    format!("the ledger is compared with the driver's sums again; before: {why}");
                self.tell(container, EventKind::Reconciled, text);
            }
            (_, Standing::Compared | Standing::Unasked) => {}
        }
    }

    /// Memory was found that is beyond the quota and that no call was let have: it is counted and told, and what the grant
    /// says follows.
    pub fn violated(&self, container: &Container, text: String) {
        container.counters.count(Counter::Violations);
        self.tell(container, EventKind::Violation, text);
        self.punish(container);
    }

    fn punish(&self, container: &Container) {
        if self.plan.on_violation == OnViolation::Kill {
            let killed = kill::all_processes(container);
            if killed > 0 {
                let text = format!("{killed} processes were killed, as on_violation says");
                self.tell(container, EventKind::Violation, text);
            }
        }
    }
}

/// Why nothing is compared where a driver has no sums by container.
const UNREPORTED: &str = "the driver does not say what it counts for a container";

/// An error with its causes, which say what the system said.
fn reported(error: &driver::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Starts the threads; what the driver already knows of when the container begins is not this container's.
///
/// # Errors
/// A thread that cannot be started.
pub fn start(container: &Arc<Container>, replaced: u64) -> std::io::Result<()> {
    if replaced == 0 {
        incidents::begin(container);
    } else {
        let text = format!("the broker was replaced ({replaced} so far)");
        let health = &container.health;
        health.tell(container, EventKind::BrokerReplaced, text);
    }
    let watch = container.health.plan.watch;
    let reconcile = Duration::from_millis(watch.reconcile_ms);
    let pause = LONGEST_PAUSE
        .min(reconcile)
        .min(Duration::from_millis(watch.hung_call_ms / 2))
        .max(Duration::from_millis(20));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.stack_size(256 * 1024).spawn(body).map(drop)
    };
    let watched = Arc::clone(container);
    spawn(
        "watch",
        Box::new(move || {
            loop {
                std::thread::sleep(pause);
                watched.health.look(&watched);
            }
        }),
    )?;
    let watched = Arc::clone(container);
    spawn(
        "driver watch",
        Box::new(move || {
            let mut since_comparison = Duration::ZERO;
            loop {
                std::thread::sleep(pause);
                since_comparison = since_comparison.saturating_add(pause);
                let health = &watched.health;
                health.ask_the_driver(&watched);
                if since_comparison >= reconcile {
                    since_comparison = Duration::ZERO;
                    health.reconcile(&watched);
                }
            }
        }),
    )
}
