//! What nvidia-uvm has registered: it holds objects that their handles no longer name.
//!
//! UVM_REGISTER_CHANNEL takes a reference on the channel's group (a duplicate in UVM's own client), on its context share, and on the
//! channel's number and instance memory (`nvGpuOpsRetainChannel`, nv_gpu_ops.c). UVM_REGISTER_GPU_VASPACE duplicates the address space
//! (`nvGpuOpsDupAddressSpace`). RM_FREE takes the names away, and the driver frees nothing before the registration ends. So what is
//! registered stays charged, and takes its place among the groups and channels of the container, until both are gone: once, however
//! many registrations hold it.
//!
//! The driver finds a registration by client and handle, whatever that handle names meanwhile (uvm_user_channel.h). So does this account:
//! a registration keeps what its handle named when it was made.

use crate::charge::Purpose;
use crate::held::{Held, HeldId, Registered, Unregistered};
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle};
use crate::kinds::{Counted, ObjectKind};
use crate::ledger::{Freed, Ledger, Pin};
use crate::steps::Stepped;

impl Ledger {
    /// Records that UVM has registered what is pinned ([`crate::PinFor::Register`]) on a card. What is registered under the same name already
    /// stays: only the end of a registration lets go.
    pub fn register(
        &mut self,
        pin: Pin,
        uvm_file: FileId,
        card: CardSlot,
        registered: Registered,
    ) -> Freed {
        let mut freed = Freed::default();
        let Some(pinned) = self.take_pin(pin) else {
            return freed;
        };
        self.release(pinned.source.allocation, &mut freed);
        if !pinned.holds.is_empty() {
            let of_card = self.registrations.by_file.entry((uvm_file, card));
            let of_key = of_card.or_default().entry(registered).or_default();
            of_key.push(pinned.holds);
            self.count_more(Counted::Registrations, 1);
        }
        freed
    }

    /// Records that UVM has ended registrations of a file. Of several of one channel the oldest ends: the driver has one at most, and the others
    /// are of calls whose answers were not seen.
    pub fn unregister(&mut self, uvm_file: FileId, which: Unregistered) -> Freed {
        let mut freed = Freed::default();
        match which {
            Unregistered::Card(card) => self.drop_registrations(uvm_file, card, &mut freed),
            Unregistered::Channel { client, channel } => {
                let key = Registered::Channel { client, channel };
                for card in self.cards_registered_by(uvm_file) {
                    if let Some(ended) = self.take_oldest((uvm_file, card), key) {
                        self.let_go(ended, &mut freed);
                        break;
                    }
                }
            }
        }
        freed
    }

    /// Whether a uvm file has such a registration on a card.
    #[must_use]
    pub fn has_registration(
        &self,
        uvm_file: FileId,
        card: CardSlot,
        registered: Registered,
    ) -> bool {
        let of_card = self.registrations.by_file.get(&(uvm_file, card));
        of_card.is_some_and(|of_card| of_card.contains_key(&registered))
    }

    /// Whether a uvm file has registrations or mappings on a card.
    #[must_use]
    pub fn has_any_on(&self, uvm_file: FileId, card: CardSlot) -> bool {
        let at = (uvm_file, card);
        self.registrations.by_file.contains_key(&at) || self.mappings.contains_key(&at)
    }

    /// How many objects have no name any more, are held by registrations, and are charged so much of a card or more.
    #[must_use]
    pub fn nameless(&self, card: CardSlot, least_bytes: u64) -> usize {
        let nameless = self.registrations.held.values().stepped();
        let is_charged = |id: AllocationId| {
            let allocation = self.accounts.allocation(id);
            allocation.is_some_and(|it| it.card == card && it.bytes >= least_bytes)
        };
        nameless
            .filter(|held| held.name.is_none())
            .filter(|held| {
                let mut charges = held.allocation.into_iter().chain(held.context);
                charges.any(is_charged)
            })
            .count()
    }

    /// Ends all registrations of a file that is closed.
    pub(crate) fn drop_all_registrations(&mut self, uvm_file: FileId, freed: &mut Freed) {
        for card in self.cards_registered_by(uvm_file) {
            self.drop_registrations(uvm_file, card, freed);
        }
    }

    /// One more reference on all that the driver holds of an object while it is registered: itself, and of a channel its group and context
    /// shares.
    pub(crate) fn hold(&mut self, client: ClientHandle, object: ObjectHandle) -> Vec<HeldId> {
        let mut handles = vec![object];
        if let Some(owner) = self.clients.get(&client) {
            let is = |handle: &ObjectHandle, kind: ObjectKind| {
                let found = owner.tree.objects.get(handle);
                found.is_some_and(|found| found.kind == kind)
            };
            let parent = owner.tree.objects.get(&object).and_then(|it| it.parent);
            handles.extend(parent.filter(|parent| is(parent, ObjectKind::ChannelGroup)));
            let needs = owner
                .tree
                .needs
                .range((object, ObjectHandle(0))..=(object, ObjectHandle(u32::MAX)));
            let needed = needs.map(|(_, needed)| *needed).stepped();
            handles.extend(needed.filter(|needed| is(needed, ObjectKind::ContextShare)));
        }
        let holds = handles.into_iter();
        holds
            .filter_map(|handle| self.hold_one(client, handle))
            .collect()
    }

    fn hold_one(&mut self, client: ClientHandle, handle: ObjectHandle) -> Option<HeldId> {
        let name = (client, handle);
        if let Some(id) = self.registrations.by_name.get(&name) {
            let held = self.registrations.held.get_mut(id)?;
            held.references = held.references.saturating_add(1);
            return Some(*id);
        }
        let object = self.object(client, handle)?;
        let (kind, allocation) = (object.kind, object.allocation);
        let context = self.context_below(client, handle);
        for id in allocation.into_iter().chain(context) {
            self.accounts.retain(id);
        }
        let registrations = &mut self.registrations;
        registrations.last = registrations.last.saturating_add(1);
        let id = HeldId(registrations.last);
        registrations.by_name.insert(name, id);
        registrations.held.insert(
            id,
            Held {
                kind,
                name: Some(name),
                allocation,
                context,
                references: 1,
            },
        );
        Some(id)
    }

    /// The largest charge for a context among the objects below a channel, or below the channels of a group.
    fn context_below(&self, client: ClientHandle, handle: ObjectHandle) -> Option<AllocationId> {
        let tree = &self.clients.get(&client)?.tree;
        let kind = tree.objects.get(&handle)?.kind;
        let below = |of: ObjectHandle| tree.children_of(of).stepped();
        let is_context = |of: ObjectHandle| {
            let object = tree.objects.get(&of)?;
            self.charged_for_a_context(object.kind, object.allocation)
        };
        let found: Vec<AllocationId> = match kind {
            ObjectKind::Channel => below(handle).filter_map(is_context).collect(),
            ObjectKind::ChannelGroup => below(handle)
                .flat_map(below)
                .filter_map(is_context)
                .collect(),
            ObjectKind::Client
            | ObjectKind::Device
            | ObjectKind::Subdevice
            | ObjectKind::Memory
            | ObjectKind::VaSpace
            | ObjectKind::ContextShare
            | ObjectKind::Invalidated
            | ObjectKind::Other
            | ObjectKind::PeerSession
            | ObjectKind::Event
            | ObjectKind::SharedData
            | ObjectKind::Debugger => Vec::new(),
        };
        found.into_iter().max_by_key(|id| self.bytes_of(*id))
    }

    /// The allocation of an object of an engine that is charged for what its group gets.
    fn charged_for_a_context(
        &self,
        kind: ObjectKind,
        allocation: Option<AllocationId>,
    ) -> Option<AllocationId> {
        let id = allocation.filter(|_| kind == ObjectKind::Other)?;
        let purpose = self.accounts.allocation(id)?.purpose;
        (purpose == Purpose::Context).then_some(id)
    }

    fn bytes_of(&self, id: AllocationId) -> u64 {
        self.accounts.allocation(id).map_or(0, |it| it.bytes)
    }

    /// An object was made below one that is held: what it is charged for the context is held as well, once.
    pub(crate) fn hold_context(
        &mut self,
        client: ClientHandle,
        parent: Option<ObjectHandle>,
        (kind, allocation): (ObjectKind, Option<AllocationId>),
        freed: &mut Freed,
    ) {
        let Some(id) = self.charged_for_a_context(kind, allocation) else {
            return;
        };
        let above = parent.and_then(|parent| self.object(client, parent)?.parent);
        for name in [above, parent].into_iter().flatten() {
            let held = self.registrations.by_name.get(&(client, name)).copied();
            let Some(held) = held.and_then(|held| self.registrations.held.get_mut(&held)) else {
                continue;
            };
            let before = held.context;
            let bytes = |id| self.accounts.allocation(id).map_or(0, |it| it.bytes);
            if before.is_some_and(|before| bytes(before) >= bytes(id)) {
                continue;
            }
            held.context = Some(id);
            self.accounts.retain(id);
            self.release(before, freed);
        }
    }

    /// An object has lost its name: whether it is held, and counts on.
    pub(crate) fn lose_name(&mut self, client: ClientHandle, handle: ObjectHandle) -> bool {
        let registrations = &mut self.registrations;
        let Some(id) = registrations.by_name.remove(&(client, handle)) else {
            return false;
        };
        let Some(held) = registrations.held.get_mut(&id) else {
            self.accounts.record_inconsistency();
            return false;
        };
        held.name = None;
        true
    }

    pub(crate) fn let_go(&mut self, holds: Vec<HeldId>, freed: &mut Freed) {
        for id in holds.into_iter().stepped() {
            let Some(held) = self.registrations.held.get_mut(&id) else {
                self.accounts.record_inconsistency();
                continue;
            };
            held.references = held.references.saturating_sub(1);
            if held.references > 0 {
                continue;
            }
            let held = *held;
            self.registrations.held.remove(&id);
            match held.name {
                Some(name) => {
                    self.registrations.by_name.remove(&name);
                }
                None => self.uncount_object(held.kind),
            }
            self.release(held.allocation, freed);
            self.release(held.context, freed);
        }
    }

    fn cards_registered_by(&self, uvm_file: FileId) -> Vec<CardSlot> {
        let all = (uvm_file, CardSlot(0))..=(uvm_file, CardSlot(u8::MAX));
        let of_file = self.registrations.by_file.range(all);
        of_file.map(|((_, card), _)| *card).stepped().collect()
    }

    fn take_oldest(&mut self, at: (FileId, CardSlot), key: Registered) -> Option<Vec<HeldId>> {
        let of_card = self.registrations.by_file.get_mut(&at)?;
        let of_key = of_card.get_mut(&key)?;
        let ended = (!of_key.is_empty()).then(|| of_key.remove(0));
        if of_key.is_empty() {
            of_card.remove(&key);
        }
        if of_card.is_empty() {
            self.registrations.by_file.remove(&at);
        }
        if ended.is_some() {
            self.count_fewer(Counted::Registrations, 1);
        }
        ended
    }

    fn drop_registrations(&mut self, uvm_file: FileId, card: CardSlot, freed: &mut Freed) {
        let Some(of_card) = self.registrations.by_file.remove(&(uvm_file, card)) else {
            return;
        };
        for ended in of_card.into_values().flatten().stepped() {
            self.count_fewer(Counted::Registrations, 1);
            self.let_go(ended, freed);
        }
    }
}
