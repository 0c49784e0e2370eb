//! System calls by name, and each architecture's number of them.

use crate::Arch;

/// The system calls that a filter of cgpu's or its broker names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each has the kernel's name")]
pub enum Syscall {
    Read,
    Write,
    Close,
    Poll,
    Ppoll,
    Mmap,
    Mprotect,
    Munmap,
    Brk,
    RtSigaction,
    RtSigprocmask,
    RtSigreturn,
    Ioctl,
    SchedYield,
    Mremap,
    Madvise,
    Getpid,
    Sendmsg,
    Recvmsg,
    Getsockopt,
    Clone,
    Execve,
    Exit,
    Fcntl,
    Setuid,
    Sigaltstack,
    Prctl,
    Gettid,
    Futex,
    SchedGetaffinity,
    RemapFilePages,
    SetTidAddress,
    RestartSyscall,
    ClockGettime,
    ExitGroup,
    Tgkill,
    Openat,
    SetRobustList,
    Accept4,
    Pipe2,
    ProcessVmReadv,
    Seccomp,
    Getrandom,
    Rseq,
    IoUringSetup,
    IoUringEnter,
    IoUringRegister,
    Clone3,
    Execveat,
    IoDestroy,
    IoSetup,
    ArchPrctl,
    MapShadowStack,
}

impl Arch {
    /// The number of a system call; `None` where the architecture has none: newer ones have no `poll`.
    #[must_use]
    pub const fn number(self, call: Syscall) -> Option<u32> {
        let (x86_64, aarch64) = numbers(call);
        match self {
            Self::X86_64 => x86_64,
            Self::Aarch64 => aarch64,
        }
    }
}

/// x86-64's and arm64's.
const fn numbers(call: Syscall) -> (Option<u32>, Option<u32>) {
    match call {
        Syscall::Read => (Some(0), Some(63)),
        Syscall::Write => (Some(1), Some(64)),
        Syscall::Close => (Some(3), Some(57)),
        Syscall::Poll => (Some(7), None),
        Syscall::Ppoll => (Some(271), Some(73)),
        Syscall::Mmap => (Some(9), Some(222)),
        Syscall::Mprotect => (Some(10), Some(226)),
        Syscall::Munmap => (Some(11), Some(215)),
        Syscall::Brk => (Some(12), Some(214)),
        Syscall::RtSigaction => (Some(13), Some(134)),
        Syscall::RtSigprocmask => (Some(14), Some(135)),
        Syscall::RtSigreturn => (Some(15), Some(139)),
        Syscall::Ioctl => (Some(16), Some(29)),
        Syscall::SchedYield => (Some(24), Some(124)),
        Syscall::Mremap => (Some(25), Some(216)),
        Syscall::Madvise => (Some(28), Some(233)),
        Syscall::Getpid => (Some(39), Some(172)),
        Syscall::Sendmsg => (Some(46), Some(211)),
        Syscall::Recvmsg => (Some(47), Some(212)),
        Syscall::Getsockopt => (Some(55), Some(209)),
        Syscall::Clone => (Some(56), Some(220)),
        Syscall::Execve => (Some(59), Some(221)),
        Syscall::Exit => (Some(60), Some(93)),
        Syscall::Fcntl => (Some(72), Some(25)),
        Syscall::Setuid => (Some(105), Some(146)),
        Syscall::Sigaltstack => (Some(131), Some(132)),
        Syscall::Prctl => (Some(157), Some(167)),
        Syscall::Gettid => (Some(186), Some(178)),
        Syscall::Futex => (Some(202), Some(98)),
        Syscall::SchedGetaffinity => (Some(204), Some(123)),
        Syscall::RemapFilePages => (Some(216), Some(234)),
        Syscall::SetTidAddress => (Some(218), Some(96)),
        Syscall::RestartSyscall => (Some(219), Some(128)),
        Syscall::ClockGettime => (Some(228), Some(113)),
        Syscall::ExitGroup => (Some(231), Some(94)),
        Syscall::Tgkill => (Some(234), Some(131)),
        Syscall::Openat => (Some(257), Some(56)),
        Syscall::SetRobustList => (Some(273), Some(99)),
        Syscall::Accept4 => (Some(288), Some(242)),
        Syscall::Pipe2 => (Some(293), Some(59)),
        Syscall::ProcessVmReadv => (Some(310), Some(270)),
        Syscall::Seccomp => (Some(317), Some(277)),
        Syscall::Getrandom => (Some(318), Some(278)),
        Syscall::Rseq => (Some(334), Some(293)),
        Syscall::IoUringSetup => (Some(425), Some(425)),
        Syscall::IoUringEnter => (Some(426), Some(426)),
        Syscall::IoUringRegister => (Some(427), Some(427)),
        Syscall::Clone3 => (Some(435), Some(435)),
        Syscall::Execveat => (Some(322), Some(281)),
        Syscall::IoDestroy => (Some(207), Some(1)),
        Syscall::IoSetup => (Some(206), Some(0)),
        Syscall::ArchPrctl => (Some(158), None),
        Syscall::MapShadowStack => (Some(453), Some(453)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_c_librarys() {
        for (call, number) in [
            (Syscall::Read, libc::SYS_read),
            (Syscall::Write, libc::SYS_write),
            (Syscall::Close, libc::SYS_close),
            (Syscall::Ppoll, libc::SYS_ppoll),
            (Syscall::Mmap, libc::SYS_mmap),
            (Syscall::Mprotect, libc::SYS_mprotect),
            (Syscall::Munmap, libc::SYS_munmap),
            (Syscall::Brk, libc::SYS_brk),
            (Syscall::RtSigaction, libc::SYS_rt_sigaction),
            (Syscall::RtSigprocmask, libc::SYS_rt_sigprocmask),
            (Syscall::RtSigreturn, libc::SYS_rt_sigreturn),
            (Syscall::Ioctl, libc::SYS_ioctl),
            (Syscall::SchedYield, libc::SYS_sched_yield),
            (Syscall::Mremap, libc::SYS_mremap),
            (Syscall::Madvise, libc::SYS_madvise),
            (Syscall::Getpid, libc::SYS_getpid),
            (Syscall::Sendmsg, libc::SYS_sendmsg),
            (Syscall::Recvmsg, libc::SYS_recvmsg),
            (Syscall::Getsockopt, libc::SYS_getsockopt),
            (Syscall::Clone, libc::SYS_clone),
            (Syscall::Execve, libc::SYS_execve),
            (Syscall::Execveat, libc::SYS_execveat),
            (Syscall::IoDestroy, libc::SYS_io_destroy),
            (Syscall::IoSetup, libc::SYS_io_setup),
            (Syscall::Exit, libc::SYS_exit),
            (Syscall::Fcntl, libc::SYS_fcntl),
            (Syscall::Setuid, libc::SYS_setuid),
            (Syscall::Sigaltstack, libc::SYS_sigaltstack),
            (Syscall::Prctl, libc::SYS_prctl),
            (Syscall::Gettid, libc::SYS_gettid),
            (Syscall::Futex, libc::SYS_futex),
            (Syscall::SchedGetaffinity, libc::SYS_sched_getaffinity),
            (Syscall::RemapFilePages, libc::SYS_remap_file_pages),
            (Syscall::SetTidAddress, libc::SYS_set_tid_address),
            (Syscall::RestartSyscall, libc::SYS_restart_syscall),
            (Syscall::ClockGettime, libc::SYS_clock_gettime),
            (Syscall::ExitGroup, libc::SYS_exit_group),
            (Syscall::Tgkill, libc::SYS_tgkill),
            (Syscall::Openat, libc::SYS_openat),
            (Syscall::SetRobustList, libc::SYS_set_robust_list),
            (Syscall::Accept4, libc::SYS_accept4),
            (Syscall::Pipe2, libc::SYS_pipe2),
            (Syscall::ProcessVmReadv, libc::SYS_process_vm_readv),
            (Syscall::Seccomp, libc::SYS_seccomp),
            (Syscall::Getrandom, libc::SYS_getrandom),
            (Syscall::Rseq, libc::SYS_rseq),
            (Syscall::IoUringSetup, libc::SYS_io_uring_setup),
            (Syscall::IoUringEnter, libc::SYS_io_uring_enter),
            (Syscall::IoUringRegister, libc::SYS_io_uring_register),
            (Syscall::Clone3, libc::SYS_clone3),
        ] {
            let ours = Arch::NATIVE.number(call).map(libc::c_long::from);
            assert_eq!(ours, Some(number), "{call:?}");
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            Arch::NATIVE.number(Syscall::Poll).map(i64::from),
            Some(libc::SYS_poll)
        );
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            Arch::NATIVE.number(Syscall::ArchPrctl).map(i64::from),
            Some(libc::SYS_arch_prctl)
        );
    }
}
