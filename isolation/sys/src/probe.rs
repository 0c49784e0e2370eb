//! System calls made only to see what a filter answers them.
//!
//! UNSAFETY: the calls are spelt as a hostile program would spell them, which no wrapper does.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// `seccomp(SECCOMP_SET_MODE_FILTER, flags, NULL)`: no filter can come of it, as its program is not readable.
///
/// # Errors
/// Always: `EFAULT` or `EINVAL` by the kernel, or what a filter answers.
pub fn install_nothing(flags: u64) -> io::Result<()> {
    // SAFETY: the kernel reads the program through a null pointer and fails.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::null::<libc::sock_fprog>(),
        )
    };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn without_a_filter_a_file_maps_and_no_listener_comes_of_nothing() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        mmap(file.as_fd(), Sharing::Private, 0).unwrap();
        assert_eq!(
            install_nothing(1 << 3).unwrap_err().raw_os_error(),
            Some(libc::EFAULT)
        );
    }
}
