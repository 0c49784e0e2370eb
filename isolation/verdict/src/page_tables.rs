//! Page tables of address space: the driver takes them out of the card, and no sum of it has them.
//!
//! For address space that is not lazy, RM keeps what its page tables would take if all of it were mapped in pages of 4 KiB: 2 GiB of the card
//! for 1 TiB of addresses (`virtmemConstruct_IMPL`, mem_mgr/virtual_mem.c; `gvaspaceReserveMempool_IMPL`, mem_mgr/gpu_vaspace.c; 535.261.03 to
//! 595.45.04). It keeps them in the card's pool even where the call then fails, so that a charge for the call would not cover them: one pool for
//! all VA spaces (`memmgrPageLevelPoolsGetInfo`, gpu/mem_mgr/mem_mgr.c), which gives nothing back while any of them has a page table out of it
//! (`rmMemPoolRelease`, mem_mgr/pool_alloc.c).
//! A mapping keeps what it needs in any case (`virtmemReserveMempool`, rmapi/mapping.c). So every such allocation is made a lazy one.
//!
//! A sparse one cannot be: RM takes the flag away again (`stdmemValidateParams`, mem_mgr/standard_mem.c).

use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::{memory_params as params, nvos21, nvos32};
use nvabi::{Release, class, escape, status};

use crate::page_size::Requested;
use crate::{Op, Refusal};

/// Refuses sparse address space whose page tables would be RM's.
pub(crate) fn check(requested: &Requested, op: &Op, release: Release) -> Result<(), Refusal> {
    let is_ours = requested.flags & params::FLAG_EXTERNALLY_MANAGED != 0;
    if requested.flags & params::FLAG_SPARSE != 0 && !is_ours {
        return Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release));
    }
    Ok(())
}

/// Makes an allocation of address space by `VID_HEAP_CONTROL` a lazy one, in its struct. Nothing else is touched.
pub fn defer_in_argument(op: &Op, argument: &mut [u8]) {
    let is_allocation = op.escape() == Some(escape::Id::VidHeapControl)
        && u32_at(argument, nvos32::FUNCTION) == Some(nvos32::FUNCTION_ALLOC_SIZE);
    if is_allocation {
        defer(argument, nvos32::ALLOC_FLAGS);
    }
}

/// The same of an allocation by `RM_ALLOC`, in its parameters.
pub fn defer_in_parameters(op: &Op, argument: &[u8], parameters: &mut [u8]) {
    let is_allocation = matches!(op.escape(), Some(escape::Id::Alloc | escape::Id::AllocLong));
    if is_allocation && u32_at(argument, nvos21::H_CLASS) == Some(class::NV50_MEMORY_VIRTUAL) {
        defer(parameters, params::FLAGS);
    }
}

fn defer(block: &mut [u8], flags_at: usize) {
    let Some(flags) = u32_at(block, flags_at) else {
        return;
    };
    if flags & params::FLAG_VIRTUAL != 0 {
        put_u32(block, flags_at, flags | params::FLAG_LAZY);
    }
}
