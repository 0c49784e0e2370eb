//! The filter as a BPF program over `struct seccomp_data`.

use super::{
    Action, EBUSY, ENOSYS, FilterSpec, IoctlRule, KEY_MASK, MMAP, NEW_LISTENER, NUMBER_MASK,
    ioctl_rules,
};
use bpf::*;

/// One BPF instruction (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Operation.
    pub code: u16,
    /// Jump if true.
    pub jt: u8,
    /// Jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// The filter as a BPF program over `struct seccomp_data`.
#[must_use]
pub fn program(spec: &FilterSpec) -> Vec<Insn> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const X32_BIT: u32 = 0x4000_0000;
    let mut code = vec![
        load(ARCH),
        skip_if_equal(AUDIT_ARCH_X86_64),
        ret(KILL_PROCESS),
        load(NR),
        // x32 numbers share the native table.
        skip_if_less(X32_BIT),
        ret(KILL_PROCESS),
    ];
    // Each section begins with the system-call number loaded and is skipped as a whole by `section`.
    code.extend(section(SYS_IOCTL, ioctl(spec)));
    code.extend(section(SYS_MMAP, mmap()));
    let enosys = ret(ERRNO | u32::from(ENOSYS));
    code.extend(section(SYS_REMAP_FILE_PAGES, vec![enosys]));
    code.extend(section(SYS_SECCOMP, seccomp()));
    code.push(ret(ALLOW));
    code
}

/// Makes io_uring's calls fail in a program of [`program`] as on a kernel without them.
pub fn deny_io_uring(program: &mut Vec<Insn>) {
    let last = program.pop();
    for nr in SYS_IO_URING {
        let enosys = ret(ERRNO | u32::from(ENOSYS));
        program.extend(section(nr, vec![enosys]));
    }
    program.extend(last);
}

fn ioctl(spec: &FilterSpec) -> Vec<Insn> {
    let mut code = vec![load(arg_low(1))];
    for mask in [KEY_MASK, 0xffff, NUMBER_MASK, u32::MAX] {
        let rules: Vec<IoctlRule> = ioctl_rules(spec)
            .into_iter()
            .filter(|rule| rule.when.mask == mask)
            .collect();
        if mask != u32::MAX {
            code.push(and(mask));
        }
        for rule in &rules {
            let verdict = match rule.action {
                Action::Notify => USER_NOTIF,
                Action::Errno(errno) => ERRNO | u32::from(errno),
            };
            code.push(skip_unless_equal(rule.when.value));
            code.push(ret(verdict));
        }
        code.push(load(arg_low(1)));
    }
    code.push(ret(ALLOW));
    code
}

fn mmap() -> Vec<Insn> {
    let [fixed, fixed_without_replacing] = MMAP.fixed;
    vec![
        load(arg_low(3)),
        and(MMAP.shared.mask),
        skip_if_equal(MMAP.shared.value),
        ret(ALLOW),
        load(arg_low(3)),
        and(fixed | fixed_without_replacing),
        skip_if_equal(0),
        ret(USER_NOTIF),
        load(arg_high(5)),
        skip_if_equal(0),
        ret(USER_NOTIF),
        load(arg_low(5)),
        skip_if_less(u32::try_from(MMAP.least_offset_bytes).unwrap_or(u32::MAX)),
        ret(USER_NOTIF),
        ret(ALLOW),
    ]
}

fn seccomp() -> Vec<Insn> {
    let (set_mode_filter, new_listener) = NEW_LISTENER;
    vec![
        load(arg_low(0)),
        skip_if_equal(set_mode_filter),
        ret(ALLOW),
        load(arg_low(1)),
        and(new_listener.mask),
        skip_unless_equal(new_listener.value),
        ret(ERRNO | u32::from(EBUSY)),
        ret(ALLOW),
    ]
}

/// The few BPF operations that a seccomp filter needs (`linux/bpf_common.h`, `linux/seccomp.h`).
mod bpf {
    use super::Insn;

    const JEQ: u16 = 0x15;
    const JGE: u16 = 0x35;
    pub(super) const NR: u32 = 0;
    pub(super) const ARCH: u32 = 4;
    pub(super) const KILL_PROCESS: u32 = 0x8000_0000;
    pub(super) const USER_NOTIF: u32 = 0x7fc0_0000;
    pub(super) const ERRNO: u32 = 0x0005_0000;
    pub(super) const ALLOW: u32 = 0x7fff_0000;
    pub(super) const SYS_MMAP: u32 = 9;
    pub(super) const SYS_IOCTL: u32 = 16;
    pub(super) const SYS_REMAP_FILE_PAGES: u32 = 216;
    pub(super) const SYS_SECCOMP: u32 = 317;
    pub(super) const SYS_IO_URING: [u32; 3] = [425, 426, 427];

    pub(super) const fn arg_low(index: u32) -> u32 {
        16 + index * 8
    }

    pub(super) const fn arg_high(index: u32) -> u32 {
        arg_low(index) + 4
    }

    pub(super) const fn load(offset: u32) -> Insn {
        Insn {
            code: 0x20,
            jt: 0,
            jf: 0,
            k: offset,
        }
    }

    pub(super) const fn and(mask: u32) -> Insn {
        Insn {
            code: 0x54,
            jt: 0,
            jf: 0,
            k: mask,
        }
    }

    pub(super) const fn ret(verdict: u32) -> Insn {
        Insn {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: verdict,
        }
    }

    /// The next instruction is for any other value.
    pub(super) const fn skip_if_equal(value: u32) -> Insn {
        Insn {
            code: JEQ,
            jt: 1,
            jf: 0,
            k: value,
        }
    }

    /// The next instruction is for this value.
    pub(super) const fn skip_unless_equal(value: u32) -> Insn {
        Insn {
            code: JEQ,
            jt: 0,
            jf: 1,
            k: value,
        }
    }

    /// The next instruction is for this value and all above it.
    pub(super) const fn skip_if_less(value: u32) -> Insn {
        Insn {
            code: JGE,
            jt: 0,
            jf: 1,
            k: value,
        }
    }

    /// `body` runs for one system call only; behind it the number is loaded again.
    pub(super) fn section(nr: u32, body: Vec<Insn>) -> Vec<Insn> {
        let skip = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut code = vec![
            load(NR),
            skip_if_equal(nr),
            Insn {
                code: 0x05,
                jt: 0,
                jf: 0,
                k: skip,
            },
        ];
        code.extend(body);
        code
    }
}
