//! Who of a container holds how much, in bounded space and time.
//!
//! A tenant makes as many processes as it likes, and a dead one's memory stays while another has its files. So the living are
//! looked up one by one, up to [`MOST_LOOKED_AT`]; the largest [`MOST_LISTED`] of them are listed by name; all else is one figure
//! for the living and one for the dead. The sums of all three are what the container holds.

use std::collections::BTreeSet;
use std::path::Path;

use control::{Folded, FoldedCard, ProcessCard, ProcessStatus};
use ledger::{CardSlot, Ledger, ProcessId};

use crate::account::Slot;
use crate::control_group::list_group_up_to;

/// So many processes are listed.
pub const MOST_LISTED: usize = 64;
/// So many living ones are looked up; what the others hold is counted with the dead.
pub const MOST_LOOKED_AT: usize = 4096;
/// So many are asked for their names, if some of the largest turn out to have ended.
pub const MOST_NAMED: usize = 4 * MOST_LISTED;
/// So many folders of a control group are looked into.
const MOST_FOLDERS: usize = 256;

/// The living processes of a container: of its control group, else those that have made calls.
pub(crate) fn living(cgroup: Option<&Path>, known: Vec<i32>) -> BTreeSet<i32> {
    let listed = cgroup.and_then(|folder| list_group_up_to(folder, MOST_FOLDERS).ok());
    known
        .into_iter()
        .chain(listed.into_iter().flatten())
        .take(MOST_LOOKED_AT)
        .collect()
}

/// What the ledger says of the living, and of each card.
#[derive(Debug)]
pub(crate) struct Holding {
    /// Sum, process, by card; the largest first.
    processes: Vec<(u64, i32, Vec<ProcessCard>)>,
    /// Name, bytes held by all, by how many.
    cards: Vec<(String, u64, u64)>,
}

impl Holding {
    /// Looks up each of the living once a card, and no other process.
    pub(crate) fn of(ledger: &Ledger, slots: &[Slot], living: &BTreeSet<i32>) -> Self {
        let slots: Vec<(CardSlot, &Slot)> = slots
            .iter()
            .enumerate()
            .filter_map(|(at, slot)| Some((CardSlot(u8::try_from(at).ok()?), slot)))
            .collect();
        let held_by = |pid: &i32| {
            let cards: Vec<ProcessCard> = slots
                .iter()
                .filter_map(|(card, slot)| {
                    let usage = ledger.usage_of(*card, ProcessId(*pid))?;
                    Some(ProcessCard {
                        uuid: slot.uuid.clone(),
                        used_bytes: usage.memory_bytes.saturating_add(usage.context_bytes),
                    })
                })
                .collect();
            let add = |sum: u64, card: &ProcessCard| sum.saturating_add(card.used_bytes);
            let sum = cards.iter().fold(0, add);
            (!cards.is_empty()).then_some((sum, *pid, cards))
        };
        let mut processes: Vec<_> = living.iter().filter_map(held_by).collect();
        processes.sort_by_key(|(bytes, pid, _)| (std::cmp::Reverse(*bytes), *pid));
        let cards = slots.iter().map(|(card, slot)| {
            let held_bytes = ledger.used(*card).saturating_sub(ledger.reserved(*card));
            (slot.uuid.clone(), held_bytes, ledger.processes_on(*card))
        });
        Self {
            processes,
            cards: cards.collect(),
        }
    }

    /// The report. `name_of` is asked for the largest alone, and knows no name of a process that has ended since: a parent need
    /// not take note of that.
    pub(crate) fn report(
        self,
        mut name_of: impl FnMut(i32) -> Option<String>,
    ) -> (Vec<ProcessStatus>, Folded) {
        let mut listed = Vec::new();
        let mut rest = self.processes.into_iter();
        for (_, pid, cards) in rest.by_ref().take(MOST_NAMED) {
            if let Some(name) = name_of(pid) {
                listed.push(ProcessStatus { pid, name, cards });
            }
            if listed.len() >= MOST_LISTED {
                break;
            }
        }
        let living: Vec<Vec<ProcessCard>> = rest.map(|(_, _, cards)| cards).collect();
        let mut folded = Folded::default();
        for (uuid, held_bytes, processes) in self.cards {
            let of = |cards: &mut dyn Iterator<Item = &ProcessCard>| {
                cards.filter(|card| card.uuid == uuid).fold(
                    (0_u64, 0_u64),
                    |(bytes, count), card| {
                        (
                            bytes.saturating_add(card.used_bytes),
                            count.saturating_add(1),
                        )
                    },
                )
            };
            let (listed_bytes, listed) = of(&mut listed.iter().flat_map(|process| &process.cards));
            let (living_bytes, living) = of(&mut living.iter().flatten());
            let figure = |used_bytes, processes| FoldedCard {
                uuid: uuid.clone(),
                used_bytes,
                processes,
            };
            if living > 0 {
                folded.living.push(figure(living_bytes, living));
            }
            let ended = processes.saturating_sub(listed).saturating_sub(living);
            if ended > 0 {
                let seen_bytes = listed_bytes.saturating_add(living_bytes);
                let ended_bytes = held_bytes.saturating_sub(seen_bytes);
                folded.ended.push(figure(ended_bytes, ended));
            }
        }
        (listed, folded)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ledger::{
        Actual, ClientHandle, Demand, FileId, NewObject, ObjectHandle, ObjectKind, Place, Purpose,
    };

    use super::*;

    const CARDS: u8 = 2;

    fn slots() -> Vec<Slot> {
        (0..CARDS)
            .map(|minor| Slot {
                uuid: format!("GPU-{minor}"),
                uuid_bytes: [minor; 16],
                minor: minor.into(),
                quota_bytes: u64::MAX,
            })
            .collect()
    }

    /// Process `n` of each holds `n` bytes of the first card and one of the second.
    fn held_by(processes: impl Iterator<Item = i32>) -> Ledger {
        let quotas: Vec<_> = (0..CARDS).map(|card| (CardSlot(card), u64::MAX)).collect();
        let mut ledger = Ledger::new(&quotas);
        let (file, client) = (FileId(1), ClientHandle(1));
        let slot = ledger.reserve(ObjectKind::Client, None).unwrap();
        ledger.open_client(file, client, ProcessId(1), slot);
        let mut handle = 100;
        for pid in processes {
            for (card, bytes) in [(0, u64::try_from(pid).unwrap()), (1, 1)] {
                let demand = Demand {
                    card: CardSlot(card),
                    bytes,
                    purpose: Purpose::Memory,
                };
                let slot = ledger.reserve(ObjectKind::Memory, Some(demand)).unwrap();
                handle += 1;
                let place = Place {
                    file,
                    client,
                    parent: client.as_object(),
                    handle: ObjectHandle(handle),
                    process: ProcessId(pid),
                };
                let object = NewObject {
                    place,
                    class: 0x40,
                    kind: ObjectKind::Memory,
                    card: None,
                    depends_on: &[],
                };
                ledger.add_object(object, slot, Actual::AsReserved);
            }
        }
        ledger
    }

    fn sum<'a>(cards: impl Iterator<Item = (&'a String, u64)>, uuid: &str) -> u64 {
        cards
            .filter(|(of, _)| *of == uuid)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    fn assert_sums(ledger: &Ledger, processes: &[ProcessStatus], folded: &Folded) {
        for (card, slot) in slots().iter().enumerate() {
            let listed = processes.iter().flat_map(|process| &process.cards);
            let listed = sum(listed.map(|card| (&card.uuid, card.used_bytes)), &slot.uuid);
            let folded = folded.living.iter().chain(&folded.ended);
            let folded = sum(folded.map(|card| (&card.uuid, card.used_bytes)), &slot.uuid);
            let card = CardSlot(u8::try_from(card).unwrap());
            assert_eq!(listed + folded, ledger.used(card), "{}", slot.uuid);
        }
    }

    #[test]
    fn twenty_thousand_dead_processes_are_one_figure() {
        let ledger = held_by(1..=20_000);
        let living = BTreeSet::from([7, 20_000]);
        let names = Cell::new(0);
        let (processes, folded) = Holding::of(&ledger, &slots(), &living).report(|pid| {
            names.set(names.get() + 1);
            Some(format!("p{pid}"))
        });
        assert_eq!(names.get(), 2);
        let listed: Vec<_> = processes.iter().map(|process| process.pid).collect();
        assert_eq!(listed, [20_000, 7]);
        assert_eq!(folded.living, []);
        assert_eq!(folded.ended.len(), 2);
        assert_eq!(folded.ended[1].processes, 19_998);
        assert_sums(&ledger, &processes, &folded);
        let text = serde_json::to_string(&(processes, folded)).unwrap();
        assert!(text.len() < 1024, "{} bytes", text.len());
    }

    #[test]
    fn the_largest_of_many_living_ones_are_listed() {
        let ledger = held_by(1..=20_000);
        let living = living(None, (10_001..=20_000).collect());
        assert_eq!(living.len(), MOST_LOOKED_AT);
        let names = Cell::new(0);
        let (processes, folded) = Holding::of(&ledger, &slots(), &living).report(|_| {
            names.set(names.get() + 1);
            // What a process calls itself is 15 bytes at most.
            Some("\u{1}".repeat(15))
        });
        assert_eq!((names.get(), processes.len()), (MOST_LISTED, MOST_LISTED));
        let most = i32::try_from(10_000 + MOST_LOOKED_AT).unwrap();
        assert_eq!(processes[0].pid, most);
        assert_eq!(
            folded.living[0].processes,
            u64::try_from(MOST_LOOKED_AT - MOST_LISTED).unwrap()
        );
        assert_sums(&ledger, &processes, &folded);
        let text = serde_json::to_string(&(processes, folded)).unwrap();
        assert!(text.len() < 32 << 10, "{} bytes", text.len());
    }

    #[test]
    fn those_who_have_ended_unnoticed_are_counted_so_and_looked_for_no_longer_than_that() {
        let ledger = held_by(1..=1_000);
        let living = living(None, (1..=1_000).collect());
        let names = Cell::new(0);
        let (processes, folded) = Holding::of(&ledger, &slots(), &living).report(|_| {
            names.set(names.get() + 1);
            None
        });
        assert_eq!((names.get(), processes.len()), (MOST_NAMED, 0));
        assert_eq!(
            folded.ended[0].processes,
            u64::try_from(MOST_NAMED).unwrap()
        );
        assert_sums(&ledger, &processes, &folded);
    }
}
