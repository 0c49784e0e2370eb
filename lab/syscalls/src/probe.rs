//! System calls made only to see what a filter answers them.
//!
//! UNSAFETY: the calls are spelt as a hostile program would spell them, which no wrapper does.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// How a mapping is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// `MAP_PRIVATE`
    Private,
    /// `MAP_SHARED`
    Shared,
}

/// Maps one inaccessible page of a file at an offset, and unmaps it.
///
/// # Errors
/// What the kernel, or a filter, answers.
pub fn mmap(file: BorrowedFd<'_>, sharing: Sharing, offset: u64) -> io::Result<()> {
    const PAGE: usize = 4096;
    let flags = match sharing {
        Sharing::Private => libc::MAP_PRIVATE,
        Sharing::Shared => libc::MAP_SHARED,
    };
    let offset = libc::off64_t::try_from(offset)
        .map_err(|_too_large| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing, and without access it cannot be read.
    let page = unsafe {
        libc::mmap64(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_NONE,
            flags,
            file.as_raw_fd(),
            offset,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this is the page that was just mapped, and nothing refers to it.
    unsafe { libc::munmap(page, PAGE) };
    Ok(())
}

/// An ioctl with all 64 bits of the command register given and zeroed memory as its struct.
///
/// # Errors
/// The system's.
pub fn with_registers(fd: BorrowedFd<'_>, cmd: u64) -> io::Result<i64> {
    let mut scratch = vec![0u8; 16 * 1024];
    // SAFETY: no command copies more than its 14-bit size field, nor one without (UVM's, of 9264 bytes at most); the block lives across the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), cmd, scratch.as_mut_ptr()) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// What is behind the writable pages of [`Pages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// A page that can be neither read nor written.
    Closed,
    /// A page of zeroes that cannot be written.
    ReadOnly,
}

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Private pages with a guard page behind them: memory for structs whose ioctl is made with any address in it, and
/// which other threads change meanwhile.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    writable_bytes: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all access is volatile and bytewise.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `count` writable pages and the guard.
    ///
    /// # Errors
    /// The system's.
    pub fn new(count: usize, guard: Guard) -> io::Result<Self> {
        let writable_bytes = count * PAGE_BYTES;
        let bytes =
            NonZeroUsize::new(writable_bytes + PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE) }?.cast();
        let pages = Self {
            start,
            writable_bytes,
        };
        let access = match guard {
            Guard::Closed => ProtFlags::PROT_NONE,
            Guard::ReadOnly => ProtFlags::PROT_READ,
        };
        // SAFETY: the guard page is the mapping's last.
        let last = unsafe { start.add(writable_bytes) };
        // SAFETY: no reference into the mapping exists.
        unsafe { mprotect(last.cast(), PAGE_BYTES, access) }?;
        Ok(pages)
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Bytes that can be written.
    #[must_use]
    pub fn writable_bytes(&self) -> usize {
        self.writable_bytes
    }

    /// Writes bytes; `None`, and nothing written, beyond the writable pages.
    #[must_use]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        self.check(at, bytes.len())?;
        for (offset, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping, by the check above.
            let target = unsafe { self.start.add(at + offset) };
            // SAFETY: the page is writable, and no reference into it exists.
            unsafe { target.write_volatile(*byte) };
        }
        Some(())
    }

    /// Reads bytes; `None` beyond the writable pages.
    #[must_use]
    pub fn read(&self, at: usize, count: usize) -> Option<Vec<u8>> {
        self.check(at, count)?;
        let byte = |offset| {
            // SAFETY: inside the mapping, by the check above.
            let source = unsafe { self.start.add(at + offset) };
            // SAFETY: the page is readable.
            unsafe { source.read_volatile() }
        };
        Some((0..count).map(byte).collect())
    }

    /// An ioctl on a descriptor by its number, as a hostile program makes it: its struct is at `at`, anywhere up to the
    /// guard's end. Pointers in the struct must lead into pages of this kind.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for an address outside.
    pub fn ioctl(&self, number: i32, cmd: u64, at: usize) -> io::Result<i64> {
        if at >= self.writable_bytes + PAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: inside the mapping, by the check above.
        let address = unsafe { self.start.add(at) };
        // SAFETY: what a driver writes beyond the guard's edge fails with EFAULT, and no struct but UVM's largest is longer than
        // the guard.
        let answer = unsafe { libc::syscall(libc::SYS_ioctl, number, cmd, address.as_ptr()) };
        if answer < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(answer)
        }
    }

    fn check(&self, at: usize, count: usize) -> Option<()> {
        (at.checked_add(count)? <= self.writable_bytes).then_some(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers into it.
        let unmapped = unsafe { munmap(self.start.cast(), self.writable_bytes + PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn without_a_filter_a_file_maps() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        mmap(file.as_fd(), Sharing::Private, 0).unwrap();
    }

    #[test]
    fn pages_end_where_they_report() {
        let pages = Pages::new(1, Guard::ReadOnly).unwrap();
        assert_eq!(pages.write(PAGE_BYTES - 2, b"ab"), Some(()));
        assert_eq!(pages.read(PAGE_BYTES - 3, 3), Some(b"\0ab".to_vec()));
        assert_eq!(pages.write(PAGE_BYTES - 1, b"ab"), None);
        assert_eq!(pages.read(usize::MAX, 2), None);
        let error = pages.ioctl(-1, 0, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
