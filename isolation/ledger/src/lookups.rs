//! What the broker asks of the ledger.

use crate::accounts::Allocation;
use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle, ProcessId};
use crate::kinds::ObjectKind;
use crate::ledger::Ledger;
use crate::mappings::Span;
use crate::references::Exported;
use crate::steps::Stepped;
use crate::tree::Object;
use crate::usage::ProcessUsage;

impl Ledger {
    /// The object that a handle names.
    #[must_use]
    pub fn object(&self, client: ClientHandle, handle: ObjectHandle) -> Option<&Object> {
        self.clients.get(&client)?.tree.objects.get(&handle)
    }

    /// An allocation that is still referred to.
    #[must_use]
    pub fn allocation(&self, id: AllocationId) -> Option<&Allocation> {
        self.accounts.allocation(id)
    }

    /// The file that owns a client; none for a client that is not ours.
    #[must_use]
    pub fn owner_file(&self, client: ClientHandle) -> Option<FileId> {
        self.clients.get(&client).map(|it| it.file)
    }

    /// Whether the driver frees other objects with this one: a client, or an object with others below it or that depend on it.
    #[must_use]
    pub fn takes_others(&self, client: ClientHandle, handle: ObjectHandle) -> bool {
        let tree = self.clients.get(&client).map(|it| &it.tree);
        tree.is_some_and(|tree| handle == client.as_object() || tree.takes_others(handle))
    }

    /// The card of an object: the one it says itself (a device), else the one its memory is on, else
    /// that of what it hangs below.
    #[must_use]
    pub fn card_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<CardSlot> {
        self.object(client, handle)?.on_card
    }

    /// All clients with the file that owns each and the process that made it, by handle.
    pub fn clients(&self) -> impl Iterator<Item = (ClientHandle, FileId, ProcessId)> + '_ {
        self.clients
            .iter()
            .stepped()
            .map(|(client, it)| (*client, it.file, it.process))
    }

    /// The file that owns a client, and the process that made it; none for a client that is not ours.
    #[must_use]
    pub fn client(&self, client: ClientHandle) -> Option<(FileId, ProcessId)> {
        let it = self.clients.get(&client)?;
        Some((it.file, it.process))
    }

    /// The clients that a file owns, each with the process that made it.
    pub fn clients_of(&self, file: FileId) -> impl Iterator<Item = (ClientHandle, ProcessId)> + '_ {
        let all = (file, ClientHandle(0))..=(file, ClientHandle(u32::MAX));
        let clients = self.clients_by_file.range(all);
        clients.filter_map(|(_, client)| Some((*client, self.clients.get(client)?.process)))
    }

    /// Whether anything would be given back with a file: its clients, ranges, managed memory and exports, and what nvidia-uvm keeps with it.
    #[must_use]
    pub fn has_charges_of(&self, file: FileId) -> bool {
        let has_ranges = self.ranges.get(&file).is_some_and(|it| !it.is_empty());
        let has_managed = self.managed.get(&file).is_some_and(|it| !it.is_empty());
        self.clients_of(file).next().is_some()
            || has_ranges
            || has_managed
            || self.exports.contains_key(&file)
            || self.uvm_files.contains(&file)
    }

    /// The devices and subdevices of a client, by handle.
    pub fn devices(
        &self,
        client: ClientHandle,
    ) -> impl Iterator<Item = (ObjectHandle, &Object)> + '_ {
        let tree = self.clients.get(&client).map(|it| &it.tree).into_iter();
        tree.flat_map(|tree| {
            let devices = tree.devices.iter();
            devices.filter_map(|handle| Some((*handle, tree.objects.get(handle)?)))
        })
    }

    /// Whether a uvm file has an external range that starts at this address.
    #[must_use]
    pub fn has_range(&self, uvm_file: FileId, base: u64) -> bool {
        self.ranges
            .get(&uvm_file)
            .is_some_and(|ranges| ranges.contains_key(&base))
    }

    /// Whether a file has exported something at an index, by whichever container's hand.
    #[must_use]
    pub fn has_export(&self, file: FileId, index: u32) -> bool {
        self.exports
            .get(&file)
            .is_some_and(|exports| exports.by_index.contains_key(&index))
    }

    /// The memory at an index of a file, whoever has exported it; `None` where that is none.
    #[must_use]
    pub fn exported_allocation(&self, file: FileId, index: u32) -> Option<AllocationId> {
        self.exports.get(&file)?.by_index.get(&index)?.allocation
    }

    /// The files that hold exports of this container's own.
    pub fn exporting_files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.exports
            .iter()
            .filter(|(_, exports)| exports.by_index.len() > exports.adopted.len())
            .map(|(file, _)| *file)
    }

    /// What this container itself has exported by a file.
    pub fn exported_by(&self, file: FileId) -> impl Iterator<Item = Exported> + '_ {
        let exports = self.exports.get(&file).into_iter();
        exports.flat_map(|exports| {
            let own = exports.by_index.iter();
            own.filter(|(index, _)| !exports.adopted.contains_key(index))
                .map(|(index, source)| Exported {
                    index: *index,
                    class: source.class,
                    allocation: source.allocation,
                })
        })
    }

    /// Whether a file's export at an index is another container's.
    #[must_use]
    pub fn is_adopted(&self, file: FileId, index: u32) -> bool {
        self.exports
            .get(&file)
            .is_some_and(|exports| exports.adopted.contains_key(&index))
    }

    /// The objects of one client, by handle.
    pub fn objects(
        &self,
        client: ClientHandle,
    ) -> impl Iterator<Item = (ObjectHandle, &Object)> + '_ {
        self.clients
            .get(&client)
            .into_iter()
            .flat_map(|it| it.tree.objects.iter())
            .stepped()
            .map(|(handle, object)| (*handle, object))
    }

    /// The objects of one kind in all clients (the channels, the channel groups), by client and handle.
    pub fn objects_of(
        &self,
        kind: ObjectKind,
    ) -> impl Iterator<Item = (ClientHandle, ObjectHandle, &Object)> + '_ {
        self.clients.iter().flat_map(move |(client, it)| {
            it.tree
                .objects
                .iter()
                .filter(move |(_, object)| object.kind == kind)
                .map(move |(handle, object)| (*client, *handle, object))
        })
    }

    /// The share of a card, and what of it is held and reserved.
    #[must_use]
    pub fn quota_and_use(&self, card: CardSlot) -> Option<(u64, u128)> {
        let share = self.accounts.share(card)?;
        Some((share.quota_bytes, share.used_bytes()))
    }

    /// Where nvidia-uvm's files have something mapped on a card: by file, and in each by address.
    pub fn mapped(&self, card: CardSlot) -> impl Iterator<Item = (FileId, Span)> + '_ {
        let of_card = self.mappings.iter().filter(move |((_, on), _)| *on == card);
        let pieces = of_card.flat_map(|((file, _), pieces)| {
            let spans = pieces
                .iter()
                .map(|(base, piece)| Span::between(base, piece.last));
            spans.flatten().map(|span| (*file, span))
        });
        pieces.stepped()
    }

    /// What is charged as managed memory on a card: by file, and in each by address.
    pub fn managed_on(&self, card: CardSlot) -> impl Iterator<Item = (FileId, Span)> + '_ {
        let of_card = self.managed.iter().flat_map(move |(file, pieces)| {
            let on_card = pieces
                .iter()
                .filter(move |(_, piece)| piece.cards.iter().any(|on| on == card));
            on_card.filter_map(|(base, piece)| Some((*file, Span::between(*base, piece.last)?)))
        });
        of_card.stepped()
    }

    /// What each process has allocated on a card and is still held, by whomever; reservations do not
    /// count. Processes with nothing are left out.
    #[must_use]
    pub fn usage_by_process(&self, card: CardSlot) -> Vec<ProcessUsage> {
        self.accounts.usages().on(card).collect()
    }

    /// What one process has allocated on a card; `None`: nothing that is still held.
    #[must_use]
    pub fn usage_of(&self, card: CardSlot, process: ProcessId) -> Option<ProcessUsage> {
        self.accounts.usages().by(card, process)
    }

    /// How many processes, dead ones among them, have allocated what is still held of a card.
    #[must_use]
    pub fn processes_on(&self, card: CardSlot) -> u64 {
        wide(self.accounts.usages().count(card))
    }
}
