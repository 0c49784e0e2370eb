//! What each process has allocated, kept beside the allocations: a report must not cost a look at each of them.

use std::collections::BTreeMap;

use crate::charge::{Charge, Purpose, narrow};
use crate::identity::{CardSlot, ProcessId};

/// What one process has allocated on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// The process.
    pub process: ProcessId,
    /// Memory asked for by size: what the driver's own per-process figure contains.
    pub memory_bytes: u64,
    /// Context memory.
    pub context_bytes: u64,
}

/// By card and process; a process that has nothing is not there. Sums are wider than what they add.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Usages(BTreeMap<CardSlot, BTreeMap<ProcessId, Usage>>);

#[derive(Debug, Default, Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Usage {
    memory_bytes: u128,
    context_bytes: u128,
}

impl Usage {
    fn of(&mut self, purpose: Purpose) -> &mut u128 {
        match purpose {
            Purpose::Memory => &mut self.memory_bytes,
            Purpose::Context => &mut self.context_bytes,
        }
    }

    fn reported(self, process: ProcessId) -> ProcessUsage {
        ProcessUsage {
            process,
            memory_bytes: narrow(self.memory_bytes),
            context_bytes: narrow(self.context_bytes),
        }
    }
}

impl Usages {
    pub(crate) fn add(&mut self, charge: Charge) {
        if charge.bytes > 0 {
            let processes = self.0.entry(charge.card).or_default();
            let usage = processes.entry(charge.process).or_default();
            let sum = usage.of(charge.purpose);
            *sum = sum.saturating_add(u128::from(charge.bytes));
        }
    }

    pub(crate) fn remove(&mut self, charge: Charge) {
        let Some(processes) = self.0.get_mut(&charge.card) else {
            return;
        };
        let Some(usage) = processes.get_mut(&charge.process) else {
            return;
        };
        let sum = usage.of(charge.purpose);
        debug_assert!(*sum >= u128::from(charge.bytes));
        *sum = sum.saturating_sub(u128::from(charge.bytes));
        if usage.memory_bytes == 0 && usage.context_bytes == 0 {
            processes.remove(&charge.process);
        }
    }

    pub(crate) fn on(&self, card: CardSlot) -> impl Iterator<Item = ProcessUsage> + '_ {
        let processes = self.0.get(&card).into_iter().flatten();
        processes.map(|(process, usage)| usage.reported(*process))
    }

    pub(crate) fn by(&self, card: CardSlot, process: ProcessId) -> Option<ProcessUsage> {
        let usage = self.0.get(&card)?.get(&process)?;
        Some(usage.reported(process))
    }

    pub(crate) fn count(&self, card: CardSlot) -> usize {
        self.0.get(&card).map_or(0, BTreeMap::len)
    }
}
