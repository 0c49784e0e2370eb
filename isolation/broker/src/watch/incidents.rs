//! What the cards report: from the driver that executes the calls, and from the kernel's log.

use std::fmt;

use control::EventKind;
use driver::{Incident, IncidentKind};
use journal::counters::{Counter, Counters};

use crate::container::Container;
use crate::open_file_scan::processes_of_group;

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

pub(super) fn source(container: &Container) -> Source {
    match container.health.plan.kernel_log {
        Some(_) => Source::KernelLog,
        None => Source::Driver,
    }
}

/// What the driver has told before the container began does not concern it.
pub(super) fn begin(container: &Container) {
    match container.driver.incidents(0) {
        Ok(incidents) => proceed_after(&container.counters, incidents.last()),
        Err(error) => {
            tracing::warn!(container = container.name, error = %error, "the driver was not asked for incidents")
        }
    }
}

pub(super) fn ask(container: &Container) {
    let after = container.counters.value(Counter::LastIncident);
    match container.driver.incidents(after) {
        Ok(incidents) => {
            proceed_after(&container.counters, incidents.last());
            take(container, incidents);
        }
        Err(error) => container.health.refused(container, &"incidents", &error),
    }
}

/// The number of the last incident is among the counters, where a successor finds it.
fn proceed_after(counters: &Counters, last: Option<&Incident>) {
    if let Some(incident) = last {
        let before = counters.value(Counter::LastIncident);
        let more = incident.sequence.saturating_sub(before);
        counters.add(Counter::LastIncident, more);
    }
}

pub(super) fn take(container: &Container, incidents: Vec<Incident>) {
    let slots = container.account.slots();
    for incident in incidents {
        if slots.iter().all(|slot| slot.uuid != incident.uuid) {
            continue;
        }
        let Incident {
            uuid, kind, own, ..
        } = incident;
        let health = &container.health;
        match kind {
            IncidentKind::CardLost => {
                container.counters.count(Counter::CardLost);
                health.condemn(&uuid, "the card was lost");
                health.tell(
                    container,
                    EventKind::CardLost,
                    format!("card {uuid} is lost"),
                );
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
                    container.counters.count(Counter::Xid);
                }
                let text = format!("Xid {number} on card {uuid}, {whose}: {detail}");
                health.tell(container, EventKind::Xid, text);
            }
        }
    }
}

/// The process that makes the container's calls, or one of the container's own.
pub(super) fn is_own(container: &Container, pid: i32) -> bool {
    if container.driver.process() == Some(pid) || container.processes.known().contains(&pid) {
        return true;
    }
    let cgroup = container.journal.change().cgroup().cloned();
    cgroup.is_some_and(|folder| processes_of_group(&folder).contains(&pid))
}
