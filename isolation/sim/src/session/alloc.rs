//! Making and freeing objects.

use std::sync::Arc;

use nvabi::Release;
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::class::{self, Kind};
use nvabi::layout::{channel_params, device_params, memory_params, nvos00, nvos21, nvos55, nvos64};
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CLASS, NV_ERR_INVALID_DEVICE,
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_INVALID_STATE,
    NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND,
};

use super::heap::{
    ATTR_LOCATION_MASK, ATTR_LOCATION_PCI, Asked, KIB64, PAGE_BYTES, card_memory, system_memory,
};
use super::objects::{Client, Object, Resource, end_all, require_class};
use super::{Context, Refusal, Segments, State, event, sharing};
use crate::card::SimCard;
use crate::engine::Kind as EngineKind;
use crate::fifo::{Channel, ChannelSpec, Group};
use crate::memory::Backing;
use crate::vaspace::VaSpace;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// The doorbell page (`NVC361_NV_USERMODE__SIZE`).
const USERMODE_BYTES: u64 = KIB64;
/// One channel's USERD (`NV_RAMUSERD_CHAN_SIZE`), in a page of its own.
const USERD_BYTES: u64 = PAGE_BYTES;

/// Offsets of VA space handles in allocation parameters (nvos.h).
const VIRTUAL_H_VA_SPACE: usize = 16;
const MEMORY_H_VA_SPACE: usize = 108;
const GROUP_H_VA_SPACE: usize = 8;
const CONTEXT_SHARE_H_VA_SPACE: usize = 0;
/// `engineType` of NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS.
const GROUP_ENGINE_TYPE: usize = 12;
/// `subDeviceId`
const SUBDEVICE_ID: usize = 0;
/// `hObjectError` of a channel.
const CHANNEL_H_ERROR: usize = 0;

pub(super) fn rm_alloc(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let (arg, params) = split(segments)?;
    let field = |at| u32_at(arg, at).ok_or(INVALID);
    let class = field(nvos21::H_CLASS)?;
    let row =
        class::row_of(class, context.hardware.release).ok_or(Refusal(NV_ERR_INVALID_CLASS))?;
    let handle = if row.kind == Kind::Root {
        let owner = state.owner(context);
        let handle = context.hardware.next_client();
        state.clients.insert(
            handle,
            Client::new(handle, class::NV01_ROOT_CLIENT, owner, context.caller.tgid),
        );
        // Whoever gives parameters gets the handle there too (`rmclientConstruct_IMPL`, client.c).
        if let Some(params) = params {
            put_u32(params, 0, handle);
        }
        handle
    } else {
        let client = field(nvos21::H_ROOT)?;
        // No parent is the client itself (`serverAllocResourceUnderLock`, rmapi/alloc_free.c).
        let parent = field(nvos21::H_PARENT)?;
        let mut request = New {
            client,
            parent: if parent == 0 { client } else { parent },
            wanted: field(nvos21::H_NEW)?,
            class,
            kind: row.kind,
        };
        request.make(
            state,
            context,
            params.map(Vec::as_mut_slice).unwrap_or_default(),
        )?
    };
    put_u32(arg, nvos21::H_NEW, handle);
    Ok(())
}

pub(super) fn rm_alloc_long(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let (arg, _params) = split(segments)?;
    let flags = u32_at(arg, nvos64::FLAGS).ok_or(INVALID)?;
    if flags & nvos64::FLAG_SERIALISED != 0 {
        return Err(Refusal(NV_ERR_NOT_SUPPORTED));
    }
    rm_alloc(state, context, segments)
}

fn split(segments: &mut Segments) -> Result<(&mut Vec<u8>, Option<&mut Vec<u8>>), Refusal> {
    let (first, rest) = segments.split_first_mut().ok_or(INVALID)?;
    Ok((first, rest.first_mut()))
}

/// The runlist of an `NV2080_ENGINE_TYPE_*` (cl2080_notification.h): 0 none said, 1 to 8 graphics.
fn engine_kind(engine_type: u32) -> EngineKind {
    if engine_type <= 8 {
        EngineKind::Compute
    } else {
        EngineKind::Copies
    }
}

/// What a context takes on a card: charged, and told by GR_GET_CTX_BUFFER_SIZE.
pub(super) fn context_bytes(context: &Context<'_>, card: &SimCard) -> u64 {
    let declared = context.hardware.implicit.channel_group;
    card.profile.context_bytes.unwrap_or(declared)
}

/// What RM takes for a group: buffers of a context for graphics and compute, at most a falcon's buffer for another engine
/// (kernel_channel_group_api.c, `kchangrpapiConstruct_IMPL`).
fn group_bytes(context: &Context<'_>, card: &SimCard, kind: EngineKind) -> u64 {
    match kind {
        EngineKind::Compute => context_bytes(context, card),
        EngineKind::Copies => context.hardware.implicit.other_group,
    }
}

/// Compute classes of all generations end so.
pub(super) fn computes(class: u32) -> bool {
    class & 0xff == 0xc0
}

/// A new object.
struct New {
    client: u32,
    parent: u32,
    wanted: u32,
    class: u32,
    kind: Kind,
}

impl New {
    fn make(
        &mut self,
        state: &mut State,
        context: &Context<'_>,
        params: &mut [u8],
    ) -> Result<u32, Refusal> {
        let client = state.client(context, self.client)?;
        self.wanted = client.assign_handle(self.wanted)?;
        if self.kind == Kind::Device {
            return self.device(client, context, params);
        }
        if self.kind == Kind::Event {
            let number = event::number_of(params).ok_or(INVALID)?;
            let object = self.object(client.parent(self.parent)?.card.clone(), Resource::Plain);
            let handle = client.insert(self.wanted, object)?;
            event::attach(context, self.client, handle, number);
            return Ok(handle);
        }
        let parent = client.parent(self.parent)?;
        if [class::NV_CONFIDENTIAL_COMPUTE, class::MPS_COMPUTE].contains(&self.class) {
            // Of the machine, not of a card (resource_list.h).
            self.require(matches!(parent.resource, Resource::Client))?;
            return client.insert(self.wanted, self.object(None, Resource::Plain));
        }
        let card = parent
            .card
            .clone()
            .ok_or(Refusal(NV_ERR_INVALID_OBJECT_PARENT))?;
        card.alive()?;
        if self.kind != Kind::Subdevice {
            require_class(&card, self.class)?;
        }
        let object = match self.kind {
            Kind::Subdevice => {
                self.require(matches!(parent.resource, Resource::Device(_)))?;
                if u32_at(params, SUBDEVICE_ID).unwrap_or(0) != 0 {
                    return Err(Refusal(NV_ERR_INVALID_DEVICE));
                }
                self.object(Some(card), Resource::Subdevice)
            }
            Kind::Vidmem | Kind::Sysmem => self.memory(client, context, card, params)?,
            Kind::Virtual => {
                let at = if self.class == class::NV01_MEMORY_VIRTUAL {
                    VIRTUAL_H_VA_SPACE
                } else {
                    MEMORY_H_VA_SPACE
                };
                let (space, depends_on) =
                    self.named_space(client, u32_at(params, at).unwrap_or(0))?;
                Object {
                    depends_on,
                    ..self.object(Some(card), Resource::Virtual(space))
                }
            }
            Kind::VaSpace => {
                self.require(matches!(parent.resource, Resource::Device(_)))?;
                let implicit = Some(Arc::new(card.charge(
                    context.session,
                    client.pid,
                    context.hardware.implicit.va_space,
                )?));
                Object {
                    implicit,
                    ..self.object(Some(card), Resource::VaSpace(Arc::default()))
                }
            }
            Kind::ChannelGroup => {
                self.require(matches!(parent.resource, Resource::Device(_)))?;
                let (space, depends_on) =
                    self.named_space(client, u32_at(params, GROUP_H_VA_SPACE).unwrap_or(0))?;
                let engine = engine_kind(u32_at(params, GROUP_ENGINE_TYPE).unwrap_or(0));
                let implicit = Some(Arc::new(card.charge(
                    context.session,
                    client.pid,
                    group_bytes(context, &card, engine),
                )?));
                let group = Group::new(&card, context.session, engine);
                Object {
                    implicit,
                    depends_on,
                    ..self.object(Some(card), Resource::ChannelGroup(group, space))
                }
            }
            Kind::ContextShare => {
                self.require(matches!(parent.resource, Resource::ChannelGroup(..)))?;
                let handle = u32_at(params, CONTEXT_SHARE_H_VA_SPACE).ok_or(INVALID)?;
                let (space, depends_on) = self.named_space(client, handle)?;
                Object {
                    depends_on,
                    ..self.object(Some(card), Resource::ContextShare(space))
                }
            }
            Kind::Channel => return self.channel(client, context, card, params),
            Kind::Engine => {
                let Resource::Channel(channel) = &parent.resource else {
                    return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT));
                };
                // An engine's object is for its own runlist (`kfifoRunlistSetId_GM107`, kernel_fifo_gm107.c). Copies go by any.
                if computes(self.class) && channel.group().kind() != EngineKind::Compute {
                    return Err(Refusal(NV_ERR_INVALID_STATE));
                }
                self.object(Some(card), Resource::Plain)
            }
            Kind::Usermode => {
                self.require(matches!(parent.resource, Resource::Subdevice))?;
                self.object(
                    Some(card),
                    Resource::Memory(system_memory(USERMODE_BYTES)?, Vec::new()),
                )
            }
            Kind::Plain if self.class == class::RM_USER_SHARED_DATA => {
                self.require(matches!(parent.resource, Resource::Subdevice))?;
                // Pages of the host that the driver writes and programs read; nothing is in them here, and nothing is polled
                // (`gpushareddataConstruct_IMPL`, gpu_user_shared_data.c).
                if u64_at(params, 0).ok_or(INVALID)? != 0 {
                    return Err(Refusal(NV_ERR_NOT_SUPPORTED));
                }
                let memory = system_memory(PAGE_BYTES)?;
                self.object(Some(card), Resource::Memory(memory, Vec::new()))
            }
            Kind::Plain => {
                // (resource_list.h)
                let of_subdevices = [
                    class::NV2081_BINAPI,
                    class::NV50_THIRD_PARTY_P2P,
                    class::GF100_SUBDEVICE_MASTER,
                ];
                let is_of_one = of_subdevices.contains(&self.class);
                self.require(!is_of_one || matches!(parent.resource, Resource::Subdevice))?;
                self.object(Some(card), Resource::Plain)
            }
            Kind::OsDescriptor | Kind::Fabric => return Err(Refusal(NV_ERR_NOT_SUPPORTED)),
            Kind::Root | Kind::Device | Kind::Event => return Err(Refusal(NV_ERR_INVALID_CLASS)),
        };
        client.insert(self.wanted, object)
    }

    fn object(&self, card: Option<Arc<SimCard>>, resource: Resource) -> Object {
        Object::new(self.class, self.parent, card, resource)
    }

    #[expect(
        clippy::unused_self,
        reason = "reads as a rule of the object that is made"
    )]
    fn require(&self, right_parent: bool) -> Result<(), Refusal> {
        if right_parent {
            Ok(())
        } else {
            Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT))
        }
    }

    fn device(
        &self,
        client: &mut Client,
        context: &Context<'_>,
        params: &[u8],
    ) -> Result<u32, Refusal> {
        self.require(matches!(
            client.parent(self.parent)?.resource,
            Resource::Client
        ))?;
        let instance = u32_at(params, device_params::DEVICE_ID).ok_or(INVALID)?;
        let card = usize::try_from(instance)
            .ok()
            .and_then(|index| context.hardware.cards.get(index))
            .ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
        // Not played here: that the calling process has the card's node open (`osIsGpuAccessible`, device.c). No process makes a
        // session's calls, and its open files are only what a broker says of them. The played kernel of the executor's tests looks.
        // Lists the process on the card.
        let implicit = Some(Arc::new(card.charge(context.session, client.pid, 0)?));
        let object = self.object(Some(card.clone()), Resource::Device(Arc::default()));
        client.insert(self.wanted, Object { implicit, ..object })
    }

    fn memory(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &mut [u8],
    ) -> Result<Object, Refusal> {
        let word = |at| u32_at(params, at).ok_or(INVALID);
        let wide = |at| u64_at(params, at).ok_or(INVALID);
        let asked = Asked {
            size: wide(memory_params::SIZE)?,
            flags: word(memory_params::FLAGS)?,
            attr: word(memory_params::ATTR)?,
            attr2: word(memory_params::ATTR2)?,
            alignment: wide(memory_params::ALIGNMENT)?,
        };
        if asked.flags & memory_params::FLAG_VIRTUAL != 0 {
            return Err(INVALID);
        }
        let memory = if self.kind == Kind::Vidmem {
            if asked.attr & ATTR_LOCATION_MASK == ATTR_LOCATION_PCI {
                return Err(INVALID);
            }
            card_memory(client, context, &card, &asked)?
        } else {
            system_memory(asked.size)?
        };
        let offset = memory.charge.as_ref().map_or(0, |charge| charge.offset);
        put_u64(params, memory_params::SIZE, memory.bytes);
        put_u64(params, memory_params::OFFSET, offset);
        put_u64(params, memory_params::LIMIT, memory.bytes - 1);
        Ok(self.object(Some(card), Resource::Memory(memory, Vec::new())))
    }

    /// The space of a handle; 0: the default one of the device.
    fn named_space(
        &self,
        client: &Client,
        handle: u32,
    ) -> Result<(Arc<VaSpace>, Vec<u32>), Refusal> {
        if handle == 0 {
            let (_handle, device) = client.device_of(self.parent)?;
            return Ok((device.space()?.clone(), Vec::new()));
        }
        Ok((client.object(handle)?.space()?.clone(), vec![handle]))
    }

    fn channel(
        &self,
        client: &mut Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &mut [u8],
    ) -> Result<u32, Refusal> {
        let word = |at| u32_at(params, at).ok_or(INVALID);
        let parent = client.parent(self.parent)?;
        // A channel without a group gets one of its own (`kchannelConstruct_IMPL`), with what a group takes.
        let (group, group_space, own_group_bytes) = match &parent.resource {
            Resource::ChannelGroup(group, space) => (group.clone(), space.clone(), 0),
            Resource::Device(space) => {
                let engine = engine_kind(word(channel_params::ENGINE_TYPE)?);
                let group = Group::new(&card, context.session, engine);
                (group, space.clone(), group_bytes(context, &card, engine))
            }
            Resource::Client
            | Resource::Subdevice
            | Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ContextShare(_)
            | Resource::Channel(_)
            | Resource::Plain => return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT)),
        };
        let named = [
            word(channel_params::H_CONTEXT_SHARE)?,
            word(channel_params::H_VA_SPACE)?,
        ]
        .into_iter()
        .find(|handle| *handle != 0);
        let (space, depends_on) = match named {
            Some(handle) => (client.object(handle)?.space()?.clone(), vec![handle]),
            None => (group_space, Vec::new()),
        };
        let entries = word(channel_params::GP_FIFO_ENTRIES)?;
        if entries == 0 {
            return Err(INVALID);
        }
        let userd_offset = u64_at(params, channel_params::USERD_OFFSET).ok_or(INVALID)?;
        let userd = match word(channel_params::H_USERD_MEMORY)? {
            0 => Arc::new(Backing::own(USERD_BYTES)),
            handle => client.object(handle)?.memory()?.backing.clone(),
        };
        let error_notifier = match word(CHANNEL_H_ERROR)? {
            0 => None,
            handle => client
                .object(handle)?
                .memory()
                .ok()
                .map(|memory| memory.backing.clone()),
        };
        let implicit = Some(Arc::new(card.charge(
            context.session,
            client.pid,
            context.hardware.implicit.channel + own_group_bytes,
        )?));
        let channel = Channel::new(ChannelSpec {
            session: context.session.clone(),
            runner: Arc::downgrade(context.runner),
            incidents: context.hardware.incidents.clone(),
            client: self.client,
            card: card.clone(),
            group,
            space,
            userd,
            userd_offset,
            fifo_address: u64_at(params, channel_params::GP_FIFO_OFFSET).ok_or(INVALID)?,
            entries,
            error_notifier,
        })
        .ok_or(INVALID)?;
        let object = self.object(Some(card), Resource::Channel(channel.clone()));
        let handle = client.insert(
            self.wanted,
            Object {
                implicit,
                depends_on,
                ..object
            },
        )?;
        put_u32(params, channel_params::CID, channel.id());
        context.runner.add(channel);
        Ok(handle)
    }
}

pub(super) fn rm_free(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, nvos00::H_ROOT).ok_or(INVALID)?;
    let handle = u32_at(arg, nvos00::H_OLD).ok_or(INVALID)?;
    free(state, context, client, handle)
}

pub(super) fn free(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    handle: u32,
) -> Result<(), Refusal> {
    if handle == client {
        state.client(context, client)?;
        state.free_client(context.runner, client);
        return Ok(());
    }
    // A handle that does not exist is freed already (RM answers NV_OK).
    let gone = state.client(context, client)?.free(handle);
    end_all(context.runner, client, gone);
    Ok(())
}

/// Another handle for memory or an address space, of a client of the same container.
pub(super) fn dup_object(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (to, parent, wanted) = (
        word(nvos55::H_CLIENT)?,
        word(nvos55::H_PARENT)?,
        word(nvos55::H_OBJECT)?,
    );
    let (from, source) = (word(nvos55::H_CLIENT_SRC)?, word(nvos55::H_OBJECT_SRC)?);
    // Another file's client is asked for its handles alone; nobody but its own may be given one.
    let Some(of) = state.clients.get(&from) else {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    };
    let is_there = of.objects.contains_key(&source);
    let can_be_copied = of.objects.get(&source).is_some_and(Object::can_be_copied);
    let destination = state.client(context, to)?;
    if !is_there {
        return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
    }
    let has_parent = destination.objects.contains_key(&parent);
    if context.hardware.release >= Release::R580 {
        // Older ones look for the parent last.
        state.destination(context, to, parent)?;
    }
    if !can_be_copied {
        return Err(INVALID);
    }
    let wanted = state.client(context, to)?.assign_handle(wanted)?;
    if !has_parent {
        return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
    }
    let (Some(of), Some(into)) = (state.clients.get(&from), state.clients.get(&to)) else {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    };
    sharing::may_duplicate(context.hardware.processes, (of, source), into)?;
    let source = of.object(source)?;
    let resource = match &source.resource {
        Resource::Memory(memory, _spaces) => Resource::Memory(memory.clone(), Vec::new()),
        Resource::VaSpace(space) => Resource::VaSpace(space.clone()),
        Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice
        | Resource::Virtual(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Channel(_)
        | Resource::Plain => return Err(INVALID),
    };
    let (class, card, implicit) = (source.class, source.card.clone(), source.implicit.clone());
    let client = state.client(context, to)?;
    let (_device, device) = client.device_of(parent)?;
    if device.card.as_ref().map(|card| card.index) != card.as_ref().map(|card| card.index) {
        return Err(Refusal(NV_ERR_INVALID_DEVICE));
    }
    let object = Object {
        implicit,
        ..Object::new(class, parent, card, resource)
    };
    let handle = client.insert(wanted, object)?;
    put_u32(arg, nvos55::H_OBJECT, handle);
    Ok(())
}
