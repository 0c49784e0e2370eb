//! Memory: the framebuffer, the host's, and the client's own; the calls that only make memory.

use std::sync::Arc;

use driver::wire::Replaces;
use nvabi::Release;
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::class::{self, NV01_MEMORY_SYSTEM, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR};
use nvabi::layout::{memory_params, nvos02, nvos32};
use nvabi::status::{
    NV_ERR_INVALID_ADDRESS, NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CLASS,
    NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_INVALID_STATE, NV_ERR_NO_MEMORY, NV_ERR_NOT_SUPPORTED,
};

use super::objects::{Client, Object, Resource};
use super::{Context, Replacement, Segments, State, alloc};
use crate::card::{Charge, SimCard};
use crate::memory::{Backing, Memory};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
const MIB2: u64 = 2 << 20;
const MIB512: u64 = 512 << 20;
const GIB256: u64 = 256 << 30;
/// More than any host has; a larger size is a mistake that must not reach the memfd.
const MAX_SYSTEM_BYTES: u64 = 1 << 40;
/// `attr` bits 26:25: where memory shall be.
pub(super) const ATTR_LOCATION_MASK: u32 = memory_params::ATTR_LOCATION_MASK;
pub(super) const ATTR_LOCATION_PCI: u32 = 1 << 25;
pub(super) const ATTR_LOCATION_VIDMEM: u32 = 0;
/// Outputs of VID_HEAP_CONTROL's ALLOC_SIZE: the fields after `size` and `alignment` (nvos.h).
const HEAP_OFFSET: usize = 104;
const HEAP_LIMIT: usize = 112;
/// The host's page.
pub(super) const PAGE_BYTES: u64 = 4096;
pub(super) const KIB64: u64 = 64 << 10;
/// Of a page table, for each page.
pub(super) const ENTRY_BYTES: u64 = 8;
/// What PMA withdraws from all others for memory beside one half of a GPU (phys_mem_allocator/map_defines.h).
const LOCALIZED_BYTES: u64 = 64 << 20;

/// What a request for card memory says of its pages and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requested {
    pub(super) size: u64,
    pub(super) flags: u32,
    pub(super) attr: u32,
    pub(super) attr2: u32,
    pub(super) alignment: u64,
    /// Where it is wanted, if the flags say so.
    pub(super) offset: u64,
}

/// What an allocation is, and what is said of it.
struct Sizes {
    bytes: u64,
    /// Written back.
    reported: u64,
    /// Of the card.
    taken: u64,
}

impl Requested {
    /// The page, as RM determines it (`memmgrDeterminePageSize`): `attr2` counts only beside huge pages, and what the card or the
    /// release lacks is refused or, up to 555, taken for no wish.
    fn page(&self, context: &Context<'_>, card: &SimCard) -> Result<u64, Refusal> {
        let by_size = if self.size >= MIB2 { MIB2 } else { KIB64 };
        match self.attr & memory_params::ATTR_PAGE_SIZE_MASK {
            memory_params::ATTR_PAGE_SIZE_4K => Ok(PAGE_BYTES),
            memory_params::ATTR_PAGE_SIZE_BIG => Ok(KIB64),
            memory_params::ATTR_PAGE_SIZE_HUGE => {
                match self.attr2 & memory_params::ATTR2_HUGE_MASK {
                    memory_params::ATTR2_HUGE_512M => Ok(MIB512),
                    memory_params::ATTR2_HUGE_256G if context.hardware.release < Release::R560 => {
                        Ok(by_size)
                    }
                    memory_params::ATTR2_HUGE_256G
                        if card.profile.architecture.has_256g_pages() =>
                    {
                        Ok(GIB256)
                    }
                    memory_params::ATTR2_HUGE_256G => Err(Refusal(NV_ERR_INVALID_STATE)),
                    _two_mebibytes => Ok(MIB2),
                }
            }
            _default => Ok(by_size),
        }
    }

    /// PMA takes no less than 64 KiB pages, and at a chosen address whole alignments (`_vidmemPmaAllocate`). There the address's place in its
    /// alignment is taken off what is written back, whatever is left: RM's own heap said so (`lab/referee`).
    fn sizes(&self, page: u64, card: &SimCard) -> Option<Sizes> {
        let compressed = self.attr & memory_params::ATTR_COMPRESSION_MASK != 0;
        let granule = if compressed {
            page.max(KIB64 * 4)
        } else {
            page
        };
        let size = self.size.checked_next_multiple_of(granule)?;
        let aligned = memory_params::FLAG_ALIGNMENT_HINT | memory_params::FLAG_ALIGNMENT_FORCE;
        let alignment = Some(self.alignment)
            .filter(|at| self.flags & aligned != 0 && *at > granule && at.is_multiple_of(granule))
            .unwrap_or(granule);
        let is_localized = self.attr2 & memory_params::ATTR2_LOCALIZED_MASK != 0;
        let region = match is_localized && card.profile.architecture.has_256g_pages() {
            true => LOCALIZED_BYTES,
            false => PAGE_BYTES,
        };
        let is_placed = self.flags & memory_params::FLAG_FIXED_ADDRESS != 0;
        let placed = if !is_placed {
            size
        } else if alignment.is_power_of_two() {
            size.checked_next_multiple_of(alignment)?
        } else {
            size.checked_add(alignment)?
        };
        let off = if is_placed {
            self.offset & (alignment - 1)
        } else {
            0
        };
        Some(Sizes {
            bytes: size,
            reported: size.wrapping_sub(off),
            taken: placed.checked_next_multiple_of(page.max(KIB64).max(region))?,
        })
    }
}

/// Framebuffer, in the pages that are asked for, rounded as RM's physical allocator does; and the size that is written back.
pub(super) fn card_memory(
    client: &Client,
    context: &Context<'_>,
    card: &Arc<SimCard>,
    requested: &Requested,
) -> Result<(Arc<Memory>, u64), Refusal> {
    if requested.size == 0 {
        return Err(INVALID);
    }
    let page = requested.page(context, card)?;
    let sizes = requested
        .sizes(page, card)
        .ok_or(Refusal(NV_ERR_NO_MEMORY))?;
    let Sizes {
        bytes,
        reported,
        taken,
    } = sizes;
    let charge = card.charge(context.session, client.pid, taken)?;
    let memory = Memory {
        bytes,
        backing: Arc::new(Backing::own(bytes)),
        charge: Some(charge),
    };
    Ok((Arc::new(memory), reported))
}

/// What RM keeps of a card for the page tables of address space, in pages of 4 KiB, unless it is lazy or others make its tables
/// (`virtmemConstruct_IMPL`, virtual_mem.c). Sparse address space is never lazy (`stdmemValidateParams`, standard_mem.c).
pub(super) fn page_tables(
    client: &Client,
    context: &Context<'_>,
    card: &Arc<SimCard>,
    (size, flags): (u64, u32),
) -> Result<Option<Arc<Charge>>, Refusal> {
    let is_lazy = flags & memory_params::FLAG_LAZY != 0 && flags & memory_params::FLAG_SPARSE == 0;
    if is_lazy || flags & memory_params::FLAG_EXTERNALLY_MANAGED != 0 {
        return Ok(None);
    }
    let bytes = (size / PAGE_BYTES).saturating_mul(ENTRY_BYTES);
    let taken = bytes
        .checked_next_multiple_of(KIB64)
        .ok_or(Refusal(NV_ERR_NO_MEMORY))?;
    let charge = card.charge(context.session, client.pid, taken)?;
    Ok(Some(Arc::new(charge)))
}

/// The host's memory: not the card's, so not charged.
pub(super) fn system_memory(size: u64) -> Result<Arc<Memory>, Refusal> {
    let bytes = size
        .checked_next_multiple_of(PAGE_BYTES)
        .filter(|bytes| *bytes <= MAX_SYSTEM_BYTES)
        .ok_or(Refusal(NV_ERR_NO_MEMORY))?;
    if bytes == 0 {
        return Err(INVALID);
    }
    Ok(Arc::new(Memory {
        bytes,
        backing: Arc::new(Backing::own(bytes)),
        charge: None,
    }))
}

pub(super) fn alloc_memory(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<Option<Replacement>, Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (root, parent, needed, class) = (
        word(nvos02::H_ROOT)?,
        word(nvos02::H_PARENT)?,
        word(nvos02::H_NEW)?,
        word(nvos02::H_CLASS)?,
    );
    let address = u64_at(arg, nvos02::P_MEMORY).ok_or(INVALID)?;
    let size = u64_at(arg, nvos02::LIMIT)
        .and_then(|limit| limit.checked_add(1))
        .ok_or(INVALID)?;
    let client = state.client(context, root)?;
    client.check_handle(needed)?;
    let (_device, device) = client.device_of(parent)?;
    let card = device.card.clone();
    if let Some(card) = &card {
        card.alive()?;
    }
    let mut replacement = None;
    let memory = match class {
        NV01_MEMORY_SYSTEM_OS_DESCRIPTOR => {
            if address.checked_add(size).is_none() {
                return Err(Refusal(NV_ERR_INVALID_ADDRESS));
            }
            let backing = Backing::client(context.caller.tgid, address, size).map_err(|error| {
                tracing::warn!(pid = context.caller.tgid, %error, "pages of a client cannot be reached");
                Refusal(NV_ERR_INVALID_ADDRESS)
            })?;
            // Pinning fails where nothing is mapped, as get_user_pages does.
            for at in [0, size - 1] {
                backing
                    .read(at, &mut [0])
                    .map_err(|_unmapped| Refusal(NV_ERR_INVALID_ADDRESS))?;
            }
            Arc::new(Memory {
                bytes: size,
                backing: Arc::new(backing),
                charge: None,
            })
        }
        NV01_MEMORY_SYSTEM => {
            let memory = system_memory(size)?;
            if let Some(fd) = context.fd_at(0, nvos02::FD).filter(|fd| fd.file.is_some()) {
                let shared = memory
                    .backing
                    .share()
                    .map_err(|_failed| Refusal(NV_ERR_NO_MEMORY))?;
                replacement = Some(Replacement {
                    replaces: Replaces::Number(fd.number),
                    fd: shared,
                });
            }
            memory
        }
        _other => return Err(Refusal(NV_ERR_INVALID_CLASS)),
    };
    let handle = client.insert(
        needed,
        Object::new(class, parent, card, Resource::Memory(memory, Vec::new())),
    )?;
    put_u32(arg, nvos02::H_NEW, handle);
    Ok(replacement)
}

pub(super) fn vid_heap_control(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let arg = segments.first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (root, parent) = (word(nvos32::H_ROOT)?, word(nvos32::H_PARENT)?);
    match word(nvos32::FUNCTION)? {
        nvos32::FUNCTION_ALLOC_SIZE => {
            let needed = word(nvos32::ALLOC_H_MEMORY)?;
            let wide = |at| u64_at(arg, at).ok_or(INVALID);
            let requested = Requested {
                size: wide(nvos32::ALLOC_SIZE)?,
                flags: word(nvos32::ALLOC_FLAGS)?,
                attr: word(nvos32::ALLOC_ATTR)?,
                attr2: word(nvos32::ALLOC_ATTR2)?,
                alignment: wide(nvos32::ALLOC_ALIGNMENT)?,
                offset: wide(HEAP_OFFSET)?,
            };
            let Requested {
                size, flags, attr, ..
            } = requested;
            let client = state.client(context, root)?;
            client.check_handle(needed)?;
            let (_handle, device) = client.device_of(parent)?;
            let card = device
                .card
                .clone()
                .ok_or(Refusal(NV_ERR_INVALID_OBJECT_PARENT))?;
            card.alive()?;
            let mut tables = None;
            let (class, resource, bytes, offset) = if flags & memory_params::FLAG_VIRTUAL != 0 {
                if size == 0 {
                    return Err(INVALID);
                }
                tables = page_tables(client, context, &card, (size, flags))?;
                (
                    class::NV01_MEMORY_VIRTUAL,
                    Resource::Virtual(device.space()?.clone()),
                    size,
                    0,
                )
            } else {
                let (class, memory, reported) = if attr & ATTR_LOCATION_MASK != ATTR_LOCATION_VIDMEM
                {
                    let memory = system_memory(size)?;
                    let bytes = memory.bytes;
                    (NV01_MEMORY_SYSTEM, memory, bytes)
                } else {
                    let (memory, reported) = card_memory(client, context, &card, &requested)?;
                    (class::NV01_MEMORY_LOCAL_USER, memory, reported)
                };
                let offset = memory.charge.as_ref().map_or(0, |charge| charge.offset);
                (
                    class,
                    Resource::Memory(memory, Vec::new()),
                    reported,
                    offset,
                )
            };
            let object = Object {
                implicit: tables,
                ..Object::new(class, parent, Some(card), resource)
            };
            let handle = client.insert(needed, object)?;
            put_u32(arg, nvos32::ALLOC_H_MEMORY, handle);
            put_u64(arg, nvos32::ALLOC_SIZE, bytes);
            put_u64(arg, HEAP_OFFSET, offset);
            put_u64(arg, HEAP_LIMIT, bytes.wrapping_sub(1));
            Ok(())
        }
        nvos32::FUNCTION_FREE => {
            let handle = word(nvos32::FREE_H_MEMORY)?;
            alloc::free(state, context, root, handle)
        }
        nvos32::FUNCTION_INFO => {
            let client = state.client(context, root)?;
            let (_handle, device) = client.device_of(parent)?;
            let card = device
                .card
                .as_ref()
                .ok_or(Refusal(NV_ERR_INVALID_OBJECT_PARENT))?;
            card.alive()?;
            let free = card.free_bytes();
            put_u64(arg, nvos32::TOTAL, card.profile.memory_bytes);
            put_u64(arg, nvos32::FREE, free);
            put_u64(arg, nvos32::INFO_SIZE, free);
            Ok(())
        }
        _other => Err(Refusal(NV_ERR_NOT_SUPPORTED)),
    }
}
