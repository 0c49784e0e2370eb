//! What the cards report: from the driver that executes the calls, and from the kernel's log.

use std::fmt;

use control::EventKind;
use driver::{Driver, Incident, IncidentKind};
use journal::counters::{Counter, Counters};

use crate::health::{Health, Plan};

/// Where incidents come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The driver alone.
    Driver,
    /// The driver, and the kernel's log.
    KernelLog,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "the driver; the kernel's log is not read",
            Self::KernelLog => "the driver and the kernel's log",
        })
    }
}

pub(super) fn source(plan: &Plan) -> Source {
    match plan.kernel_log {
        Some(_) => Source::KernelLog,
        None => Source::Driver,
    }
}

/// What the driver has told before the container began does not concern it.
pub(super) fn begin(health: &Health, driver: &dyn Driver) {
    match driver.incidents(0) {
        Ok(incidents) => proceed_after(&health.counters, incidents.last()),
        Err(error) => {
            tracing::warn!(container = health.name, error = %error, "the driver was not asked for incidents")
        }
    }
}

pub(super) fn ask(health: &Health, driver: &dyn Driver) {
    let after = health.counters.value(Counter::LastIncident);
    match driver.incidents(after) {
        Ok(incidents) => {
            proceed_after(&health.counters, incidents.last());
            take(health, incidents);
        }
        Err(error) => health.refused(&"incidents", &error),
    }
}

/// The number of the last incident is among the counters, where a successor finds it.
fn proceed_after(counters: &Counters, last: Option<&Incident>) {
    if let Some(incident) = last {
        counters.raise(Counter::LastIncident, incident.sequence);
    }
}

pub(super) fn take(health: &Health, incidents: Vec<Incident>) {
    for incident in incidents {
        if !health.cards.contains(&incident.uuid) {
            continue;
        }
        let Incident {
            uuid, kind, own, ..
        } = incident;
        match kind {
            IncidentKind::CardLost => {
                health.counters.count(Counter::CardLost);
                health.condemn(&uuid, "the card was lost");
                health.tell(EventKind::CardLost, format!("card {uuid} is lost"));
            }
            IncidentKind::Xid { number, detail } => {
                let is_fatal = cards::health::is_fatal(number);
                if is_fatal {
                    let reason = format!("Xid {number}: {detail}");
                    health.condemn(&uuid, &reason);
                }
                let whose = match own {
                    Some(true) => "caused by this container",
                    None => "nobody is named as its cause",
                    // A neighbour's program has crashed, which is no news here.
                    Some(false) if !is_fatal => continue,
                    Some(false) => "caused by another container",
                };
                if own == Some(true) {
                    health.counters.count(Counter::Xid);
                }
                let text = format!("Xid {number} on card {uuid}, {whose}: {detail}");
                health.tell(EventKind::Xid, text);
            }
        }
    }
}
