//! How much of a card an allocation of memory can take, by the pages that it asks for.
//!
//! RM rounds a request up to whole pages, and the caller chooses their size by two fields: `attr` says 4 KiB, big or huge, and
//! `attr2` says which huge one. A request of one byte may so take 512 MiB or 256 GiB. Which page sizes a card has depends on its architecture,
//! which a verdict does not know: what a card does not have, the driver refuses, so the largest is assumed.
//!
//! Sources, at 535.261.03 to 595.45.04: `dmaNvos32ToPageSizeAttr` (mem_mgr/mem.c), `memmgrDeterminePageSize` (gpu/mem_mgr/mem_mgr.c),
//! `memmgrAllocDetermineAlignment_GM107` (gpu/mem_mgr/arch/maxwell/mem_mgr_gm107.c), `_vidmemPmaAllocate` (mem_mgr/video_mem.c).

use nvabi::Release;
use nvabi::bytes::{u32_at, u64_at};
use nvabi::layout::memory_params as params;
use nvabi::layout::nvos32;

use crate::effect::Whose;

/// The host's page, or more: what its kernel was built with is not asked, and too much is charged rather than too little.
pub const HOST_PAGE: u64 = arch::Arch::NATIVE.largest_page_bytes();
/// What PMA hands out at least, and RM's big page.
pub const BIG_PAGE: u64 = 64 << 10;
/// The page that every request of this size and more gets, unless it asks for another.
pub const HUGE_PAGE: u64 = 2 << 20;
/// Since Ampere.
pub const PAGE_512M: u64 = 512 << 20;
/// Since Blackwell, and since 570.
pub const PAGE_256G: u64 = 256 << 30;
/// The largest page of compression that the sources name (`memmgrAllocDetermineAlignment_GA100`).
const COMPRESSION_PAGE: u64 = 256 << 10;

/// The fields of a request that decide how much memory it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// `size`, bytes
    pub size_bytes: u64,
    /// `flags`
    pub flags: u32,
    /// `attr`
    pub attr: u32,
    /// `attr2`
    pub attr2: u32,
    /// `alignment`, bytes
    pub alignment_bytes: u64,
}

/// What a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takes {
    /// The most.
    pub most_bytes: u64,
    /// Whether it takes what the driver writes back, in whole pages. At a chosen address it does not: RM writes back the whole pages less the
    /// address's place in its page, and takes all of them (`no_allocation_takes_more_of_a_card_than_is_reserved_and_charged_for_it` of
    /// `lab/referee`, RM's own heap), so that one page of 512 MiB can be had for 64 KiB. The most counts then. So it does where the caller
    /// chooses which huge page a smaller one comes out of ([`Requested::takes`]).
    pub is_reported: bool,
}

impl Requested {
    /// Of `NV_MEMORY_ALLOCATION_PARAMS`; `None` where the block is too short.
    #[must_use]
    pub fn of_params(block: &[u8]) -> Option<Self> {
        Some(Self {
            size_bytes: u64_at(block, params::SIZE)?,
            flags: u32_at(block, params::FLAGS)?,
            attr: u32_at(block, params::ATTR)?,
            attr2: u32_at(block, params::ATTR2)?,
            alignment_bytes: u64_at(block, params::ALIGNMENT)?,
        })
    }

    /// Of `NVOS32_PARAMETERS` with the function ALLOC_SIZE; `None` where the struct is too short.
    #[must_use]
    pub fn of_heap(block: &[u8]) -> Option<Self> {
        Some(Self {
            size_bytes: u64_at(block, nvos32::ALLOC_SIZE)?,
            flags: u32_at(block, nvos32::ALLOC_FLAGS)?,
            attr: u32_at(block, nvos32::ALLOC_ATTR)?,
            attr2: u32_at(block, nvos32::ALLOC_ATTR2)?,
            alignment_bytes: u64_at(block, nvos32::ALLOC_ALIGNMENT)?,
        })
    }

    /// What it takes of a card.
    ///
    /// Whoever chooses the huge page that a small one comes out of can have a small one of each, and leave no huge one to anybody: 2.5 GiB in
    /// pieces of 64 KiB could break all of a card of 80 GiB. So small memory at a chosen place, in a chosen range, or of a larger alignment
    /// counts as the huge pages that it breaks. Without a choice it is the driver that decides (phys_mem_allocator.c, PMA).
    #[must_use]
    pub fn takes(&self, release: Release) -> Takes {
        let page = self.largest_page(release);
        let is_aligned =
            self.flags & (params::FLAG_ALIGNMENT_HINT | params::FLAG_ALIGNMENT_FORCE) != 0;
        let is_placed = self.flags & params::FLAG_FIXED_ADDRESS != 0;
        // PMA aligns the end of a chosen place as well.
        let end_alignment_bytes = match self.alignment_bytes {
            more if is_placed && is_aligned && more > 0 => more,
            _none => 1,
        };
        let is_in_range = self.flags & params::FLAG_USE_BEGIN_END != 0;
        let broken = match self.alignment_bytes.min(HUGE_PAGE) {
            _any if is_placed || is_in_range => HUGE_PAGE,
            more if is_aligned => more.next_power_of_two(),
            _none => BIG_PAGE,
        };
        let page = page.max(broken);
        let size = whole(self.size_bytes, page);
        Takes {
            most_bytes: whole(ended(size, end_alignment_bytes), page),
            is_reported: !is_placed && broken <= self.largest_page(release),
        }
    }

    /// What it takes of the host, and how: the host's own pages, unless larger ones are asked for (`sysmemConstruct`, mem_mgr/system_mem.c).
    #[must_use]
    pub fn takes_of_host(&self, release: Release) -> (u64, Whose) {
        let page = match self.has_large_pages() {
            true => self.largest_page(release),
            false => HOST_PAGE,
        };
        let whose = self.whose_of_host(release);
        (of_host(whole(self.size_bytes, page), whose), whose)
    }

    /// Only what says that it is contiguous is: NONCONTIGUOUS, ALLOW_NONCONTIGUOUS and the default are not. But up to 550 the default is in
    /// large pages, on hosts with pages of 4 KiB (`sysmemAllocResources`, mem_mgr/system_mem.c; since 555 that is for simulators alone).
    fn whose_of_host(&self, release: Release) -> Whose {
        match self.attr & params::ATTR_PHYSICALITY_MASK {
            params::ATTR_PHYSICALITY_CONTIGUOUS => Whose::HostInOnePiece,
            0 if self.has_large_pages() && release < Release::R555 => Whose::HostInOnePiece,
            _in_pieces => Whose::Host,
        }
    }

    fn has_large_pages(&self) -> bool {
        let page = self.attr & params::ATTR_PAGE_SIZE_MASK;
        page == params::ATTR_PAGE_SIZE_BIG || page == params::ATTR_PAGE_SIZE_HUGE
    }

    /// The largest page that the fields and the release allow. `attr2` counts whatever `attr` says: a driver that reads it without
    /// looking at `attr` is believed as well.
    fn largest_page(&self, release: Release) -> u64 {
        let huge = match self.attr2 & params::ATTR2_HUGE_MASK {
            params::ATTR2_HUGE_256G if release >= Release::R560 => PAGE_256G,
            // Up to 555 the value names nothing, and the page is that of the size.
            params::ATTR2_HUGE_256G | params::ATTR2_HUGE_2M => HUGE_PAGE,
            params::ATTR2_HUGE_512M => PAGE_512M,
            _default => BIG_PAGE,
        };
        let requested = match self.attr & params::ATTR_PAGE_SIZE_MASK {
            params::ATTR_PAGE_SIZE_HUGE => HUGE_PAGE,
            _small_big_or_default => BIG_PAGE,
        };
        let by_size = match self.size_bytes {
            0..HUGE_PAGE => BIG_PAGE,
            _ => HUGE_PAGE,
        };
        let compressed = match self.attr & params::ATTR_COMPRESSION_MASK {
            0 => BIG_PAGE,
            _ => COMPRESSION_PAGE,
        };
        // Each is a power of two, so whole pages of the largest are whole pages of all.
        huge.max(requested).max(by_size).max(compressed)
    }
}

/// What memory of a written-back size takes, where that tells ([`Takes::is_reported`]): with pages of 4 KiB the driver writes less than PMA gives.
#[must_use]
pub fn taken(written_back_bytes: u64) -> u64 {
    whole(written_back_bytes, BIG_PAGE)
}

/// With its end aligned. The driver's mask is one for powers of two; with any other number it adds less than that number.
fn ended(bytes: u64, alignment: u64) -> u64 {
    if alignment.is_power_of_two() {
        whole(bytes, alignment)
    } else {
        bytes.saturating_add(alignment)
    }
}

/// The same of the host's memory, which is the driver's own word but for what is contiguous.
#[must_use]
pub fn taken_of_host(bytes: u64, whose: Whose) -> u64 {
    of_host(whole(bytes, HOST_PAGE), whose)
}

/// For contiguous memory the driver takes the next power of two of pages, and writes back the pages that were asked for (`get_order` in
/// `nv_alloc_contig_pages`, kernel-open/nvidia/nv-vm.c). What is larger than the kernel's largest piece it does not get at all.
fn of_host(pages: u64, whose: Whose) -> u64 {
    match whose {
        Whose::HostInOnePiece => pages.checked_next_power_of_two().unwrap_or(u64::MAX),
        Whose::Host | Whose::Card => pages,
    }
}

fn whole(bytes: u64, page: u64) -> u64 {
    bytes
        .max(1)
        .checked_next_multiple_of(page)
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;

    fn requested(size_bytes: u64, attr: u32, attr2: u32) -> Requested {
        Requested {
            size_bytes,
            flags: 0,
            attr,
            attr2,
            alignment_bytes: 0,
        }
    }

    #[test]
    fn one_byte_takes_a_whole_page_of_the_size_requested() {
        let huge = params::ATTR_PAGE_SIZE_HUGE;
        for (attr, attr2, release, most) in [
            (0, 0, Release::R570, BIG_PAGE),
            (params::ATTR_PAGE_SIZE_4K, 0, Release::R570, BIG_PAGE),
            (params::ATTR_PAGE_SIZE_BIG, 0, Release::R570, BIG_PAGE),
            (huge, 0, Release::R570, HUGE_PAGE),
            (huge, params::ATTR2_HUGE_2M, Release::R570, HUGE_PAGE),
            (0, params::ATTR2_HUGE_2M, Release::R570, HUGE_PAGE),
            (huge, params::ATTR2_HUGE_512M, Release::R535, PAGE_512M),
            (0, params::ATTR2_HUGE_512M, Release::R595, PAGE_512M),
            (huge, params::ATTR2_HUGE_256G, Release::R555, HUGE_PAGE),
            (huge, params::ATTR2_HUGE_256G, Release::R560, PAGE_256G),
            (1 << 12, 0, Release::R570, COMPRESSION_PAGE),
        ] {
            let takes = requested(1, attr, attr2).takes(release);
            assert_eq!(
                (takes.most_bytes, takes.is_reported),
                (most, true),
                "{attr:#x} {attr2:#x} {release:?}"
            );
        }
    }

    #[test]
    fn a_chosen_address_takes_its_alignment_too() {
        let fixed = params::FLAG_FIXED_ADDRESS | params::FLAG_ALIGNMENT_FORCE;
        let request = Requested {
            flags: fixed,
            alignment_bytes: 1 << 30,
            ..requested(1, 0, 0)
        };
        let takes = request.takes(Release::R570);
        assert_eq!(takes.most_bytes, 1 << 30);
        assert!(!takes.is_reported, "the driver writes less back");
        // Without the flag the alignment moves the memory and does not lengthen it, but chooses the huge page that it breaks.
        let moved = Requested {
            flags: params::FLAG_ALIGNMENT_FORCE,
            ..request
        };
        assert_eq!(moved.takes(Release::R570).most_bytes, HUGE_PAGE);
    }

    #[test]
    fn who_chooses_the_huge_page_that_a_small_one_comes_out_of_pays_for_it() {
        let force = params::FLAG_ALIGNMENT_FORCE;
        for (flags, alignment_bytes, most, is_reported) in [
            (force, HUGE_PAGE, HUGE_PAGE, false),
            (params::FLAG_ALIGNMENT_HINT, 1 << 40, HUGE_PAGE, false),
            (force, 256 * KIB, 256 * KIB, false),
            (force, 192 * KIB, 256 * KIB, false),
            (params::FLAG_USE_BEGIN_END, 0, HUGE_PAGE, false),
            (params::FLAG_FIXED_ADDRESS, 0, HUGE_PAGE, false),
            // No flag, no choice; and an alignment that the page has anyway is none.
            (0, HUGE_PAGE, BIG_PAGE, true),
            (force, 4 * KIB, BIG_PAGE, true),
            (force, BIG_PAGE, BIG_PAGE, true),
        ] {
            let small = Requested {
                flags,
                alignment_bytes,
                ..requested(BIG_PAGE, 0, 0)
            };
            let takes = small.takes(Release::R570);
            let expected = Takes {
                most_bytes: most,
                is_reported,
            };
            assert_eq!(takes, expected, "{flags:#x} {alignment_bytes:#x}");
        }
        let large = Requested {
            flags: force,
            alignment_bytes: HUGE_PAGE,
            ..requested(3 * HUGE_PAGE, 0, 0)
        };
        let takes = large.takes(Release::R570);
        assert_eq!((takes.most_bytes, takes.is_reported), (3 * HUGE_PAGE, true));
    }

    #[test]
    fn small_pages_are_charged_by_what_pma_gives() {
        assert_eq!(taken(4 * KIB), BIG_PAGE);
        assert_eq!(taken(BIG_PAGE), BIG_PAGE);
        assert_eq!(taken(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_is_contiguous_on_the_host_takes_the_next_power_of_two() {
        let contiguous = params::ATTR_PHYSICALITY_CONTIGUOUS;
        let (in_pieces, big) = (1 << 27, params::ATTR_PAGE_SIZE_BIG);
        let allow_pieces = 3 << 27;
        let (pieces, whole) = (Whose::Host, Whose::HostInOnePiece);
        let size = HUGE_PAGE + HOST_PAGE;
        let in_big = HUGE_PAGE * 2;
        for (attr, release, expected) in [
            (contiguous, Release::R535, (2 * HUGE_PAGE, whole)),
            (contiguous, Release::R595, (2 * HUGE_PAGE, whole)),
            (contiguous | big, Release::R570, (2 * HUGE_PAGE, whole)),
            (0, Release::R535, (size, pieces)),
            (0, Release::R595, (size, pieces)),
            (params::ATTR_PAGE_SIZE_4K, Release::R535, (size, pieces)),
            (in_pieces, Release::R535, (size, pieces)),
            (allow_pieces, Release::R570, (size, pieces)),
            // Not said, in large pages: contiguous up to 550.
            (big, Release::R550, (in_big, whole)),
            (big, Release::R555, (in_big, pieces)),
            (big | in_pieces, Release::R550, (in_big, pieces)),
        ] {
            let takes = requested(size, attr, 0).takes_of_host(release);
            assert_eq!(takes, expected, "{attr:#x} {release:?}");
        }
        // The driver writes back the pages alone.
        assert_eq!(taken_of_host(size, whole), 2 * HUGE_PAGE);
        assert_eq!(taken_of_host(size, pieces), size);
        assert_eq!(taken_of_host(u64::MAX, whole), u64::MAX);
    }

    /// The kernel's `get_order`, of the host's largest page here, as it is written in `asm-generic/getorder.h`.
    fn get_order(bytes: u64) -> u32 {
        let (mut order, mut rest) = (0, (bytes - 1) / HOST_PAGE);
        while rest > 0 {
            rest >>= 1;
            order += 1;
        }
        order
    }

    /// The driver's own sum, on the card with the largest pages, written a second time and in its own order.
    fn driver_takes(of: &Requested, release: Release) -> Option<u64> {
        let up = |bytes: u128, page: u128| bytes.div_ceil(page) * page;
        let (size, format) = (u128::from(of.size_bytes), of.attr >> 23 & 3);
        let page: u128 = match (format, of.attr2 >> 20 & 3) {
            (1, _) => 4 << 10,
            (2, _) => 64 << 10,
            (3, 0 | 1) => 2 << 20,
            (3, 2) => 512 << 20,
            (3, 3) if release >= Release::R560 => 256 << 30,
            _ if size >= 2 << 20 => 2 << 20,
            _ => 64 << 10,
        };
        let mut align = page;
        if of.attr >> 12 & 3 != 0 {
            align = align.max(256 << 10);
        }
        let size = up(size, align);
        let aligned = of.flags & 0x180 != 0 && of.alignment_bytes > 0;
        let requested = u128::from(of.alignment_bytes);
        if aligned && requested > align && requested % align == 0 {
            align = requested;
        }
        let pma_page = page.max(64 << 10);
        let size = match of.flags & 0x10 {
            0 => size,
            _ if align.is_power_of_two() => up(size, align.max(pma_page)),
            // A mask of no power of two: at most so much more.
            _ => size + align,
        };
        u64::try_from(up(size, pma_page))
            .ok()
            .filter(|bytes| *bytes > 0)
    }

    proptest! {
        #[test]
        fn contiguous_memory_is_charged_as_the_kernel_gives_it(
            size_bytes in prop_oneof![1..=4 * HUGE_PAGE, 1..1_u64 << 60],
            release in prop::sample::select(Release::ALL.to_vec()),
        ) {
            let of = requested(size_bytes, params::ATTR_PHYSICALITY_CONTIGUOUS, 0);
            let given = HOST_PAGE << get_order(size_bytes);
            let (reserved, whose) = of.takes_of_host(release);
            prop_assert_eq!((reserved, taken_of_host(size_bytes, whose)), (given, given));
            let (in_pieces, whose) = requested(size_bytes, 0, 0).takes_of_host(release);
            prop_assert_eq!(in_pieces, size_bytes.next_multiple_of(HOST_PAGE));
            prop_assert_eq!(taken_of_host(size_bytes, whose), in_pieces);
        }

        #[test]
        fn no_request_takes_more_than_is_reserved(
            size_bytes in prop_oneof![0..=4 * HUGE_PAGE, any::<u64>()],
            attr: u32,
            attr2: u32,
            flags: u32,
            alignment_bytes in prop_oneof![
                any::<u64>(),
                (0_u32..64).prop_map(|bit| 1 << bit),
                (0_u64..1 << 40).prop_map(|kib| kib * 64 * KIB),
            ],
            release in prop::sample::select(Release::ALL.to_vec()),
        ) {
            let of = Requested { size_bytes, flags, attr, attr2, alignment_bytes };
            if let Some(taken) = driver_takes(&of, release) {
                let takes = of.takes(release);
                prop_assert!(takes.most_bytes >= taken, "{of:?}: {taken} of {takes:?}");
            }
        }
    }
}
