//! What the container's programs have mapped for the CPU (MAP_MEMORY): each mapping is an object of the kernel's that no control group counts
//! (`RsCpuMapping`, rs_server.c), and one of a card's memory takes of the window that all of the card's tenants share (BAR1,
//! `kbusMapFbAperture_GM107`). Both stay until the mapping or its memory ends, whatever becomes of the program's addresses.
//!
//! An end names an address that the program may have changed since (UPDATE_DEVICE_MAPPING_INFO): of several mappings of one piece of memory it is
//! taken for the smallest one's.
//!
//! The journal does not know them: a successor begins without any. In compat mode the caller executes these
//! calls, and nobody counts.

use std::collections::BTreeMap;
use std::sync::Mutex;

use journal::state::State;
use ledger::{AllocationId, CardSlot, ClientHandle, ObjectHandle};
use nvabi::status;
use sys::sync::lock;
use verdict::{Effect, Switch};

use super::{Account, Denied, JudgedCall, Why};

/// Mappings that a container may have. A CUDA program has a few dozen.
pub(crate) const MOST_CPU_MAPPINGS: usize = 1 << 16;
/// What may be mapped of a card beside as much as the quota: what is small takes a whole page of the window.
const BESIDE_QUOTA_BYTES: u64 = 256 << 20;
/// The largest of the window's pages that are common.
const WINDOW_PAGE_BYTES: u64 = 2 << 20;

/// The mappings of one container.
#[derive(Debug, Default)]
pub(crate) struct CpuMappings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// What each takes of a card's window, the smallest first. Those of calls that the driver has are among them.
    of: BTreeMap<Place, Vec<u64>>,
    count: usize,
    windows: BTreeMap<CardSlot, u128>,
}

/// What is mapped: a handle may be given again, but not with the same memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    client: ClientHandle,
    object: ObjectHandle,
    memory: Option<AllocationId>,
    /// The card whose window it takes of.
    card: Option<CardSlot>,
}

impl Place {
    fn of(state: &State, (client, object): (u32, u32)) -> Self {
        let (client, object) = (ClientHandle(client), ObjectHandle(object));
        let memory = state.ledger.object(client, object);
        let memory = memory.and_then(|object| object.allocation);
        let card = memory.and_then(|_| state.ledger.card_of(client, object));
        Self {
            client,
            object,
            memory,
            card: card.filter(|card| *card != CardSlot::HOST),
        }
    }
}

/// A mapping that the driver makes at this moment. Dropped at the call's end, with the mapping unless that was [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct CpuMappingUnderWay<'a> {
    mappings: &'a CpuMappings,
    place: Place,
    bytes: u64,
    is_made: bool,
}

impl CpuMappingUnderWay<'_> {
    /// The driver has made it.
    pub(crate) fn keep(&mut self) {
        self.is_made = true;
    }
}

impl Drop for CpuMappingUnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_made {
            lock(&self.mappings.0).remove(self.place, |of| {
                of.iter().position(|bytes| *bytes == self.bytes)
            });
        }
    }
}

impl Inner {
    fn add(&mut self, place: Place, bytes: u64) {
        let of = self.of.entry(place).or_default();
        let at = of.partition_point(|other| *other < bytes);
        of.insert(at, bytes);
        self.count = self.count.saturating_add(1);
        if let Some(card) = place.card {
            let window = self.windows.entry(card).or_default();
            *window = window.saturating_add(bytes.into());
        }
    }

    fn remove(&mut self, place: Place, which: impl FnOnce(&[u64]) -> Option<usize>) {
        let Some(of) = self.of.get_mut(&place) else {
            return;
        };
        if let Some(at) = which(of) {
            let bytes = of.remove(at);
            self.count = self.count.saturating_sub(1);
            let window = place.card.and_then(|card| self.windows.get_mut(&card));
            if let Some(window) = window {
                *window = window.saturating_sub(bytes.into());
            }
        }
        if of.is_empty() {
            self.of.remove(&place);
        }
    }

    /// Mappings end with the handle that they were made by.
    fn forget_what_is_gone(&mut self, state: &State) {
        for (place, of) in std::mem::take(self).of {
            if Place::of(state, (place.client.0, place.object.0)) == place {
                of.into_iter().for_each(|bytes| self.add(place, bytes));
            }
        }
    }

    fn refusal(&self, state: &State, place: &Place, bytes: u64) -> Option<Why> {
        if self.count >= MOST_CPU_MAPPINGS {
            return Some(Why::TooManyCpuMappings);
        }
        let card = place.card?;
        let (quota_bytes, _used) = state.ledger.quota_and_use(card)?;
        let most_bytes = quota_bytes.saturating_add(BESIDE_QUOTA_BYTES);
        let mapped = self.windows.get(&card).copied().unwrap_or_default();
        let all = mapped.saturating_add(bytes.into());
        (all > most_bytes.into()).then_some(Why::WindowIsFull { bytes, most_bytes })
    }
}

impl Account {
    /// Before the driver maps something for the CPU: whether the container may have it. Nothing for other calls.
    ///
    /// # Errors
    /// [`Why::TooManyCpuMappings`] and [`Why::WindowIsFull`], answered as the driver does where it has no room.
    pub(crate) fn begin_cpu_mapping(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
    ) -> Result<Option<CpuMappingUnderWay<'_>>, Denied> {
        let Effect::CpuMapping {
            client,
            memory,
            bytes,
            switch: Switch::On,
        } = *call.effect
        else {
            return Ok(None);
        };
        let place = Place::of(state, (client, memory));
        let bytes = match place.card {
            Some(_) => bytes
                .checked_next_multiple_of(WINDOW_PAGE_BYTES)
                .unwrap_or(u64::MAX),
            None => 0,
        };
        let mut inner = lock(&self.cpu_mappings.0);
        let refusal = inner.refusal(state, &place, bytes).and_then(|_why| {
            inner.forget_what_is_gone(state);
            inner.refusal(state, &place, bytes)
        });
        if let Some(why) = refusal {
            return Err(self.denied(call, status::NV_ERR_INSUFFICIENT_RESOURCES, why));
        }
        inner.add(place, bytes);
        Ok(Some(CpuMappingUnderWay {
            mappings: &self.cpu_mappings,
            place,
            bytes,
            is_made: false,
        }))
    }

    /// The driver has ended a mapping with success.
    pub(crate) fn end_cpu_mapping(&self, state: &State, effect: &Effect) {
        if let Effect::CpuMapping {
            client,
            memory,
            switch: Switch::Off,
            ..
        } = *effect
        {
            let place = Place::of(state, (client, memory));
            lock(&self.cpu_mappings.0).remove(place, |of| (!of.is_empty()).then_some(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(memory: u32) -> Place {
        Place {
            client: ClientHandle(1),
            object: ObjectHandle(memory),
            memory: None,
            card: Some(CardSlot(0)),
        }
    }

    #[test]
    fn mappings_are_limited_in_number_and_by_the_quota() {
        use journal::state::Numbering;
        use ledger::Ledger;

        const QUOTA_BYTES: u64 = 1 << 30;
        const MOST_BYTES: u64 = QUOTA_BYTES + BESIDE_QUOTA_BYTES;
        let ledger = Ledger::new(&[(CardSlot(0), QUOTA_BYTES)]);
        let state = State::new(ledger, Numbering::default());
        let mut inner = Inner::default();
        inner.add(place(5), QUOTA_BYTES);
        let refusal = |inner: &Inner, bytes| inner.refusal(&state, &place(6), bytes);
        assert!(refusal(&inner, BESIDE_QUOTA_BYTES).is_none());
        let refused = refusal(&inner, BESIDE_QUOTA_BYTES + 1);
        assert!(
            matches!(
                refused,
                Some(Why::WindowIsFull {
                    most_bytes: MOST_BYTES,
                    ..
                })
            ),
            "{refused:?}"
        );
        (1..MOST_CPU_MAPPINGS).for_each(|_| inner.add(place(7), 0));
        let refused = refusal(&inner, 0);
        assert!(
            matches!(refused, Some(Why::TooManyCpuMappings)),
            "{refused:?}"
        );
        inner.forget_what_is_gone(&state);
        assert!(refusal(&inner, MOST_BYTES).is_none(), "no such objects");
    }

    #[test]
    fn an_end_is_of_the_smallest_mapping_and_what_failed_was_none() {
        let mappings = CpuMappings::default();
        let begin = |bytes| {
            lock(&mappings.0).add(place(5), bytes);
            CpuMappingUnderWay {
                mappings: &mappings,
                place: place(5),
                bytes,
                is_made: false,
            }
        };
        let all = || {
            lock(&mappings.0)
                .of
                .get(&place(5))
                .cloned()
                .unwrap_or_default()
        };
        for bytes in [30, 10, 20] {
            begin(bytes).keep();
        }
        drop(begin(20));
        assert_eq!(all(), [10, 20, 30]);
        assert_eq!(lock(&mappings.0).windows[&CardSlot(0)], 60);
        let end =
            |memory| lock(&mappings.0).remove(place(memory), |of| (!of.is_empty()).then_some(0));
        end(5);
        assert_eq!(all(), [20, 30]);
        end(6);
        end(5);
        end(5);
        end(5);
        assert!(all().is_empty());
        let inner = lock(&mappings.0);
        assert_eq!((inner.count, inner.windows[&CardSlot(0)]), (0, 0));
    }
}
