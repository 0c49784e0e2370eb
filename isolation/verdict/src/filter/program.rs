//! The filter as a BPF program over `struct seccomp_data`.

use super::{
    Action, EBUSY, ENOSYS, FilterSpec, IO_URING, IoctlRule, KEY_MASK, MMAP, NEW_LISTENER,
    NUMBER_MASK, ioctl_rules,
};
use arch::{Arch, Syscall};
use bpf::{
    ALLOW, ARCH, Instruction, KILL_PROCESS, NOTIFY, NR, and, arg_high, arg_low, errno, if_at_least,
    if_equal, load, ret, skip,
};

/// The filter as a BPF program over `struct seccomp_data`.
#[must_use]
pub fn program(spec: &FilterSpec) -> Vec<Instruction> {
    let mut code = vec![
        load(ARCH),
        skip_if_equal(spec.arch.audit()),
        ret(KILL_PROCESS),
    ];
    if let Some(bit) = spec.arch.foreign_bit() {
        code.extend([load(NR), skip_if_less(bit), ret(KILL_PROCESS)]);
    }
    let enosys = || vec![ret(errno(ENOSYS))];
    code.extend(section(spec.arch, Syscall::Ioctl, ioctl(spec)));
    code.extend(section(spec.arch, Syscall::Mmap, mmap()));
    code.extend(section(spec.arch, Syscall::RemapFilePages, enosys()));
    code.extend(section(spec.arch, Syscall::Seccomp, seccomp()));
    code.push(ret(ALLOW));
    code
}

/// Makes io_uring's calls fail in a program of [`program`] as on a kernel without them.
pub fn deny_io_uring(program: &mut Vec<Instruction>, arch: Arch) {
    let last = program.pop();
    for (_, call) in IO_URING {
        program.extend(section(arch, call, vec![ret(errno(ENOSYS))]));
    }
    program.extend(last);
}

fn ioctl(spec: &FilterSpec) -> Vec<Instruction> {
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
                Action::Notify => NOTIFY,
                Action::Errno(number) => errno(number),
            };
            code.push(skip_unless_equal(rule.when.value));
            code.push(ret(verdict));
        }
        code.push(load(arg_low(1)));
    }
    code.push(ret(ALLOW));
    code
}

fn mmap() -> Vec<Instruction> {
    let [fixed, fixed_without_replacing] = MMAP.fixed;
    vec![
        load(arg_low(3)),
        and(MMAP.shared.mask),
        skip_if_equal(MMAP.shared.value),
        ret(ALLOW),
        load(arg_low(3)),
        and(fixed | fixed_without_replacing),
        skip_if_equal(0),
        ret(NOTIFY),
        load(arg_high(5)),
        skip_if_equal(0),
        ret(NOTIFY),
        load(arg_low(5)),
        skip_if_less(u32::try_from(MMAP.least_offset_bytes).unwrap_or(u32::MAX)),
        ret(NOTIFY),
        ret(ALLOW),
    ]
}

fn seccomp() -> Vec<Instruction> {
    let (set_mode_filter, new_listener) = NEW_LISTENER;
    vec![
        load(arg_low(0)),
        skip_if_equal(set_mode_filter),
        ret(ALLOW),
        load(arg_low(1)),
        and(new_listener.mask),
        skip_unless_equal(new_listener.value),
        ret(errno(EBUSY)),
        ret(ALLOW),
    ]
}

/// The next instruction is for any other value.
const fn skip_if_equal(value: u32) -> Instruction {
    if_equal(value, 1, 0)
}

/// The next instruction is for this value.
const fn skip_unless_equal(value: u32) -> Instruction {
    if_equal(value, 0, 1)
}

/// The next instruction is for this value and all above it.
const fn skip_if_less(value: u32) -> Instruction {
    if_at_least(value, 0, 1)
}

/// `body` runs for one system call only. There is none for a call that the architecture does not have.
fn section(arch: Arch, call: Syscall, body: Vec<Instruction>) -> Vec<Instruction> {
    let Some(nr) = arch.number(call) else {
        return Vec::new();
    };
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut code = vec![load(NR), skip_if_equal(nr), skip(length)];
    code.extend(body);
    code
}
