//! Memory that outlives the process which writes it: a memfd, mapped by one process after the other.
//!
//! UNSAFETY: a mapping is raw memory. One process writes at a time (whoever hands the memfd on waits until the former one is
//! dead); within it, words are atomics and bytes need an exclusive reference.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Makes an anonymous file of this length; pages cost memory once they are written.
///
/// # Errors
/// The system's.
pub fn memfd(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC)?;
    let length = i64::try_from(bytes).map_err(|_too_long| io::ErrorKind::InvalidInput)?;
    nix::unistd::ftruncate(&fd, length)?;
    Ok(fd)
}

/// A mapping of such a file.
#[derive(Debug)]
pub struct Shared {
    file: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; `&self` gives out atomics only.
unsafe impl Send for Shared {}
// SAFETY: as above; bytes are read and written through `&mut self`.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `bytes` of a file, which must be that long.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for no bytes or a shorter file, whose missing pages would kill the process that touches them.
    pub fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let there = nix::sys::stat::fstat(file.as_fd())?.st_size;
        if usize::try_from(there).unwrap_or(0) < bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        }?;
        Ok(Self {
            file,
            start: start.cast(),
            bytes,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The 8-byte words from an offset on; `None` out of bounds or unaligned.
    #[must_use]
    pub fn words(&self, at: usize, count: usize) -> Option<&[AtomicU64]> {
        let end = at.checked_add(count.checked_mul(size_of::<AtomicU64>())?)?;
        if !at.is_multiple_of(align_of::<AtomicU64>()) || end > self.bytes {
            return None;
        }
        // SAFETY: `at` is inside the mapping, by the check above.
        let first = unsafe { self.start.add(at) }.cast::<AtomicU64>();
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; bytes are only written through `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// One word of [`Shared::words`].
    #[must_use]
    pub fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.words(at, 1)?.first()
    }

    /// The bytes from an offset on; `None` out of bounds.
    #[must_use]
    pub fn read(&mut self, at: usize, count: usize) -> Option<&[u8]> {
        if at.checked_add(count)? > self.bytes {
            return None;
        }
        // SAFETY: inside the mapping, by the check above.
        let first = unsafe { self.start.add(at) };
        // SAFETY: nobody else in this process has a reference (`&mut self`), and no other process writes now (see above).
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), count) })
    }

    /// Writes bytes at an offset; `None` (and nothing written) out of bounds.
    #[must_use]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Option<()> {
        if at.checked_add(bytes.len())? > self.bytes {
            return None;
        }
        // SAFETY: inside the mapping, by the check above.
        let first = unsafe { self.start.add(at) };
        // SAFETY: as in `read`, and `bytes` cannot overlap memory that only `&mut self` reaches.
        unsafe { first.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Some(())
    }

    /// Gives pages back to the system; they read as zeroes from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn release(&mut self, at: usize, count: usize) -> io::Result<()> {
        let wide = |value| i64::try_from(value).map_err(|_too_long| io::ErrorKind::InvalidInput);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, flags, wide(at)?, wide(count)?)?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing refers into it.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_second_mapping_finds_what_the_first_one_wrote() {
        let file = memfd(c"test", 8192).unwrap();
        let mut first = Shared::map(file.try_clone().unwrap(), 8192).unwrap();
        first.word(8).unwrap().store(7, Ordering::Release);
        first.write(4096, b"abc").unwrap();
        drop(first);
        let mut second = Shared::map(file, 8192).unwrap();
        assert_eq!(second.word(8).unwrap().load(Ordering::Acquire), 7);
        assert_eq!(second.read(4096, 3), Some(&b"abc"[..]));
        second.release(4096, 4096).unwrap();
        assert_eq!(second.read(4096, 3), Some(&[0; 3][..]));
    }

    #[test]
    fn nothing_outside_is_reached() {
        let file = memfd(c"test", 4096).unwrap();
        Shared::map(file.try_clone().unwrap(), 8192).unwrap_err();
        let mut shared = Shared::map(file, 4096).unwrap();
        assert!(shared.word(4089).is_none() && shared.word(4).is_none());
        assert!(shared.words(4088, 2).is_none() && shared.words(8, usize::MAX).is_none());
        assert_eq!(shared.read(4095, 2), None);
        assert_eq!(shared.write(4095, b"ab"), None);
        assert_eq!(shared.write(usize::MAX, b"ab"), None);
    }
}
