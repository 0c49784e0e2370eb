//! The order in which the ledger hears of the driver's work.
//!
//! A free that is committed after its handle was made anew would uncharge the new object, and a second reference that is charged by what
//! a handle named before would not be charged for what it names when the driver looks. So the calls that change one
//! client's objects, or take a reference to one of them, are executed and committed one after another, and so are those that change one UVM file, and
//! those that put objects into files or take them out. The lock hangs
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
    /// What is exported at an index of a file may be replaced: rare calls, which need not be told apart by their files.
    transfers: Mutex<()>,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            clients: Mutex::new(()),
            objects: [const { Mutex::new(()) }; STRIPES],
            transfers: Mutex::new(()),
        }
    }
}

/// Held from before a call's execution until it is committed.
#[derive(Debug, Default)]
pub struct InOrder<'a>(
    #[expect(dead_code, reason = "held for what it locks")] Vec<MutexGuard<'a, ()>>,
);

/// What a call needs for itself.
#[derive(Debug, Default)]
struct Needs {
    clients: bool,
    /// Clients whose objects it changes, or refers to.
    objects_of: [Option<u32>; 2],
    file: bool,
    transfers: bool,
}

impl Needs {
    fn of(effect: &Effect) -> Self {
        let nothing = Self::default();
        let objects = |client: u32| Self {
            objects_of: [Some(client), None],
            ..Self::default()
        };
        match *effect {
            Effect::None
            | Effect::Pages(_)
            | Effect::View(_)
            | Effect::ChannelClients { .. }
            | Effect::Schedule(_)
            | Effect::NamesCards { .. }
            | Effect::Answered { .. }
            | Effect::ExportInfo { .. } => nothing,
            Effect::Export(verdict::Export { client, .. })
            | Effect::Import(verdict::Import { client, .. }) => Self {
                transfers: true,
                ..objects(client)
            },
            Effect::Client => Self {
                clients: true,
                ..nothing
            },
            Effect::Free { client, object } => Self {
                clients: client == object,
                ..objects(client)
            },
            Effect::Dup {
                client,
                source_client,
                ..
            } => Self {
                objects_of: [Some(client), Some(source_client)],
                ..nothing
            },
            Effect::Object { client, .. }
            | Effect::Memory(Memory { client, .. })
            | Effect::OsEvent { client, .. }
            | Effect::MapDma { client, .. }
            | Effect::UnmapDma { client, .. }
            | Effect::CpuMapping { client, .. } => objects(client),
            // The driver asks nobody whose the client is: it must not end meanwhile.
            Effect::RegisterCard { client, .. } => Self {
                file: true,
                ..objects(client)
            },
            // What is mapped or registered is looked up by its handle twice, here and by the driver: it must be the same object.
            Effect::MapExternal { client, .. } | Effect::Register { client, .. } => Self {
                file: true,
                ..objects(client)
            },
            Effect::Managed { .. }
            | Effect::Range { .. }
            | Effect::RangeGroup(_)
            | Effect::Pool { .. }
            | Effect::Unmap { .. }
            | Effect::Unregister(_)
            | Effect::FreeRange { .. } => Self {
                file: true,
                ..nothing
            },
        }
    }
}

impl Orders {
    /// Waits until no other call that changes the same objects is under way.
    pub fn take<'a>(&'a self, effect: &Effect, file: &'a OpenFile) -> InOrder<'a> {
        let needed = self.needed(&Needs::of(effect), file);
        InOrder(needed.into_iter().map(sync::lock).collect())
    }

    /// The place of a call that a former broker had given one. It waits for nobody: a broker of another version may have let two calls at
    /// the same objects.
    pub fn take_again<'a>(&'a self, effect: &Effect, file: &'a OpenFile) -> InOrder<'a> {
        let needed = self.needed(&Needs::of(effect), file);
        InOrder(
            needed
                .into_iter()
                .filter_map(|it| it.try_lock().ok())
                .collect(),
        )
    }

    /// In one order for all calls, so that none waits for another that waits for it.
    fn needed<'a>(&'a self, needs: &Needs, file: &'a OpenFile) -> Vec<&'a Mutex<()>> {
        let mut stripes: Vec<usize> = needs.objects_of.into_iter().flatten().map(stripe).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let clients = needs.clients.then_some(&self.clients);
        let objects = stripes
            .into_iter()
            .filter_map(|stripe| self.objects.get(stripe));
        let transfers = needs.transfers.then_some(&self.transfers);
        let file = needs.file.then_some(&file.order);
        clients
            .into_iter()
            .chain(objects)
            .chain(transfers)
            .chain(file)
            .collect()
    }
}

fn stripe(client: u32) -> usize {
    client as usize % STRIPES
}
