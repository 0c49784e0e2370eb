//! Making and freeing objects.

use std::sync::Arc;

use nvabi::Release;
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::class::{self, Kind, Plain};
use nvabi::layout::{
    channel_params, device_params, engine_type, memory_params, nvos00, nvos21, nvos55, nvos64,
    virtual_params,
};
use nvabi::status::{
    NV_ERR_INSERT_DUPLICATE_NAME, NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_CLASS, NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_OBJECT,
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_INVALID_STATE,
    NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_STATE_IN_USE,
};

use super::heap::{
    ATTR_LOCATION_MASK, ATTR_LOCATION_PCI, ATTR_LOCATION_VIDMEM, KIB64, PAGE_BYTES, Requested,
    card_memory, page_tables, system_memory,
};
use super::objects::{Client, Object, Resource, end_all, require_class};
use super::{Context, Segments, State, class_table, event, sharing};
use crate::architecture::{Engine, Methods, Unit};
use crate::card::SimCard;
use crate::engine::Kind as EngineKind;
use crate::fifo::{Channel, ChannelSpec, Group, UserdOwner};
use crate::memory::Backing;
use crate::refusal::Refusal;
use crate::vaspace::VaSpace;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// The doorbell page (`NVC361_NV_USERMODE__SIZE`).
const USERMODE_BYTES: u64 = KIB64;
/// One channel's USERD (`NV_RAMUSERD_CHAN_SIZE`), in a page of its own.
const USERD_BYTES: u64 = PAGE_BYTES;

/// Offsets of VA space handles in allocation parameters (nvos.h).
const GROUP_H_VA_SPACE: usize = 8;
const CONTEXT_SHARE_H_VA_SPACE: usize = 0;
/// `NV2080_MAX_SUBDEVICES` (cl2080.h)
const MAX_SUBDEVICES: u32 = 8;
/// `KERNEL_GRAPHICS_CONTEXT` (cl0090.h)
const KERNEL_GRAPHICS_CONTEXT: u32 = 0x90;
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
    // Parameters are copied before anything is looked for (`serverAllocApiCopyIn`, rmapi/alloc_free.c).
    if params.is_none() && class_table::needs_params(row) {
        return Err(INVALID);
    }
    let root = field(nvos21::H_ROOT)?;
    let handle = if row.kind == Kind::Root {
        let handle = new_client(state, context, root)?;
        // Whoever gives parameters gets the handle there too (`rmclientConstruct_IMPL`, client.c).
        if let Some(params) = params {
            put_u32(params, 0, handle);
        }
        handle
    } else {
        let mut request = New {
            client: root,
            parent: field(nvos21::H_PARENT)?,
            needed: field(nvos21::H_NEW)?,
            class,
            kind: row.kind,
        };
        request.make(
            state,
            context,
            row,
            params.map(Vec::as_mut_slice).unwrap_or_default(),
        )?
    };
    put_u32(arg, nvos21::H_NEW, handle);
    Ok(())
}

/// A client, by the handle that it asks for, or by the next one where that is 0 (`_serverCreateEntryAndLockForNewClient`, rs_server.c).
fn new_client(state: &mut State, context: &Context<'_>, needed: u32) -> Result<u32, Refusal> {
    if needed != 0 && state.clients.contains_key(&needed) {
        return Err(Refusal(NV_ERR_INSERT_DUPLICATE_NAME));
    }
    let handle = match needed {
        0 => context.hardware.next_client(),
        chosen => chosen,
    };
    let owner = state.owner(context);
    state.clients.insert(
        handle,
        Client::new(handle, class::NV01_ROOT_CLIENT, owner, context.caller.tgid),
    );
    Ok(handle)
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

/// The engine that a group or a channel names by an `NV2080_ENGINE_TYPE_*`. None is the graphics engine here; RM asks for one from Ampere on.
/// Without MIG there is one graphics engine (`kchangrpapiConstruct_IMPL`, kernel_channel_group_api.c).
fn engine_named(card: &SimCard, number: u32) -> Result<Engine, Refusal> {
    let engine = match number {
        engine_type::NULL => Some(Engine::Graphics),
        _named => Engine::of_type(number),
    };
    engine
        .filter(|engine| card.profile.architecture.engines().contains(engine))
        .ok_or(INVALID)
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
        EngineKind::Copies | EngineKind::Falcon(..) => context.hardware.implicit.other_group,
    }
}

/// A new object.
struct New {
    client: u32,
    parent: u32,
    needed: u32,
    class: u32,
    kind: Kind,
}

impl New {
    fn make(
        &mut self,
        state: &mut State,
        context: &Context<'_>,
        row: &class::Class,
        params: &mut [u8],
    ) -> Result<u32, Refusal> {
        if self.kind == Kind::Event {
            return self.event(state, context, params);
        }
        let client = state.client(context, self.client)?;
        self.prepare(client, row)?;
        if self.kind == Kind::Device {
            let space = self.default_space(state, context, params)?;
            return self.device(state.client(context, self.client)?, context, params, space);
        }
        let parent = client.parent(self.parent)?;
        if let Kind::Plain(Plain::Confidential | Plain::Mps) = self.kind {
            // Of the machine, not of a card (resource_list.h).
            return client.insert(self.needed, self.object(None, Resource::Plain));
        }
        let Some(card) = parent.card.clone() else {
            // Below a client, and named in the parameters: which is not played. The memory of NV01_CONTEXT_DMA is not found, what the others want is
            // not there (`ctxdmaConstruct_IMPL`, context_dma.c; `p2papiConstruct_IMPL`, p2p_api.c; `memorymulticastfabricConstruct_IMPL`,
            // mem_multicast_fabric.c).
            return Err(match class_table::may_be_below_anything(row) {
                true => Refusal(NV_ERR_OBJECT_NOT_FOUND),
                false => INVALID,
            });
        };
        card.alive()?;
        if self.kind != Kind::Subdevice && !class_table::may_be_below_anything(row) {
            require_class(&card, self.class, context.hardware.release)?;
        }
        if self.kind == Kind::Channel {
            return self.channel(client, context, card, params);
        }
        let object = self.below_card(client, context, card, row, params)?;
        let handle = client.insert(self.needed, object)?;
        if self.kind == Kind::ChannelGroup {
            with_graphics_context(client, handle)?;
        }
        Ok(handle)
    }

    /// The object of a class that is on a card.
    fn below_card(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        row: &class::Class,
        params: &mut [u8],
    ) -> Result<Object, Refusal> {
        match self.kind {
            Kind::Subdevice => self.subdevice(client, card, params),
            Kind::Vidmem | Kind::Sysmem => self.memory(client, context, card, params),
            Kind::Virtual => self.virtual_memory(client, context, card, params),
            Kind::VaSpace => self.va_space(client, context, card),
            Kind::ChannelGroup => self.channel_group(client, context, card, params),
            Kind::ContextShare => self.context_share(client, card, params),
            Kind::Graphics | Kind::Copy | Kind::Video | Kind::OtherEngine => {
                self.engine_object(client, context, card, params)
            }
            Kind::Usermode => self.doorbell(context, card, row, params),
            Kind::Plain(plain) => self.plain(plain, client, card, params),
            Kind::OsDescriptor | Kind::Fabric => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
            Kind::Root | Kind::Device | Kind::Event | Kind::Channel => {
                Err(Refusal(NV_ERR_INVALID_CLASS))
            }
        }
    }

    /// Each number is the one card's, and has one sub-device of a device (`subdeviceConstruct_IMPL`, subdevice.c;
    /// `gpugrpGetGpuFromSubDeviceInstance_IMPL`, gpu_group.c).
    fn subdevice(
        &self,
        client: &Client,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        let id = u32_at(params, SUBDEVICE_ID).unwrap_or(0);
        if id >= MAX_SUBDEVICES {
            return Err(Refusal(NV_ERR_INVALID_CLASS));
        }
        if client.has_subdevice(self.parent, id) {
            return Err(Refusal(NV_ERR_INSUFFICIENT_RESOURCES));
        }
        Ok(self.object(Some(card), Resource::Subdevice(id)))
    }

    fn virtual_memory(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        let is_whole = self.class == class::NV01_MEMORY_VIRTUAL;
        let at = if is_whole {
            virtual_params::H_VA_SPACE
        } else {
            memory_params::H_VA_SPACE
        };
        let (space, depends_on) = self.named_space(client, u32_at(params, at).unwrap_or(0))?;
        let size = u64_at(params, memory_params::SIZE).unwrap_or(0);
        let flags = u32_at(params, memory_params::FLAGS).unwrap_or(0);
        let implicit = match is_whole {
            true => None,
            false => page_tables(client, context, &card, (size, flags))?,
        };
        Ok(Object {
            implicit,
            depends_on,
            ..self.object(Some(card), Resource::Virtual(space))
        })
    }

    fn va_space(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
    ) -> Result<Object, Refusal> {
        let bytes = context.hardware.implicit.va_space;
        let charge = card.charge(context.session, client.pid, bytes)?;
        Ok(Object {
            implicit: Some(Arc::new(charge)),
            ..self.object(Some(card), Resource::VaSpace(Arc::default()))
        })
    }

    fn channel_group(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        let number = u32_at(params, GROUP_ENGINE_TYPE).unwrap_or(engine_type::NULL);
        if number == engine_type::NULL && card.profile.architecture.compares_engines_of_channels() {
            // (`kchangrpapiConstruct_IMPL`, kernel_channel_group_api.c)
            return Err(INVALID);
        }
        let engine = engine_named(&card, number)?.into();
        let (space, depends_on) =
            self.named_space(client, u32_at(params, GROUP_H_VA_SPACE).unwrap_or(0))?;
        let bytes = group_bytes(context, &card, engine);
        let charge = card.charge(context.session, client.pid, bytes)?;
        let group = Group::new(&card, context.session, engine);
        Ok(Object {
            implicit: Some(Arc::new(charge)),
            depends_on,
            ..self.object(Some(card), Resource::ChannelGroup(group, space))
        })
    }

    fn context_share(
        &self,
        client: &Client,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        // A copy of a group may be below something else (`kctxshareapiConstruct_IMPL`, kernel_ctxshare.c).
        let group = client.parent(self.parent)?;
        let below = client.parent(group.parent)?;
        if !matches!(below.resource, Resource::Device(_)) {
            return Err(INVALID);
        }
        let handle = u32_at(params, CONTEXT_SHARE_H_VA_SPACE).ok_or(INVALID)?;
        let (space, depends_on) = self.named_space(client, handle)?;
        Ok(Object {
            depends_on,
            ..self.object(Some(card), Resource::ContextShare(space))
        })
    }

    /// An engine's object on a channel.
    fn engine_object(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        let Resource::Channel(channel) = &client.parent(self.parent)?.resource else {
            return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT));
        };
        self.on_runlist(context, &card, channel.group().kind(), params)?;
        Ok(self.object(Some(card), Resource::Plain))
    }

    /// The doorbell page.
    fn doorbell(
        &self,
        context: &Context<'_>,
        card: Arc<SimCard>,
        row: &class::Class,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        let memory = Resource::Memory(system_memory(USERMODE_BYTES)?, Vec::new());
        Ok(Object {
            // `bBar1Mapping` of NV_HOPPER_USERMODE_A_PARAMS (`usrmodeConstruct_IMPL`, usermode_api.c).
            internal_mmio: row.params.of(context.hardware.release) > 0
                && params.first().is_some_and(|bar1| *bar1 != 0),
            ..self.object(Some(card), memory)
        })
    }

    /// What needs only to exist.
    fn plain(
        &self,
        plain: Plain,
        client: &Client,
        card: Arc<SimCard>,
        params: &[u8],
    ) -> Result<Object, Refusal> {
        match plain {
            Plain::SharedData => {
                // Pages of the host that the driver writes and programs read; nothing is in them here, and nothing is polled
                // (`gpushareddataConstruct_IMPL`, gpu_user_shared_data.c).
                if u64_at(params, 0).ok_or(INVALID)? != 0 {
                    return Err(Refusal(NV_ERR_NOT_SUPPORTED));
                }
                let memory = system_memory(PAGE_BYTES)?;
                Ok(self.object(Some(card), Resource::Memory(memory, Vec::new())))
            }
            Plain::SubdeviceMaster
                if client.has_child_of(self.parent, class::GF100_SUBDEVICE_MASTER) =>
            {
                // (`genapiConstruct_IMPL`, generic_engine.c)
                Err(Refusal(NV_ERR_STATE_IN_USE))
            }
            // Of the three types two are for others' devices; the last is for cards whose memory the host has in its own
            // (`thirdpartyp2pConstruct_IMPL`, third_party_p2p.c).
            Plain::ThirdParty => match u32_at(params, 0).unwrap_or(0) & 3 {
                0 => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
                1 => Ok(self.object(Some(card), Resource::Plain)),
                2 => Err(Refusal(NV_ERR_INVALID_STATE)),
                _no_type => Err(INVALID),
            },
            _only_there => Ok(self.object(Some(card), Resource::Plain)),
        }
    }

    /// An engine's object is for its own runlist. Where every runlist has channels of its own, a class is looked for on the engine of the channel;
    /// elsewhere the parameters name the engine, and its runlist must be the channel's (`chandesConstruct_IMPL`, channel_descendant.c;
    /// `kfifoRunlistSetId_GM107`, kernel_fifo_gm107.c). RM moves a group there whose only channel has no object yet; that is not played.
    fn on_runlist(
        &self,
        context: &Context<'_>,
        card: &SimCard,
        runlist: EngineKind,
        params: &[u8],
    ) -> Result<(), Refusal> {
        let architecture = card.profile.architecture;
        let methods = architecture
            .methods_of(self.class)
            .ok_or(Refusal(NV_ERR_INVALID_CLASS))?;
        let runs_here = runlist.runs(methods);
        if architecture.has_per_runlist_channels() {
            return match runs_here {
                true => Ok(()),
                false => Err(Refusal(NV_ERR_INVALID_CLASS)),
            };
        }
        let engine = match methods {
            Methods::Compute | Methods::ThreeD | Methods::TwoD | Methods::InlineToMemory => {
                Engine::Graphics
            }
            // {version 0, engineType 4}: an index, or a type (`kceGetEngineDescFromAllocParams`, kernel_ce_context.c).
            Methods::Copy => {
                let word = |at| u32_at(params, at).unwrap_or(0);
                let named = match word(0) {
                    0 => Some(Engine::Copy(word(4))),
                    1 => Engine::of_type(word(4)),
                    _unknown => None,
                };
                named
                    .filter(|engine| matches!(engine, Engine::Copy(_)))
                    .ok_or(Refusal(NV_ERR_INVALID_CLASS))?
            }
            Methods::Falcon(Unit::Sec2) => Engine::Falcon(Unit::Sec2, 0),
            // {size 0, prohibitMultipleInstances 4, engineInstance 8} (`nvdecGetEngineDescFromAllocParams` and its like); OFA has none before 545.
            Methods::Falcon(unit) => {
                let row = class::row_of(self.class, context.hardware.release);
                let size = row.map(|row| row.params.of(context.hardware.release));
                if u32_at(params, 0) != size {
                    return Err(Refusal(NV_ERR_INVALID_CLASS));
                }
                Engine::Falcon(unit, u32_at(params, 8).unwrap_or(0))
            }
        };
        if !architecture.engines().contains(&engine) {
            return Err(Refusal(NV_ERR_INVALID_CLASS));
        }
        let is_its = match engine {
            Engine::Graphics | Engine::Copy(_) => runs_here,
            Engine::Falcon(..) => EngineKind::from(engine) == runlist,
        };
        match is_its {
            true => Ok(()),
            false => Err(Refusal(NV_ERR_INVALID_STATE)),
        }
    }

    /// What is asked before the class is, and a handle, which is used up then (`serverAllocResourceUnderLock`, rmapi/alloc_free.c).
    fn prepare(&mut self, client: &mut Client, row: &class::Class) -> Result<(), Refusal> {
        if self.needed == self.client {
            // What may be below anything may be below nothing, and then its handle is wrong.
            return Err(Refusal(match class_table::may_be_below_anything(row) {
                true => NV_ERR_INVALID_OBJECT_HANDLE,
                false => NV_ERR_INVALID_OBJECT_PARENT,
            }));
        }
        let parent = client.parent(self.parent)?;
        if class_table::is_single(row) && client.has_child_of(self.parent, self.class) {
            return Err(Refusal(NV_ERR_STATE_IN_USE));
        }
        self.require(class_table::may_be_below(row, &parent.resource))?;
        self.needed = client.assign_handle(self.needed)?;
        Ok(())
    }

    /// An event tells of the object that the call names as its parent, of the client that the parameters name, or of its own where that is 0. It is below that
    /// object where the parameters name its own client, and below its client otherwise (`rmapiFixupAllocParams`, rmapi_specific.c;
    /// `eventConstruct_IMPL`, event.c).
    fn event(
        &mut self,
        state: &mut State,
        context: &Context<'_>,
        params: &[u8],
    ) -> Result<u32, Refusal> {
        let number = event::number_of(params).ok_or(INVALID)?;
        let named = event::client_of(params).ok_or(INVALID)?;
        // Both clients are looked for before it is asked whose the first is.
        if named != 0 && !state.clients.contains_key(&named) {
            return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
        }
        let source = self.parent;
        let notifier = if named == 0 { self.client } else { named };
        if named != self.client {
            self.parent = self.client;
        }
        let client = state.client(context, self.client)?;
        if self.needed == self.client {
            return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
        }
        let card = client.parent(self.parent)?.card.clone();
        self.needed = client.assign_handle(self.needed)?;
        let tells = state
            .clients
            .get(&notifier)
            .and_then(|client| client.objects.get(&source));
        if !tells.is_some_and(Object::can_notify) {
            return Err(Refusal(NV_ERR_INVALID_OBJECT));
        }
        let os_events = &context.hardware.os_events;
        if !os_events.is_registered(self.client, number) {
            return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
        }
        let object = self.object(card, Resource::Plain);
        let handle = state
            .client(context, self.client)?
            .insert(self.needed, object)?;
        os_events.attach(context.runner, self.client, handle, number);
        Ok(handle)
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

    /// The address space of a device that objects have where they name none (`deviceInitClientShare`, gpu/device_share.c): that of all devices of the
    /// card which name nobody, its own, or that of another client's device. RM looks for the last when it is first used, and refuses that use where it is not there.
    fn default_space(
        &self,
        state: &State,
        context: &Context<'_>,
        params: &[u8],
    ) -> Result<Arc<VaSpace>, Refusal> {
        let (card, global_space) = card_of(context, params)?;
        let share = u32_at(params, device_params::H_CLIENT_SHARE).ok_or(INVALID)?;
        let theirs = |of: &Client| {
            of.objects
                .values()
                .find_map(|object| match &object.resource {
                    Resource::Device(space)
                        if object
                            .card
                            .as_ref()
                            .is_some_and(|of| of.index == card.index) =>
                    {
                        Some(space.clone())
                    }
                    _other => None,
                })
        };
        Ok(match share {
            0 => global_space.clone(),
            own if own == self.client => Arc::default(),
            other => state
                .clients
                .get(&other)
                .and_then(theirs)
                .unwrap_or_default(),
        })
    }

    fn device(
        &self,
        client: &mut Client,
        context: &Context<'_>,
        params: &[u8],
        space: Arc<VaSpace>,
    ) -> Result<u32, Refusal> {
        let (card, _global_space) = card_of(context, params)?;
        // Not played here: that the calling process has the card's node open (`osIsGpuAccessible`, device.c). No process makes a
        // session's calls, and its open files are only what a broker says of them. The played kernel of the executor's tests looks.
        // Lists the process on the card.
        let implicit = Some(Arc::new(card.charge(context.session, client.pid, 0)?));
        let object = self.object(Some(card.clone()), Resource::Device(space));
        client.insert(self.needed, Object { implicit, ..object })
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
        let requested = Requested {
            size: wide(memory_params::SIZE)?,
            flags: word(memory_params::FLAGS)?,
            attr: word(memory_params::ATTR)?,
            attr2: word(memory_params::ATTR2)?,
            alignment: wide(memory_params::ALIGNMENT)?,
            offset: wide(memory_params::OFFSET)?,
        };
        if requested.flags & memory_params::FLAG_VIRTUAL != 0 {
            return Err(INVALID);
        }
        let (memory, reported) = if self.kind == Kind::Vidmem {
            if requested.attr & ATTR_LOCATION_MASK == ATTR_LOCATION_PCI {
                return Err(INVALID);
            }
            card_memory(client, context, &card, &requested)?
        } else {
            // (`sysmemConstruct_IMPL`, system_mem.c)
            if requested.attr & ATTR_LOCATION_MASK == ATTR_LOCATION_VIDMEM {
                return Err(INVALID);
            }
            let memory = system_memory(requested.size)?;
            let bytes = memory.bytes;
            (memory, bytes)
        };
        let offset = memory.charge.as_ref().map_or(0, |charge| charge.offset);
        put_u64(params, memory_params::SIZE, reported);
        put_u64(params, memory_params::OFFSET, offset);
        put_u64(params, memory_params::LIMIT, reported.wrapping_sub(1));
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
        // (`serverutilGetResourceRefWithType`, rs_utils.c)
        if handle == self.needed {
            // The new object is there already, and is none.
            return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
        }
        let object = client.parent(handle)?;
        match &object.resource {
            // One below anything else, as a copy may be, is not found by its device (`vaspaceGetByHandleOrDeviceDefault_IMPL`, vaspace.c), which
            // NV01_MEMORY_VIRTUAL asks for when something is mapped (`vmrangeConstruct_IMPL`, virt_mem_range.c).
            Resource::VaSpace(_)
                if self.class != class::NV01_MEMORY_VIRTUAL
                    && !client.parent(object.parent)?.is_device() =>
            {
                Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))
            }
            Resource::VaSpace(space) => Ok((space.clone(), vec![handle])),
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice(_)
            | Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Channel(_)
            | Resource::Plain
            | Resource::Invalidated => Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE)),
        }
    }

    /// The group of a new channel, its address space, and what a group takes where the channel gets one of its own
    /// (`kchannelConstruct_IMPL`, kernel_channel.c).
    fn group_of_channel(
        &self,
        client: &Client,
        context: &Context<'_>,
        card: &Arc<SimCard>,
        params: &[u8],
    ) -> Result<(Arc<Group>, Arc<VaSpace>, u64), Refusal> {
        let number = || u32_at(params, channel_params::ENGINE_TYPE).ok_or(INVALID);
        match &client.parent(self.parent)?.resource {
            Resource::ChannelGroup(group, space) => {
                let number = number()?;
                let named = (number != engine_type::NULL).then(|| engine_named(card, number));
                let is_another = named
                    .transpose()?
                    .is_some_and(|engine| EngineKind::from(engine) != group.kind());
                if is_another && card.profile.architecture.compares_engines_of_channels() {
                    return Err(INVALID);
                }
                Ok((group.clone(), space.clone(), 0))
            }
            Resource::Device(space) => {
                let engine = engine_named(card, number()?)?.into();
                let group = Group::new(card, context.session, engine);
                Ok((group, space.clone(), group_bytes(context, card, engine)))
            }
            Resource::Client
            | Resource::Subdevice(_)
            | Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ContextShare(_)
            | Resource::Channel(_)
            | Resource::Plain
            | Resource::Invalidated => Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT)),
        }
    }

    fn channel(
        &self,
        client: &mut Client,
        context: &Context<'_>,
        card: Arc<SimCard>,
        params: &mut [u8],
    ) -> Result<u32, Refusal> {
        let word = |at| u32_at(params, at).ok_or(INVALID);
        let (group, group_space, own_group_bytes) =
            self.group_of_channel(client, context, &card, params)?;
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
        let (userd, userd_offset, userd_owner) = userd_of_channel(client, &card, params)?;
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
            userd_owner,
            fifo_address: u64_at(params, channel_params::GP_FIFO_OFFSET).ok_or(INVALID)?,
            entries,
            error_notifier,
        })
        .ok_or(INVALID)?;
        let object = self.object(Some(card), Resource::Channel(channel.clone()));
        let handle = client.insert(
            self.needed,
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

/// Where a new channel's USERD is, and whose it is.
fn userd_of_channel(
    client: &Client,
    card: &SimCard,
    params: &[u8],
) -> Result<(Arc<Backing>, u64, UserdOwner), Refusal> {
    let architecture = card.profile.architecture;
    let offset = u64_at(params, channel_params::USERD_OFFSET).ok_or(INVALID)?;
    // Before Volta USERD is RM's: nothing else is known of clients there (nv_gpu_ops.c). That a handle is ignored is a guess.
    match u32_at(params, channel_params::H_USERD_MEMORY).ok_or(INVALID)? {
        handle if handle != 0 && !architecture.is_before_usermode() => {
            let memory = client.object(handle)?.memory()?.backing.clone();
            Ok((memory, offset, UserdOwner::Client))
        }
        _none => {
            let owner = match architecture.has_per_runlist_channels() {
                true => UserdOwner::Hidden,
                false => UserdOwner::Driver,
            };
            Ok((Arc::new(Backing::own(USERD_BYTES)), 0, owner))
        }
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
        context.hardware.os_events.forget(client);
        return Ok(());
    }
    // A handle that does not exist is freed already (RM answers NV_OK).
    let gone = state.client(context, client)?.free(handle);
    end_all(context.runner, client, gone);
    Ok(())
}

/// The card of a new device, and the address space of all devices of that card which name nobody.
fn card_of<'a>(
    context: &'a Context<'_>,
    params: &[u8],
) -> Result<(&'a Arc<SimCard>, &'a Arc<VaSpace>), Refusal> {
    let instance = u32_at(params, device_params::DEVICE_ID).ok_or(INVALID)?;
    context
        .hardware
        .card(instance)
        .ok_or(Refusal(NV_ERR_INVALID_CLASS))
}

/// Another handle for memory or an address space, of a client of the same container.
pub(super) fn dup_object(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (to, parent, needed) = (
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
    let lost = of.objects.get(&source).map_or(Ok(()), Object::not_lost);
    let can_be_copied = of.objects.get(&source).is_some_and(Object::can_be_copied);
    let destination = state.client(context, to)?;
    if !is_there {
        return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
    }
    let has_parent = destination.objects.contains_key(&parent);
    lost?;
    if context.hardware.release >= Release::R580 {
        // Older ones look for the parent last.
        state.destination(context, to, parent)?;
    }
    if !can_be_copied {
        return Err(INVALID);
    }
    let needed = state.client(context, to)?.assign_handle(needed)?;
    if !has_parent {
        return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
    }
    let (Some(of), Some(into)) = (state.clients.get(&from), state.clients.get(&to)) else {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    };
    sharing::may_duplicate(context.hardware.processes, (of, source), into)?;
    let source = of.object(source)?;
    let below = into.parent(parent)?;
    let Some(may_be) = source.may_be_copied_below(of.parent(source.parent)?, below) else {
        context.hardware.wedge(context.session);
        return Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT));
    };
    may_be?;
    let resource = source.resource.copied()?;
    let (class, card, implicit) = (source.class, source.card.clone(), source.implicit.clone());
    let internal_mmio = source.internal_mmio;
    let is_another =
        |other: &Arc<SimCard>| card.as_ref().is_some_and(|card| card.index != other.index);
    if below.card.as_ref().is_some_and(is_another) {
        return Err(Refusal(NV_ERR_INVALID_DEVICE));
    }
    if let Resource::Virtual(space) = &resource {
        // Only that of the default address space of the device that it goes below (`_virtmemCopyConstruct`, virtual_mem.c).
        let (_handle, device) = into.device_of(parent)?;
        if !Arc::ptr_eq(space, device.space()?) {
            return Err(Refusal(NV_ERR_INVALID_DEVICE));
        }
    }
    let depends_on = match &resource {
        Resource::ChannelGroup(_, space) => into.space_below(parent, space),
        Resource::ContextShare(space) => into.space_below(below.parent, space),
        _independent => None,
    };
    let client = state.client(context, to)?;
    let object = Object {
        implicit,
        internal_mmio,
        depends_on: depends_on.into_iter().collect(),
        ..Object::new(class, parent, card, resource)
    };
    let is_group = matches!(object.resource, Resource::ChannelGroup(..));
    let handle = client.insert(needed, object)?;
    if is_group {
        with_graphics_context(client, handle)?;
    }
    put_u32(arg, nvos55::H_OBJECT, handle);
    Ok(())
}

/// RM itself makes an object below each group, by a handle of the client's, which nobody has a right to (`kchangrpapiConstruct_IMPL`,
/// `kchangrpapiCopyConstruct_IMPL`, kernel_channel_group_api.c).
fn with_graphics_context(client: &mut Client, group: u32) -> Result<(), Refusal> {
    let context = Object::new(KERNEL_GRAPHICS_CONTEXT, group, None, Resource::Plain);
    client.insert_for_nobody(context)
}
