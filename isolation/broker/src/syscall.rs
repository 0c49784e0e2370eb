//! The kernel's numbers of the calls that are notified.

use arch::{Arch, Syscall};

pub(crate) const SYS_MMAP: i32 = number(Syscall::Mmap);
pub(crate) const SYS_IOCTL: i32 = number(Syscall::Ioctl);
/// Those that end mappings after the table of mappings misses them already: the kernel lets others read it before it is done. `mmap` is none of
/// them, since what takes a mapping's place keeps the table closed until that has ended.
///
/// Shadow stacks end by `arch_prctl` and with their thread, and where a call that makes one fails: `map_shadow_stack`, `clone`, `clone3` (`vm_munmap`,
/// arch/x86/kernel/shstk.c, arch/arm64/mm/gcs.c); so does the memory of `io_setup` (`kill_ioctx`, fs/aio.c). By then another thread may have mapped
/// something else there. What only replaces mappings (`shmat`, `shmdt`, `remap_file_pages`) keeps the table closed.
pub(crate) const UNMAPPING: [Syscall; 13] = [
    Syscall::Munmap,
    Syscall::Mremap,
    Syscall::Brk,
    Syscall::Execve,
    Syscall::Execveat,
    Syscall::IoSetup,
    Syscall::IoDestroy,
    Syscall::ArchPrctl,
    Syscall::MapShadowStack,
    Syscall::Clone,
    Syscall::Clone3,
    Syscall::Exit,
    Syscall::ExitGroup,
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
