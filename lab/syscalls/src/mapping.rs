//! Shared mappings, read and written word by word.
//!
//! UNSAFETY: the other side of a shared mapping changes it at any time, so no reference into it may exist; accesses are
//! volatile and in bounds.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A shared, writable mapping of a file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all access is volatile.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent volatile accesses of aligned words do not tear on the architectures supported.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a file from its offset 0.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for no bytes.
    pub fn shared(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                file,
                0,
            )
        }?;
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// Maps `bytes` of a file at an address of the kernel's choice, from the offset that is that address: how managed memory
    /// of `nvidia-uvm` is mapped.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for no bytes.
    pub fn at_its_offset(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let reserved = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, flags) }?;
        let reserved = Self {
            start: reserved.cast(),
            bytes,
        };
        let offset = i64::try_from(reserved.address()).map_err(io::Error::other)?;
        // SAFETY: it replaces the reservation just made, which nothing refers into and which ends with it: `reserved` owns
        // whatever is mapped there.
        unsafe {
            mmap(
                NonZeroUsize::new(reserved.start.addr().get()),
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
                file,
                offset,
            )
        }?;
        Ok(reserved)
    }

    /// Ends what is behind the first bytes of it, which are whole pages.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for no bytes and for more than there are.
    pub fn shorten(&mut self, bytes: usize) -> io::Result<()> {
        let behind = self.bytes.checked_sub(bytes).filter(|_| bytes > 0);
        let behind = behind.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: no more than the mapping's length.
        let end = unsafe { self.start.add(bytes) };
        // SAFETY: it is this mapping's own, nothing refers into it, and what is left is known for shorter.
        unsafe { munmap(end.cast(), behind) }?;
        self.bytes = bytes;
        Ok(())
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is empty; never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address of the mapping in this process, for handing to a driver.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Reads an aligned `u32`; `None` out of bounds or unaligned.
    #[must_use]
    pub fn read_u32(&self, at: usize) -> Option<u32> {
        let word = self.word(at)?;
        // SAFETY: `word` checked bounds and alignment; the mapping lives as long as `self`.
        Some(unsafe { word.read_volatile() })
    }

    /// Writes an aligned `u32`; `None` out of bounds or unaligned.
    #[must_use]
    pub fn write_u32(&self, at: usize, value: u32) -> Option<()> {
        let word = self.word(at)?;
        // SAFETY: as in `read_u32`.
        unsafe { word.write_volatile(value) };
        Some(())
    }

    fn word(&self, at: usize) -> Option<NonNull<u32>> {
        if !at.is_multiple_of(4) || at.checked_add(4)? > self.bytes {
            return None;
        }
        // SAFETY: `at` is inside the mapping, by the check above.
        Some(unsafe { self.start.add(at) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `shared` made, and nothing refers into it.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}
