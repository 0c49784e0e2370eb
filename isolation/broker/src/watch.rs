//! Who looks whether a container is well, and what is done about it.
//!
//! Two threads look: one at the shared state and the kernel's log, which never wait, and one that asks the driver, which may. Neither is
//! waited for by anybody, so that a driver that hangs holds up nothing else.

mod incidents;
mod kill;
pub mod managed;
mod shortage;
mod storage;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cards::OnViolation;
use control::{EventKind, HealthStatus, IncidentCounts, Watching};
use driver::Driver;
use journal::counters::Counter;

pub use incidents::Source;

use crate::account::Account;
use crate::container::Container;
use crate::health::reconcile::Standing;
use crate::health::{Comparison, Health};
use crate::processes::Processes;

/// The threads look at least so often.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl Health {
    /// For the status.
    #[must_use]
    pub fn status(&self) -> HealthStatus {
        let value = |counter| self.counters.value(counter);
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
            inconsistencies: self.journal.change().inconsistencies(),
            unwritten: crate::health::storage::trouble(&self.events),
            short_of: self.shortage.text(),
            unreachable: self.reach.trouble(),
        }
    }

    /// For the status.
    #[must_use]
    pub fn watching(&self) -> Watching {
        let (sums, sums_reason) = match self.reconciler.standing() {
            Standing::Unasked => (None, None),
            Standing::Compared => (Some(true), None),
            Standing::Uncompared(why) => (Some(false), Some(why)),
        };
        Watching {
            sums,
            sums_reason,
            incidents: incidents::source(&self.plan).to_string(),
        }
    }

    /// Says that the account was asked for what cannot be, once for all that came since it was said last.
    fn look_for_inconsistencies(&self) {
        let times = self.journal.change().inconsistencies();
        if self.logged_inconsistencies.swap(times, Ordering::Relaxed) < times {
            tracing::error!(
                container = self.name,
                times,
                "the account was asked for what cannot be: a bug of cgpu's"
            );
        }
    }

    /// Looks for calls that have been at the driver for too long, and at the kernel's log. Waits for nothing.
    pub fn look(&self, container: &Container) {
        self.look_for_inconsistencies();
        self.look_for_hung_calls(Duration::from_millis(self.plan.watch.hung_call_ms));
        if let Some(log) = &self.plan.kernel_log {
            let executor = container.driver.process();
            let is_own = |pid| executor == Some(pid) || container.processes.has(pid);
            incidents::take(self, log.read(&self.counters, is_own));
        }
        shortage::look(self);
        storage::look(self);
    }

    /// Asks the driver for a sign of life, and for incidents. It may take as long as it likes.
    pub fn ask_the_driver(&self, container: &Container) {
        let mut reached = container.driver.reach();
        if matches!(&reached, Err(driver::Error::Anew { .. })) {
            let change = container.journal.change();
            if change.holds_nothing() {
                container.driver.begin_anew();
                drop(change);
                reached = container.driver.begin_session(&container.supervisor);
            }
        }
        self.take_reach(&*container.driver, &reached);
        if reached.is_ok() {
            incidents::ask(self, &*container.driver);
        }
    }

    /// Compares the ledger with the driver's sums once. It may take as long as the driver likes.
    pub fn reconcile(&self, container: &Container) {
        let (account, driver) = (&container.account, &*container.driver);
        self.compare(account, driver, &container.processes);
    }

    /// Compares twice with a moment between, so that a difference that stands is known as one; the answer to `reconcile`.
    ///
    /// # Errors
    /// Why there is nothing to compare with.
    pub fn reconcile_now(&self, container: &Container) -> Result<Comparison, String> {
        let (account, driver) = (&container.account, &*container.driver);
        let processes = &container.processes;
        self.compare(account, driver, processes);
        std::thread::sleep(Duration::from_millis(20));
        let comparison = self.compare(account, driver, processes);
        match (comparison, self.reconciler.standing()) {
            (_, Standing::Uncompared(why)) => Err(why),
            (Some(comparison), _) => Ok(comparison),
            (None, _) => Err(UNREPORTED.to_owned()),
        }
    }

    fn compare(
        &self,
        account: &Account,
        driver: &dyn Driver,
        processes: &Processes,
    ) -> Option<Comparison> {
        let compared = self.reconciler.compare(account, &self.journal, driver);
        let (comparison, standing) = match compared {
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
            Err(error) => (None, Standing::Uncompared(sys::chain(&error))),
        };
        if standing == Standing::Compared {
            self.counters.count(Counter::Reconciled);
        }
        self.report_whether_compared(standing);
        // Where one card is not counted, another may be, and counted for too much.
        let comparison = comparison?;
        if comparison.violations.is_empty() {
            return Some(comparison);
        }
        self.counters.count(Counter::Violations);
        let killed = self.punish(processes, driver.process());
        if comparison.is_news {
            let found: Vec<String> = comparison
                .violations
                .iter()
                .map(ToString::to_string)
                .chain(killed)
                .collect();
            self.tell(EventKind::Violation, found.join("; "));
        } else if let Some(killed) = killed {
            tracing::warn!(container = self.name, "the violation stands: {killed}");
        }
        Some(comparison)
    }

    /// A container whose ledger is compared with nothing must not be taken for one whose ledger is: it is reported once, and once
    /// more when it is over. That a driver never says anything is its nature, and is in the status alone.
    fn report_whether_compared(&self, standing: Standing) {
        let Some(before) = self.reconciler.confirmed(standing.clone()) else {
            return;
        };
        match (before, standing) {
            (_, Standing::Uncompared(why)) if why == UNREPORTED => {
                tracing::info!(container = self.name, "not reconciled: {why}");
            }
            (_, Standing::Uncompared(why)) => {
                let text = format!("the ledger is not compared with the driver's sums: {why}");
                self.tell(EventKind::NotReconciled, text);
            }
            (Standing::Uncompared(why), Standing::Compared) => {
                let text =
                    format!("the ledger is compared with the driver's sums again; before: {why}");
                self.tell(EventKind::Reconciled, text);
            }
            (_, Standing::Compared | Standing::Unasked) => {}
        }
    }

    /// Memory was found that is beyond the quota and that no call was let have: it is counted and told, and what the grant
    /// says follows.
    pub(crate) fn violated(&self, processes: &Processes, executor: Option<i32>, text: String) {
        self.counters.count(Counter::Violations);
        let killed = self.punish(processes, executor);
        let text = [Some(text), killed].into_iter().flatten();
        self.tell(EventKind::Violation, text.collect::<Vec<_>>().join("; "));
    }

    /// What has become of the container's processes, for people; `None`: nothing.
    fn punish(&self, processes: &Processes, executor: Option<i32>) -> Option<String> {
        if self.plan.on_violation != OnViolation::Kill {
            return None;
        }
        let killed = kill::all_processes(processes, executor);
        (killed > 0).then(|| format!("{killed} processes were killed, as on_violation says"))
    }
}

/// Why nothing is compared where a driver has no sums by container.
const UNREPORTED: &str = "the driver does not say what it counts for a container";

/// Starts the threads; what the driver already knows of when the container begins is not this container's.
///
/// # Errors
/// A thread that cannot be started.
pub fn start(container: &Arc<Container>, replaced: u64) -> std::io::Result<()> {
    if let Some(log) = &container.health.plan.kernel_log {
        log.begin(&container.counters, replaced == 0);
    }
    if replaced == 0 {
        incidents::begin(&container.health, &*container.driver);
    } else {
        let why = supervisor::why_replaced();
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let text = format!("the broker was replaced ({replaced} so far){why}");
        container.health.tell(EventKind::BrokerReplaced, text);
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
