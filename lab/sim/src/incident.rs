//! What went wrong on the cards, kept for every session to ask for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use driver::{Incident, IncidentKind};

use crate::card::SimCard;
use crate::locked;

/// Incidents kept of one session, and of those that no session caused; the oldest goes first, so that a tenant which
/// faults again and again pushes out its own only.
const KEPT_OF_ONE: usize = 64;

/// The incidents of a machine.
#[derive(Debug, Default)]
pub(crate) struct Incidents(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    last: u64,
    kept: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    sequence: u64,
    uuid: String,
    pci: String,
    kind: IncidentKind,
    /// Who caused it; `None`: nobody can be named.
    session: Option<Arc<str>>,
}

impl Incidents {
    pub(crate) fn add(&self, card: &SimCard, kind: IncidentKind, session: Option<&Arc<str>>) {
        let mut log = locked(&self.0);
        log.last += 1;
        let same = |kept: &Kept| kept.session.as_ref() == session;
        if log.kept.iter().filter(|kept| same(kept)).count() >= KEPT_OF_ONE
            && let Some(oldest) = log.kept.iter().position(same)
        {
            log.kept.remove(oldest);
        }
        let sequence = log.last;
        log.kept.push_back(Kept {
            sequence,
            uuid: card.uuid(),
            pci: card.pci_address(),
            kind,
            session: session.cloned(),
        });
    }

    /// Those after a sequence number, as a session sees them.
    pub(crate) fn after(&self, sequence: u64, session: &str) -> Vec<Incident> {
        locked(&self.0)
            .kept
            .iter()
            .filter(|kept| kept.sequence > sequence)
            .map(|kept| Incident {
                sequence: kept.sequence,
                uuid: kept.uuid.clone(),
                pci: kept.pci.clone(),
                kind: kept.kind.clone(),
                own: kept.session.as_deref().map(|cause| cause == session),
            })
            .collect()
    }
}
