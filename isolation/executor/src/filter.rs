//! The system calls that the executor makes; every other fails with `EPERM`.
//!
//! It opens nothing, maps no file, makes no process and executes no program. What is left is: messages, ioctls on what it was
//! given, and the C library's own needs for threads and memory.

use sys::seccomp::Instruction;

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Offsets in `struct seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
/// The low half of an argument.
const fn arg(index: u32) -> u32 {
    16_u32.saturating_add(index.saturating_mul(8))
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32: u32 = 0x4000_0000;

/// Allowed whatever the arguments (x86-64 numbers).
const PLAIN: &[u32] = &[
    16,  // ioctl
    47,  // recvmsg
    46,  // sendmsg
    202, // futex
    7,   // poll
    3,   // close
    288, // accept4
    55,  // getsockopt
    0,   // read: the pipe that wakes the main thread
    1,   // write: that pipe, and words on standard error
    11,  // munmap
    12,  // brk
    25,  // mremap
    28,  // madvise
    13,  // rt_sigaction
    14,  // rt_sigprocmask
    15,  // rt_sigreturn
    131, // sigaltstack
    24,  // sched_yield
    39,  // getpid
    186, // gettid
    204, // sched_getaffinity: the C library, for a thread's stack
    218, // set_tid_address
    228, // clock_gettime
    273, // set_robust_list
    293, // pipe2
    318, // getrandom
    334, // rseq
    72,  // fcntl: the standard library looks whether a descriptor is open before it closes it
    219, // restart_syscall
    60,  // exit
    231, // exit_group
    234, // tgkill: abort
];

const MMAP: u32 = 9;
const MPROTECT: u32 = 10;
const CLONE: u32 = 56;
const CLONE3: u32 = 435;
const PRCTL: u32 = 157;

const PROT_EXEC: u32 = 4;
const MAP_ANONYMOUS: u32 = 0x20;
const CLONE_THREAD: u32 = 0x1_0000;
const PR_SET_NAME: u32 = 15;
/// The C library names its memory.
const PR_SET_VMA: u32 = 0x5356_4d41;

/// The program.
pub(crate) fn program() -> Vec<Instruction> {
    let mut program = vec![
        load(ARCH),
        jump(JUMP_IF_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        give(KILL_PROCESS),
        load(NR),
        jump(JUMP_IF_BITS, X32, 0, 1),
        give(KILL_PROCESS),
    ];
    for nr in PLAIN {
        program.extend([jump(JUMP_IF_EQUAL, *nr, 0, 1), give(ALLOW)]);
    }
    // Memory that is nobody's file and never code.
    program.extend([
        jump(JUMP_IF_EQUAL, MMAP, 0, 6),
        load(arg(2)),
        jump(JUMP_IF_BITS, PROT_EXEC, 3, 0),
        load(arg(3)),
        jump(JUMP_IF_BITS, MAP_ANONYMOUS, 0, 1),
        give(ALLOW),
        give(ERRNO | EPERM),
        jump(JUMP_IF_EQUAL, MPROTECT, 0, 4),
        load(arg(2)),
        jump(JUMP_IF_BITS, PROT_EXEC, 1, 0),
        give(ALLOW),
        give(ERRNO | EPERM),
        // Threads. The C library falls back to `clone`, whose flags are in a register.
        jump(JUMP_IF_EQUAL, CLONE3, 0, 1),
        give(ERRNO | ENOSYS),
        jump(JUMP_IF_EQUAL, CLONE, 0, 4),
        load(arg(0)),
        jump(JUMP_IF_BITS, CLONE_THREAD, 0, 1),
        give(ALLOW),
        give(ERRNO | EPERM),
        jump(JUMP_IF_EQUAL, PRCTL, 0, 4),
        load(arg(0)),
        jump(JUMP_IF_EQUAL, PR_SET_NAME, 1, 0),
        jump(JUMP_IF_EQUAL, PR_SET_VMA, 0, 1),
        give(ALLOW),
        give(ERRNO | EPERM),
    ]);
    program
}

const fn load(offset: u32) -> Instruction {
    Instruction {
        code: LOAD,
        jt: 0,
        jf: 0,
        k: offset,
    }
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

const fn give(action: u32) -> Instruction {
    Instruction {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: action,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel does.
    fn verdict(arch: u32, nr: u32, args: [u32; 6]) -> u32 {
        let program = program();
        let (mut at, mut register) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            let taken = match code {
                LOAD => {
                    register = match k {
                        NR => nr,
                        ARCH => arch,
                        other => args[usize::try_from((other - 16) / 8).unwrap()],
                    };
                    at += 1;
                    continue;
                }
                RETURN => return k,
                JUMP_IF_EQUAL => register == k,
                JUMP_IF_BITS => register & k != 0,
                other => panic!("{other:#x}"),
            };
            at += 1 + usize::from(if taken { jt } else { jf });
        }
    }

    #[test]
    fn only_what_it_needs_passes() {
        const X: u32 = AUDIT_ARCH_X86_64;
        const DENIED: u32 = ERRNO | EPERM;
        assert_eq!(verdict(X, 16, [0; 6]), ALLOW);
        assert_eq!(verdict(X, 59, [0; 6]), DENIED, "execve");
        assert_eq!(verdict(X, 257, [0; 6]), DENIED, "openat");
        assert_eq!(verdict(X, 310, [0; 6]), DENIED, "process_vm_readv");
        assert_eq!(verdict(X, 105, [0; 6]), DENIED, "setuid");
        assert_eq!(verdict(0x4000_0003, 16, [0; 6]), KILL_PROCESS, "i386");
        assert_eq!(verdict(X, X32 | 16, [0; 6]), KILL_PROCESS, "x32");
        for (prot, flags, expected) in [
            (3, 0x22, ALLOW),
            (7, 0x22, DENIED),
            (3, 0x02, DENIED),
            (0, 0x2_0022, ALLOW),
        ] {
            assert_eq!(verdict(X, MMAP, [0, 0, prot, flags, 0, 0]), expected);
        }
        assert_eq!(verdict(X, MPROTECT, [0, 0, 3, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(X, MPROTECT, [0, 0, 5, 0, 0, 0]), DENIED);
        assert_eq!(verdict(X, CLONE3, [0; 6]), ERRNO | ENOSYS);
        assert_eq!(verdict(X, CLONE, [0x3d_0f00, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(X, CLONE, [17, 0, 0, 0, 0, 0]), DENIED, "fork");
        assert_eq!(verdict(X, PRCTL, [PR_SET_NAME, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(X, PRCTL, [PR_SET_VMA, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            verdict(X, PRCTL, [4, 1, 0, 0, 0, 0]),
            DENIED,
            "dumpable again"
        );
    }
}
