//! `mmap` of `/dev/nvidia-uvm`: managed memory.
//!
//! `uvm_mmap` (nvidia-uvm/uvm.c) makes a managed range of `[address, address + length)` when the mapping is shared, readable and
//! writable and its address equals its offset; it takes the place of nothing: an overlap fails. The one exception is a
//! mapping that matches a semaphore pool exactly, which is system memory and made by an ioctl before, if the pool is still there. The address is not among
//! what the caller asks for (a hint need not be taken), but the offset is, and the two must be equal: so the offset is the address.
//!
//! The call itself changes the caller's address space and is therefore handed back; its registers cannot change meanwhile.

use crate::filter::MMAP;
use crate::policy::Managed;
use crate::{Effect, Refusal, Verdict};
use nvabi::errno::EINVAL;

/// The registers of an `mmap` that say what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Argument 1, bytes.
    pub length: u64,
    /// Argument 3.
    pub flags: u64,
    /// Argument 5, bytes.
    pub offset: u64,
    /// Bytes of a page of the kernel's.
    pub page_bytes: u64,
}

impl Mapping {
    /// Whether the kernel maps at the address that the program names, or not at all.
    #[must_use]
    pub fn is_at_fixed_address(self) -> bool {
        let bits = MMAP.fixed.map(u64::from);
        bits.into_iter().any(|bit| self.flags & bit != 0)
    }
}

const MAP_TYPE: u64 = 0x0f;
const MAP_SHARED: u64 = 1;
const MAP_SHARED_VALIDATE: u64 = 3;
const MAP_ANONYMOUS: u64 = 0x20;

/// Decides an `mmap` of a UVM file. `Execute(Effect::None)` and `Execute(Effect::Managed)` are for the caller to execute: the
/// broker commits the effect and lets the call proceed.
///
/// `is_semaphore_pool` says whether exactly this range (first address, bytes) is a pool that the file already has. Its mapping passes where
/// managed memory is denied, and is charged as managed memory all the same: the caller maps after the answer, and it is managed memory if the
/// pool has been freed by then.
#[must_use]
pub fn map(
    mapping: Mapping,
    policy: Managed,
    is_semaphore_pool: impl FnOnce(u64, u64) -> bool,
) -> Verdict {
    let Mapping {
        length,
        flags,
        offset,
        page_bytes,
    } = mapping;
    let is_shared = matches!(flags & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE);
    // What the kernel or the driver refuses by itself, or what is not of this file.
    if flags & MAP_ANONYMOUS != 0 || !is_shared {
        return Verdict::Execute(Effect::None);
    }
    let whole_pages = length.checked_next_multiple_of(page_bytes);
    let Some(length) =
        whole_pages.filter(|length| *length != 0 && offset.checked_add(*length).is_some())
    else {
        return Verdict::Refuse(Refusal::Errno(EINVAL));
    };
    if !offset.is_multiple_of(page_bytes) {
        return Verdict::Refuse(Refusal::Errno(EINVAL));
    }
    let charged = Verdict::Execute(Effect::Managed {
        base: offset,
        length,
    });
    match policy {
        Managed::Deny if !is_semaphore_pool(offset, length) => {
            Verdict::Refuse(Refusal::Errno(EINVAL))
        }
        Managed::Deny | Managed::Charge => charged,
        Managed::Allow => Verdict::Execute(Effect::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;

    fn map_of(length: u64, flags: u64, offset: u64, policy: Managed) -> Verdict {
        let mapping = Mapping {
            length,
            flags,
            offset,
            page_bytes: 4096,
        };
        map(mapping, policy, |base, length| {
            (base, length) == (0x1000_0000, 0x1000)
        })
    }

    #[test]
    fn a_managed_range_is_charged_by_whole_pages() {
        for flags in [MAP_SHARED, MAP_SHARED | 0x10, MAP_SHARED_VALIDATE] {
            assert_eq!(
                map_of(4097, flags, BASE, Managed::Charge),
                Verdict::Execute(Effect::Managed {
                    base: BASE,
                    length: 8192
                })
            );
        }
    }

    #[test]
    fn a_page_is_as_large_as_the_kernels() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let at = |offset| {
                let mapping = Mapping {
                    length: 4097,
                    flags: MAP_SHARED,
                    offset,
                    page_bytes,
                };
                map(mapping, Managed::Charge, |_, _| false)
            };
            let length = 4097_u64.next_multiple_of(page_bytes);
            assert_eq!(
                at(BASE),
                Verdict::Execute(Effect::Managed { base: BASE, length })
            );
            let within = Verdict::Refuse(Refusal::Errno(EINVAL));
            assert_eq!(at(BASE + page_bytes / 2), within);
        }
    }

    #[test]
    fn policies() {
        let refused = Verdict::Refuse(Refusal::Errno(EINVAL));
        let free = Verdict::Execute(Effect::None);
        assert_eq!(map_of(4096, MAP_SHARED, BASE, Managed::Deny), refused);
        assert_eq!(map_of(4096, MAP_SHARED, BASE, Managed::Allow), free);
        // A private mapping is refused by the driver; an anonymous one is no business of the file's.
        assert_eq!(map_of(4096, 2, BASE, Managed::Deny), free);
        assert_eq!(
            map_of(4096, MAP_SHARED | MAP_ANONYMOUS, BASE, Managed::Deny),
            free
        );
    }

    #[test]
    fn a_semaphore_pool_may_be_mapped_under_every_policy_but_no_part_of_it() {
        let charged = Effect::Managed {
            base: 0x1000_0000,
            length: 0x1000,
        };
        for (policy, effect) in [
            (Managed::Deny, charged.clone()),
            (Managed::Charge, charged),
            (Managed::Allow, Effect::None),
        ] {
            assert_eq!(
                map_of(1, MAP_SHARED, 0x1000_0000, policy),
                Verdict::Execute(effect)
            );
        }
        assert_eq!(
            map_of(0x2000, MAP_SHARED, 0x1000_0000, Managed::Deny),
            Verdict::Refuse(Refusal::Errno(EINVAL))
        );
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        for (length, offset) in [
            (0, BASE),
            (u64::MAX, BASE),
            (4096, u64::MAX - 4095),
            (4096, BASE + 1),
        ] {
            assert_eq!(
                map_of(length, MAP_SHARED, offset, Managed::Charge),
                Verdict::Refuse(Refusal::Errno(EINVAL)),
                "{length:#x} at {offset:#x}"
            );
        }
    }
}
