//! A verdict's effect on the container's account: what is reserved before the driver executes, and what is committed after.

use std::sync::Arc;

use driver::{CardIdentity, FdSlot, FileId, ImplicitBytes, Segment};
use ledger::{CardSlot, Counted, Ledger, ObjectKind, Operation};
use nvabi::{PerRelease, Release, uvm};
use share::engines::CopyEngines;
use verdict::policy::Managed;
use verdict::{Effect, Op, Refusal};

use journal::Change;
use journal::limits;
use journal::state::{self, Numbering, State};

mod advised;
mod answers;
mod by_file;
mod commit;
mod context;
mod cpu_mappings;
mod exports;
mod host_mappings;
#[cfg(test)]
#[path = "account/tests/made_up.rs"]
mod made_up;
mod names;
mod one_card;
mod page_tables;
mod range_groups;
pub(crate) mod registrations;
mod repetition;
mod reserve;
mod translation;
mod uvm_files;
mod why;

pub use answers::Numbers;
pub use commit::Met;
use cpu_mappings::CpuMappingUnderWay;
pub use exports::TransferFile;
use page_tables::UnderWay;
use range_groups::GroupUnderWay;
use translation::card_slot;
pub use translation::{changes_account, uuid_bytes};
pub use why::Why;

/// One card of the grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// `GPU-…`
    pub uuid: String,
    /// The UUID's 16 bytes, as UVM writes it.
    pub uuid_bytes: [u8; 16],
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// Quota in bytes.
    pub quota_bytes: u64,
}

/// What the driver makes for a call beside what the ledger knows. It is counted until the call's end.
#[derive(Debug, Default)]
pub(crate) struct InDriver<'a> {
    _page_tables: Option<UnderWay<'a>>,
    _range_group: Option<GroupUnderWay<'a>>,
    cpu_mapping: Option<CpuMappingUnderWay<'a>>,
}

/// What the broker knows of the container's cards, besides the ledger and what it has learnt, which are [`State`].
#[derive(Debug)]
pub struct Account {
    release: Release,
    slots: Vec<Slot>,
    implicit: ImplicitBytes,
    numbering: Numbering,
    /// What the driver may take of the host's memory for the container, bytes.
    host_memory_bytes: u64,
    cpu_mappings: cpu_mappings::CpuMappings,
    host_mappings: host_mappings::HostMappings,
    page_tables: page_tables::PageTables,
    range_groups: range_groups::RangeGroups,
    /// Whether the ledger has managed memory.
    charges_managed: bool,
    advised: advised::Advised,
    made: one_card::Made,
    copies: Arc<CopyEngines>,
}

/// Who made the call, on which file.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The file.
    pub file: FileId,
    /// The process.
    pub process: i32,
    /// The file that its parameters name.
    pub transfer_file: TransferFile,
}

/// A call as the account sees it: what it is, what it does, its blocks, and where it came from.
#[derive(Debug, Clone, Copy)]
pub struct JudgedCall<'a> {
    /// Which call.
    pub op: &'a Op,
    /// The verdict's effect.
    pub effect: &'a Effect,
    /// Its blocks: as they were read, or as the driver has left them.
    pub segments: &'a [Segment],
    /// Who made it, on which file.
    pub origin: Origin,
}

impl<'a> JudgedCall<'a> {
    /// The same call with other blocks: those of its answer.
    #[must_use]
    pub fn with(self, segments: &'a [Segment]) -> Self {
        Self { segments, ..self }
    }

    /// The handle that it made, or is to make.
    #[must_use]
    pub fn new_handle(&self) -> Option<u32> {
        self.op.new_handle(&self.segments.first()?.bytes)
    }

    fn views(&self) -> Vec<&'a [u8]> {
        let segments = self.segments.iter();
        segments.map(|segment| segment.bytes.as_slice()).collect()
    }
}

/// A call that does not reach the driver: what the tenant gets, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// What the tenant gets.
    pub refusal: Refusal,
    /// For the log.
    pub why: Why,
}

impl Denied {
    /// Whether what it lacks may be had by something that the container has given up and nobody has noticed.
    #[must_use]
    pub fn may_be_given_up(&self) -> bool {
        use ledger::Refusal::{OverQuota, TooMany};
        use share::Why::{
            TooManyChannels, TooManyClients, TooManyGroups, TooManyOtherChannels, TooManyScheduled,
        };
        matches!(
            &self.why,
            Why::Ledger(OverQuota { .. } | TooMany { .. })
                | Why::Share(
                    TooManyChannels
                        | TooManyClients
                        | TooManyGroups
                        | TooManyOtherChannels
                        | TooManyScheduled
                )
                | Why::TooManyEvents
                | Why::TooManyPools
                | Why::TooManyRangeGroups
                | Why::TooManyPolicies
                | Why::TooManyMappings
                | Why::TooManyCpuMappings
                | Why::TooManyHostMappings
                | Why::WindowIsFull { .. }
        )
    }
}

impl Account {
    /// The account of these cards of the grant, as the driver numbers them.
    #[must_use]
    pub fn new(
        release: Release,
        slots: Vec<Slot>,
        cards: &[CardIdentity],
        implicit: ImplicitBytes,
    ) -> Self {
        let mut numbering = Numbering::default();
        for card in cards {
            if let Some(slot) = slots
                .iter()
                .position(|slot| slot.uuid == card.uuid)
                .and_then(card_slot)
            {
                numbering.slot_of_gpu_id.insert(card.gpu_id, slot);
                numbering
                    .slot_of_instance
                    .insert(card.device_instance, slot);
            }
        }
        Self {
            release,
            slots,
            implicit,
            numbering,
            host_memory_bytes: u64::MAX,
            cpu_mappings: cpu_mappings::CpuMappings::default(),
            host_mappings: host_mappings::HostMappings::default(),
            page_tables: page_tables::PageTables::default(),
            range_groups: range_groups::RangeGroups::default(),
            charges_managed: true,
            advised: advised::Advised::default(),
            made: one_card::Made::default(),
            copies: Arc::default(),
        }
    }

    /// What the cards answer of their copy engines, for whoever asks them.
    #[must_use]
    pub fn copies(&self) -> Arc<CopyEngines> {
        Arc::clone(&self.copies)
    }

    /// The same with RM's ids of cards by their UUIDs, where the driver does not say them beforehand.
    #[must_use]
    pub fn with_gpu_ids(mut self, ids: &[(String, u32)]) -> Self {
        for (uuid, gpu_id) in ids {
            let slot = self.slots.iter().position(|slot| slot.uuid == *uuid);
            if let Some(slot) = slot.and_then(card_slot) {
                self.numbering.slot_of_gpu_id.insert(*gpu_id, slot);
            }
        }
        self
    }

    /// The same with a limit on what the driver may take of the host's memory for the container.
    #[must_use]
    pub fn with_host_memory(self, bytes: Option<u64>) -> Self {
        Self {
            host_memory_bytes: bytes.unwrap_or(u64::MAX),
            ..self
        }
    }

    /// The same with what is done with managed memory, which is charged otherwise.
    #[must_use]
    pub fn with_managed(self, managed: Managed) -> Self {
        Self {
            charges_managed: managed != Managed::Allow,
            ..self
        }
    }

    /// What the driver may take of the host's memory for the container, if that is limited.
    #[must_use]
    pub fn host_memory_bytes(&self) -> Option<u64> {
        Some(self.host_memory_bytes).filter(|bytes| *bytes != u64::MAX)
    }

    /// The state of a container that holds nothing yet.
    #[must_use]
    pub fn fresh_state(&self) -> State {
        let quotas: Vec<(CardSlot, u64)> = (0u8..)
            .zip(&self.slots)
            .map(|(slot, card)| (CardSlot(slot), card.quota_bytes))
            .chain([(CardSlot::HOST, self.host_memory_bytes)])
            .collect();
        let of_release = |bytes: PerRelease| u64::from(bytes.of(self.release));
        let debuggers = Counted::Kind(ObjectKind::Debugger);
        let limits = limits::of_ledger(self.slots.len())
            .with_host_bytes(Counted::Objects, limits::OBJECT_BYTES)
            .with_host_bytes(debuggers, limits::DEBUGGER_BYTES)
            .with_host_bytes(Counted::Ranges, of_release(uvm::EXTERNAL_RANGE_BYTES))
            .with_host_bytes(Counted::UvmFiles, of_release(uvm::FILE_BYTES));
        let ledger = Ledger::with_limits(&quotas, limits);
        State::new(ledger, self.numbering.clone())
    }

    /// The cards of the grant.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// All cards of the grant, as the ledger knows them.
    #[must_use]
    pub fn card_slots(&self) -> Vec<CardSlot> {
        (0..self.slots.len()).filter_map(card_slot).collect()
    }

    /// Before the driver has a call: whether what it makes beside the ledger's objects may be there.
    ///
    /// # Errors
    /// As [`Self::begin_mapping`], [`Self::begin_range_group`], [`Self::begin_cpu_mapping`], [`Self::begin_advice`] and
    /// [`Self::begin_host_mapping`].
    pub(crate) fn begin_in_driver(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        fds: &[FdSlot],
    ) -> Result<InDriver<'_>, Denied> {
        let in_driver = InDriver {
            _page_tables: self.begin_mapping(change, call)?,
            _range_group: self.begin_range_group(call)?,
            cpu_mapping: self.begin_cpu_mapping(change, call)?,
        };
        self.begin_advice(change, call)?;
        self.begin_host_mapping(change, call, fds)?;
        Ok(in_driver)
    }

    /// The driver has executed a call with success; the call has its answer's blocks.
    pub(crate) fn end_in_driver(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (made, fds): (&mut InDriver<'_>, &[FdSlot]),
    ) {
        self.end_range_group(call);
        self.end_cpu_mapping(change, call.effect);
        self.end_host_mapping(change, call, fds);
        if let Some(mapping) = &mut made.cpu_mapping {
            mapping.keep();
        }
        if let Some(answer) = call.segments.first() {
            let made = (call.effect, call.origin.file);
            self.end_mapping(change, made, &answer.bytes, self.release);
        }
    }

    /// The last reference to a file is gone.
    pub fn close_file(&self, change: &mut Change<'_>, file: FileId) {
        change.record(Operation::CloseFile {
            file: ledger::FileId(file.0),
        });
        change.record_op(state::Op::FileGone(file));
        self.forget_range_groups(file);
        self.forget_advice(file);
    }

    fn slot_of_uuid(&self, uuid: &[u8; 16]) -> Option<CardSlot> {
        self.slots
            .iter()
            .position(|slot| slot.uuid_bytes == *uuid)
            .and_then(card_slot)
    }
}
