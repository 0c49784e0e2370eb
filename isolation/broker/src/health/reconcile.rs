//! The ledger against what the driver itself counts for the container.
//!
//! The driver's sum of a card has the memory that the container's clients have allocated and still have a handle of, so that is
//! what is taken from the ledger. The ledger is charged before the driver allocates and discharged after it has freed: the driver
//! never counts more, except while a call is under way that frees. Hence two rules, each of which must hold in two
//! comparisons one after the other:
//!
//! - nothing has changed since the last comparison, and the driver counts more than the ledger;
//! - something has, and the driver counts more than the whole quota and all that was ever held meanwhile.
//!
//! A driver that counts less is no violation: it rounds as the ledger does or less, and memory that only a map or an export keeps
//! is the ledger's alone. One that counts *nothing* where the ledger has handles of memory does not count for this container at
//! all (it was asked about a process that it knows by another number, say), and then nothing is compared, which is told.
//!
//! ```text
//! Unasked ──▶ Compared ◀──▶ Uncompared(why): told when it comes, when the reason changes, and when it goes
//! ```

use std::sync::Mutex;

use control::Drift;
use driver::{Driver, RequestedCard};
use journal::Journal;
use journal::state::State;
use ledger::CardSlot;
use serde::{Deserialize, Serialize};
use sys::sync;

use crate::account::Account;

/// What a comparison has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Every card.
    pub drift: Vec<Drift>,
    /// Those on which the driver counts more, for the second time.
    pub violations: Vec<Drift>,
    /// Whether these are others than the last time.
    #[serde(skip)]
    pub is_news: bool,
}

/// Whether there is anything to compare the ledger with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The driver has not been asked yet.
    #[default]
    Unasked,
    /// It says what it counts.
    Compared,
    /// It does not, or what it says is of something else: why.
    Uncompared(String),
}

#[derive(Debug, Default)]
pub(crate) struct Reconciler(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    standing: Standing,
    last: Option<Look>,
    reported: Vec<u64>,
    drift: Vec<Drift>,
    /// A card for which the driver counts nothing, and its UUID.
    unseen: Option<(usize, String)>,
}

/// The ledger at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moment {
    next_call: u64,
    under_way: Vec<u32>,
    cards: Vec<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Of allocations that have a handle.
    memory_bytes: u64,
    reserved_bytes: u64,
    used_bytes: u64,
    quota_bytes: u64,
}

impl Held {
    /// What the driver cannot exceed if nothing happens meanwhile.
    fn at_rest(&self) -> u64 {
        self.memory_bytes.saturating_add(self.reserved_bytes)
    }

    /// What it cannot exceed whatever happens meanwhile.
    fn at_most(&self) -> u64 {
        self.quota_bytes.max(self.used_bytes)
    }
}

impl Moment {
    fn of(state: &State, slots: usize) -> Self {
        let slots = (0..slots).filter_map(|slot| u8::try_from(slot).ok().map(CardSlot));
        let ledger = &state.ledger;
        let held = slots
            .map(|slot| Held {
                memory_bytes: ledger.named(slot),
                reserved_bytes: ledger.reserved(slot),
                used_bytes: ledger.used(slot),
                quota_bytes: ledger.quota(slot),
            })
            .collect();
        Self {
            next_call: state.next_call(),
            under_way: state.open().map(|(call_slot, _)| call_slot).collect(),
            cards: held,
        }
    }
}

/// One comparison.
#[derive(Debug, Clone)]
struct Look {
    before: Moment,
    after: Moment,
    driver_bytes: Vec<u64>,
    /// Cards on which the driver counts anything, further handles included.
    counts: Vec<bool>,
}

impl Look {
    fn is_at_rest(&self) -> bool {
        self.before == self.after
    }

    /// By how much the driver counts more than it can, card by card.
    fn excess(&self) -> Vec<u64> {
        let cards = self.before.cards.iter().zip(&self.after.cards);
        cards
            .zip(&self.driver_bytes)
            .map(|((before, after), driver)| {
                let most = if self.is_at_rest() {
                    before.at_rest()
                } else {
                    before.at_most().max(after.at_most())
                };
                driver.saturating_sub(most)
            })
            .collect()
    }

    /// The first card on which the ledger has handles of memory and the driver counts nothing, now and the last time, with no call
    /// in between.
    fn unseen_since(&self, last: &Self) -> Option<usize> {
        let unseen = |look: &Self, card: usize| {
            let held = look.after.cards.get(card);
            // A call under way may have freed it already.
            look.is_at_rest()
                && look.after.under_way.is_empty()
                && held.is_some_and(|held| held.memory_bytes > 0)
                && look.counts.get(card) == Some(&false)
        };
        let is_still = last.after == self.before;
        (0..self.counts.len()).find(|card| is_still && unseen(last, *card) && unseen(self, *card))
    }

    /// What stands since the last comparison.
    fn confirms(&self, last: &Self) -> Vec<u64> {
        let reports_the_same = match (last.is_at_rest(), self.is_at_rest()) {
            (true, true) => last.after == self.before,
            _ => true,
        };
        let excess = self.excess();
        if !reports_the_same {
            // At rest both times, but not in between: only what exceeds everything counts.
            let most = |look: &Self| -> Vec<u64> {
                let cards = look.before.cards.iter().zip(&look.driver_bytes);
                cards
                    .map(|(held, driver)| driver.saturating_sub(held.at_most()))
                    .collect()
            };
            return smaller(&most(last), &most(self));
        }
        smaller(&last.excess(), &excess)
    }
}

fn smaller(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter()
        .zip(other)
        .map(|(one, other)| *one.min(other))
        .collect()
}

impl Reconciler {
    pub(crate) fn drift(&self) -> Vec<Drift> {
        sync::lock(&self.0).drift.clone()
    }

    pub(crate) fn standing(&self) -> Standing {
        sync::lock(&self.0).standing.clone()
    }

    /// Notes whether there is anything to compare with; what was noted before, if that was something else.
    pub(crate) fn confirmed(&self, standing: Standing) -> Option<Standing> {
        let mut inner = sync::lock(&self.0);
        let before = std::mem::replace(&mut inner.standing, standing);
        (before != inner.standing).then_some(before)
    }

    /// The card for which the driver counts nothing although there is something to count.
    pub(crate) fn unseen(&self) -> Option<String> {
        let inner = sync::lock(&self.0);
        inner.unseen.as_ref().map(|(_, uuid)| uuid.clone())
    }

    /// Compares once; `None` where the driver does not say.
    pub(crate) fn compare(
        &self,
        account: &Account,
        journal: &Journal,
        driver: &dyn Driver,
    ) -> Result<Option<Comparison>, driver::Error> {
        let slots = account.slots();
        let moment = || Moment::of(&journal.change(), slots.len());
        let requested: Vec<RequestedCard<'_>> = slots
            .iter()
            .map(|slot| RequestedCard {
                uuid: &slot.uuid,
                minor: slot.minor,
            })
            .collect();
        let before = moment();
        let sums = driver.sums(&requested)?;
        let after = moment();
        let Some(sums) = sums else {
            return Ok(None);
        };
        let mut inner = sync::lock(&self.0);
        let of_card = |uuid: &str| {
            let sum = sums.iter().find(|sum| sum.uuid == uuid);
            sum.map_or((0, 0), |sum| (sum.memory_bytes, sum.further_bytes))
        };
        let counted: Vec<(u64, u64)> = slots.iter().map(|slot| of_card(&slot.uuid)).collect();
        let look = Look {
            driver_bytes: counted.iter().map(|(memory, _)| *memory).collect(),
            counts: counted.iter().map(|both| *both != (0, 0)).collect(),
            before,
            after,
        };
        let drift: Vec<Drift> = slots
            .iter()
            .zip(&look.driver_bytes)
            .zip(&look.after.cards)
            .map(|((slot, driver_bytes), held)| Drift {
                uuid: slot.uuid.clone(),
                driver_bytes: *driver_bytes,
                ledger_bytes: held.memory_bytes,
            })
            .collect();
        if look.is_at_rest() || inner.drift.is_empty() {
            inner.drift.clone_from(&drift);
        }
        let confirmed = inner.last.as_ref().map(|last| look.confirms(last));
        let confirmed = confirmed.unwrap_or_default();
        let unseen = inner.last.as_ref().and_then(|last| look.unseen_since(last));
        // It stays until the driver counts something there: a ledger without memory has nothing to see.
        let sees = |card: usize| look.counts.get(card) == Some(&true);
        if let Some(card) = unseen {
            inner.unseen = slots.get(card).map(|slot| (card, slot.uuid.clone()));
        } else if inner.unseen.as_ref().is_some_and(|(card, _)| sees(*card)) {
            inner.unseen = None;
        }
        inner.last = Some(look);
        let violations: Vec<Drift> = drift
            .iter()
            .zip(&confirmed)
            .filter(|(_, excess)| **excess > 0)
            .map(|(drift, _)| drift.clone())
            .collect();
        let is_news = confirmed != inner.reported && !violations.is_empty();
        inner.reported = confirmed;
        Ok(Some(Comparison {
            drift,
            violations,
            is_news,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: u64 = 100;

    fn moment(next_call: u64, memory_bytes: u64, reserved_bytes: u64) -> Moment {
        Moment {
            next_call,
            under_way: Vec::new(),
            cards: vec![Held {
                memory_bytes,
                reserved_bytes,
                used_bytes: memory_bytes + reserved_bytes,
                quota_bytes: QUOTA,
            }],
        }
    }

    fn look(before: &Moment, driver: u64, after: &Moment) -> Look {
        Look {
            before: before.clone(),
            after: after.clone(),
            driver_bytes: vec![driver],
            counts: vec![driver > 0],
        }
    }

    fn confirmed(first: &Look, second: &Look) -> u64 {
        second.confirms(first)[0]
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_look_at_the_ledger_walks_through_none_of_its_objects() {
        use ledger::{Actual, ClientHandle, Demand, Ledger, NewObject, ObjectHandle, ObjectKind};
        use ledger::{FileId, Place, ProcessId, Purpose, steps};
        let mut ledger = Ledger::new(&[(CardSlot(0), u64::MAX)]);
        for number in 0..500 {
            let demand = Demand {
                card: CardSlot(0),
                bytes: 10,
                purpose: Purpose::Memory,
            };
            let slot = ledger.reserve(ObjectKind::Memory, Some(demand)).unwrap();
            let object = NewObject {
                place: Place {
                    file: FileId(1),
                    client: ClientHandle(1),
                    parent: ObjectHandle(1),
                    handle: ObjectHandle(100 + number),
                    process: ProcessId(1),
                },
                class: 0x40,
                kind: ObjectKind::Memory,
                card: None,
                depends_on: &[],
            };
            ledger.add_object(object, slot, Actual::AsReserved);
        }
        let state = State::new(ledger, journal::state::Numbering::default());
        let before = steps::taken();
        let moment = Moment::of(&state, 1);
        assert_eq!(steps::taken() - before, 0);
        assert_eq!(moment.cards[0].memory_bytes, 5000);
    }

    #[test]
    fn a_difference_stands_when_nothing_has_happened_in_between() {
        let still = moment(5, 40, 0);
        let more = look(&still, 60, &still);
        assert_eq!(confirmed(&more, &more), 20);
        let same = look(&still, 40, &still);
        assert_eq!(confirmed(&more, &same), 0);
        assert_eq!(confirmed(&same, &more), 0);
        assert_eq!(confirmed(&same, &same), 0);
        // Memory that only a map keeps is the ledger's alone.
        let less = look(&still, 10, &still);
        assert_eq!(confirmed(&less, &less), 0);
    }

    #[test]
    fn calls_under_way_excuse_what_they_may_have_done() {
        let allocating = moment(5, 40, 30);
        let done = look(&allocating, 70, &allocating);
        assert_eq!(confirmed(&done, &done), 0);
        // Freed between the driver's answer and the second look at the ledger.
        let freed = look(&moment(5, 40, 0), 40, &moment(6, 0, 0));
        assert_eq!(confirmed(&freed, &freed), 0);
        let rest = moment(9, 0, 0);
        assert_eq!(confirmed(&freed, &look(&rest, 0, &rest)), 0);
    }

    #[test]
    fn a_busy_container_hides_nothing_beyond_its_quota() {
        let busy = |driver| look(&moment(5, 40, 0), driver, &moment(9, 80, 0));
        assert_eq!(confirmed(&busy(100), &busy(100)), 0);
        assert_eq!(confirmed(&busy(130), &busy(110)), 10);
        // At rest each time, with calls between the two.
        let (early, late) = (moment(5, 40, 0), moment(9, 50, 0));
        let (early, late) = (look(&early, 120, &early), look(&late, 120, &late));
        assert_eq!(confirmed(&early, &late), 20);
    }

    #[test]
    fn a_driver_that_counts_nothing_of_what_there_is_counts_for_somebody_else() {
        let held = moment(5, 40, 0);
        let nothing = look(&held, 0, &held);
        assert_eq!(nothing.unseen_since(&nothing), Some(0));
        // One look alone, a busy container, and one that has nothing.
        let some = look(&held, 1, &held);
        assert_eq!(nothing.unseen_since(&some), None);
        assert_eq!(some.unseen_since(&nothing), None);
        let busy = look(&held, 0, &moment(6, 40, 0));
        assert_eq!(busy.unseen_since(&busy), None);
        let mut freeing = moment(5, 40, 0);
        freeing.under_way = vec![3];
        let freeing = look(&freeing, 0, &freeing);
        assert_eq!(freeing.unseen_since(&freeing), None);
        let other = moment(7, 40, 0);
        assert_eq!(look(&other, 0, &other).unseen_since(&nothing), None);
        let empty = moment(5, 0, 0);
        let empty = look(&empty, 0, &empty);
        assert_eq!(empty.unseen_since(&empty), None);
        // All of it has been allocated elsewhere: further handles are something.
        let mut imported = look(&held, 0, &held);
        imported.counts = vec![true];
        assert_eq!(imported.unseen_since(&imported), None);
    }

    #[test]
    fn a_shrunken_quota_is_no_violation() {
        let mut held = moment(5, 80, 0);
        held.cards[0].quota_bytes = 10;
        let busy = look(&held, 80, &moment(6, 80, 0));
        assert_eq!(confirmed(&busy, &busy), 0);
    }
}
