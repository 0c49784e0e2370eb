//! What a filter really does: whether any call that is the broker's gets past it.
//!
//! The filters of a process, as the kernel has them, are followed for *all* calls of a [`Demand`] at once: what is not known
//! of a call stays open ([`bpf::walk`]). A way that ends with the call let through is a [`Hole`]. What cannot be followed
//! exactly is taken for possible: an error here refuses a filter that holds, and never passes one that does not.
//!
//! Stricter than asked is fine: a call that the engine's profile denies need not reach the broker.

use bpf::walk::{Start, TooComplex};
use bpf::word::{State, Word};
use bpf::{Instruction, arg_high, arg_low};

use crate::filter::{self, Action, FilterSpec};

/// Calls that no filter may let through.
#[derive(Debug, Clone)]
pub struct Demand {
    name: &'static str,
    calls: State,
}

/// Whether io_uring's calls must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUring {
    /// They must.
    Closed,
    /// The profile's own affair.
    Open,
}

/// Calls that get past all filters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Hole {
    /// There is no filter.
    #[error("there is no filter")]
    NoFilter,
    /// A call is let through.
    #[error("it lets {name} through")]
    Open {
        /// The driver's name of the call, or the system call's.
        name: &'static str,
    },
    /// Too many ways, or an instruction that no filter of the kernel's has.
    #[error("it cannot be followed")]
    TooComplex,
}

/// What holds of filters without a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Whether some call waits for a listener's answer.
    pub notifies: bool,
}

impl From<TooComplex> for Hole {
    fn from(_: TooComplex) -> Self {
        Self::TooComplex
    }
}

/// System calls by number.
#[cfg(target_arch = "x86_64")]
mod native {
    pub(super) const ARCH: u32 = bpf::X86_64;
    pub(super) const IOCTL: u32 = 16;
    pub(super) const MMAP: u32 = 9;
    pub(super) const REMAP_FILE_PAGES: u32 = 216;
    pub(super) const SECCOMP: u32 = 317;
    /// x32's calls share the architecture and have this bit. The last number is no call.
    pub(super) const FOREIGN_NUMBERS: Option<(u32, u32)> = Some((bpf::X32_BIT, u32::MAX - 1));
}
#[cfg(target_arch = "aarch64")]
mod native {
    pub(super) const ARCH: u32 = 0xc000_00b7;
    pub(super) const IOCTL: u32 = 29;
    pub(super) const MMAP: u32 = 222;
    pub(super) const REMAP_FILE_PAGES: u32 = 234;
    pub(super) const SECCOMP: u32 = 277;
    pub(super) const FOREIGN_NUMBERS: Option<(u32, u32)> = None;
}

/// `io_uring_setup`, `_enter` and `_register`.
const IO_URING: [u32; 3] = [425, 426, 427];

/// What a container's filter must not let through.
#[must_use]
pub fn demands(spec: &FilterSpec, io_uring: IoUring) -> Vec<Demand> {
    let mut demands: Vec<Demand> = filter::ioctl_rules(spec)
        .iter()
        .map(|rule| {
            // Refusals too: what they close is nobody's.
            let (Action::Notify | Action::Errno(_)) = rule.action;
            let command = Word::masked(rule.when.mask, rule.when.value);
            Demand {
                name: rule.name,
                calls: native_call(native::IOCTL).with(arg_low(1), command),
            }
        })
        .collect();

    let mmap = |calls| Demand {
        name: "mmap of a driver's file",
        calls,
    };
    let with_flags = |flags: filter::MaskedEq| {
        let flags = Word::masked(flags.mask, flags.value);
        native_call(native::MMAP).with(arg_low(3), flags)
    };
    demands.extend(
        filter::MMAP
            .at_fixed_addresses()
            .map(|flags| mmap(with_flags(flags))),
    );
    let free = with_flags(filter::MMAP.at_free_addresses());
    let [low, high] = halves(filter::MMAP.least_offset_bytes);
    let beyond = free.with(arg_high(5), Word::from(high.saturating_add(1), u32::MAX));
    let within = free.with(arg_high(5), Word::exactly(high));
    demands.push(mmap(beyond));
    demands.push(mmap(within.with(arg_low(5), Word::from(low, u32::MAX))));
    demands.push(Demand {
        name: filter::REMAP_FILE_PAGES,
        calls: native_call(native::REMAP_FILE_PAGES),
    });

    let (operation, flag) = filter::NEW_LISTENER;
    let listener = native_call(native::SECCOMP)
        .with(arg_low(0), Word::exactly(operation))
        .with(arg_low(1), Word::masked(flag.mask, flag.value));
    demands.push(Demand {
        name: "seccomp with a new listener",
        calls: listener,
    });
    if io_uring == IoUring::Closed {
        demands.extend(IO_URING.map(|nr| Demand {
            name: "io_uring",
            calls: native_call(nr),
        }));
    }

    demands.push(Demand {
        name: "a foreign table of system calls",
        calls: State::any().with(bpf::ARCH, Word::other_than(native::ARCH)),
    });
    if let Some((first, last)) = native::FOREIGN_NUMBERS {
        let numbers = Word::from(first, last);
        demands.push(Demand {
            name: "a foreign table of system calls (x32)",
            calls: native_table().with(bpf::NR, numbers),
        });
    }
    demands
}

fn native_table() -> State {
    State::any().with(bpf::ARCH, Word::exactly(native::ARCH))
}

fn native_call(nr: u32) -> State {
    native_table().with(bpf::NR, Word::exactly(nr))
}

fn halves(value: u64) -> [u32; 2] {
    [value & 0xffff_ffff, value >> 32].map(|half| u32::try_from(half).unwrap_or(u32::MAX))
}

/// Follows a process's filters, all of which the kernel asks about every call; the strictest answer holds.
///
/// # Errors
/// The first call that gets past them.
pub fn check(filters: &[Vec<Instruction>], demands: &[Demand]) -> Result<Closed, Hole> {
    if filters.is_empty() {
        return Err(Hole::NoFilter);
    }
    let mut notifies = false;
    let mut start: Option<(u32, Start<'_>)> = None;
    for demand in demands {
        // Most demands are on one system call, and most of a filter is about others: that part is walked once.
        let nr = demand
            .calls
            .known(bpf::NR)
            .filter(|_| demand.calls.known(bpf::ARCH).is_some());
        let from = match (nr, &start) {
            (Some(nr), Some((of, shared))) if nr == *of => shared.clone(),
            (Some(nr), _) => {
                let shared = Start::of(filters, &native_call(nr))?;
                start = Some((nr, shared.clone()));
                shared
            }
            (None, _) => Start::beginning(filters),
        };
        let ends = from.walk(&demand.calls)?;
        if ends.passes {
            return Err(Hole::Open { name: demand.name });
        }
        notifies |= ends.notifies;
    }
    Ok(Closed { notifies })
}

#[cfg(test)]
mod tests;
