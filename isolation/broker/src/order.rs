//! The order in which the ledger hears of the driver's work.
//!
//! A free that is committed after its handle was made anew would uncharge the new object. So the calls that change one
//! client's objects are executed and committed one after another, and so are those that change one UVM file. The lock hangs
//! on the client and not on the file of the call, since a client can be reached by its control file and by every
//! device file that is registered with it.

use std::sync::{Mutex, MutexGuard};

use sys::sync;
use verdict::{Effect, Memory};

use crate::files::OpenFile;

/// Clients share locks by their low bits, which the driver counts up: a tenant's made-up handles need no room here.
const STRIPES: usize = 64;

/// The locks of one container, but for those of its UVM files.
#[derive(Debug)]
pub struct Orders {
    /// Making and freeing whole clients: their handles are used again.
    clients: Mutex<()>,
    objects: [Mutex<()>; STRIPES],
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            clients: Mutex::new(()),
            objects: [const { Mutex::new(()) }; STRIPES],
        }
    }
}

/// Held from before a call's execution until it is committed.
#[derive(Debug, Default)]
pub struct InOrder<'a> {
    _clients: Option<MutexGuard<'a, ()>>,
    _objects: Option<MutexGuard<'a, ()>>,
    _file: Option<MutexGuard<'a, ()>>,
}

impl Orders {
    /// Waits until no other call that changes the same objects is under way.
    pub fn take<'a>(&'a self, effect: &Effect, file: &'a OpenFile) -> InOrder<'a> {
        // What is registered is looked up by its handle twice, here and by the driver: it must be the same object.
        let registers = matches!(effect, Effect::Register { .. }).then_some(&file.order);
        let (clients, objects) = match effect {
            Effect::None
            | Effect::View(_)
            | Effect::ChannelClients { .. }
            | Effect::Schedule(_)
            | Effect::NamesCards { .. }
            | Effect::Answered { .. }
            | Effect::ExportInfo { .. } => (None, None),
            Effect::Export(verdict::Export { client, .. })
            | Effect::Import(verdict::Import { client, .. }) => (None, Some(self.of(*client))),
            Effect::OsEvent { client, .. } => (None, Some(self.of(*client))),
            Effect::Managed { .. } => (None, Some(&file.order)),
            Effect::Client => (Some(&self.clients), None),
            Effect::Free { client, object } if client == object => {
                (Some(&self.clients), Some(self.of(*client)))
            }
            Effect::Object { client, .. }
            | Effect::Memory(Memory { client, .. })
            | Effect::Free { client, .. }
            | Effect::Dup { client, .. }
            | Effect::MapDma { client, .. }
            | Effect::UnmapDma { client, .. }
            | Effect::CpuMapping { client, .. }
            | Effect::Register { client, .. } => (None, Some(self.of(*client))),
            Effect::Range { .. }
            | Effect::RangeGroup(_)
            | Effect::Pool { .. }
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            | Effect::Unregister(_)
            | Effect::FreeRange { .. } => (None, Some(&file.order)),
        };
        InOrder {
            _clients: clients.map(sync::lock),
            _objects: objects.map(sync::lock),
            _file: registers.map(sync::lock),
        }
    }

    fn of(&self, client: u32) -> &Mutex<()> {
        let [first, ..] = &self.objects;
        self.objects.get(client as usize % STRIPES).unwrap_or(first)
    }
}
