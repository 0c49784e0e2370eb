//! The seccomp rules that bring a tenant's calls to the broker.
//!
//! One list of [`IoctlRule`]s, from `nvabi`'s rows, has two forms: OCI `linux.seccomp` (written by `vgpu`, since runc
//! installs it) and a BPF [`program`] of our own (for `cgpu run`). What both must hold:
//! - only the low 32 bits of the command register count, as the kernel truncates it;
//! - the driver ignores the type byte and the direction, so a rule on them can be walked around: rules compare number and size;
//! - `seccomp(SET_MODE_FILTER, NEW_LISTENER)` fails, so that a tenant can never supervise itself past the broker;
//! - foreign system-call tables (i386, x32) reach the same driver: their ioctl is closed.

use nvabi::call::Production;
use nvabi::escape::{self, KEY_MASK};
use nvabi::{Release, uvm};

/// Whose calls are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterSpec {
    /// The driver's layouts: sizes are part of the keys.
    pub release: Release,
    /// Which rows come to the broker.
    pub coverage: Coverage,
}

/// Which rows come to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// The calls that memory and views need; a real driver answers the rest alone.
    Production,
    /// Every row: there is no driver behind a simulated card's files.
    Simulated,
}

/// Matches `register & mask == value`; `mask` never covers the upper half of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedEq {
    /// Bits compared.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

/// What happens to a matching call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The broker gets it.
    Notify,
    /// It fails at once with this errno.
    Errno(u16),
}

/// One rule on `ioctl`'s command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoctlRule {
    /// The driver's name of the call.
    pub name: &'static str,
    /// When it matches.
    pub when: MaskedEq,
    /// What happens.
    pub action: Action,
}

/// `ENOSYS`
const ENOSYS: u16 = 38;
/// `ENOTTY`
const ENOTTY: u16 = 25;
/// `EBUSY`: what the kernel itself answers to a second listener.
pub const EBUSY: u16 = 16;

/// The number of an ioctl, without its size, direction and type.
const NUMBER_MASK: u32 = 0xff;

/// The rules on `ioctl`, no two of which match one command.
#[must_use]
pub fn ioctl_rules(spec: &FilterSpec) -> Vec<IoctlRule> {
    let mut rules = Vec::new();
    for row in escape::ALL {
        let Some(value) = row.key(spec.release) else {
            continue;
        };
        let when = MaskedEq {
            mask: KEY_MASK,
            value,
        };
        if let Some(action) = action(row.production, spec.coverage) {
            rules.push(IoctlRule {
                name: row.name,
                when,
                action,
            });
        }
    }
    // Any count of entries, so the size is not compared but the type byte is: it gives nothing away but card numbers.
    rules.push(IoctlRule {
        name: "NV_ESC_CARD_INFO",
        when: MaskedEq {
            mask: 0xffff,
            value: (u32::from(escape::NV_IOCTL_MAGIC) << 8) | u32::from(escape::NV_ESC_CARD_INFO),
        },
        action: Action::Notify,
    });
    // The same, but its bits beside the number say nothing to the driver, and each spelling opens whatever card it names.
    rules.push(IoctlRule {
        name: "NV_ESC_ATTACH_GPUS_TO_FD",
        when: MaskedEq {
            mask: NUMBER_MASK,
            value: u32::from(escape::NV_ESC_ATTACH_GPUS_TO_FD),
        },
        action: Action::Notify,
    });
    for row in uvm::ALL.iter().filter(|row| row.size.of(spec.release) != 0) {
        if let Some(action) = action(row.production, spec.coverage) {
            let when = MaskedEq {
                mask: u32::MAX,
                value: row.cmd,
            };
            rules.push(IoctlRule {
                name: row.name,
                when,
                action,
            });
        }
    }
    rules
}

/// What a filter does with a row; `None`: it lets the call pass.
const fn action(production: Production, coverage: Coverage) -> Option<Action> {
    match (production, coverage) {
        (Production::Forbidden, _) => Some(Action::Errno(ENOTTY)),
        (Production::Notified, _) | (Production::Native, Coverage::Simulated) => {
            Some(Action::Notify)
        }
        (Production::Native, Coverage::Production) => None,
    }
}

/// Commands that a driver's filter with [`Coverage::Production`] lets pass: the kernel executes them, and no broker hears of them.
#[derive(Debug)]
pub struct Native {
    notified: Vec<MaskedEq>,
}

impl Native {
    /// The commands of a release.
    #[must_use]
    pub fn of(release: Release) -> Self {
        let coverage = Coverage::Production;
        let rules = ioctl_rules(&FilterSpec { release, coverage });
        Self {
            notified: rules.iter().map(|rule| rule.when).collect(),
        }
    }

    /// Whether a command is one of them.
    #[must_use]
    pub fn has(&self, cmd: u32) -> bool {
        self.notified
            .iter()
            .all(|when| cmd & when.mask != when.value)
    }
}

/// Which `mmap`s of a shared file come to the broker: `/dev/nvidia-uvm` makes managed memory where the offset equals the
/// address, so every mapping at an offset, and every one whose address the program fixes.
///
/// At offset 0 the address would have to be 0, which the kernel never chooses itself: it begins at the first page or at
/// `vm.mmap_min_addr`, whichever is higher. So what remains is an ordinary mapping from a file's beginning, and nothing
/// depends on what the host lets programs map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmapRule {
    /// Condition on the flags (argument 3): shared, not anonymous.
    pub shared: MaskedEq,
    /// Bits of the flags either of which fixes the address: such mappings come at every offset.
    pub fixed: [u32; 2],
    /// Others come when their offset (argument 5) has at least this many bytes.
    pub least_offset_bytes: u64,
}

/// The rule on `mmap`.
pub const MMAP: MmapRule = MmapRule {
    shared: MaskedEq {
        mask: 0x21,
        value: 0x01,
    },
    // MAP_FIXED, MAP_FIXED_NOREPLACE
    fixed: [0x10, 0x10_0000],
    least_offset_bytes: 1,
};

impl MmapRule {
    /// Shared mappings of files whose address is fixed: by the first of the two bits, and by the second alone.
    #[must_use]
    pub fn at_fixed_addresses(&self) -> [MaskedEq; 2] {
        let [first, second] = self.fixed;
        let MaskedEq { mask, value } = self.shared;
        [
            MaskedEq {
                mask: mask | first,
                value: value | first,
            },
            MaskedEq {
                mask: mask | first | second,
                value: value | second,
            },
        ]
    }

    /// Shared mappings of files at an address of the kernel's choice.
    #[must_use]
    pub fn at_free_addresses(&self) -> MaskedEq {
        let [first, second] = self.fixed;
        MaskedEq {
            mask: self.shared.mask | first | second,
            value: self.shared.value,
        }
    }
}

/// Gives a mapping of `nvidia-uvm` another offset without naming the file, so that a mapping that was moved, and is none of
/// managed memory any more, becomes one. Long deprecated; it fails as on a kernel without it.
pub const REMAP_FILE_PAGES: &str = "remap_file_pages";

/// `seccomp`'s arguments that would make a second listener: operation SET_MODE_FILTER with the flag NEW_LISTENER.
pub const NEW_LISTENER: (u32, MaskedEq) = (
    1,
    MaskedEq {
        mask: 1 << 3,
        value: 1 << 3,
    },
);

/// The system calls of io_uring, whose numbers are the same in every table.
pub const IO_URING: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// Makes io_uring's calls fail in a program of [`program`] as on a kernel without them.
pub fn deny_io_uring(program: &mut Vec<Insn>) {
    let last = program.pop();
    for nr in bpf::SYS_IO_URING {
        let enosys = bpf::ret(bpf::ERRNO | u32::from(ENOSYS));
        program.extend(bpf::section(nr, vec![enosys]));
    }
    program.extend(last);
}

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
    use bpf::*;
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const X32_BIT: u32 = 0x4000_0000;
    let mut code = vec![
        load(ARCH),
        skip_if_equal(AUDIT_ARCH_X86_64, 1),
        ret(KILL_PROCESS),
        load(NR),
        // x32 numbers share the native table.
        Insn {
            code: JGE,
            jt: 0,
            jf: 1,
            k: X32_BIT,
        },
        ret(KILL_PROCESS),
    ];

    // Each section begins with the system-call number loaded and is skipped as a whole by `section`.
    let mut ioctl = vec![load(arg_low(1))];
    for mask in [KEY_MASK, 0xffff, NUMBER_MASK, u32::MAX] {
        let rules: Vec<IoctlRule> = ioctl_rules(spec)
            .into_iter()
            .filter(|rule| rule.when.mask == mask)
            .collect();
        if mask != u32::MAX {
            ioctl.push(and(mask));
        }
        for rule in &rules {
            let verdict = match rule.action {
                Action::Notify => USER_NOTIF,
                Action::Errno(errno) => ERRNO | u32::from(errno),
            };
            ioctl.push(Insn {
                code: JEQ,
                jt: 0,
                jf: 1,
                k: rule.when.value,
            });
            ioctl.push(ret(verdict));
        }
        ioctl.push(load(arg_low(1)));
    }
    ioctl.push(ret(ALLOW));
    code.extend(section(SYS_IOCTL, ioctl));

    let [fixed, fixed_without_replacing] = MMAP.fixed;
    code.extend(section(
        SYS_MMAP,
        vec![
            load(arg_low(3)),
            and(MMAP.shared.mask),
            Insn {
                code: JEQ,
                jt: 1,
                jf: 0,
                k: MMAP.shared.value,
            },
            ret(ALLOW),
            load(arg_low(3)),
            and(fixed | fixed_without_replacing),
            skip_if_equal(0, 1),
            ret(USER_NOTIF),
            load(arg_high(5)),
            skip_if_equal(0, 1),
            ret(USER_NOTIF),
            load(arg_low(5)),
            Insn {
                code: JGE,
                jt: 0,
                jf: 1,
                k: u32::try_from(MMAP.least_offset_bytes).unwrap_or(u32::MAX),
            },
            ret(USER_NOTIF),
            ret(ALLOW),
        ],
    ));

    let enosys = ret(ERRNO | u32::from(ENOSYS));
    code.extend(section(SYS_REMAP_FILE_PAGES, vec![enosys]));

    code.extend(section(
        SYS_SECCOMP,
        vec![
            load(arg_low(0)),
            Insn {
                code: JEQ,
                jt: 1,
                jf: 0,
                k: NEW_LISTENER.0,
            },
            ret(ALLOW),
            load(arg_low(1)),
            and(NEW_LISTENER.1.mask),
            Insn {
                code: JEQ,
                jt: 0,
                jf: 1,
                k: NEW_LISTENER.1.value,
            },
            ret(ERRNO | u32::from(EBUSY)),
            ret(ALLOW),
        ],
    ));
    code.push(ret(ALLOW));
    code
}

/// The few BPF operations that a seccomp filter needs (`linux/bpf_common.h`, `linux/seccomp.h`).
mod bpf {
    use super::Insn;

    pub(super) const JEQ: u16 = 0x15;
    pub(super) const JGE: u16 = 0x35;
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

    pub(super) const fn skip_if_equal(value: u32, count: u8) -> Insn {
        Insn {
            code: JEQ,
            jt: count,
            jf: 0,
            k: value,
        }
    }

    /// `body` runs for one system call only; behind it the number is loaded again.
    pub(super) fn section(nr: u32, body: Vec<Insn>) -> Vec<Insn> {
        let skip = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut code = vec![
            load(NR),
            Insn {
                code: JEQ,
                jt: 1,
                jf: 0,
                k: nr,
            },
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

#[cfg(test)]
mod tests;
