//! The seccomp rules that bring a tenant's calls to the broker.
//!
//! One list of [`IoctlRule`]s, from `nvabi`'s rows, has two forms: OCI `linux.seccomp` (written by `vgpu`, since runc
//! installs it) and a BPF [`program`] of our own (for `cgpu run`). What both must hold:
//! - only the low 32 bits of the command register count, as the kernel truncates it;
//! - the driver ignores the type byte and the direction, so a rule on them can be walked around: rules compare number and size;
//! - `seccomp(SET_MODE_FILTER, NEW_LISTENER)` fails, so that a tenant can never supervise itself past the broker;
//! - foreign system-call tables (i386, x32, 32-bit ARM) reach the same driver: their ioctl is closed.

use arch::{Arch, Syscall};
use nvabi::call::Production;
use nvabi::escape::{self, KEY_MASK};
use nvabi::{Release, uvm};

mod program;

pub use program::{deny_io_uring, program};

/// Whose calls are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterSpec {
    /// The driver's layouts: sizes are part of the keys.
    pub release: Release,
    /// Which rows come to the broker.
    pub coverage: Coverage,
    /// The machine whose numbers its system calls have.
    pub arch: Arch,
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
    for (name, value) in uvm::FORBIDDEN {
        let mask = u32::MAX;
        rules.push(IoctlRule {
            name,
            when: MaskedEq { mask, value },
            action: Action::Errno(ENOTTY),
        });
    }
    rules
}

/// Calls that give no memory away and whose number and size other drivers use too, in containers that have nothing to do with a card:
/// `TUNSETSNDBUF` (every size is ATTACH_GPUS_TO_FD's), `TUNSETDEBUG`, `PPPIOCSXASYNCMAP`.
const OTHER_DRIVERS_TOO: [&str; 3] = [
    "NV_ESC_ATTACH_GPUS_TO_FD",
    "NV_ESC_REGISTER_FD",
    "NV_ESC_RM_UNMAP_MEMORY",
];

/// The rules for a container that has no card and may be handed another one's open driver file: what comes to a broker elsewhere fails
/// here. Those of every release, so that they depend on no configuration, and hold when the host's driver is another one later.
///
/// `ENOTTY` is what a file answers that has no such call: a program of another driver, whose call has the same number and size, takes it
/// for a kernel without that call. Of Linux 6.1's own calls that is `BTRFS_IOC_QGROUP_LIMIT` alone, which takes `CAP_SYS_ADMIN`.
#[must_use]
pub fn closing_rules() -> Vec<IoctlRule> {
    let mut rules: Vec<IoctlRule> = Vec::new();
    for release in Release::ALL {
        let (coverage, arch) = (Coverage::Production, Arch::NATIVE);
        let of_release = ioctl_rules(&FilterSpec {
            release,
            coverage,
            arch,
        });
        for rule in of_release {
            let is_known = rules.iter().any(|known| known.when == rule.when);
            if !is_known && !OTHER_DRIVERS_TOO.contains(&rule.name) {
                let action = Action::Errno(ENOTTY);
                rules.push(IoctlRule { action, ..rule });
            }
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
        let rules = ioctl_rules(&FilterSpec {
            release,
            coverage,
            arch: Arch::NATIVE,
        });
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

/// The system calls of io_uring, by the names that profiles have for them.
pub const IO_URING: [(&str, Syscall); 3] = [
    ("io_uring_setup", Syscall::IoUringSetup),
    ("io_uring_enter", Syscall::IoUringEnter),
    ("io_uring_register", Syscall::IoUringRegister),
];

#[cfg(test)]
mod tests;
