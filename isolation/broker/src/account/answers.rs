//! Answers that pass by: what is learnt from them, and how they are rewritten to the slice.

use std::collections::{BTreeMap, BTreeSet};

use driver::Segment;
use journal::state::{self, State};
use journal::{Change, Journal};
use ledger::ProcessId;
use nvabi::bytes::u32_at;
use nvabi::control::Decision;
use nvabi::layout::card_info;
use nvabi::status;
use verdict::effect::{List, View};
use verdict::view::{self, Holder, Slice};
use verdict::{Effect, Op};

use super::Account;
use super::reserve::card_of_object;
use super::translation::card_slot;
use crate::pids;

/// The numbers that processes are known by, where an answer names processes.
#[derive(Debug, Default)]
pub struct Numbers {
    /// The container's processes that hold something, on the host.
    all: BTreeSet<i32>,
    /// Those of them that the asker can see: on the host, and for the asker.
    known: BTreeMap<i32, u32>,
    /// The process that makes all calls, on the host.
    executor: Option<u32>,
}

impl Numbers {
    /// Looks for them where the answer wants them, for this asker and the process that makes all calls, if there is one. It reads files of each process, so the journal is not locked meanwhile.
    #[must_use]
    pub fn of(journal: &Journal, executor: Option<i32>, effect: &Effect, asker: i32) -> Self {
        if !matches!(
            effect,
            Effect::View(View::Pids { .. } | View::PidInfo { .. } | View::Samples { .. })
        ) {
            return Self::default();
        }
        let all: BTreeSet<i32> = {
            let state = journal.change();
            let ledger = &state.ledger;
            let usages = ledger
                .cards()
                .flat_map(|card| ledger.usage_by_process(card));
            usages.map(|usage| usage.process.0).collect()
        };
        let processes: Vec<i32> = all.iter().copied().collect();
        Self {
            known: pids::known_to(asker, &processes),
            all,
            executor: executor.map(i32::unsigned_abs),
        }
    }

    /// The processes that hold something of an object's card, as far as the asker can see them.
    fn holders(&self, state: &State, object: (u32, u32)) -> Option<Vec<Holder>> {
        let card = card_of_object(state, object)?;
        let known = self.known.iter().filter_map(|(process, known_as)| {
            let usage = state.ledger.usage_of(card, ProcessId(*process))?;
            Some(Holder {
                host_pid: process.unsigned_abs(),
                known_as: *known_as,
                bytes: usage.memory_bytes.saturating_add(usage.context_bytes),
            })
        });
        Some(known.collect())
    }

    /// The one process that holds something of the card, as far as the asker can see it.
    fn alone(&self, state: &State, object: (u32, u32)) -> Option<u32> {
        let card = card_of_object(state, object)?;
        let usage = |process: &i32| state.ledger.usage_of(card, ProcessId(*process));
        let mut on_card = self.all.iter().filter(|process| usage(process).is_some());
        let first = on_card.next().filter(|_| on_card.next().is_none())?;
        self.known.get(first).copied()
    }
}

fn slice(state: &State, object: (u32, u32)) -> Option<Slice> {
    let card = card_of_object(state, object)?;
    Some(Slice {
        quota_bytes: state.ledger.quota(card),
        used_bytes: state.ledger.used(card),
    })
}

impl Account {
    /// Rewrites an answer to the slice.
    ///
    /// # Errors
    /// The status of a question about an object whose card is not known: nothing is shown then.
    pub fn rewrite(
        &self,
        change: &mut Change<'_>,
        view: &View,
        requested: &Numbers,
        segments: &mut [Segment],
    ) -> Result<(), u32> {
        self.learn_gpu_ids(change, view, segments);
        let state: &State = change;
        let unknown = status::NV_ERR_INVALID_OBJECT_HANDLE;
        let slice = |object| slice(state, object).ok_or(unknown);
        let holders = |object| requested.holders(state, object).ok_or(unknown);
        let is_granted = |id| state.numbering.slot_of_gpu_id.contains_key(&id);
        let is_granted_instance = |id| state.numbering.slot_of_instance.contains_key(&id);
        let entries = segments.get(1).and_then(|params| u32_at(&params.bytes, 0));
        let entries = entries.unwrap_or(0);
        match view {
            View::FbInfo { object, list } => {
                let slice = slice(*object)?;
                view::fb_info_list(listed(segments, *list), entries, slice);
            }
            View::GpuInfo(list) => view::gpu_info_list(listed(segments, *list), entries),
            View::Classes { list, policy } => {
                let list = listed(segments, *list);
                view::class_list(list, entries, self.release, policy);
            }
            View::Engines { list, capabilities } => {
                let [_, params, blocks @ ..] = segments else {
                    return Ok(());
                };
                let block = blocks.first_mut().map(|block| &mut *block.bytes);
                view::engine_list(
                    &mut params.bytes,
                    block.unwrap_or_default(),
                    *list,
                    *capabilities,
                );
            }
            View::FbRegions { object } => {
                let slice = slice(*object)?;
                view::fb_regions(block(segments, 1), self.release, slice);
            }
            View::NothingThere(byte) => view::nothing_there(block(segments, 1), *byte),
            View::FabricProbe => view::no_multicast(block(segments, 1)),
            View::HeapInfo { object } => {
                let slice = slice(*object)?;
                view::heap_info(block(segments, 0), slice);
            }
            View::Cards => view::card_info(block(segments, 0), |minor| {
                self.slots.iter().any(|slot| slot.minor == minor)
            }),
            View::GpuIds => view::gpu_ids(block(segments, 1), is_granted),
            View::ActiveDevices => view::active_devices(block(segments, 1), is_granted),
            View::Pids { object } => {
                let holders = holders(*object)?;
                view::own_pids(block(segments, 1), &holders, requested.executor);
            }
            View::PidInfo { object } => {
                let holders = holders(*object)?;
                view::own_pid_info(block(segments, 1), &holders);
            }
            View::Samples { object } => {
                let holders = holders(*object)?;
                let executor = requested
                    .executor
                    .map(|pid| (pid, requested.alone(state, *object)));
                view::own_samples(block(segments, 1), self.release, &holders, executor);
            }
            View::DeviceMask => view::device_mask(block(segments, 1), is_granted_instance),
            View::BoostGroups => view::boost_groups(block(segments, 1), is_granted),
            View::NvLinks => view::links(block(segments, 1), self.release, is_granted),
            View::ExportedDevice => {
                view::exported_device(block(segments, 1), is_granted_instance);
            }
        }
        Ok(())
    }

    /// Takes the driver's numbers of our cards from an answer that passes by, before it is rewritten.
    fn learn_gpu_ids(&self, change: &mut Change<'_>, view: &View, segments: &[Segment]) {
        if *view != View::Cards {
            return;
        }
        let Some(arg) = segments.first() else { return };
        for entry in arg
            .bytes
            .chunks_exact(card_info::BYTES)
            .filter(|entry| entry.first() == Some(&1))
        {
            let minor = u32_at(entry, card_info::MINOR);
            let slot = self
                .slots
                .iter()
                .position(|slot| Some(slot.minor) == minor)
                .and_then(card_slot);
            if let (Some(slot), Some(gpu_id)) = (slot, u32_at(entry, card_info::GPU_ID))
                && change.numbering.slot_of_gpu_id.get(&gpu_id) != Some(&slot)
            {
                change.record_op(state::Op::GpuId(gpu_id, slot));
            }
        }
    }

    /// Takes the device instance of one of our cards from an answer to GPU_GET_ID_INFO.
    pub fn learn_instance(&self, change: &mut Change<'_>, op: &Op, segments: &[Segment]) {
        /// `gpuId`, then `deviceInstance`: 8 in both versions of the control
        const GPU_ID: usize = 0;
        const INSTANCE: usize = 8;
        let [arg, params, ..] = segments else {
            return;
        };
        if op.decision(&arg.bytes) != Some(Decision::IdInfo) {
            return;
        }
        let slot = u32_at(&params.bytes, GPU_ID)
            .and_then(|id| change.numbering.slot_of_gpu_id.get(&id).copied());
        if let (Some(slot), Some(instance)) = (slot, u32_at(&params.bytes, INSTANCE)) {
            change.learn_instance(instance, slot);
        }
    }
}

/// A segment's bytes; none where the call has no such segment.
fn block(segments: &mut [Segment], segment: usize) -> &mut [u8] {
    let segment = segments.get_mut(segment);
    segment
        .map(|segment| segment.bytes.as_mut_slice())
        .unwrap_or_default()
}

/// A list's entries.
fn listed(segments: &mut [Segment], list: List) -> &mut [u8] {
    let block = block(segments, usize::from(list.segment));
    block.get_mut(list.at..).unwrap_or_default()
}
