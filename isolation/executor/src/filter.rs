//! The system calls that the executor makes; every other fails with `EPERM`.
//!
//! It opens nothing, maps no file, makes no process and executes no program. What is left is: messages, ioctls on what it was
//! given, and the C library's own needs for threads and memory.

use bpf::{
    ALLOW, ARCH, Instruction, KILL_PROCESS, NR, X32_BIT, X86_64, arg_low, errno, if_any_bit,
    if_equal, load, ret,
};

const DENIED: u32 = errno(1);
/// `ENOSYS`
const ABSENT: u32 = errno(38);

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
        if_equal(X86_64, 1, 0),
        ret(KILL_PROCESS),
        load(NR),
        if_any_bit(X32_BIT, 0, 1),
        ret(KILL_PROCESS),
    ];
    for nr in PLAIN {
        program.extend([if_equal(*nr, 0, 1), ret(ALLOW)]);
    }
    // Memory that is nobody's file and never code.
    program.extend([
        if_equal(MMAP, 0, 6),
        load(arg_low(2)),
        if_any_bit(PROT_EXEC, 3, 0),
        load(arg_low(3)),
        if_any_bit(MAP_ANONYMOUS, 0, 1),
        ret(ALLOW),
        ret(DENIED),
        if_equal(MPROTECT, 0, 4),
        load(arg_low(2)),
        if_any_bit(PROT_EXEC, 1, 0),
        ret(ALLOW),
        ret(DENIED),
        // Threads. The C library falls back to `clone`, whose flags are in a register.
        if_equal(CLONE3, 0, 1),
        ret(ABSENT),
        if_equal(CLONE, 0, 4),
        load(arg_low(0)),
        if_any_bit(CLONE_THREAD, 0, 1),
        ret(ALLOW),
        ret(DENIED),
        if_equal(PRCTL, 0, 4),
        load(arg_low(0)),
        if_equal(PR_SET_NAME, 1, 0),
        if_equal(PR_SET_VMA, 0, 1),
        ret(ALLOW),
        ret(DENIED),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        bpf::run(&program(), bpf::Call { nr, arch, args }).unwrap()
    }

    #[test]
    fn only_what_it_needs_passes() {
        const X: u32 = X86_64;
        assert_eq!(verdict(X, 16, [0; 6]), ALLOW);
        assert_eq!(verdict(X, 59, [0; 6]), DENIED, "execve");
        assert_eq!(verdict(X, 257, [0; 6]), DENIED, "openat");
        assert_eq!(verdict(X, 310, [0; 6]), DENIED, "process_vm_readv");
        assert_eq!(verdict(X, 105, [0; 6]), DENIED, "setuid");
        assert_eq!(verdict(0x4000_0003, 16, [0; 6]), KILL_PROCESS, "i386");
        assert_eq!(verdict(X, X32_BIT | 16, [0; 6]), KILL_PROCESS, "x32");
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
        assert_eq!(verdict(X, CLONE3, [0; 6]), ABSENT);
        assert_eq!(verdict(X, CLONE, [0x3d_0f00, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(X, CLONE, [17, 0, 0, 0, 0, 0]), DENIED, "fork");
        assert_eq!(
            verdict(X, PRCTL, [PR_SET_NAME.into(), 0, 0, 0, 0, 0]),
            ALLOW
        );
        assert_eq!(verdict(X, PRCTL, [PR_SET_VMA.into(), 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            verdict(X, PRCTL, [4, 1, 0, 0, 0, 0]),
            DENIED,
            "dumpable again"
        );
    }
}
