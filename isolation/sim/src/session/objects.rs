//! The tree of RM objects of one client.
//!
//! An object goes with its parent, and with any object that it depends on (a channel with its VA space), as in RM's
//! resource server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use driver::FileId;
use nvabi::status::{
    NV_ERR_INSERT_DUPLICATE_NAME, NV_ERR_INVALID_CLASS, NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_INVALID_OBJECT_PARENT,
};

use super::Refusal;
use super::event::NV01_EVENT_OS_EVENT;
use crate::card::{Bar1, Charge, SimCard};
use crate::fifo::{Channel, Group, Runner};
use crate::memory::Memory;
use crate::vaspace::{MadeBy, VaSpace};

/// The first handle that RM makes up for an object (`RS_UNIQUE_HANDLE_BASE`).
const MADE_HANDLE_BASE: u32 = 0xcaf0_0000;

/// An RM client.
#[derive(Debug)]
pub(super) struct Client {
    /// The control file that made it.
    pub(super) owner: FileId,
    /// The process that made it.
    pub(super) pid: i32,
    pub(super) objects: BTreeMap<u32, Object>,
    next_handle: u32,
}

/// An RM object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) class: u32,
    pub(super) parent: u32,
    /// The card that it is on; `None` for the client itself.
    pub(super) card: Option<Arc<SimCard>>,
    pub(super) resource: Resource,
    /// Memory that the driver takes for the object itself; duplicates share it.
    pub(super) implicit: Option<Arc<Charge>>,
    pub(super) depends_on: Vec<u32>,
    pub(super) children: BTreeSet<u32>,
    pub(super) dependants: BTreeSet<u32>,
    pub(super) mapped: Vec<CpuMapping>,
}

/// What MAP_MEMORY has made of an object.
#[derive(Debug)]
pub(super) struct CpuMapping {
    /// By which calls name it; nobody looks there.
    pub(super) address: u64,
    /// Who has made the call: no other process finds the mapping (`serverutilMappingFilterCurrentUserProc`, rs_utils.c).
    pub(super) process: i32,
    /// Card memory is mapped through BAR1.
    pub(super) _bar1: Option<Bar1>,
}

/// What an object is.
#[derive(Debug)]
pub(super) enum Resource {
    Client,
    /// With its default address space.
    Device(Arc<VaSpace>),
    Subdevice,
    /// Memory, and the spaces that this handle is mapped into by MAP_MEMORY_DMA.
    Memory(Arc<Memory>, Vec<Weak<VaSpace>>),
    /// Address space without memory.
    Virtual(Arc<VaSpace>),
    VaSpace(Arc<VaSpace>),
    ChannelGroup(Arc<Group>, Arc<VaSpace>),
    ContextShare(Arc<VaSpace>),
    Channel(Arc<Channel>),
    /// An engine's object on a channel, and what else needs only to exist.
    Plain,
}

impl Object {
    pub(super) fn new(
        class: u32,
        parent: u32,
        card: Option<Arc<SimCard>>,
        resource: Resource,
    ) -> Self {
        Self {
            class,
            parent,
            card,
            resource,
            implicit: None,
            depends_on: Vec::new(),
            children: BTreeSet::new(),
            dependants: BTreeSet::new(),
            mapped: Vec::new(),
        }
    }

    pub(super) fn memory(&self) -> Result<&Arc<Memory>, Refusal> {
        match &self.resource {
            Resource::Memory(memory, _spaces) => Ok(memory),
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Channel(_)
            | Resource::Plain => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }

    /// The address space behind an object that stands for one.
    pub(super) fn space(&self) -> Result<&Arc<VaSpace>, Refusal> {
        match &self.resource {
            Resource::Device(space)
            | Resource::Virtual(space)
            | Resource::VaSpace(space)
            | Resource::ChannelGroup(_, space)
            | Resource::ContextShare(space) => Ok(space),
            Resource::Client
            | Resource::Subdevice
            | Resource::Memory(..)
            | Resource::Channel(_)
            | Resource::Plain => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }
}

impl Client {
    pub(super) fn new(handle: u32, class: u32, owner: FileId, pid: i32) -> Self {
        let root = Object::new(class, 0, None, Resource::Client);
        Self {
            owner,
            pid,
            objects: BTreeMap::from([(handle, root)]),
            next_handle: MADE_HANDLE_BASE,
        }
    }

    pub(super) fn object(&self, handle: u32) -> Result<&Object, Refusal> {
        self.objects
            .get(&handle)
            .ok_or(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))
    }

    /// The parent that a new object names.
    pub(super) fn parent(&self, handle: u32) -> Result<&Object, Refusal> {
        self.objects
            .get(&handle)
            .ok_or(Refusal(NV_ERR_INVALID_OBJECT_PARENT))
    }

    /// The device above an object, or the object itself.
    pub(super) fn device_of(&self, mut handle: u32) -> Result<(u32, &Object), Refusal> {
        loop {
            let object = self.parent(handle)?;
            match object.resource {
                Resource::Device(_) => return Ok((handle, object)),
                Resource::Client => return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT)),
                Resource::Subdevice
                | Resource::Memory(..)
                | Resource::Virtual(_)
                | Resource::VaSpace(_)
                | Resource::ChannelGroup(..)
                | Resource::ContextShare(_)
                | Resource::Channel(_)
                | Resource::Plain => handle = object.parent,
            }
        }
    }

    /// Whether a wanted handle may be used: 0 asks for one of RM's choice.
    pub(super) fn check_handle(&self, wanted: u32) -> Result<(), Refusal> {
        if wanted != 0 && self.objects.contains_key(&wanted) {
            Err(Refusal(NV_ERR_INSERT_DUPLICATE_NAME))
        } else {
            Ok(())
        }
    }

    /// Puts an object in and says its handle.
    pub(super) fn insert(&mut self, wanted: u32, object: Object) -> Result<u32, Refusal> {
        self.check_handle(wanted)?;
        let handle = if wanted == 0 {
            self.made_handle()
        } else {
            wanted
        };
        self.objects
            .get_mut(&object.parent)
            .ok_or(Refusal(NV_ERR_INVALID_OBJECT_PARENT))?
            .children
            .insert(handle);
        for other in &object.depends_on {
            if let Some(other) = self.objects.get_mut(other) {
                other.dependants.insert(handle);
            }
        }
        self.objects.insert(handle, object);
        Ok(handle)
    }

    fn made_handle(&mut self) -> u32 {
        while self.objects.contains_key(&self.next_handle) || self.next_handle == 0 {
            self.next_handle = self.next_handle.wrapping_add(1);
        }
        self.next_handle
    }

    /// Takes out an object with all that goes with it.
    pub(super) fn free(&mut self, handle: u32) -> Vec<(u32, Object)> {
        let mut gone = Vec::new();
        let mut pending = vec![handle];
        while let Some(next) = pending.pop() {
            let Some(object) = self.objects.remove(&next) else {
                continue;
            };
            pending.extend(object.children.iter().chain(&object.dependants));
            if let Some(parent) = self.objects.get_mut(&object.parent) {
                parent.children.remove(&next);
            }
            for other in &object.depends_on {
                if let Some(other) = self.objects.get_mut(other) {
                    other.dependants.remove(&next);
                }
            }
            gone.push((next, object));
        }
        gone
    }
}

/// Ends what freed objects had set in motion.
pub(super) fn end_all(runner: &Arc<Runner>, client: u32, gone: Vec<(u32, Object)>) {
    for (handle, object) in gone {
        if object.class == NV01_EVENT_OS_EVENT {
            runner.unwatch(client, handle);
        }
        match object.resource {
            Resource::Channel(channel) => runner.remove(&channel),
            Resource::Memory(_memory, spaces) => {
                for space in spaces.iter().filter_map(Weak::upgrade) {
                    space.unmap_all(|made_by| {
                        made_by
                            == MadeBy::Dma {
                                client,
                                memory: handle,
                            }
                    });
                }
            }
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Plain => {}
        }
    }
}

/// `NV_ERR_INVALID_CLASS` unless the card has the class.
pub(super) fn require_class(card: &SimCard, class: u32) -> Result<(), Refusal> {
    if card.profile.architecture.has(class) {
        Ok(())
    } else {
        Err(Refusal(NV_ERR_INVALID_CLASS))
    }
}
