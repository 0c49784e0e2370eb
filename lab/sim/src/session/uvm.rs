//! The ioctls of `/dev/nvidia-uvm`: external ranges, and the maps in them that hold memory.
//!
//! Managed memory is whatever the process has mapped of its file (`managed`): policies and migrations are accepted on it
//! and move nothing. A semaphore pool is memory of the host in a range of its own.

use std::sync::Arc;

use driver::FileKind;
use driver::wire::Replaces;
use nvabi::bytes::{array_at, put, put_u32, put_u64, u32_at, u64_at};
use nvabi::status::{
    NV_ERR_GPU_UUID_NOT_FOUND, NV_ERR_ILLEGAL_ACTION, NV_ERR_INVALID_ADDRESS,
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_DEVICE,
    NV_ERR_INVALID_LIMIT, NV_ERR_INVALID_STATE, NV_ERR_NO_MEMORY, NV_ERR_NOT_SUPPORTED,
    NV_ERR_OBJECT_NOT_FOUND, NV_ERR_PAGE_TABLE_NOT_AVAIL, NV_OK,
};
use nvabi::uvm::{self, Id, map_external};

use super::heap::{ENTRY_BYTES, KIB64, system_memory};
use super::objects::Resource;
use super::uvm_files::UvmFile;
use super::{Context, EFAULT, EINVAL, Ioctl, Replacement, Segments, State};
use crate::card::SimCard;
use crate::managed::Managed;
use crate::refusal::Refusal;
use crate::vaspace::MadeBy;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
const BAD_ADDRESS: Refusal = Refusal(NV_ERR_INVALID_ADDRESS);
/// Bytes of `UVM_FREE_PARAMS` in the releases where it names a length.
const FREE_WITH_LENGTH_BYTES: usize = 24;
/// Addresses and lengths are whole pages.
const PAGE_BYTES: u64 = 4096;

pub(super) fn execute(
    state: &mut State,
    context: &Context<'_>,
    cmd: u32,
    segments: &mut Segments,
) -> Ioctl {
    if cmd == uvm::UVM_DEINITIALIZE {
        return Ioctl::returns(0);
    }
    let release = context.hardware.release;
    let Some(row) = uvm::row(cmd, release) else {
        return Ioctl::returns(EINVAL);
    };
    let size = usize::try_from(row.size.of(release)).unwrap_or(usize::MAX);
    let Some(block) = segments.first_mut().filter(|block| block.len() >= size) else {
        return Ioctl::returns(EFAULT);
    };
    let mut replacement = None;
    let result = match row.id {
        Id::Initialize => {
            let flags = u32_at(block, uvm::INITIALIZE_FLAGS).unwrap_or_default();
            initialise(state, context, flags).map(|file| replacement = file)
        }
        Id::MmInitialize => match context
            .fd_at(0, uvm::MM_INITIALIZE_FD)
            .and_then(|fd| fd.file)
        {
            Some((space, FileKind::Uvm)) => state.uvm.keep_mm(context.file, space),
            Some(_) | None => Err(INVALID),
        },
        id => run(state, context, id, size, block),
    };
    let status = result.map_or_else(
        |Refusal(status)| {
            tracing::debug!(call = row.name, status, "refused");
            status
        },
        |()| NV_OK,
    );
    let status_at = usize::try_from(row.status.of(release)).unwrap_or(usize::MAX);
    let ret = if put_u32(block, status_at, status) {
        0
    } else {
        EFAULT
    };
    Ioctl { ret, replacement }
}

/// Binds the file to the caller's address space, and puts one in its place that managed memory can be mapped through.
fn initialise(
    state: &mut State,
    context: &Context<'_>,
    flags: u32,
) -> Result<Option<Replacement>, Refusal> {
    if let Some(known) = state.uvm.get(context.file) {
        // uvm.c, `uvm_api_initialize`
        return (known.flags() == flags).then_some(None).ok_or(INVALID);
    }
    if state.uvm.is_mm(context.file) {
        return Err(INVALID);
    }
    let no_memory = |error| {
        tracing::warn!(%error, "no file for managed memory");
        Refusal(NV_ERR_NO_MEMORY)
    };
    let managed = Managed::new(context.caller.tgid).map_err(no_memory)?;
    let file = managed.file().map_err(no_memory)?;
    state.uvm.initialise(context.file, flags, managed);
    Ok(Some(Replacement {
        replaces: Replaces::CalledOn,
        fd: file.into(),
    }))
}

fn run(
    state: &mut State,
    context: &Context<'_>,
    id: Id,
    size: usize,
    block: &mut [u8],
) -> Result<(), Refusal> {
    if state.uvm.get(context.file).is_none() {
        return Err(Refusal(NV_ERR_ILLEGAL_ACTION));
    }
    match id {
        Id::RegisterGpuVaspace => return register_space(state, context, block),
        Id::MapExternalAllocation => return map_external_allocation(state, context, block),
        Id::RegisterChannel => return register_channel(state, context, block),
        _of_the_file_alone => {}
    }
    let file = state
        .uvm
        .get_mut(context.file)
        .ok_or(Refusal(NV_ERR_ILLEGAL_ACTION))?;
    match id {
        Id::RegisterGpu => register_card(file, context, block),
        Id::UnregisterGpu => unregister_card(file, context, block),
        Id::UnregisterGpuVaspace => unregister_space(file, context, block),
        Id::EnablePeerAccess | Id::DisablePeerAccess => {
            file.require_card(card_at(context, block, 0)?)?;
            file.require_card(card_at(context, block, 16)?)
        }
        Id::UnregisterChannel => unregister_channel(file, context, block),
        Id::PageableMemAccess => {
            put(block, 0, &[0]);
            Ok(())
        }
        Id::PageableMemAccessOnGpu => {
            file.require_card(card_at(context, block, 0)?)?;
            put(block, 16, &[0]);
            Ok(())
        }
        Id::CreateExternalRange => {
            let (base, last) = span(block)?;
            file.reserve(base, last)
        }
        Id::AllocSemaphorePool => alloc_semaphore_pool(file, context, block),
        // {rangeGroupId 0:8} (uvm_range_group.c)
        Id::CreateRangeGroup => {
            file.groups_made += 1;
            file.groups.insert(file.groups_made);
            put_u64(block, 0, file.groups_made);
            Ok(())
        }
        Id::DestroyRangeGroup => {
            let group = u64_at(block, 0).ok_or(INVALID)?;
            match file.groups.remove(&group) {
                true => Ok(()),
                false => Err(Refusal(NV_ERR_OBJECT_NOT_FOUND)),
            }
        }
        Id::SetRangeGroup => set_range_group(file, block),
        Id::Free => free(file, context, size, block),
        Id::UnmapExternal => unmap_external(file, context, block),
        Id::ValidateVaRange => {
            let (base, last) = span(block)?;
            if file.range_around(base, last).is_some() || file.managed.covers(base, last) {
                Ok(())
            } else {
                Err(BAD_ADDRESS)
            }
        }
        Id::SetPreferredLocation
        | Id::UnsetPreferredLocation
        | Id::EnableReadDuplication
        | Id::DisableReadDuplication
        | Id::SetAccessedBy
        | Id::UnsetAccessedBy
        | Id::Migrate => settle_managed(file, context, id, block),
        Id::MapExternalSparse => map_sparse(file, context, block),
        Id::AllocDeviceP2p
        | Id::ClearAllAccessCounters
        | Id::MapDynamicParallelismRegion
        | Id::MigrateRangeGroup => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
        // Done above.
        Id::Initialize
        | Id::MmInitialize
        | Id::RegisterGpuVaspace
        | Id::MapExternalAllocation
        | Id::RegisterChannel => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
    }
}

/// `{uuid 0:16, numaEnabled 16:1, numaNodeId 20}`
fn register_card(
    file: &mut UvmFile,
    context: &Context<'_>,
    block: &mut [u8],
) -> Result<(), Refusal> {
    let card = card_at(context, block, 0)?;
    card.alive()?;
    if !file.takes_work() {
        return Err(Refusal(NV_ERR_PAGE_TABLE_NOT_AVAIL));
    }
    file.cards.entry(card.index).or_default();
    put(block, 16, &[0]);
    put_u32(block, 20, u32::MAX);
    Ok(())
}

fn unregister_card(file: &mut UvmFile, context: &Context<'_>, block: &[u8]) -> Result<(), Refusal> {
    let card = card_at(context, block, 0)?;
    let space = file
        .cards
        .remove(&card.index)
        .ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
    file.let_go(card.index);
    if let Some(space) = space {
        file.leave(&space, context.file);
    }
    Ok(())
}

fn unregister_space(
    file: &mut UvmFile,
    context: &Context<'_>,
    block: &[u8],
) -> Result<(), Refusal> {
    let card = card_at(context, block, 0)?;
    let space = file
        .cards
        .get_mut(&card.index)
        .and_then(Option::take)
        .ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
    file.let_go(card.index);
    file.leave(&space, context.file);
    Ok(())
}

/// `{base 0:8, length 8:8, attributes of cards 24, their count}`: the host's memory in a range of its own, which every card with an
/// address space reaches (`uvm_api_alloc_semaphore_pool`, uvm_map_external.c).
fn alloc_semaphore_pool(
    file: &mut UvmFile,
    context: &Context<'_>,
    block: &[u8],
) -> Result<(), Refusal> {
    let (base, last) = span(block)?;
    let memory = system_memory(last - base + 1)?;
    file.reserve(base, last)?;
    for space in file.spaces() {
        let made_by = MadeBy::Uvm(context.file);
        space.map(base, last - base + 1, memory.clone(), 0, made_by);
    }
    Ok(())
}

/// `{rangeGroupId 0:8, requestedBase 8:8, length 16:8}`; 0 is no group.
fn set_range_group(file: &UvmFile, block: &[u8]) -> Result<(), Refusal> {
    let group = u64_at(block, 0).ok_or(INVALID)?;
    let (base, last) = span(block.get(8..).ok_or(INVALID)?)?;
    if group != 0 && !file.groups.contains(&group) {
        return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND));
    }
    match file.managed.covers(base, last) {
        true => Ok(()),
        false => Err(BAD_ADDRESS),
    }
}

/// Only a whole range is freed, named by its base and, before 595, its length.
fn free(
    file: &mut UvmFile,
    context: &Context<'_>,
    size: usize,
    block: &[u8],
) -> Result<(), Refusal> {
    let base = u64_at(block, 0).ok_or(INVALID)?;
    let last = if size >= FREE_WITH_LENGTH_BYTES {
        span(block)?.1
    } else if let Some(last) = file.ranges.get(&base) {
        *last
    } else {
        // Where managed memory ends is not known, since the kernel joins maps: its pages stay until they are unmapped.
        return file.managed.place(base).map(drop).ok_or(BAD_ADDRESS);
    };
    if file.ranges.get(&base) != Some(&last) {
        if file.range_around(base, last).is_some() || !file.managed.covers(base, last) {
            return Err(BAD_ADDRESS);
        }
        return file
            .managed
            .discard(base, last - base + 1)
            .map_err(|_failed| BAD_ADDRESS);
    }
    file.ranges.remove(&base);
    file.sparse.remove(&base);
    for space in file.spaces() {
        space.unmap(base, last - base + 1, |made_by| {
            made_by == MadeBy::Uvm(context.file)
        });
    }
    Ok(())
}

fn unmap_external(file: &UvmFile, context: &Context<'_>, block: &[u8]) -> Result<(), Refusal> {
    let (base, last) = span(block)?;
    let card = card_at(context, block, 16)?;
    file.range_around(base, last).ok_or(BAD_ADDRESS)?;
    let space = file.space_of(card)?;
    space.unmap(base, last - base + 1, |made_by| {
        made_by == MadeBy::Uvm(context.file)
    });
    Ok(())
}

/// What is to become of managed pages (`base 0:8, length 8:8`, then a processor where there is one).
fn settle_managed(
    file: &UvmFile,
    context: &Context<'_>,
    id: Id,
    block: &mut [u8],
) -> Result<(), Refusal> {
    let (base, last) = span(block)?;
    if !file.managed.covers(base, last) {
        return Err(BAD_ADDRESS);
    }
    let names_processor = matches!(
        id,
        Id::SetPreferredLocation | Id::SetAccessedBy | Id::UnsetAccessedBy | Id::Migrate
    );
    // Every processor but a card is the host.
    if names_processor && let Ok(card) = card_at(context, block, 16) {
        card.alive()?;
        file.require_card(card)?;
    }
    if id == Id::Migrate {
        // {…, userSpaceStart 56:8, userSpaceLength 64:8}: nothing is left for user space to do.
        put_u64(block, 56, 0);
        put_u64(block, 64, 0);
    }
    Ok(())
}

/// `base 0:8, length 8:8` as first and last address.
fn span(block: &[u8]) -> Result<(u64, u64), Refusal> {
    let base = u64_at(block, 0).ok_or(INVALID)?;
    let length = u64_at(block, 8).ok_or(INVALID)?;
    if !base.is_multiple_of(PAGE_BYTES) || !length.is_multiple_of(PAGE_BYTES) {
        return Err(BAD_ADDRESS);
    }
    let last = length
        .checked_sub(1)
        .and_then(|more| base.checked_add(more))
        .ok_or(BAD_ADDRESS)?;
    Ok((base, last))
}

/// Page tables for all of an external range, of entries for 64 KiB each (`uvm_map_external_sparse_on_gpu`, uvm_map_external.c).
fn map_sparse(file: &mut UvmFile, context: &Context<'_>, block: &[u8]) -> Result<(), Refusal> {
    let ((base, last), card) = (span(block)?, card_at(context, block, 16)?);
    file.space_of(card)?;
    if file.ranges.get(&base) != Some(&last) {
        return Err(INVALID);
    }
    let tables = ((last - base) / KIB64 + 1).saturating_mul(ENTRY_BYTES);
    let charge = card.charge(context.session, context.caller.tgid, tables)?;
    file.sparse.insert(base, charge);
    Ok(())
}

fn card_at<'a>(
    context: &Context<'a>,
    block: &[u8],
    at: usize,
) -> Result<&'a Arc<SimCard>, Refusal> {
    let uuid: [u8; 16] = array_at(block, at).ok_or(INVALID)?;
    context
        .hardware
        .cards
        .iter()
        .find(|card| card.profile.uuid == uuid)
        .ok_or(Refusal(NV_ERR_GPU_UUID_NOT_FOUND))
}

/// `{uuid 0:16, rmCtrlFd 16, hClient 20, hVaSpace 24}`
fn register_space(state: &mut State, context: &Context<'_>, block: &[u8]) -> Result<(), Refusal> {
    let card = card_at(context, block, 0)?;
    card.alive()?;
    let client = u32_at(block, 20).ok_or(INVALID)?;
    let handle = u32_at(block, 24).ok_or(INVALID)?;
    let object = state
        .clients
        .get(&client)
        .ok_or(Refusal(NV_ERR_INVALID_CLIENT))?
        .object(handle)?;
    let on_card = object
        .card
        .as_ref()
        .is_some_and(|of| of.index == card.index);
    let implicit = object.implicit.clone();
    let space = match &object.resource {
        Resource::VaSpace(space) if on_card => space.clone(),
        Resource::VaSpace(_)
        | Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice(_)
        | Resource::Memory(..)
        | Resource::Virtual(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Channel(_)
        | Resource::Plain
        | Resource::Invalidated => return Err(INVALID),
    };
    let file = state
        .uvm
        .get_mut(context.file)
        .ok_or(Refusal(NV_ERR_ILLEGAL_ACTION))?;
    let has_mm = file.has_mm();
    match file.cards.get_mut(&card.index) {
        Some(_) if !has_mm => Err(Refusal(NV_ERR_PAGE_TABLE_NOT_AVAIL)),
        Some(slot @ None) => {
            space.manage(file.managed.clone());
            *slot = Some(space);
            file.space_charges
                .extend(implicit.map(|it| (card.index, it)));
            Ok(())
        }
        Some(Some(_registered)) => Err(Refusal(NV_ERR_INVALID_STATE)),
        None => Err(Refusal(NV_ERR_INVALID_DEVICE)),
    }
}

/// `{uuid 0:16, rmCtrlFd 16, hClient 20, hChannel 24, base 32:8, length 40:8}`: the channel must exist on the card. It is
/// found again by client and handle, whatever they name then; until it is unregistered the driver keeps it and its group (`nvGpuOpsRetainChannel`,
/// nv_gpu_ops.c).
fn register_channel(state: &mut State, context: &Context<'_>, block: &[u8]) -> Result<(), Refusal> {
    let card = card_at(context, block, 0)?;
    let client = u32_at(block, 20).ok_or(INVALID)?;
    let handle = u32_at(block, 24).ok_or(INVALID)?;
    let of_client = state
        .clients
        .get(&client)
        .ok_or(Refusal(NV_ERR_INVALID_CLIENT))?;
    let object = of_client.object(handle)?;
    let on_card = object
        .card
        .as_ref()
        .is_some_and(|of| of.index == card.index);
    // uvm_user_channel.c, `uvm_register_channel_under_write`: they are stopped for good.
    if state
        .uvm
        .get(context.file)
        .is_some_and(|file| !file.takes_work())
    {
        return Err(Refusal(NV_ERR_INVALID_STATE));
    }
    match &object.resource {
        Resource::Channel(channel) if on_card => channel.alive()?,
        Resource::Channel(_)
        | Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice(_)
        | Resource::Memory(..)
        | Resource::Virtual(_)
        | Resource::VaSpace(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Plain
        | Resource::Invalidated => return Err(Refusal(NV_ERR_OBJECT_NOT_FOUND)),
    }
    let above = of_client.object(object.parent).ok();
    let charges = [Some(object), above].into_iter().flatten();
    let charges = charges.filter_map(|it| it.implicit.clone()).collect();
    let file = state
        .uvm
        .get_mut(context.file)
        .ok_or(Refusal(NV_ERR_ILLEGAL_ACTION))?;
    file.space_of(card)?;
    if file.channels.contains_key(&(client, handle)) {
        return Err(Refusal(NV_ERR_INVALID_CHANNEL));
    }
    let kept = (card.index, charges);
    file.channels.insert((client, handle), kept);
    Ok(())
}

/// `{hClient, hChannel}`, before 590 behind a UUID that the driver does not look at.
fn unregister_channel(
    file: &mut UvmFile,
    context: &Context<'_>,
    block: &[u8],
) -> Result<(), Refusal> {
    let release = context.hardware.release;
    let word = |at: nvabi::PerRelease| {
        let at = usize::try_from(at.of(release)).unwrap_or(usize::MAX);
        u32_at(block, at).ok_or(INVALID)
    };
    let client = word(uvm::UNREGISTERED_CLIENT)?;
    let channel = word(uvm::UNREGISTERED_CHANNEL)?;
    match file.channels.remove(&(client, channel)) {
        Some(_let_go) => Ok(()),
        None => Err(Refusal(NV_ERR_INVALID_CHANNEL)),
    }
}

/// Maps memory on every card that the attributes name; each map holds the memory.
fn map_external_allocation(
    state: &State,
    context: &Context<'_>,
    block: &[u8],
) -> Result<(), Refusal> {
    let release = context.hardware.release;
    let at = |offset: nvabi::PerRelease| usize::try_from(offset.of(release)).unwrap_or(usize::MAX);
    let (base, last) = span(block)?;
    let bytes = last - base + 1;
    let offset = u64_at(block, map_external::OFFSET).ok_or(INVALID)?;
    let client = u32_at(block, at(map_external::H_CLIENT)).ok_or(INVALID)?;
    let handle = u32_at(block, at(map_external::H_MEMORY)).ok_or(INVALID)?;
    let count = u64_at(block, at(map_external::COUNT))
        .and_then(|count| usize::try_from(count).ok())
        .ok_or(INVALID)?;
    let most =
        at(map_external::COUNT).saturating_sub(map_external::PER_GPU) / map_external::PER_GPU_BYTES;
    if count == 0 || count > most {
        return Err(INVALID);
    }
    let file = state
        .uvm
        .get(context.file)
        .ok_or(Refusal(NV_ERR_ILLEGAL_ACTION))?;
    file.range_around(base, last).ok_or(BAD_ADDRESS)?;
    let memory = state
        .clients
        .get(&client)
        .ok_or(Refusal(NV_ERR_INVALID_CLIENT))?
        .object(handle)?
        .memory()?;
    // RM's sizes are whole pages, those of a client's own pages need not be.
    let size = memory
        .bytes
        .checked_next_multiple_of(PAGE_BYTES)
        .ok_or(INVALID)?;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(Refusal(NV_ERR_INVALID_LIMIT));
    }
    if let Some(charge) = &memory.charge {
        charge.card().alive()?;
    }
    let mut spaces = Vec::new();
    for entry in 0..count {
        let card = card_at(
            context,
            block,
            map_external::PER_GPU + entry * map_external::PER_GPU_BYTES,
        )?;
        card.alive()?;
        spaces.push(file.space_of(card)?);
    }
    for space in spaces {
        space.map(
            base,
            bytes,
            memory.clone(),
            offset,
            MadeBy::Uvm(context.file),
        );
    }
    Ok(())
}
