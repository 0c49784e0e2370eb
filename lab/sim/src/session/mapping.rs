//! Mapping memory for the CPU, and into the address spaces of RM.

use std::sync::Arc;

use driver::FileKind;
use driver::wire::Replaces;
use nvabi::Release;
use nvabi::bytes::{put_u64, u32_at, u64_at};
use nvabi::class::{
    self, Kind, NV01_MEMORY_SYSTEM, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, RM_USER_SHARED_DATA,
};
use nvabi::layout::{nvos33, nvos34, nvos46, nvos47, nvos56};
use nvabi::status::{
    NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_ADDRESS, NV_ERR_INVALID_ARGUMENT,
    NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_LIMIT, NV_ERR_INVALID_OBJECT,
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_INVALID_PARAMETER,
    NV_ERR_NO_MEMORY, NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_STATE_IN_USE,
};

use super::heap::PAGE_BYTES;
use super::objects::{CpuMapping, Object, Resource};
use super::{Context, Replacement, Segments, State};
use crate::fifo::UserdOwner;
use crate::memory::{Backing, Memory};
use crate::refusal::Refusal;
use crate::vaspace::{MadeBy, VaSpace};

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV_ERR_INVALID_REQUEST`, `NV_ERR_INVALID_BASE`
const NV_ERR_INVALID_REQUEST: u32 = 0x3f;
const NV_ERR_INVALID_BASE: u32 = 0x20;
/// `NVOS46_FLAGS_DMA_OFFSET_FIXED`
const DMA_OFFSET_FIXED: u32 = 1 << 15;
/// No address space is longer (Hopper's page tables, dev_mmu.h of gh100).
const MOST_VIRTUAL_BYTES: u64 = 1 << 57;
/// Where the addresses that mappings are known by begin: beyond those that a program can have.
const CPU_MAPPINGS_BASE: u64 = 1 << arch::Arch::NATIVE.user_address_bits();
/// Of one object. RM has no such limit, and a card's BAR1 has.
const MOST_CPU_MAPPINGS: usize = 4096;

/// Hands out the object's own file in place of the descriptor that the client is about to map. The client maps it from
/// its beginning, so only offset 0 can be served.
pub(super) fn map_memory(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<Option<Replacement>, Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let client = u32_at(arg, nvos33::H_CLIENT).ok_or(INVALID)?;
    let handle = u32_at(arg, nvos33::H_MEMORY).ok_or(INVALID)?;
    let offset = u64_at(arg, nvos33::OFFSET).ok_or(INVALID)?;
    let length = u64_at(arg, nvos33::LENGTH).ok_or(INVALID)?;
    let device = u32_at(arg, nvos33::H_DEVICE).ok_or(INVALID)?;
    let object = named(state, context, client, device, handle)?;
    if !object.can_be_mapped() {
        if device == handle && context.hardware.release >= Release::R570 {
            // The mapping is taken from a list of its device's that it was never put in (`refAddMapping` and `refRemoveMapping`, rs_resource.c).
            context.hardware.wedge(context.session);
        }
        return Err(unmappable(&object.resource));
    }
    if let Some(card) = &object.card {
        card.alive()?;
    }
    let backing = shown(object)?;
    if length == 0
        || offset
            .checked_add(length)
            .is_none_or(|end| end > backing.bytes())
    {
        return Err(Refusal(NV_ERR_INVALID_LIMIT));
    }
    if offset != 0 {
        return Err(Refusal(NV_ERR_NOT_SUPPORTED));
    }
    let requested = file_of(object);
    // Only the process that made the client maps (`rm_create_mmap_context`, osapi.c).
    if !state.client(context, client)?.is_of(context) {
        return Err(Refusal(NV_ERR_INVALID_CLIENT));
    }
    let slot = context.fd_at(0, nvos33::FD).ok_or(INVALID)?;
    let (file, _) = slot
        .file
        .filter(|(_, kind)| *kind == requested)
        .ok_or(INVALID)?;
    if state.mmap_contexts.contains(&file) {
        return Err(Refusal(NV_ERR_STATE_IN_USE));
    }
    let fd = backing.share().map_err(|error| {
        if error.kind() == std::io::ErrorKind::Unsupported {
            Refusal(NV_ERR_NOT_SUPPORTED)
        } else {
            Refusal(NV_ERR_NO_MEMORY)
        }
    })?;
    state.cpu_mappings += 1;
    let address = CPU_MAPPINGS_BASE + state.cpu_mappings * PAGE_BYTES;
    let object = state.object(context, client, handle)?;
    if object.mapped.len() >= MOST_CPU_MAPPINGS {
        return Err(Refusal(NV_ERR_INSUFFICIENT_RESOURCES));
    }
    let is_on_card = object.memory().is_ok_and(|memory| memory.charge.is_some());
    let card = object.card.as_ref().filter(|_| is_on_card);
    let bar1 = card.map(|card| card.bar1(length));
    object.mapped.push(CpuMapping {
        address,
        process: context.caller.tgid,
        device,
        _bar1: bar1,
    });
    state.mmap_contexts.insert(file);
    put_u64(arg, nvos33::P_LINEAR, address);
    Ok(Some(Replacement {
        replaces: Replaces::Number(slot.number),
        fd,
    }))
}

/// Why an object that has nothing to map is not mapped: registers of the card are shown to no user (`gpuresMap_IMPL`, gpu_resource.c).
fn unmappable(resource: &Resource) -> Refusal {
    match resource {
        Resource::Device(_) => INVALID,
        Resource::Client
        | Resource::Subdevice(_)
        | Resource::Memory(..)
        | Resource::Virtual(_)
        | Resource::VaSpace(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Channel(_)
        | Resource::Plain
        | Resource::Invalidated => Refusal(NV_ERR_NOT_SUPPORTED),
    }
}

/// What a mapping of an object shows.
fn shown(object: &Object) -> Result<Arc<Backing>, Refusal> {
    match &object.resource {
        Resource::Channel(channel) => match channel.userd() {
            (userd, UserdOwner::Driver) => Ok(userd.clone()),
            // (`kchannelMap_IMPL`, kernel_channel.c)
            (_, UserdOwner::Client) => Err(Refusal(NV_ERR_INVALID_REQUEST)),
            (_, UserdOwner::Hidden) => Err(Refusal(NV_ERR_INVALID_BASE)),
        },
        Resource::Memory(..)
        | Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice(_)
        | Resource::Virtual(_)
        | Resource::VaSpace(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Plain
        | Resource::Invalidated => Ok(object.memory()?.backing.clone()),
    }
}

/// The file that an object is mapped by: the card's own for what is in one of its BARs, the control file for the host's memory
/// (`RmCreateMmapContextLocked`, osapi.c). A file has room for one mapping, for as long as it is open
/// (`nv_add_mapping_context_to_file`, nv-usermap.c).
fn file_of(object: &Object) -> FileKind {
    let is_on_host = matches!(
        object.class,
        NV01_MEMORY_SYSTEM | NV01_MEMORY_SYSTEM_OS_DESCRIPTOR | RM_USER_SHARED_DATA
    );
    match &object.card {
        Some(card) if !is_on_host => FileKind::Card { minor: card.index },
        Some(_) | None => FileKind::Ctl,
    }
}

/// Ends a mapping of the calling process: what RM has for it goes. What the client has mapped is its own.
pub(super) fn unmap_memory(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, nvos34::H_CLIENT).ok_or(INVALID)?;
    let handle = u32_at(arg, nvos34::H_MEMORY).ok_or(INVALID)?;
    let address = u64_at(arg, nvos34::P_LINEAR).ok_or(INVALID)?;
    let device = u32_at(arg, nvos34::H_DEVICE).ok_or(INVALID)?;
    let mapped = &mut named(state, context, client, device, handle)?.mapped;
    let at = found(mapped, context, address)?;
    mapped.swap_remove(at);
    Ok(())
}

/// The object of a mapping, whose device must be one: of a client's own object the client itself (`serverMap_Prologue` and
/// `serverUnmap_Prologue`, rmapi/mapping_cpu.c).
fn named<'a>(
    state: &'a mut State,
    context: &Context<'_>,
    client: u32,
    device: u32,
    handle: u32,
) -> Result<&'a mut Object, Refusal> {
    let parent = state.object(context, client, handle)?.parent;
    let is_of_client = parent == 0 || parent == client;
    let is_right = match device == client {
        true => is_of_client,
        false => !is_of_client && state.object(context, client, device)?.is_device(),
    };
    if is_right {
        state.object(context, client, handle)
    } else {
        Err(Refusal(NV_ERR_INVALID_OBJECT_PARENT))
    }
}

/// Has a mapping of the calling process be known by another address (`RmUpdateDeviceMappingInfo`, osapi.c).
pub(super) fn update(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, nvos56::H_CLIENT).ok_or(INVALID)?;
    let handle = u32_at(arg, nvos56::H_MEMORY).ok_or(INVALID)?;
    let (old, new) = (
        u64_at(arg, nvos56::P_OLD).ok_or(INVALID)?,
        u64_at(arg, nvos56::P_NEW).ok_or(INVALID)?,
    );
    let mapped = &mut state.object(context, client, handle)?.mapped;
    let at = found(mapped, context, old)?;
    if let Some(mapping) = mapped.get_mut(at) {
        mapping.address = new;
    }
    Ok(())
}

/// Where a mapping stands, if the calling process has made it (`refFindCpuMappingWithFilter`, rs_resource.c).
fn found(mapped: &[CpuMapping], context: &Context<'_>, address: u64) -> Result<usize, Refusal> {
    let process = context.caller.tgid;
    mapped
        .iter()
        .position(|mapping| mapping.address == address && mapping.process == process)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
}

/// What a MAP_MEMORY_DMA names.
struct Parties {
    client: u32,
    device: u32,
    mapper: u32,
    memory: u32,
}

impl Parties {
    /// The address space and the memory, after what RM asks of both, in its order (`serverInterMap`, rs_server.c; `serverInterMap_Prologue`,
    /// rmapi/mapping.c). `(offset, length)`, bytes, are of the memory.
    fn found(
        &self,
        state: &mut State,
        context: &Context<'_>,
        (offset, length): (u64, u64),
    ) -> Result<(Arc<VaSpace>, Arc<Memory>), Refusal> {
        if length == 0 {
            return Err(Refusal(NV_ERR_INVALID_LIMIT));
        }
        let by = state.object(context, self.client, self.mapper)?;
        let (by_name_alone, by_card) = (by.is_name(), by.card.clone());
        let by = by.mapper().map(|(space, unicast)| (space.clone(), unicast));
        state.object(context, self.client, self.memory)?;
        let device = state.object(context, self.client, self.device)?;
        if !device.is_device() {
            return Err(Refusal(NV_ERR_INVALID_OBJECT));
        }
        let is_unicast = matches!(device.resource, Resource::Subdevice(_));
        if let Some(card) = &by_card {
            card.alive()?;
        }
        let object = state.object(context, self.client, self.memory)?;
        if object.is_name() || self.memory == self.client {
            // RM asks it how it is mapped. Nobody is there to be asked, and a client is no `RmResource` (`rmresGetMemInterMapParams`).
            context.hardware.wedge(context.session);
        }
        let memory = mappable(object)?;
        let bytes = memory.map_or(MOST_VIRTUAL_BYTES, |memory| memory.bytes);
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(Refusal(NV_ERR_INVALID_LIMIT));
        }
        if by_name_alone {
            // The same (`resMapTo`).
            context.hardware.wedge(context.session);
        }
        let (space, may_be_unicast) = by?;
        if is_unicast && !may_be_unicast {
            return Err(Refusal(NV_ERR_NOT_SUPPORTED));
        }
        let memory = memory.ok_or(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))?;
        Ok((space, memory.clone()))
    }
}

/// The memory behind an object that a card may be shown. `None` for virtual memory, of which RM sees after everything else that there is none.
fn mappable(object: &Object) -> Result<Option<&Arc<Memory>>, Refusal> {
    let is_doorbell = class::of(object.class).is_some_and(|row| row.kind == Kind::Usermode);
    if is_doorbell && !object.internal_mmio {
        // (`usrmodeGetMemInterMapParams_IMPL`, usermode_api.c)
        return Err(Refusal(NV_ERR_INVALID_PARAMETER));
    }
    if object.class == RM_USER_SHARED_DATA {
        // To RM it is as long as what is in it, less than a page (`gpushareddataConstruct_IMPL`, gpu_user_shared_data.c).
        return Err(Refusal(NV_ERR_INVALID_LIMIT));
    }
    match object.is_virtual() {
        true => Ok(None),
        false => object.memory().map(Some),
    }
}

/// Maps memory into an address space. The ranges that NV50_MEMORY_VIRTUAL keeps for itself are not played: an address is chosen anywhere.
pub(super) fn map_memory_dma(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (client, device, mapper, handle, flags) = (
        word(nvos46::H_CLIENT)?,
        word(nvos46::H_DEVICE)?,
        word(nvos46::H_DMA)?,
        word(nvos46::H_MEMORY)?,
        word(nvos46::FLAGS)?,
    );
    let offset = u64_at(arg, nvos46::OFFSET).ok_or(INVALID)?;
    let length = u64_at(arg, nvos46::LENGTH).ok_or(INVALID)?;
    let dma_offset_at = usize::try_from(nvos46::DMA_OFFSET.of(context.hardware.release))
        .map_err(|_wide| INVALID)?;
    let address = u64_at(arg, dma_offset_at).ok_or(INVALID)?;
    let names = Parties {
        client,
        device,
        mapper,
        memory: handle,
    };
    let (space, memory) = names.found(state, context, (offset, length))?;
    let object = state.object(context, client, handle)?;
    if let Resource::Memory(_memory, spaces) = &mut object.resource {
        spaces.retain(|known| known.strong_count() > 0);
        if !spaces
            .iter()
            .any(|known| known.as_ptr() == Arc::as_ptr(&space))
        {
            spaces.push(Arc::downgrade(&space));
        }
    }
    let made_by = MadeBy::Dma {
        client,
        memory: handle,
    };
    let mapped = if flags & DMA_OFFSET_FIXED != 0 {
        space
            .map(address, length, memory, offset, made_by)
            .then_some(address)
    } else {
        space.map_somewhere(length, memory, offset, made_by)
    };
    put_u64(
        arg,
        dma_offset_at,
        mapped.ok_or(Refusal(NV_ERR_INVALID_ADDRESS))?,
    );
    Ok(())
}

pub(super) fn unmap_memory_dma(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (client, dma) = (word(nvos47::H_CLIENT)?, word(nvos47::H_DMA)?);
    let address = u64_at(arg, nvos47::DMA_OFFSET).ok_or(INVALID)?;
    let space = state.object(context, client, dma)?.space()?.clone();
    space
        .unmap_at(
            address,
            |made_by| matches!(made_by, MadeBy::Dma { client: of, .. } if of == client),
        )
        .map(|_bytes| ())
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
}
