//! How many page tables mappings take by where they are: one of 4 KiB for 2 MiB of addresses, and a directory of 4 KiB for 512 MiB, however
//! little of these is mapped. The directories above are few.

const TABLE_BYTES: u128 = 4096;
/// Of the addresses of one table, as a power of two.
const TABLE: u32 = 21;
/// Of the addresses of one directory.
const DIRECTORY: u32 = 29;

/// Adds up the tables of mappings that come by address space, and in each by address.
#[derive(Debug)]
pub(super) struct Placement<S> {
    last: Option<Last<S>>,
    tables: u128,
}

/// The address space of the mapping before, and the last table and directory counted in it.
#[derive(Debug)]
struct Last<S> {
    space: S,
    table: u64,
    directory: u64,
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
        let (table, directory) = (
            before.as_ref().map(|last| last.table),
            before.as_ref().map(|last| last.directory),
        );
        let (tables, table) = beyond(table, base >> TABLE, end >> TABLE);
        let (directories, directory) = beyond(directory, base >> DIRECTORY, end >> DIRECTORY);
        self.last = Some(Last {
            space,
            table,
            directory,
        });
        let sum = tables.saturating_add(directories);
        self.tables = self.tables.saturating_add(sum);
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
    let most = |of: u32| u128::from(length >> of).saturating_add(2);
    let tables = most(TABLE).saturating_add(most(DIRECTORY));
    tables.saturating_mul(TABLE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_a_directory_count_once_for_all_that_is_in_them() {
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
        assert_eq!(tables(&[(0, 0, 4096)]), 2);
        assert_eq!(tables(&[(0, 0, 512 * MIB)]), 257);
        assert_eq!(tables(&[(0, 2 * MIB - 4 * KIB, 8 * KIB)]), 3);
        assert_eq!(tables(&[(0, 512 * MIB - 4 * KIB, 8 * KIB)]), 4);
        let dense: Vec<_> = (0..1024).map(|n| (0, n * 4 * KIB, 4 * KIB)).collect();
        assert_eq!(tables(&dense), 3, "4 MiB of one directory");
        let scattered: Vec<_> = (0..1024).map(|n| (0, n * 512 * MIB, 4 * KIB)).collect();
        assert_eq!(tables(&scattered), 2048);
        // The same addresses of another address space are other ones.
        assert_eq!(tables(&[(0, 0, 4096), (1, 0, 4096)]), 4);
        assert_eq!(tables(&[(0, 0, 8 * MIB), (0, 2 * MIB, 4096)]), 5);
        assert_eq!(tables(&[(0, u64::MAX - 1, u64::MAX)]), 2);
        for (base, length) in [
            (0, 1),
            (4096, 2 * MIB),
            (MIB, 513 * MIB),
            (3 * MIB, 1 << 40),
        ] {
            assert!(of_one(base, length) <= at_most(length), "{base} {length}");
        }
    }
}
