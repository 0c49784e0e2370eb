//! What a filter really does: whether any call that is the broker's gets past it.
//!
//! The filters of a process, as the kernel has them, are followed for *all* calls of a [`Demand`] at once: what is not known
//! of a call stays open ([`bpf::walk`]). A way that ends with the call let through is a [`Hole`]. What cannot be followed
//! exactly is taken for possible: an error here refuses a filter that holds, and never passes one that does not.
//!
//! Stricter than asked is fine: a call that the engine's profile denies need not reach the broker.

use arch::{Arch, Syscall};
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

/// What a container's filter must not let through.
#[must_use]
pub fn demands(spec: &FilterSpec, io_uring: IoUring) -> Vec<Demand> {
    let of = |call| native_call(spec.arch, call);
    let mut demands: Vec<Demand> = filter::ioctl_rules(spec)
        .iter()
        .filter_map(|rule| {
            // Refusals too: what they close is nobody's.
            let (Action::Notify | Action::Errno(_)) = rule.action;
            let command = Word::masked(rule.when.mask, rule.when.value);
            Some(Demand {
                name: rule.name,
                calls: of(Syscall::Ioctl)?.with(arg_low(1), command),
            })
        })
        .collect();

    if let Some(mmap) = of(Syscall::Mmap) {
        demands.extend(mmap_calls(&mmap).map(|calls| Demand {
            name: "mmap of a driver's file",
            calls,
        }));
    }
    if let Some(calls) = of(Syscall::RemapFilePages) {
        demands.push(Demand {
            name: filter::REMAP_FILE_PAGES,
            calls,
        });
    }
    if let Some(seccomp) = of(Syscall::Seccomp) {
        let (operation, flag) = filter::NEW_LISTENER;
        demands.push(Demand {
            name: "seccomp with a new listener",
            calls: seccomp
                .with(arg_low(0), Word::exactly(operation))
                .with(arg_low(1), Word::masked(flag.mask, flag.value)),
        });
    }
    if io_uring == IoUring::Closed {
        demands.extend(filter::IO_URING.iter().filter_map(|(_, call)| {
            Some(Demand {
                name: "io_uring",
                calls: of(*call)?,
            })
        }));
    }
    demands.push(Demand {
        name: "a foreign table of system calls",
        calls: State::any().with(bpf::ARCH, Word::other_than(spec.arch.audit())),
    });
    if let Some(bit) = spec.arch.foreign_bit() {
        // The last number is no call.
        let numbers = Word::from(bit, u32::MAX - 1);
        demands.push(Demand {
            name: "a foreign table of system calls (x32)",
            calls: native_table(spec.arch).with(bpf::NR, numbers),
        });
    }
    demands
}

/// The mappings that may be of managed memory.
fn mmap_calls(mmap: &State) -> [State; 4] {
    let with_flags = |flags: filter::MaskedEq| {
        let flags = Word::masked(flags.mask, flags.value);
        mmap.with(arg_low(3), flags)
    };
    let [first, second] = filter::MMAP.at_fixed_addresses().map(with_flags);
    let free = with_flags(filter::MMAP.at_free_addresses());
    let [low, high] = halves(filter::MMAP.least_offset_bytes);
    let beyond = free.with(arg_high(5), Word::from(high.saturating_add(1), u32::MAX));
    let within = free
        .with(arg_high(5), Word::exactly(high))
        .with(arg_low(5), Word::from(low, u32::MAX));
    [first, second, beyond, within]
}

fn native_table(arch: Arch) -> State {
    State::any().with(bpf::ARCH, Word::exactly(arch.audit()))
}

fn native_call(arch: Arch, call: Syscall) -> Option<State> {
    let nr = arch.number(call)?;
    Some(native_table(arch).with(bpf::NR, Word::exactly(nr)))
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
    let mut start: Option<((u32, u32), Start<'_>)> = None;
    for demand in demands {
        // Most demands are on one system call, and most of a filter is about others: that part is walked once.
        let call = demand
            .calls
            .known(bpf::ARCH)
            .zip(demand.calls.known(bpf::NR));
        let from = match (call, &start) {
            (Some(call), Some((of, shared))) if call == *of => shared.clone(),
            (Some((table, nr)), _) => {
                let call = State::any()
                    .with(bpf::ARCH, Word::exactly(table))
                    .with(bpf::NR, Word::exactly(nr));
                let shared = Start::of(filters, &call)?;
                start = Some(((table, nr), shared.clone()));
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
