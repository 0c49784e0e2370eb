//! The kernel's numbers of the calls that are notified.

use arch::{Arch, Syscall};

pub(crate) const SYS_MMAP: i32 = number(Syscall::Mmap);
pub(crate) const SYS_IOCTL: i32 = number(Syscall::Ioctl);
/// Those that end mappings after the table of mappings misses them already: the kernel lets others read it before it is done. `mmap` is none of
/// them, since what takes a mapping's place keeps the table closed until that has ended.
pub(crate) const UNMAPPING: [i32; 8] = [
    number(Syscall::Munmap),
    number(Syscall::Mremap),
    number(Syscall::Brk),
    number(Syscall::Execve),
    number(Syscall::Execveat),
    number(Syscall::IoDestroy),
    number(Syscall::Exit),
    number(Syscall::ExitGroup),
];
/// `seccomp_data.arch` of this machine's own calls.
pub(crate) const AUDIT_ARCH: u32 = Arch::NATIVE.audit();

/// No call has a negative number.
const fn number(call: Syscall) -> i32 {
    match Arch::NATIVE.number(call) {
        Some(number) => number.cast_signed(),
        None => -1,
    }
}
