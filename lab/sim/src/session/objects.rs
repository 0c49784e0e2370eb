//! The tree of RM objects of one client.
//!
//! An object goes with its parent, and with any object that it depends on (a channel with its VA space), as in RM's
//! resource server. What the tree does is compared with RM's own code (`lab/referee`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use driver::FileId;
use nvabi::status::{
    NV_ERR_ILLEGAL_ACTION, NV_ERR_INSERT_DUPLICATE_NAME, NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_CLASS, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT,
    NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_RESOURCE_LOST,
};
use nvabi::{Release, class};

use super::Context;
use super::event::NV01_EVENT_OS_EVENT;
use super::sharing::{Policy, Rights};
use crate::card::{Bar1, Charge, SimCard};
use crate::fifo::{Channel, Group, Runner};
use crate::hardware::Processes;
use crate::memory::Memory;
use crate::refusal::Refusal;
use crate::vaspace::{MadeBy, VaSpace};

/// The first handle that RM makes up for an object (`RS_UNIQUE_HANDLE_BASE`).
const MADE_HANDLE_BASE: u32 = 0xcaf0_0000;
/// Objects one below the other, the client not counted (`RS_MAX_RESOURCE_DEPTH`, resserv.h).
const MOST_DEPTH: u32 = 6;

/// An RM client.
#[derive(Debug)]
pub(super) struct Client {
    /// Its handle, which is its root object's.
    handle: u32,
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
    /// A doorbell that a card may be shown (`bInternalMmio` of `UserModeApi`).
    pub(super) internal_mmio: bool,
    /// How many objects are above it.
    pub(super) depth: u32,
    /// What its client may do with it (`accessMask` of `RsResourceRef`).
    pub(super) rights: Rights,
    /// With whom it is shared; `None` where that is its parent's affair (`bSharePolicyListModified`).
    pub(super) policies: Option<Vec<Policy>>,
}

/// What MAP_MEMORY has made of an object.
#[derive(Debug)]
pub(super) struct CpuMapping {
    /// By which calls name it; nobody looks there.
    pub(super) address: u64,
    /// Who has made the call: no other process finds the mapping (`serverutilMappingFilterCurrentUserProc`, rs_utils.c).
    pub(super) process: i32,
    /// The device or sub-device that the call has named: with that the mapping ends (`backRefs` of `RsResourceRef`).
    pub(super) device: u32,
    /// Card memory is mapped through BAR1.
    pub(super) _bar1: Option<Bar1>,
}

/// What an object is.
#[derive(Debug)]
pub(super) enum Resource {
    Client,
    /// With its default address space.
    Device(Arc<VaSpace>),
    /// By its number.
    Subdevice(u32),
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
    /// Nothing more: it went with what it depended on. Its name is left until that is freed, or its parent (`bInvalidated` of `RsResourceRef`).
    Invalidated,
}

impl Resource {
    /// The same by another handle, where there can be one.
    pub(super) fn copied(&self) -> Result<Self, Refusal> {
        match self {
            Self::Memory(memory, _spaces) => Ok(Self::Memory(memory.clone(), Vec::new())),
            Self::Virtual(space) => Ok(Self::Virtual(space.clone())),
            Self::VaSpace(space) => Ok(Self::VaSpace(space.clone())),
            Self::ChannelGroup(group, space) => {
                Ok(Self::ChannelGroup(group.clone(), space.clone()))
            }
            Self::ContextShare(space) => Ok(Self::ContextShare(space.clone())),
            Self::Client
            | Self::Device(_)
            | Self::Subdevice(_)
            | Self::Channel(_)
            | Self::Plain
            | Self::Invalidated => Err(Refusal(NV_ERR_INVALID_ARGUMENT)),
        }
    }
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
            internal_mmio: false,
            depth: 0,
            rights: Rights::ALL,
            policies: None,
        }
    }

    pub(super) fn memory(&self) -> Result<&Arc<Memory>, Refusal> {
        match &self.resource {
            Resource::Memory(memory, _spaces) => Ok(memory),
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice(_)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Channel(_)
            | Resource::Plain
            | Resource::Invalidated => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }

    /// Of virtual memory, which alone maps: its address space, and whether it maps for a sub-device too (`bAllowUnicastMapping`; `virtmemMapTo_IMPL`,
    /// virtual_mem.c).
    pub(super) fn mapper(&self) -> Result<(&Arc<VaSpace>, bool), Refusal> {
        match &self.resource {
            Resource::Virtual(space) => Ok((space, self.class == class::NV01_MEMORY_VIRTUAL)),
            // (`resMapTo_IMPL`, rs_resource.c)
            _other => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }

    /// Whether it is address space without memory.
    pub(super) const fn is_virtual(&self) -> bool {
        matches!(self.resource, Resource::Virtual(_))
    }

    /// Whether nothing but the name is left.
    pub(super) const fn is_name(&self) -> bool {
        matches!(self.resource, Resource::Invalidated)
    }

    /// Whether it may have a second handle (`resCanCopy`).
    pub(super) const fn can_be_copied(&self) -> bool {
        matches!(
            self.resource,
            Resource::Memory(..)
                | Resource::Virtual(_)
                | Resource::VaSpace(_)
                | Resource::ChannelGroup(..)
                | Resource::ContextShare(_)
        )
    }

    /// Whether it is an object of a card's of its own, other than memory (`GpuResource`).
    fn is_gpu_resource(&self) -> bool {
        self.card.is_some() && !matches!(self.resource, Resource::Memory(..) | Resource::Virtual(_))
    }

    /// Whether a copy may be below an object, which is the client itself where it is none: what a class asks when it is copied. `None`: RM does not
    /// come back from the copy.
    pub(super) fn may_be_copied_below(
        &self,
        own_parent: &Self,
        parent: &Self,
    ) -> Option<Result<(), Refusal>> {
        let below = match &self.resource {
            // From below a device to below one, and from below a sub-device to below one (`memConstruct_IMPL`, `memCopyConstruct_IMPL`, mem.c).
            Resource::Memory(..) | Resource::Virtual(_) => {
                match (&own_parent.resource, &parent.resource) {
                    (Resource::Device(_), Resource::Device(_))
                    | (Resource::Subdevice(_), Resource::Subdevice(_)) => Ok(()),
                    _other
                        if self.class == class::NV01_MEMORY_SYSTEM && !parent.is_gpu_resource() =>
                    {
                        Err(NV_ERR_INVALID_ARGUMENT)
                    }
                    _other => Err(NV_ERR_INVALID_OBJECT_PARENT),
                }
            }
            // (`vaspaceapiCopyConstruct_IMPL`, vaspace_api.c)
            Resource::VaSpace(_) if parent.card.is_none() => return None,
            Resource::VaSpace(_) | Resource::ChannelGroup(..) => Ok(()),
            // (`kctxshareapiCopyConstruct_IMPL`, kernel_ctxshare.c)
            Resource::ContextShare(_) => match &parent.resource {
                Resource::ChannelGroup(..) => Ok(()),
                _other => Err(NV_ERR_INVALID_OBJECT_HANDLE),
            },
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice(_)
            | Resource::Channel(_)
            | Resource::Plain
            | Resource::Invalidated => Err(NV_ERR_INVALID_ARGUMENT),
        };
        Some(below.map_err(Refusal))
    }

    /// Refused where nothing but the name is left (`serverControl`, `serverCopyResource` and `serverShareResourceAccess`, rs_server.c).
    pub(super) fn not_lost(&self) -> Result<(), Refusal> {
        match self.is_name() {
            true => Err(Refusal(NV_ERR_RESOURCE_LOST)),
            false => Ok(()),
        }
    }

    /// Whether events can be made of it (`INotifier`).
    pub(super) const fn can_notify(&self) -> bool {
        !matches!(self.resource, Resource::Plain | Resource::Invalidated)
    }

    /// Whether it can be mapped for the CPU (`resMap`).
    pub(super) const fn can_be_mapped(&self) -> bool {
        matches!(self.resource, Resource::Memory(..) | Resource::Channel(_))
    }

    /// Whether calls may name it as the device of another object's mapping.
    pub(super) const fn is_device(&self) -> bool {
        matches!(self.resource, Resource::Device(_) | Resource::Subdevice(_))
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
            | Resource::Subdevice(_)
            | Resource::Memory(..)
            | Resource::Channel(_)
            | Resource::Plain
            | Resource::Invalidated => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }
}

impl Client {
    pub(super) fn new(handle: u32, class: u32, owner: FileId, pid: i32) -> Self {
        let root = Object::new(class, 0, None, Resource::Client);
        Self {
            handle,
            owner,
            pid,
            objects: BTreeMap::from([(handle, root)]),
            next_handle: MADE_HANDLE_BASE,
        }
    }

    /// Whether the calling process made it.
    pub(super) fn is_of(&self, context: &Context<'_>) -> bool {
        context.hardware.processes == Processes::One || self.pid == context.caller.tgid
    }

    pub(super) const fn handle(&self) -> u32 {
        self.handle
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
            .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
    }

    /// Whether an object has one of a class directly below it.
    pub(super) fn has_child_of(&self, parent: u32, class: u32) -> bool {
        self.objects
            .values()
            .any(|object| object.parent == parent && object.class == class)
    }

    /// The handle below an object that stands for an address space: on that a copy depends (`kchangrpapiCopyConstruct_IMPL`,
    /// kernel_channel_group_api.c; `kctxshareapiCopyConstruct_IMPL`, kernel_ctxshare.c).
    pub(super) fn space_below(&self, handle: u32, space: &Arc<VaSpace>) -> Option<u32> {
        let below = self.after_all_of(handle, |object| object.children.iter().copied().collect());
        below.into_iter().find(|below| {
            let object = self.objects.get(below).map(|object| &object.resource);
            matches!(object, Some(Resource::VaSpace(other)) if Arc::ptr_eq(other, space))
        })
    }

    /// The device above an object, or the object itself.
    pub(super) fn device_of(&self, mut handle: u32) -> Result<(u32, &Object), Refusal> {
        loop {
            let object = self.parent(handle)?;
            match object.resource {
                Resource::Device(_) => return Ok((handle, object)),
                Resource::Client => return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT)),
                Resource::Subdevice(_)
                | Resource::Memory(..)
                | Resource::Virtual(_)
                | Resource::VaSpace(_)
                | Resource::ChannelGroup(..)
                | Resource::ContextShare(_)
                | Resource::Channel(_)
                | Resource::Plain
                | Resource::Invalidated => handle = object.parent,
            }
        }
    }

    /// Whether a wanted handle may be used: 0 asks for one of RM's choice (`clientValidateNewResourceHandle_IMPL`, rs_client.c).
    pub(super) fn check_handle(&self, requested: u32) -> Result<(), Refusal> {
        if requested == self.handle {
            Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))
        } else if requested != 0 && self.objects.contains_key(&requested) {
            Err(Refusal(NV_ERR_INSERT_DUPLICATE_NAME))
        } else {
            Ok(())
        }
    }

    /// The handle that a new object gets. One of RM's choice is used up although the call may yet fail
    /// (`clientAssignResourceHandle_IMPL`, rs_client.c).
    pub(super) fn assign_handle(&mut self, requested: u32) -> Result<u32, Refusal> {
        self.check_handle(requested)?;
        if requested == 0 {
            Ok(self.made_handle())
        } else {
            Ok(requested)
        }
    }

    /// Puts an object in and says its handle.
    pub(super) fn insert(&mut self, requested: u32, mut object: Object) -> Result<u32, Refusal> {
        let handle = self.assign_handle(requested)?;
        let parent = self
            .objects
            .get_mut(&object.parent)
            .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))?;
        object.depth = parent.depth + 1;
        if object.depth > MOST_DEPTH {
            return Err(Refusal(NV_ERR_ILLEGAL_ACTION));
        }
        object.rights = parent.rights;
        parent.children.insert(handle);
        for other in &object.depends_on {
            if let Some(other) = self.objects.get_mut(other) {
                other.dependants.insert(handle);
            }
        }
        self.objects.insert(handle, object);
        Ok(handle)
    }

    /// Whether a device has a sub-device of a number.
    pub(super) fn has_subdevice(&self, device: u32, id: u32) -> bool {
        self.objects.values().any(|object| {
            object.parent == device
                && matches!(object.resource, Resource::Subdevice(of) if of == id)
        })
    }

    /// An object of RM's own.
    pub(super) fn insert_for_nobody(&mut self, object: Object) -> Result<(), Refusal> {
        let handle = self.insert(0, object)?;
        if let Some(object) = self.objects.get_mut(&handle) {
            object.rights = Rights::NONE;
        }
        Ok(())
    }

    fn made_handle(&mut self) -> u32 {
        loop {
            let handle = self.next_handle;
            self.next_handle = handle.wrapping_add(1);
            if handle != 0 && self.check_handle(handle).is_ok() {
                return handle;
            }
        }
    }

    /// Takes out an object and what is below it, and invalidates what depends on these (`serverFreeResourceTree`, rs_server.c). What has ended: children
    /// before their parents, dependants before what they depend on.
    pub(super) fn free(&mut self, handle: u32) -> Vec<(u32, Object)> {
        let below: BTreeSet<u32> = self
            .after_all_of(handle, |object| object.children.iter().copied().collect())
            .into_iter()
            .collect();
        let all = self.after_all_of(handle, |object| {
            let with = object.children.iter().chain(&object.dependants);
            with.copied().collect()
        });
        let mut gone = Vec::new();
        for next in all {
            let ended = match below.contains(&next) {
                true => self.take_out(next),
                false => self.invalidate(next),
            };
            let Some(object) = ended else {
                continue;
            };
            for other in &object.depends_on {
                if let Some(other) = self.objects.get_mut(other) {
                    other.dependants.remove(&next);
                }
            }
            gone.push((next, object));
        }
        let devices: Vec<u32> = gone
            .iter()
            .filter(|(_, object)| object.is_device())
            .map(|(handle, _)| *handle)
            .collect();
        if !devices.is_empty() {
            for object in self.objects.values_mut() {
                object
                    .mapped
                    .retain(|mapping| !devices.contains(&mapping.device));
            }
        }
        gone
    }

    fn take_out(&mut self, handle: u32) -> Option<Object> {
        let object = self.objects.remove(&handle)?;
        if let Some(parent) = self.objects.get_mut(&object.parent) {
            parent.children.remove(&handle);
        }
        Some(object)
    }

    /// Leaves the name of an object; the object.
    fn invalidate(&mut self, handle: u32) -> Option<Object> {
        let object = self.objects.get_mut(&handle)?;
        let name = Object {
            children: object.children.clone(),
            depth: object.depth,
            rights: object.rights,
            ..Object::new(
                object.class,
                object.parent,
                object.card.clone(),
                Resource::Invalidated,
            )
        };
        Some(std::mem::replace(object, name))
    }

    /// An object after all that goes with it, by what goes with each.
    fn after_all_of(&self, handle: u32, with: impl Fn(&Object) -> Vec<u32>) -> Vec<u32> {
        enum Step {
            Into(u32),
            OutOf(u32),
        }
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        let mut pending = vec![Step::Into(handle)];
        while let Some(step) = pending.pop() {
            match step {
                Step::OutOf(handle) => order.push(handle),
                Step::Into(handle) => {
                    if let Some(object) = self.objects.get(&handle)
                        && seen.insert(handle)
                    {
                        pending.push(Step::OutOf(handle));
                        pending.extend(with(object).into_iter().map(Step::Into));
                    }
                }
            }
        }
        order
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
            | Resource::Subdevice(_)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Plain
            | Resource::Invalidated => {}
        }
    }
}

/// Refused unless the card has the class.
pub(super) fn require_class(card: &SimCard, class: u32, release: Release) -> Result<(), Refusal> {
    if card.profile.architecture.has(class) {
        return Ok(());
    }
    // Until 580 each class looked for itself; since then it is asked before any is made (`resservResourceFactory`, rmapi/alloc_free.c).
    Err(Refusal(match release < Release::R580 {
        true => NV_ERR_INVALID_CLASS,
        false => NV_ERR_NOT_SUPPORTED,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_go_before_their_parents() {
        const CLIENT: u32 = 0xc1d0_0001;
        let mut client = Client::new(CLIENT, 0x41, FileId(1), 1);
        let mut add = |parent, depends_on| {
            let object = Object::new(0, parent, None, Resource::Plain);
            let object = Object {
                depends_on,
                ..object
            };
            client.insert(0, object).unwrap()
        };
        let (one, other) = (add(CLIENT, Vec::new()), add(CLIENT, Vec::new()));
        let below = [
            add(one, vec![other]),
            add(one, Vec::new()),
            add(other, vec![one]),
        ];
        let deepest = add(below[0], vec![other]);
        let gone: Vec<u32> = client.free(CLIENT).iter().map(|(it, _)| *it).collect();
        let place = |handle| gone.iter().position(|it| *it == handle).unwrap();
        for (child, parent) in [
            (deepest, below[0]),
            (below[0], one),
            (below[1], one),
            (below[2], other),
            (below[0], other),
            (below[2], one),
            (one, CLIENT),
            (other, CLIENT),
        ] {
            assert!(place(child) < place(parent), "{child:#x} in {gone:x?}");
        }
    }
}
