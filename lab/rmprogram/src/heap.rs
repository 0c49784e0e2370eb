//! The deprecated heap call, `NV_ESC_RM_VID_HEAP_CONTROL`: old programs still allocate through it.

use nvabi::layout::nvos32;
use nvabi::{bytes, escape};
use rmclient::{Card, Handle, checked};

use crate::Error;
use crate::memory::{ATTR_ALLOW_NONCONTIGUOUS, Allocation};

/// What `NVOS32_FUNCTION_INFO` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapInfo {
    /// Heap in bytes.
    pub total_bytes: u64,
    /// Free heap in bytes.
    pub free_bytes: u64,
    /// The largest free block in bytes.
    pub largest_bytes: u64,
}

/// A card's memory by the heap call.
pub trait CardHeap {
    /// Allocates through `NVOS32_FUNCTION_ALLOC_SIZE`.
    ///
    /// # Errors
    /// As [`crate::CardMemory::allocate`].
    fn heap_allocate(&self, size_bytes: u64) -> Result<Allocation, Error>;

    /// Frees through `NVOS32_FUNCTION_FREE`.
    ///
    /// # Errors
    /// The driver's status.
    fn heap_free(&self, memory: Handle) -> Result<(), Error>;

    /// Total and free memory as `NVOS32_FUNCTION_INFO` tells them.
    ///
    /// # Errors
    /// The driver's status.
    fn heap_info(&self) -> Result<HeapInfo, Error>;
}

impl CardHeap for Card<'_> {
    fn heap_allocate(&self, size_bytes: u64) -> Result<Allocation, Error> {
        let handle = self.client().new_handle();
        let mut arg = request(self, nvos32::FUNCTION_ALLOC_SIZE);
        bytes::put_u32(&mut arg, OWNER_AT, self.client().root().0);
        bytes::put_u32(&mut arg, nvos32::ALLOC_H_MEMORY, handle.0);
        bytes::put_u32(&mut arg, nvos32::ALLOC_ATTR, ATTR_ALLOW_NONCONTIGUOUS);
        bytes::put_u64(&mut arg, nvos32::ALLOC_SIZE, size_bytes);
        call(self, &mut arg)?;
        let handle = bytes::u32_at(&arg, nvos32::ALLOC_H_MEMORY).map_or(handle, Handle);
        let bytes = bytes::u64_at(&arg, nvos32::ALLOC_SIZE).unwrap_or(size_bytes);
        Ok(Allocation { handle, bytes })
    }

    fn heap_free(&self, memory: Handle) -> Result<(), Error> {
        let mut arg = request(self, nvos32::FUNCTION_FREE);
        bytes::put_u32(&mut arg, nvos32::FREE_H_MEMORY, memory.0);
        call(self, &mut arg)
    }

    fn heap_info(&self) -> Result<HeapInfo, Error> {
        let mut arg = request(self, nvos32::FUNCTION_INFO);
        call(self, &mut arg)?;
        let at = |offset| bytes::u64_at(&arg, offset).unwrap_or(0);
        Ok(HeapInfo {
            total_bytes: at(nvos32::TOTAL),
            free_bytes: at(nvos32::FREE),
            largest_bytes: at(nvos32::INFO_SIZE),
        })
    }
}

/// `NVOS32_PARAMETERS.data.AllocSize.owner`
const OWNER_AT: usize = 40;

fn request(card: &Card<'_>, function: u32) -> [u8; 184] {
    let mut arg = [0u8; 184];
    bytes::put_u32(&mut arg, nvos32::H_ROOT, card.client().root().0);
    bytes::put_u32(&mut arg, nvos32::H_PARENT, card.device().0);
    bytes::put_u32(&mut arg, nvos32::FUNCTION, function);
    arg
}

fn call(card: &Card<'_>, arg: &mut [u8]) -> Result<(), Error> {
    let escape = escape::NV_ESC_RM_VID_HEAP_CONTROL;
    let cmd = escape.cmd(card.client().release());
    card.client().ctl().call(escape.name, cmd, arg, &mut [])?;
    Ok(checked(escape.name, arg, nvos32::STATUS)?)
}
