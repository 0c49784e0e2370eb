//! Channel groups: what the runlist gives slices to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runlist::{Interleave, Mode};

use crate::card::SimCard;
use crate::engine::{GroupKey, Kind, Settles};

/// RM's default, µs.
const DEFAULT_TIMESLICE_US: u64 = 1024;

/// A time-slice group: its channels run only when it, or they themselves, are scheduled. Dropping it takes it off the card.
#[derive(Debug)]
pub(crate) struct Group {
    card: Arc<SimCard>,
    pub(super) key: GroupKey,
    kind: Kind,
    scheduled: AtomicBool,
    /// As it was asked for.
    timeslice_us: AtomicU64,
}

impl Group {
    pub(crate) fn new(card: &Arc<SimCard>, session: &Arc<str>, kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            key: card.engine.add_group(session, kind),
            kind,
            card: card.clone(),
            scheduled: AtomicBool::new(false),
            timeslice_us: AtomicU64::new(DEFAULT_TIMESLICE_US),
        })
    }

    pub(crate) fn card(&self) -> &Arc<SimCard> {
        &self.card
    }

    /// The runlist that it is on.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn is_scheduled(&self) -> bool {
        self.scheduled.load(Ordering::Acquire)
    }

    pub(crate) fn schedule(&self, on: bool) -> Settles {
        self.scheduled.store(on, Ordering::Release);
        self.card.engine.schedule_group(self.key, on)
    }

    pub(crate) fn timeslice(&self) -> u64 {
        self.timeslice_us.load(Ordering::Relaxed)
    }

    pub(crate) fn set_timeslice(&self, micros: u64) {
        self.timeslice_us.store(micros, Ordering::Relaxed);
        let slice_ns = micros.saturating_mul(1000);
        self.card.engine.set_timeslice(self.key, slice_ns);
    }

    pub(crate) fn set_interleave(&self, level: Interleave) {
        self.card.engine.set_interleave(self.key, level);
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.card.engine.set_mode(self.key, mode);
    }

    pub(crate) fn preempt(&self) -> Settles {
        self.card.engine.preempt(self.key)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.card.engine.remove_group(self.key);
    }
}
