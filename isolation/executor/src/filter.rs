//! The system calls that the executor makes; every other fails with `EPERM`.
//!
//! It opens nothing, maps no file, makes no process and executes no program. What is left is: messages, ioctls on what it was
//! given, and the C library's own needs for threads and memory.

use arch::{Arch, Syscall};
use bpf::{
    ALLOW, ARCH, Instruction, KILL_PROCESS, NR, arg_low, errno, if_any_bit, if_equal, load, ret,
};

const DENIED: u32 = errno(1);
/// `ENOSYS`
const ABSENT: u32 = errno(38);

/// Allowed whatever the arguments.
const PLAIN: &[Syscall] = &[
    Syscall::Ioctl,
    Syscall::Recvmsg,
    Syscall::Sendmsg,
    Syscall::Futex,
    Syscall::Poll,
    Syscall::Ppoll, // poll, where the architecture has no such call
    Syscall::Close,
    Syscall::Accept4,
    Syscall::Getsockopt,
    Syscall::Read,  // the pipe that wakes the main thread
    Syscall::Write, // that pipe, and words on standard error
    Syscall::Munmap,
    Syscall::Brk,
    Syscall::Mremap,
    Syscall::Madvise,
    Syscall::RtSigaction,
    Syscall::RtSigprocmask,
    Syscall::RtSigreturn,
    Syscall::Sigaltstack,
    Syscall::SchedYield,
    Syscall::Getpid,
    Syscall::Gettid,
    Syscall::SchedGetaffinity, // the C library, for a thread's stack
    Syscall::SetTidAddress,
    Syscall::ClockGettime,
    Syscall::SetRobustList,
    Syscall::Pipe2,
    Syscall::Getrandom,
    Syscall::Rseq,
    Syscall::Fcntl, // the standard library looks whether a descriptor is open before it closes it
    Syscall::RestartSyscall,
    Syscall::Exit,
    Syscall::ExitGroup,
    Syscall::Tgkill, // abort
];

const PROT_EXEC: u32 = 4;
const MAP_ANONYMOUS: u32 = 0x20;
const CLONE_THREAD: u32 = 0x1_0000;
const PR_SET_NAME: u32 = 15;
/// The C library names its memory.
const PR_SET_VMA: u32 = 0x5356_4d41;

/// The program.
pub(crate) fn program(arch: Arch) -> Vec<Instruction> {
    let mut program = vec![load(ARCH), if_equal(arch.audit(), 1, 0), ret(KILL_PROCESS)];
    program.push(load(NR));
    if let Some(bit) = arch.foreign_bit() {
        program.extend([if_any_bit(bit, 0, 1), ret(KILL_PROCESS)]);
    }
    let mut allow = |call, rule: &[Instruction]| {
        // A call that the architecture does not have has no rule.
        if let Some(nr) = arch.number(call) {
            let length = u8::try_from(rule.len()).unwrap_or(u8::MAX);
            program.push(if_equal(nr, 0, length));
            program.extend(rule);
        }
    };
    for call in PLAIN {
        allow(*call, &[ret(ALLOW)]);
    }
    // Memory that is nobody's file and never code.
    allow(
        Syscall::Mmap,
        &[
            load(arg_low(2)),
            if_any_bit(PROT_EXEC, 3, 0),
            load(arg_low(3)),
            if_any_bit(MAP_ANONYMOUS, 0, 1),
            ret(ALLOW),
            ret(DENIED),
        ],
    );
    allow(
        Syscall::Mprotect,
        &[
            load(arg_low(2)),
            if_any_bit(PROT_EXEC, 1, 0),
            ret(ALLOW),
            ret(DENIED),
        ],
    );
    // Threads. The C library falls back to `clone`, whose flags are in a register.
    allow(Syscall::Clone3, &[ret(ABSENT)]);
    allow(
        Syscall::Clone,
        &[
            load(arg_low(0)),
            if_any_bit(CLONE_THREAD, 0, 1),
            ret(ALLOW),
            ret(DENIED),
        ],
    );
    allow(
        Syscall::Prctl,
        &[
            load(arg_low(0)),
            if_equal(PR_SET_NAME, 1, 0),
            if_equal(PR_SET_VMA, 0, 1),
            ret(ALLOW),
            ret(DENIED),
        ],
    );
    program.push(ret(DENIED));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(arch: Arch, call: Syscall, args: [u64; 6]) -> u32 {
        answer(arch, arch.number(call).unwrap(), arch.audit(), args)
    }

    fn answer(arch: Arch, nr: u32, table: u32, args: [u64; 6]) -> u32 {
        let call = bpf::Call {
            nr,
            arch: table,
            args,
        };
        bpf::run(&program(arch), call).unwrap()
    }

    #[test]
    fn only_what_it_needs_passes() {
        for arch in Arch::ALL {
            let verdict = |call, args| verdict(arch, call, args);
            for call in PLAIN.iter().filter(|call| arch.number(**call).is_some()) {
                assert_eq!(verdict(*call, [0; 6]), ALLOW, "{call:?}");
            }
            for call in [
                Syscall::Execve,
                Syscall::Openat,
                Syscall::ProcessVmReadv,
                Syscall::Setuid,
                Syscall::Seccomp,
                Syscall::IoUringSetup,
            ] {
                assert_eq!(verdict(call, [0; 6]), DENIED, "{call:?}");
            }
            for (prot, flags, expected) in [
                (3, 0x22, ALLOW),
                (7, 0x22, DENIED),
                (3, 0x02, DENIED),
                (0, 0x2_0022, ALLOW),
            ] {
                let args = [0, 0, prot, flags, 0, 0];
                assert_eq!(verdict(Syscall::Mmap, args), expected);
            }
            assert_eq!(verdict(Syscall::Mprotect, [0, 0, 3, 0, 0, 0]), ALLOW);
            assert_eq!(verdict(Syscall::Mprotect, [0, 0, 5, 0, 0, 0]), DENIED);
            assert_eq!(verdict(Syscall::Clone3, [0; 6]), ABSENT);
            let clone = |flags| verdict(Syscall::Clone, [flags, 0, 0, 0, 0, 0]);
            assert_eq!(clone(0x3d_0f00), ALLOW);
            assert_eq!(clone(17), DENIED, "fork");
            let prctl = |option| verdict(Syscall::Prctl, [option, 1, 0, 0, 0, 0]);
            assert_eq!(prctl(PR_SET_NAME.into()), ALLOW);
            assert_eq!(prctl(PR_SET_VMA.into()), ALLOW);
            assert_eq!(prctl(4), DENIED, "dumpable again");
        }
    }

    #[test]
    fn foreign_tables_are_closed() {
        for arch in Arch::ALL {
            let ioctl = arch.number(Syscall::Ioctl).unwrap();
            let others = Arch::ALL.into_iter().filter(|other| *other != arch);
            for table in others.map(Arch::audit).chain([0x4000_0003, 0x4000_0028]) {
                assert_eq!(answer(arch, ioctl, table, [0; 6]), KILL_PROCESS);
            }
            if let Some(bit) = arch.foreign_bit() {
                let x32 = answer(arch, bit | ioctl, arch.audit(), [0; 6]);
                assert_eq!(x32, KILL_PROCESS);
            }
        }
    }
}
