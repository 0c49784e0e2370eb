//! Another process's memory, through `process_vm_readv` and `process_vm_writev`.

use std::io::{self, IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// Reads up to `into.len()` bytes at `address`; short where the readable memory ends.
///
/// # Errors
/// `EFAULT` when not even the first byte is readable, `ESRCH` when the process has gone, `EPERM` without ptrace access.
pub fn read(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let remote = [RemoteIoVec {
        base: pointer(address)?,
        len: into.len(),
    }];
    Ok(process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(into)],
        &remote,
    )?)
}

/// Reads exactly `into.len()` bytes at `address`.
///
/// # Errors
/// As [`read`]; `EFAULT` also when only a part is readable.
pub fn read_exact(pid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() || read(pid, address, into)? == into.len() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

/// Writes all of `bytes` at `address`.
///
/// # Errors
/// As [`read_exact`]. A part may have been written.
pub fn write_all(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let remote = [RemoteIoVec {
        base: pointer(address)?,
        len: bytes.len(),
    }];
    if process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(bytes)], &remote)? == bytes.len() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

fn pointer(address: u64) -> io::Result<usize> {
    usize::try_from(address).map_err(|_too_wide| io::Error::from_raw_os_error(libc::EFAULT))
}
