//! Mapping memory for the CPU, and into the address spaces of RM.

use std::sync::Arc;

use driver::wire::Replaces;
use nvabi::bytes::{put_u64, u32_at, u64_at};
use nvabi::layout::{nvos33, nvos46, nvos47};
use nvabi::status::{
    NV_ERR_INVALID_ADDRESS, NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_LIMIT, NV_ERR_NO_MEMORY,
    NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND,
};

use super::objects::Resource;
use super::{Context, Refusal, Replacement, Segments, State};
use crate::memory::Backing;
use crate::vaspace::MadeBy;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NVOS46_FLAGS_DMA_OFFSET_FIXED`
const DMA_OFFSET_FIXED: u32 = 1 << 15;
/// `hDma` of NVOS47 (nvos.h).
const NVOS47_H_DMA: usize = 8;

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
    let object = state.object(context, client, handle)?;
    if let Some(card) = &object.card {
        card.alive()?;
    }
    let backing: Arc<Backing> = match &object.resource {
        Resource::Channel(channel) => channel.userd().clone(),
        Resource::Memory(..)
        | Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice
        | Resource::Virtual(_)
        | Resource::VaSpace(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Plain => object.memory()?.backing.clone(),
    };
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
    let slot = context
        .fd_at(0, nvos33::FD)
        .filter(|slot| slot.file.is_some())
        .ok_or(INVALID)?;
    let fd = backing.share().map_err(|error| {
        if error.kind() == std::io::ErrorKind::Unsupported {
            Refusal(NV_ERR_NOT_SUPPORTED)
        } else {
            Refusal(NV_ERR_NO_MEMORY)
        }
    })?;
    put_u64(arg, nvos33::P_LINEAR, 0);
    Ok(Some(Replacement {
        replaces: Replaces::Number(slot.number),
        fd,
    }))
}

/// The mapping is the client's own: there is nothing to take back.
pub(super) fn unmap_memory(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, nvos33::H_CLIENT).ok_or(INVALID)?;
    let handle = u32_at(arg, nvos33::H_MEMORY).ok_or(INVALID)?;
    state.object(context, client, handle).map(|_object| ())
}

pub(super) fn map_memory_dma(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (client, dma, handle, flags) = (
        word(nvos46::H_CLIENT)?,
        word(nvos46::H_DMA)?,
        word(nvos46::H_MEMORY)?,
        word(nvos46::FLAGS)?,
    );
    let offset = u64_at(arg, nvos46::OFFSET).ok_or(INVALID)?;
    let length = u64_at(arg, nvos46::LENGTH).ok_or(INVALID)?;
    let dma_offset_at = usize::try_from(nvos46::DMA_OFFSET.of(context.hardware.release))
        .map_err(|_wide| INVALID)?;
    let address = u64_at(arg, dma_offset_at).ok_or(INVALID)?;
    let space = state.object(context, client, dma)?.space()?.clone();
    let object = state.object(context, client, handle)?;
    if let Some(card) = &object.card {
        card.alive()?;
    }
    let memory = object.memory()?.clone();
    if length == 0
        || offset
            .checked_add(length)
            .is_none_or(|end| end > memory.bytes)
    {
        return Err(Refusal(NV_ERR_INVALID_LIMIT));
    }
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
    let (client, dma) = (word(nvos47::H_CLIENT)?, word(NVOS47_H_DMA)?);
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
