//! The kernel as a hostile program meets it: no wrapper that checks anything is between.
//!
//! UNSAFETY: an attacker spells system calls wrong on purpose, through other tables of system calls, with foreign
//! pointers, from forked copies of itself. All of it touches this process and its children alone; memory that a call
//! may write is the mapping whose address was given, and nothing holds references into those mappings.

#![expect(
    unsafe_code,
    reason = "an attacker calls the kernel as no wrapper lets it; the rest of the crate stays without"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::{ForkResult, Pid};

/// A system call by its number, as the native table has it.
///
/// # Errors
/// The system's, or a filter's.
pub(crate) fn call(number: i64, args: [u64; 6]) -> Result<i64, Errno> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: see the head of the module: pointers among the arguments name mappings of this process that no reference
    // reaches, or nothing at all.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer == -1 {
        Err(Errno::last())
    } else {
        Ok(answer)
    }
}

/// A system call through the 32-bit table: `int 0x80`. The answer is the kernel's own, negative for an error.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub(crate) fn call_i386(number: u32, args: [u32; 6]) -> i32 {
    let answer: u64;
    let arguments = args.as_ptr();
    // SAFETY: as for `call`. The two registers that the compiler keeps to itself are saved around the interrupt.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "push rbp",
            "mov ebx, dword ptr [r12]",
            "mov ecx, dword ptr [r12 + 4]",
            "mov edx, dword ptr [r12 + 8]",
            "mov esi, dword ptr [r12 + 12]",
            "mov edi, dword ptr [r12 + 16]",
            "mov ebp, dword ptr [r12 + 20]",
            "int 0x80",
            "pop rbp",
            "pop rbx",
            inlateout("rax") u64::from(number) => answer,
            in("r12") arguments,
            lateout("rcx") _, lateout("rdx") _, lateout("rsi") _, lateout("rdi") _,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    let [a, b, c, d, ..] = answer.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Runs `body` in a forked copy of this process, which ends with its answer as exit code.
///
/// # Errors
/// The system's.
pub(crate) fn fork(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the child uses what it inherits and ends by `_exit`; the C library's allocator is usable after a fork.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let code = body();
            // SAFETY: ends the process without running what the parent has registered.
            unsafe { libc::_exit(code) }
        }
    }
}

/// A process of its own that shares all memory with this one (`CLONE_VM` without `CLONE_THREAD`) and runs `body` for ever.
///
/// # Errors
/// The system's.
pub(crate) fn sharing_memory(body: fn(u64), argument: u64) -> io::Result<Pid> {
    struct Start {
        body: fn(u64),
        argument: u64,
    }
    extern "C" fn enter(start: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is the box that `sharing_memory` has given up.
        let start = unsafe { Box::from_raw(start.cast::<Start>()) };
        loop {
            (start.body)(start.argument);
        }
    }
    const STACK_BYTES: usize = 256 * 1024;
    let stack = Box::leak(vec![0u8; STACK_BYTES].into_boxed_slice());
    let start = Box::into_raw(Box::new(Start { body, argument }));
    // SAFETY: the end of a block is a valid address to compute.
    let top = unsafe { stack.as_mut_ptr().add(STACK_BYTES) };
    // SAFETY: the stack is leaked and so outlives the process; the body touches atomics and volatile words only.
    let pid = unsafe {
        libc::clone(
            enter,
            top.cast(),
            libc::CLONE_VM | libc::SIGCHLD,
            start.cast(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid))
}

/// Overwrites bytes at an address of a [`syscalls::probe::Pages`] of this process.
pub(crate) fn scribble(address: u64, bytes: &[u8]) {
    let Ok(address) = usize::try_from(address) else {
        return;
    };
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    for (offset, byte) in bytes.iter().enumerate() {
        // SAFETY: the caller's mapping; see the head of the module.
        let at = unsafe { target.add(offset) };
        // SAFETY: as above; no reference into it exists.
        unsafe { at.write_volatile(*byte) };
    }
}

/// Zeroed memory below 4 GiB, where a 32-bit pointer can name it.
///
/// # Errors
/// The system's.
pub(crate) fn low_memory(bytes: usize) -> Result<u32, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let length = u64::try_from(bytes).unwrap_or(0);
    let args = [
        0,
        length,
        u64::from(access.cast_unsigned()),
        u64::from(flags.cast_unsigned()),
        u64::MAX,
        0,
    ];
    let address = call(libc::SYS_mmap, args)?;
    u32::try_from(address).map_err(|_too_high| Errno::ERANGE)
}

/// Takes a descriptor number that a raw call has returned.
#[must_use]
pub(crate) fn owned(number: i64) -> Option<OwnedFd> {
    let number = i32::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: the call that returned the number has just made the descriptor, and nobody else knows of it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts a copy of `from` under the number `to`, whatever is there.
///
/// # Errors
/// The system's.
pub(crate) fn put_over(from: BorrowedFd<'_>, to: i32) -> Result<(), Errno> {
    let from = u64::from(from.as_raw_fd().cast_unsigned());
    call(
        libc::SYS_dup2,
        [from, u64::from(to.cast_unsigned()), 0, 0, 0, 0],
    )
    .map(drop)
}

/// What a filter of the tenant's own answers to every `ioctl`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OwnVerdict {
    /// `SECCOMP_RET_USER_NOTIF`
    Notify,
    /// `SECCOMP_RET_ERRNO | EPERM`
    Fail,
}

/// Installs a filter of the tenant's own over `ioctl`, with these flags of `seccomp(2)`. Returns the listener where one
/// was asked for and given.
///
/// # Errors
/// The system's, or a filter's.
pub(crate) fn own_filter(verdict: OwnVerdict, flags: u64) -> Result<Option<OwnedFd>, Errno> {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let action = match verdict {
        OwnVerdict::Notify => 0x7fc0_0000,
        OwnVerdict::Fail => 0x0005_0001,
    };
    let mut program = [
        step(LOAD, 0, 0, 0),
        step(
            JUMP_IF_EQUAL,
            0,
            1,
            u32::try_from(libc::SYS_ioctl).unwrap_or(16),
        ),
        step(RETURN, 0, 0, action),
        step(RETURN, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: program.as_mut_ptr(),
    };
    // Without privilege a filter needs it; with it, it does no harm.
    call(libc::SYS_prctl, [38, 1, 0, 0, 0, 0])?;
    let pointer = (&raw const program).expose_provenance();
    let pointer = u64::try_from(pointer).map_err(|_wide| Errno::EFAULT)?;
    let answer = call(libc::SYS_seccomp, [1, flags, pointer, 0, 0, 0])?;
    const NEW_LISTENER: u64 = 1 << 3;
    Ok((flags & NEW_LISTENER != 0).then(|| owned(answer)).flatten())
}

/// Sends a signal every `micros` of the process's CPU time (`ITIMER_PROF`, SIGPROF); 0 stops it.
///
/// # Errors
/// The system's.
pub(crate) fn profiling_timer(micros: u32) -> Result<(), Errno> {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: i64::from(micros),
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: `timer` lives across the call; the former timer is not asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    Errno::result(set).map(drop)
}

/// Memory that other processes see too, for counters.
///
/// # Errors
/// The system's.
pub(crate) fn shared_counters() -> io::Result<&'static [std::sync::atomic::AtomicU64; 512]> {
    let length = std::num::NonZeroUsize::new(4096).ok_or(io::ErrorKind::InvalidInput)?;
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_SHARED) }?;
    // SAFETY: a page of zeroes is 512 atomics of zero; the mapping is never removed.
    Ok(unsafe { start.cast().as_ref() })
}
