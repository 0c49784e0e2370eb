//! How many page tables mappings take by where they are: one of 4 KiB for 2 MiB of addresses, and a directory of 4 KiB for 512 MiB, for
//! 256 GiB and for 128 TiB, however little of these is mapped.
//!
//! The levels are those of versions 2 and 3 of the MMU's format (`kgmmuFmtInitLevels_GP10X`, `kgmmuFmtInitLevels_GH10X`; `index_bits_pascal` and
//! `index_bits_hopper` of nvidia-uvm). Above them are the root alone, and from Hopper on two directories at most: three pages for an address
//! space, whatever is mapped in it. A table of 256 bytes for pages of 64 KiB may be beside one of 4 KiB; that sixteenth is not counted.

const TABLE_BYTES: u128 = 4096;
/// Of the addresses of one table, and of one directory of each level, as powers of two.
const LEVELS: [u32; 4] = [21, 29, 38, 47];

/// Adds up the tables of mappings that come by address space, and in each by address.
#[derive(Debug)]
pub(super) struct Placement<S> {
    last: Option<Last<S>>,
    tables: u128,
}

/// The address space of the mapping before, and the last table counted in it, of each level.
#[derive(Debug)]
struct Last<S> {
    space: S,
    tables: [Option<u64>; LEVELS.len()],
}

impl<S> Default for Placement<S> {
    fn default() -> Self {
        Self {
            last: None,
            tables: 0,
        }
    }
}

impl<S: PartialEq> Placement<S> {
    pub(super) fn add(&mut self, space: S, base: u64, length: u64) {
        let Some(more) = length.checked_sub(1) else {
            return;
        };
        let end = base.saturating_add(more);
        let before = self.last.take().filter(|last| last.space == space);
        let mut tables = before.map_or([None; LEVELS.len()], |last| last.tables);
        for (level, counted) in LEVELS.iter().zip(&mut tables) {
            let (more, last) = beyond(*counted, base >> level, end >> level);
            *counted = Some(last);
            self.tables = self.tables.saturating_add(more);
        }
        self.last = Some(Last { space, tables });
    }

    pub(super) fn bytes(&self) -> u128 {
        self.tables.saturating_mul(TABLE_BYTES)
    }
}

/// How many of these are not counted yet, and the last one that is then.
fn beyond(counted: Option<u64>, first: u64, last: u64) -> (u128, u64) {
    let first = counted.map_or(first, |counted| first.max(counted.saturating_add(1)));
    let more = last
        .checked_sub(first)
        .map_or(0, |more| u128::from(more).saturating_add(1));
    (more, counted.map_or(last, |counted| counted.max(last)))
}

/// What one mapping takes where nothing else is.
pub(super) fn of_one(base: u64, length: u64) -> u128 {
    let mut placement = Placement::default();
    placement.add((), base, length);
    placement.bytes()
}

/// The most that one takes at whatever address.
pub(super) fn at_most(length: u64) -> u128 {
    let most = LEVELS.map(|level| u128::from(length >> level).saturating_add(2));
    let tables: u128 = most.into_iter().sum();
    tables.saturating_mul(TABLE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_its_directories_count_once_for_all_that_is_in_them() {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        let tables = |mappings: &[(u8, u64, u64)]| {
            let mut placement = Placement::default();
            for (space, base, length) in mappings {
                placement.add(*space, *base, *length);
            }
            placement.bytes() / TABLE_BYTES
        };
        assert_eq!(tables(&[]), 0);
        assert_eq!(tables(&[(0, 0, 0)]), 0);
        assert_eq!(tables(&[(0, 0, 4096)]), 4);
        assert_eq!(tables(&[(0, 0, 512 * MIB)]), 256 + 3);
        assert_eq!(tables(&[(0, 2 * MIB - 4 * KIB, 8 * KIB)]), 2 + 3);
        assert_eq!(tables(&[(0, 512 * MIB - 4 * KIB, 8 * KIB)]), 2 + 2 + 2);
        let edge = |power: u32| [(0, (1 << power) - 4 * KIB, 8 * KIB)];
        assert_eq!(tables(&edge(38)), 2 + 2 + 2 + 1);
        assert_eq!(tables(&edge(47)), 2 + 2 + 2 + 2);
        let dense: Vec<_> = (0..1024).map(|n| (0, n * 4 * KIB, 4 * KIB)).collect();
        assert_eq!(tables(&dense), 2 + 3, "4 MiB of one directory");
        let scattered: Vec<_> = (0..1024).map(|n| (0, n * 512 * MIB, 4 * KIB)).collect();
        assert_eq!(tables(&scattered), 1024 + 1024 + 2 + 1);
        let far: Vec<_> = (0..512).map(|n| (0, n << 38, 4 * KIB)).collect();
        assert_eq!(tables(&far), 3 * 512 + 1);
        let farther: Vec<_> = (0..1024).map(|n| (0, n << 47, 4 * KIB)).collect();
        assert_eq!(tables(&farther), 4 * 1024);
        // The same addresses of another address space are other ones.
        assert_eq!(tables(&[(0, 0, 4096), (1, 0, 4096)]), 8);
        assert_eq!(tables(&[(0, 0, 8 * MIB), (0, 2 * MIB, 4096)]), 4 + 3);
        assert_eq!(tables(&[(0, u64::MAX - 1, u64::MAX)]), 4);
        for (base, length) in [
            (0, 1),
            (4096, 2 * MIB),
            (MIB, 513 * MIB),
            (3 * MIB, 1 << 40),
            ((1 << 47) - 4096, 1 << 48),
        ] {
            assert!(of_one(base, length) <= at_most(length), "{base} {length}");
        }
    }
}
