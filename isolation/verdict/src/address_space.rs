//! Which address spaces a tenant may make: a new one, or another name for its device's own.
//!
//! RM asks no right for the others (`vaspaceapiConstruct_IMPL`, gpu/mem_mgr/vaspace_api.c; 535.261.03 to 595.45.04). The global one is one
//! for all clients of a card. One with the flag IS_FLA is not destroyed when it is freed, and stays in the driver with its page tables.
//! SKIP_SCRUB_MEMPOOL leaves what page tables were in uncleared, and the tables of PTETABLE_HEAP_MANAGED come out of what RM keeps of the
//! card for itself.

use nvabi::bytes::u32_at;
use nvabi::errno::EFAULT;
use nvabi::layout::va_space_params as params;
use nvabi::{Release, status};

use crate::{Op, Refusal};

/// What programs set, and hints that touch nothing but the space itself. RM looks at what goes together.
const ADMITTED: u32 = params::FLAG_MINIMIZE_PTETABLE_SIZE
    | params::FLAG_RETRY_PTE_ALLOC_IN_SYS
    | params::FLAG_SHARED_MANAGEMENT
    | params::FLAG_IS_EXTERNALLY_OWNED
    | params::FLAG_ENABLE_NVLINK_ATS
    | params::FLAG_ENABLE_PAGE_FAULTING
    | params::FLAG_OPTIMIZE_PTETABLE_MEMPOOL_USAGE
    | params::FLAG_REQUIRE_FIXED_OFFSET;

/// Refuses address spaces that are others' too, or that take of the card what nobody counts. RM refuses one without parameters itself.
pub(crate) fn check(block: Option<&[u8]>, op: &Op, release: Release) -> Result<(), Refusal> {
    let Some(block) = block else {
        return Ok(());
    };
    let word = |at| u32_at(block, at).ok_or(Refusal::Errno(EFAULT));
    let is_own = matches!(
        word(params::INDEX)?,
        params::INDEX_NEW | params::INDEX_DEVICE
    );
    if is_own && word(params::FLAGS)? & !ADMITTED == 0 {
        Ok(())
    } else {
        Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))
    }
}
