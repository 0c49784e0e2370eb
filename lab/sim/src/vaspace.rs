//! A GPU address space: disjoint maps, each with a reference to the memory behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use driver::FileId;

use crate::managed::Managed;
use crate::memory::{Memory, Place};

/// Where addresses begin that RM chooses itself (MAP_MEMORY_DMA without a fixed address).
const CHOSEN_BASE: u64 = 0x0000_7e00_0000_0000;
/// Alignment of those, bytes.
const CHOSEN_ALIGNMENT: u64 = 2 << 20;

/// Who made a map, and so what ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MadeBy {
    /// UVM_MAP_EXTERNAL_ALLOCATION on this file.
    Uvm(FileId),
    /// RM_MAP_MEMORY_DMA of this memory handle of this client; ends with the handle.
    Dma { client: u32, memory: u32 },
}

#[derive(Debug, Clone)]
struct Map {
    last: u64,
    /// Offset of the map's first byte in the memory.
    offset: u64,
    memory: Arc<Memory>,
    made_by: MadeBy,
}

#[derive(Debug, Default)]
struct Maps {
    by_base: BTreeMap<u64, Map>,
    next_chosen: u64,
    /// Managed memory of the uvm file that the space is registered with.
    managed: Option<Arc<Managed>>,
}

/// A GPU address space.
#[derive(Debug, Default)]
pub(crate) struct VaSpace(RwLock<Maps>);

impl VaSpace {
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Maps> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps memory at an address, in place of what was there. `false`, and nothing done, for an empty span or one that
    /// passes the end of the address space.
    pub(crate) fn map(
        &self,
        base: u64,
        bytes: u64,
        memory: Arc<Memory>,
        offset: u64,
        made_by: MadeBy,
    ) -> bool {
        let Some(last) = last_of(base, bytes) else {
            return false;
        };
        let mut maps = self.write();
        maps.cut(base, last, |_any| true);
        maps.by_base.insert(
            base,
            Map {
                last,
                offset,
                memory,
                made_by,
            },
        );
        true
    }

    /// Maps memory at an address of RM's choice.
    pub(crate) fn map_somewhere(
        &self,
        bytes: u64,
        memory: Arc<Memory>,
        offset: u64,
        made_by: MadeBy,
    ) -> Option<u64> {
        let base = {
            let mut maps = self.write();
            let base = maps.next_chosen.max(CHOSEN_BASE);
            maps.next_chosen = base
                .checked_add(bytes)?
                .checked_next_multiple_of(CHOSEN_ALIGNMENT)?;
            base
        };
        self.map(base, bytes, memory, offset, made_by)
            .then_some(base)
    }

    /// Ends what `made_by` names within a span.
    pub(crate) fn unmap(&self, base: u64, bytes: u64, made_by: impl Fn(MadeBy) -> bool) {
        if let Some(last) = last_of(base, bytes) {
            self.write().cut(base, last, made_by);
        }
    }

    /// Ends all that `made_by` names.
    pub(crate) fn unmap_all(&self, made_by: impl Fn(MadeBy) -> bool) {
        self.write()
            .by_base
            .retain(|_base, map| !made_by(map.made_by));
    }

    /// Ends the map that starts at an address; its length, or `None` where none does.
    pub(crate) fn unmap_at(&self, base: u64, made_by: impl Fn(MadeBy) -> bool) -> Option<u64> {
        let mut maps = self.write();
        let map = maps.by_base.get(&base).filter(|map| made_by(map.made_by))?;
        let bytes = map.last - base + 1;
        maps.by_base.remove(&base);
        Some(bytes)
    }

    /// Where an address leads; `None`: an MMU fault.
    pub(crate) fn translate(&self, address: u64) -> Option<Place> {
        let maps = self.read();
        let before = maps.by_base.range(..=address).next_back();
        if let Some((base, map)) = before.filter(|(_base, map)| address <= map.last) {
            return Some(Place {
                backing: map.memory.backing.clone(),
                offset: map.offset + (address - base),
                bytes: map.last - address + 1,
            });
        }
        let managed = maps.managed.clone();
        drop(maps);
        managed?.place(address)
    }

    /// Lets the managed memory of a uvm file be reached.
    pub(crate) fn manage(&self, managed: Arc<Managed>) {
        self.write().managed = Some(managed);
    }

    /// Ends that, where it is this file's.
    pub(crate) fn forget_managed(&self, managed: &Arc<Managed>) {
        let mut maps = self.write();
        if maps
            .managed
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, managed))
        {
            maps.managed = None;
        }
    }
}

impl Maps {
    fn cut(&mut self, base: u64, last: u64, made_by: impl Fn(MadeBy) -> bool) {
        let touched: Vec<u64> = self
            .by_base
            .range(..=last)
            .rev()
            .take_while(|(_, map)| map.last >= base)
            .filter(|(_, map)| made_by(map.made_by))
            .map(|(at, _)| *at)
            .collect();
        for at in touched {
            let Some(map) = self.by_base.remove(&at) else {
                continue;
            };
            if at < base {
                self.by_base.insert(
                    at,
                    Map {
                        last: base - 1,
                        ..map.clone()
                    },
                );
            }
            if map.last > last {
                self.by_base.insert(
                    last + 1,
                    Map {
                        offset: map.offset + (last + 1 - at),
                        ..map
                    },
                );
            }
        }
    }
}

fn last_of(base: u64, bytes: u64) -> Option<u64> {
    base.checked_add(bytes.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Backing;

    const UVM: MadeBy = MadeBy::Uvm(FileId(1));

    fn memory(bytes: u64) -> Arc<Memory> {
        Arc::new(Memory {
            bytes,
            backing: Arc::new(Backing::own(bytes)),
            charge: None,
        })
    }

    #[test]
    fn a_hole_in_the_middle_leaves_two_maps_with_their_own_offsets() {
        let space = VaSpace::default();
        let memory = memory(0x4000);
        assert!(space.map(0x10_0000, 0x4000, memory.clone(), 0, UVM));
        space.unmap(0x10_1000, 0x1000, |made_by| made_by == UVM);
        assert_eq!(Arc::strong_count(&memory), 3);
        assert!(space.translate(0x10_1800).is_none());
        let place = space.translate(0x10_2010).unwrap();
        assert_eq!((place.offset, place.bytes), (0x2010, 0x1ff0));
        space.unmap_all(|_| true);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn a_map_over_another_takes_its_place() {
        let space = VaSpace::default();
        let (old, new) = (memory(0x2000), memory(0x1000));
        assert!(space.map(0x1000, 0x2000, old.clone(), 0, UVM));
        assert!(space.map(0x1000, 0x1000, new.clone(), 0, UVM));
        assert!(Arc::ptr_eq(
            &space.translate(0x1000).unwrap().backing,
            &new.backing
        ));
        assert_eq!(space.translate(0x2000).unwrap().offset, 0x1000);
        assert!(!space.map(u64::MAX, 2, new.clone(), 0, UVM) && !space.map(0, 0, new, 0, UVM));
    }
}
