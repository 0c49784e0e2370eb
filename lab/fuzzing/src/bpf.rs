//! Runs a seccomp program over one call, as the kernel does.

use verdict::filter::Insn;

/// A call as a filter sees it (`struct seccomp_data`, without the instruction pointer).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) nr: u32,
    pub(crate) arch: u32,
    pub(crate) args: [u64; 6],
}

/// `AUDIT_ARCH_X86_64`
pub(crate) const X86_64: u32 = 0xc000_003e;
/// `SECCOMP_RET_ALLOW`
pub(crate) const ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_USER_NOTIF`
pub(crate) const NOTIFY: u32 = 0x7fc0_0000;
/// `SECCOMP_RET_ERRNO` with this errno.
pub(crate) const fn errno(errno: u16) -> u32 {
    0x0005_0000 | errno as u32
}

/// What the program returns.
///
/// # Panics
/// On a program that the kernel would not have loaded.
pub(crate) fn run(program: &[Insn], entry: Entry) -> u32 {
    let (mut at, mut accumulator) = (0_usize, 0_u32);
    loop {
        let Insn { code, jt, jf, k } = *program.get(at).expect("the program ends with a return");
        at += 1;
        let branch = |taken: bool| usize::from(if taken { jt } else { jf });
        match code {
            // BPF_LD | BPF_W | BPF_ABS
            0x20 => accumulator = word(entry, k),
            // BPF_ALU | BPF_AND | BPF_K
            0x54 => accumulator &= k,
            // BPF_JMP | BPF_JA, JEQ, JGT, JGE, JSET
            0x05 => at += usize::try_from(k).expect("a jump within the program"),
            0x15 => at += branch(accumulator == k),
            0x25 => at += branch(accumulator > k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            // BPF_RET | BPF_K
            0x06 => return k,
            other => panic!("operation {other:#x} at {}", at - 1),
        }
    }
}

fn word(entry: Entry, offset: u32) -> u32 {
    let [arguments, high] = [(offset.wrapping_sub(16)) / 8, offset & 4];
    match offset {
        0 => entry.nr,
        4 => entry.arch,
        16..64 if offset.is_multiple_of(4) => {
            let at = usize::try_from(arguments).expect("below 6");
            let value = entry.args[at];
            u32::try_from(if high == 0 {
                value & 0xffff_ffff
            } else {
                value >> 32
            })
            .expect("32 bits")
        }
        other => panic!("load from {other}"),
    }
}
