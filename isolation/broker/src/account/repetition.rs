//! Whether a call that is refused now was made before with success: its repetition fails *because* the first try succeeded.

use journal::state::State;
use ledger::{ClientHandle, ObjectHandle};
use nvabi::bytes::u32_at;
use verdict::{Effect, Export, Import, Registered, Switch, Unregistered};

use super::{JudgedCall, registrations};

impl JudgedCall<'_> {
    /// Whether what the call made, or undid, is still so; it has its answer's blocks.
    #[must_use]
    pub fn is_current(&self, state: &State) -> bool {
        let file = self.origin.file;
        let made = self.new_handle();
        let ledger = &state.ledger;
        let has = |client: u32, object: Option<u32>| {
            object.is_some_and(|object| {
                ledger
                    .object(ClientHandle(client), ObjectHandle(object))
                    .is_some()
            })
        };
        match self.effect {
            Effect::Client => made.is_some_and(|client| {
                let bound = ledger::FileId(state.bound_file(file).0);
                ledger.owner_file(ClientHandle(client)) == Some(bound)
            }),
            Effect::Object { client, .. } | Effect::Dup { client, .. } => has(*client, made),
            Effect::Memory(memory) => has(memory.client, made),
            Effect::Free { client, object } if client == object => {
                ledger.owner_file(ClientHandle(*client)).is_none()
            }
            Effect::Free { client, object } => !has(*client, Some(*object)),
            Effect::Range { base, .. } => ledger.has_range(ledger::FileId(file.0), *base),
            Effect::FreeRange { base } => !ledger.has_range(ledger::FileId(file.0), *base),
            Effect::Register {
                client,
                object,
                what,
                ..
            } => {
                let file = ledger::FileId(file.0);
                registrations::is_registered(state, file, *what, (*client, *object))
            }
            Effect::Unregister(Unregistered::Channel { client, channel }) => {
                let file = ledger::FileId(file.0);
                let name = (*client, *channel);
                !registrations::is_registered(state, file, Registered::Channel, name)
            }
            Effect::Pool { base, length } => state.has_pool(file, (*base, *length)),
            Effect::OsEvent {
                client,
                number,
                switch,
            } => state.has_os_event(*client, *number) == (*switch == Switch::On),
            // Of a file that has registered the card it is refused.
            Effect::RegisterCard { .. } => true,
            // A group's number is never given again.
            Effect::RangeGroup(switch) => *switch == Switch::Off,
            // Mapping and unmapping again come to the same end, and so are not refused.
            Effect::None
            | Effect::Pages(_)
            | Effect::View(_)
            | Effect::MapDma { .. }
            | Effect::UnmapDma { .. }
            | Effect::CpuMapping { .. }
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            // A card's address space is unregistered when the card is.
            | Effect::Unregister(Unregistered::Card { .. })
            | Effect::ExportInfo { .. }
            | Effect::Managed { .. }
            | Effect::Schedule(_)
            | Effect::NamesCards { .. }
            | Effect::Answered { .. }
            | Effect::ChannelClients { .. } => false,
            Effect::Export(export) => self.has_exported(state, export),
            Effect::Import(import) => self.has_imported(state, import),
        }
    }

    /// Whether what an export has put into a file is there.
    fn has_exported(&self, state: &State, export: &Export) -> bool {
        let (Some((file, _)), Some(_)) = (self.origin.transfer_file, self.segments.get(1)) else {
            return false;
        };
        let file = ledger::FileId(file.0);
        let mut places = (u32::from(export.first)..).zip(&export.objects);
        places.all(|(index, object)| *object == 0 || state.ledger.has_export(file, index))
    }

    /// Whether what an import has made is there.
    fn has_imported(&self, state: &State, import: &Import) -> bool {
        let (Some(_), Some(params)) = (self.origin.transfer_file, self.segments.get(1)) else {
            return false;
        };
        let handles = (import.handles_at..)
            .step_by(4)
            .take(usize::from(import.count))
            .filter_map(|at| u32_at(&params.bytes, at));
        let client = ClientHandle(import.client);
        let known = |handle| state.ledger.object(client, ObjectHandle(handle)).is_some();
        let mut made = handles.filter(|handle| *handle != 0).peekable();
        made.peek().is_some() && made.all(known)
    }
}
