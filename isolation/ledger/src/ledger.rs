//! The ledger itself: its parts, quotas, and the tokens of calls under way.

use std::collections::{BTreeMap, BTreeSet};

use crate::accounts::{Accounts, Share};
use crate::charge::{Demand, narrow};
use crate::counts::{Counts, Limits, wide};
use crate::held::{HeldId, Registrations};
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle, ProcessId};
use crate::kinds::{Counted, ObjectKind};
use crate::managed_pieces::ManagedPieces;
use crate::mappings::Pieces;
use crate::refusal::Refusal;
use crate::tree::Tree;

/// The account of one container. One owner, behind the caller's lock; nothing in it waits.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Ledger {
    pub(crate) accounts: Accounts,
    pub(crate) counts: Counts,
    pub(crate) clients: BTreeMap<ClientHandle, Client>,
    pub(crate) clients_by_file: BTreeSet<(FileId, ClientHandle)>,
    pub(crate) mappings: BTreeMap<(FileId, CardSlot), Pieces>,
    /// External ranges of each uvm file: first to last address.
    pub(crate) ranges: BTreeMap<FileId, BTreeMap<u64, u64>>,
    /// External ranges of files that are closed, which the driver has not freed: see [`Ledger::range_stays`].
    pub(crate) staying_ranges: u64,
    /// See [`Ledger::open_uvm_file`].
    pub(crate) uvm_files: BTreeSet<FileId>,
    /// Initialised files that are closed and that the driver has all the same: see [`Ledger::uvm_file_stays`].
    pub(crate) staying_uvm_files: u64,
    pub(crate) managed: BTreeMap<FileId, ManagedPieces>,
    pub(crate) exports: BTreeMap<FileId, Exports>,
    pub(crate) registrations: Registrations,
    pub(crate) reservations: BTreeMap<u64, Reserved>,
    pub(crate) pins: BTreeMap<u64, Pinned>,
    next_token: u64,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Client {
    pub(crate) file: FileId,
    pub(crate) process: ProcessId,
    pub(crate) tree: Tree,
}

/// The most that one more place can add to [`Counted::Exports`]: itself, and the memory that is held for it.
pub(crate) const EXPORTS_OF_A_PLACE: u64 = 2;

/// What one file has exported, until it is closed.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Exports {
    /// What an import of an index yields: the last thing exported there.
    pub(crate) by_index: BTreeMap<u32, Source>,
    /// One reference each; an index that was exported anew keeps the old one too, since nothing says that
    /// the driver let it go.
    pub(crate) references: BTreeSet<AllocationId>,
    /// By index, what was exported by another container: the number by which that one's account knows it.
    pub(crate) adopted: BTreeMap<u32, u64>,
}

impl Exports {
    /// What it counts as.
    pub(crate) fn count(&self) -> u64 {
        wide(self.by_index.len()).saturating_add(wide(self.references.len()))
    }
}

/// What a second reference to an object takes over from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Source {
    pub(crate) class: u32,
    pub(crate) kind: ObjectKind,
    pub(crate) card: Option<CardSlot>,
    pub(crate) allocation: Option<AllocationId>,
}

/// What a [`Reservation`] holds.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Reserved {
    pub(crate) kind: ObjectKind,
    pub(crate) demand: Option<Demand>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pinned {
    pub(crate) source: Source,
    pub(crate) purpose: PinFor,
    /// What a registration will hold.
    pub(crate) holds: Vec<HeldId>,
}

/// Bytes and one slot of a kind, held while the driver executes an allocation.
///
/// Hand it back to the ledger that made it, by recording the outcome or by [`Ledger::roll_back`]: dropping
/// it leaves the bytes reserved for the ledger's life.
#[must_use = "bytes stay reserved until it is recorded or rolled back"]
#[derive(Debug)]
pub struct Reservation(pub(crate) u64);

/// A reference held while the driver makes another one of an object.
///
/// Hand it back to the ledger that made it, by recording the outcome or by [`Ledger::unpin`]: dropping it
/// leaves the memory charged for the ledger's life.
#[must_use = "memory stays charged until it is recorded or unpinned"]
#[derive(Debug)]
pub struct Pin(pub(crate) u64);

/// What a pinned object is wanted for; the slots for it are held with the pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PinFor {
    /// Another handle: one more object of its kind.
    Duplicate,
    /// External mappings on this many cards.
    Map {
        /// How many cards the call maps it on.
        cards: u32,
    },
    /// An exported file: a place in it, and what is held for that.
    Export,
    /// A registration with nvidia-uvm.
    Register,
}

/// What a free, a close or a replacement took out of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Objects taken out, clients among them. What is only invalidated is not.
    pub objects: u64,
    /// Channel groups and channels among the objects and what is invalidated.
    pub scheduled: BTreeSet<(ClientHandle, ObjectHandle)>,
    /// Bytes no longer charged: those whose last reference this was.
    pub bytes: BTreeMap<CardSlot, u64>,
}

impl Freed {
    /// Adds what another one uncharged.
    pub(crate) fn add_bytes(&mut self, other: Self) {
        for (card, more) in other.bytes {
            let bytes = self.bytes.entry(card).or_default();
            *bytes = bytes.saturating_add(more);
        }
    }
}

impl Ledger {
    /// A ledger with these shares, holding nothing, with no limits on counts. A card named twice has the
    /// later quota.
    #[must_use]
    pub fn new(quotas: &[(CardSlot, u64)]) -> Self {
        Self::with_limits(quotas, Limits::none())
    }

    /// [`Ledger::new`] with limits on counts.
    #[must_use]
    pub fn with_limits(quotas: &[(CardSlot, u64)], limits: Limits) -> Self {
        Self {
            accounts: Accounts::new(quotas),
            counts: Counts::new(limits),
            ..Self::default()
        }
    }

    /// Gives the container this share of a card. Below what it holds nothing is taken away, but nothing
    /// more is granted until it fits again.
    pub fn set_quota(&mut self, card: CardSlot, quota_bytes: u64) {
        self.accounts.set_quota(card, quota_bytes);
    }

    /// The container's share of a card in bytes; 0 of a card it has no share of.
    #[must_use]
    pub fn quota(&self, card: CardSlot) -> u64 {
        self.accounts.share(card).map_or(0, |it| it.quota_bytes)
    }

    /// Bytes held and reserved.
    #[must_use]
    pub fn used(&self, card: CardSlot) -> u64 {
        self.of_share(card, Share::used_bytes)
    }

    /// Bytes reserved for calls under way, which are a part of [`Ledger::used`].
    #[must_use]
    pub fn reserved(&self, card: CardSlot) -> u64 {
        self.of_share(card, |share| share.reserved_bytes)
    }

    /// Bytes that can still be reserved; 0 while more is used than the quota.
    #[must_use]
    pub fn available(&self, card: CardSlot) -> u64 {
        self.quota(card).saturating_sub(self.used(card))
    }

    /// Bytes held of memory that was asked for by size and has a handle.
    #[must_use]
    pub fn named(&self, card: CardSlot) -> u64 {
        self.of_share(card, |share| share.named_bytes)
    }

    /// The most bytes ever held at once; reservations do not count.
    #[must_use]
    pub fn peak(&self, card: CardSlot) -> u64 {
        self.of_share(card, |share| share.peak_bytes)
    }

    /// A sum of a card's share; 0 of a card it has no share of.
    fn of_share(&self, card: CardSlot, sum: impl Fn(&Share) -> u128) -> u64 {
        self.accounts
            .share(card)
            .map_or(0, |share| narrow(sum(share)))
    }

    /// The cards that the container has, or has held memory of.
    pub fn cards(&self) -> impl Iterator<Item = CardSlot> + '_ {
        self.accounts.shares().map(|(card, _)| card)
    }

    /// How many there are, with those that calls under way may add.
    #[must_use]
    pub fn count(&self, counted: Counted) -> u64 {
        self.counts.of(counted)
    }

    /// Sets aside what one allocation call needs: a slot for an object of `kind`, and the bytes of
    /// `demand` if it takes device memory.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`], [`Refusal::NoShare`] or [`Refusal::TooMany`]; then nothing is reserved.
    pub fn reserve(
        &mut self,
        kind: ObjectKind,
        demand: Option<Demand>,
    ) -> Result<Reservation, Refusal> {
        self.check_object(kind)?;
        if let Some(demand) = demand {
            self.accounts.reserve(demand)?;
            // Beside what the object itself takes of the host.
            self.check_object(kind)
                .inspect_err(|_| self.accounts.unreserve(demand))?;
        }
        self.count_object(kind);
        let token = self.token();
        self.reservations.insert(token, Reserved { kind, demand });
        Ok(Reservation(token))
    }

    /// Gives everything of a reservation back: the driver did not allocate.
    pub fn roll_back(&mut self, reservation: Reservation) {
        self.settle(reservation);
    }

    /// Keeps an object's memory charged while the driver makes another reference to it.
    ///
    /// # Errors
    /// [`Refusal::ForeignClient`] when the client is not ours, [`Refusal::UnknownObject`] when it has no
    /// such object or only its name is left (the call must not be executed then: what it refers to could not be accounted),
    /// [`Refusal::TooMany`].
    pub fn pin(
        &mut self,
        client: ClientHandle,
        object: ObjectHandle,
        purpose: PinFor,
    ) -> Result<Pin, Refusal> {
        let owner = self
            .clients
            .get(&client)
            .ok_or(Refusal::ForeignClient { client })?;
        let found = owner
            .tree
            .objects
            .get(&object)
            .filter(|found| found.kind != ObjectKind::Invalidated)
            .ok_or(Refusal::UnknownObject { client, object })?;
        let source = Source {
            class: found.class,
            kind: found.kind,
            card: found.card,
            allocation: found.allocation,
        };
        let pin = self.pin_source(source, purpose)?;
        if purpose == PinFor::Register {
            let holds = self.hold(client, object);
            if let Some(pinned) = self.pins.get_mut(&pin.0) {
                pinned.holds = holds;
            }
        }
        Ok(pin)
    }

    /// [`Ledger::pin`] for what a file has exported at an index: the source of an import.
    ///
    /// # Errors
    /// [`Refusal::UnknownExport`], [`Refusal::TooMany`].
    pub fn pin_export(
        &mut self,
        file: FileId,
        index: u32,
        purpose: PinFor,
    ) -> Result<Pin, Refusal> {
        let source = self
            .exports
            .get(&file)
            .and_then(|exports| exports.by_index.get(&index))
            .copied()
            .ok_or(Refusal::UnknownExport { file, index })?;
        self.pin_source(source, purpose)
    }

    /// Drops a pin: the driver made no reference. The memory goes if everything else let it go meanwhile.
    pub fn unpin(&mut self, pin: Pin) -> Freed {
        let mut freed = Freed::default();
        if let Some(pinned) = self.settle_pin(pin, &mut freed) {
            self.release(pinned.source.allocation, &mut freed);
        }
        freed
    }

    fn pin_source(&mut self, source: Source, purpose: PinFor) -> Result<Pin, Refusal> {
        match purpose {
            PinFor::Duplicate => {
                self.check_object(source.kind)?;
                self.count_object(source.kind);
            }
            PinFor::Map { cards } => {
                let pieces = u64::from(cards);
                if pieces > 0 {
                    self.check_count(Counted::Mappings, pieces)?;
                }
                self.count_more(Counted::Mappings, pieces);
            }
            PinFor::Export => {
                self.check_count(Counted::Exports, EXPORTS_OF_A_PLACE)?;
                self.count_more(Counted::Exports, EXPORTS_OF_A_PLACE);
            }
            PinFor::Register => {
                self.check_count(Counted::Registrations, 1)?;
                self.count_more(Counted::Registrations, 1);
            }
        }
        if let Some(allocation) = source.allocation {
            self.accounts.retain(allocation);
        }
        let token = self.token();
        let holds = Vec::new();
        self.pins.insert(
            token,
            Pinned {
                source,
                purpose,
                holds,
            },
        );
        Ok(Pin(token))
    }

    /// Takes a reservation back: its bytes and its slot are free again.
    pub(crate) fn settle(&mut self, reservation: Reservation) -> Option<Reserved> {
        let held = self.reservations.remove(&reservation.0);
        debug_assert!(held.is_some(), "a reservation of another ledger");
        if let Some(Reserved { kind, demand }) = held {
            self.uncount_object(kind);
            if let Some(demand) = demand {
                self.accounts.unreserve(demand);
            }
        }
        held
    }

    /// Takes a pin back: its slots are free again, its reference passes to the caller. Nothing comes of what a registration would hold.
    pub(crate) fn settle_pin(&mut self, pin: Pin, freed: &mut Freed) -> Option<Pinned> {
        let mut pinned = self.take_pin(pin)?;
        self.let_go(std::mem::take(&mut pinned.holds), freed);
        Some(pinned)
    }

    /// [`Ledger::settle_pin`], with what a registration will hold.
    pub(crate) fn take_pin(&mut self, pin: Pin) -> Option<Pinned> {
        let pinned = self.pins.remove(&pin.0);
        debug_assert!(pinned.is_some(), "a pin of another ledger");
        if let Some(Pinned {
            source, purpose, ..
        }) = &pinned
        {
            match *purpose {
                PinFor::Duplicate => self.uncount_object(source.kind),
                PinFor::Map { cards } => self.count_fewer(Counted::Mappings, u64::from(cards)),
                PinFor::Export => self.count_fewer(Counted::Exports, EXPORTS_OF_A_PLACE),
                PinFor::Register => self.count_fewer(Counted::Registrations, 1),
            }
        }
        pinned
    }

    /// Drops one reference and notes what went with it.
    pub(crate) fn release(&mut self, allocation: Option<AllocationId>, freed: &mut Freed) {
        if let Some(gone) = allocation.and_then(|id| self.accounts.release(id))
            && gone.bytes > 0
        {
            let bytes = freed.bytes.entry(gone.card).or_default();
            *bytes = bytes.saturating_add(gone.bytes);
        }
    }

    fn token(&mut self) -> u64 {
        let token = self.next_token;
        self.next_token = self.next_token.wrapping_add(1);
        token
    }
}

/// A handle as an edge of the tree: none for the client itself, and none for an object's own handle.
pub(crate) fn edge(
    client: ClientHandle,
    own: ObjectHandle,
    other: ObjectHandle,
) -> Option<ObjectHandle> {
    (other != client.as_object() && other != own).then_some(other)
}
