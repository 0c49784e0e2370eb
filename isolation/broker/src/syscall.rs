//! The kernel's numbers of the calls that are notified (x86-64).

pub(crate) const SYS_MMAP: i32 = 9;
pub(crate) const SYS_IOCTL: i32 = 16;
/// `seccomp_data.arch` of a call by `syscall`.
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
