//! What all sessions of a machine share: its cards and its driver's lists.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use driver::ImplicitBytes;
use nvabi::Release;
use nvabi::class::CLIENT_HANDLE_BASE;

use crate::card::SimCard;
use crate::export::Exports;
use crate::incident::Incidents;
use crate::locked;
use crate::os_event::OsEvents;
use crate::profile::{NvLink, Profile};
use crate::vaspace::VaSpace;

/// The cards and the driver, without the sessions.
#[derive(Debug)]
pub(crate) struct Hardware {
    pub(crate) version: String,
    pub(crate) release: Release,
    pub(crate) implicit: ImplicitBytes,
    pub(crate) cards: Vec<Arc<SimCard>>,
    /// Of each card, by index: the address space of all devices that name nobody to share one with.
    global_spaces: Vec<Arc<VaSpace>>,
    pub(crate) links: Vec<NvLink>,
    pub(crate) boost_groups: Vec<Vec<u32>>,
    pub(crate) incidents: Arc<Incidents>,
    pub(crate) exports: Exports,
    pub(crate) os_events: OsEvents,
    pub(crate) processes: Processes,
    /// The session whose call has left the driver unable to answer anybody, if one has.
    wedged_by: OnceLock<Arc<str>>,
    clients_made: AtomicU32,
    slow: Mutex<Slow>,
}

/// Whose process's a session's clients are, as far as the driver can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// All of one: an executor makes every call of a container.
    One,
    /// Each of the process that has made it.
    Each,
}

/// Calls that are to take longer, by an injected fault.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    pub(crate) millis: u32,
    pub(crate) calls: u32,
}

impl Hardware {
    /// The cards of a profile, all of them free.
    pub(crate) fn new(profile: Profile, processes: Processes) -> Self {
        let cards: Vec<Arc<SimCard>> = profile
            .cards
            .into_iter()
            .zip(0..)
            .map(|(card, index)| SimCard::new(index, card, &profile.scheduler))
            .collect();
        Self {
            version: profile.driver_version,
            release: profile.release,
            implicit: profile.implicit,
            global_spaces: cards.iter().map(|_card| Arc::default()).collect(),
            cards,
            links: profile.links,
            boost_groups: profile.boost_groups,
            incidents: Arc::default(),
            exports: Exports::default(),
            os_events: OsEvents::default(),
            processes,
            wedged_by: OnceLock::new(),
            clients_made: AtomicU32::new(1),
            slow: Mutex::default(),
        }
    }

    /// A card and its global address space, by the number of its device.
    pub(crate) fn card(&self, instance: u32) -> Option<(&Arc<SimCard>, &Arc<VaSpace>)> {
        let index = usize::try_from(instance).ok()?;
        self.cards.get(index).zip(self.global_spaces.get(index))
    }

    pub(crate) fn card_by_gpu_id(&self, gpu_id: u32) -> Option<&Arc<SimCard>> {
        self.cards.iter().find(|card| card.gpu_id() == gpu_id)
    }

    pub(crate) fn card_by_uuid(&self, uuid: &str) -> Option<&Arc<SimCard>> {
        self.cards.iter().find(|card| card.uuid() == uuid)
    }

    /// A handle that no client of the machine has had.
    pub(crate) fn next_client(&self) -> u32 {
        CLIENT_HANDLE_BASE.wrapping_add(self.clients_made.fetch_add(1, Ordering::Relaxed))
    }

    /// Nobody is answered any more, on the whole machine: what some drivers come to when a second handle is made below an object
    /// that is not there. Whoever is between a tenant and a driver must not let it come to that.
    pub(crate) fn wedge(&self, session: &Arc<str>) {
        if self.wedged_by.set(session.clone()).is_ok() {
            tracing::error!(
                session = &**session,
                "the driver is wedged: no call is answered any more"
            );
        }
    }

    /// Whose call has wedged the driver.
    pub(crate) fn wedged_by(&self) -> Option<&Arc<str>> {
        self.wedged_by.get()
    }

    /// Lets the next calls take longer.
    pub(crate) fn slow_down(&self, slow: Slow) {
        *locked(&self.slow) = slow;
    }

    /// How long the next call is to take, by an injected fault.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let mut slow = locked(&self.slow);
        slow.calls = slow.calls.checked_sub(1)?;
        Some(Duration::from_millis(u64::from(slow.millis)))
    }

    /// Ends the faults of the cards and of the driver.
    pub(crate) fn end_faults(&self) {
        self.slow_down(Slow::default());
        for card in &self.cards {
            card.end_faults();
        }
    }
}
