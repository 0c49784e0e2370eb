//! The kernel's numbers of the calls that are notified.

use arch::{Arch, Syscall};

pub(crate) const SYS_MMAP: i32 = number(Syscall::Mmap);
pub(crate) const SYS_IOCTL: i32 = number(Syscall::Ioctl);
/// `seccomp_data.arch` of this machine's own calls.
pub(crate) const AUDIT_ARCH: u32 = Arch::NATIVE.audit();

/// No call has a negative number.
const fn number(call: Syscall) -> i32 {
    match Arch::NATIVE.number(call) {
        Some(number) => number.cast_signed(),
        None => -1,
    }
}
