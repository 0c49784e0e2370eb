//! Groups and channels by number, with a generation so that a number that was given back is not taken for its successor.

/// Entries by index; freed ones are used again under another generation.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The index and generation under which it is found again.
    pub(crate) fn insert(&mut self, value: T) -> (u32, u32) {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(at(index))
        {
            slot.value = Some(value);
            return (index, slot.generation);
        }
        let index = u32::try_from(self.slots.len())
            .expect("a card has fewer than 2^32 groups and channels");
        self.slots.push(Slot {
            generation: 0,
            value: Some(value),
        });
        (index, 0)
    }

    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(at(index))?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// The position for [`Slab::at`], if this one lives.
    pub(crate) fn position(&self, index: u32, generation: u32) -> Option<usize> {
        let slot = self.slots.get(at(index))?;
        (slot.generation == generation && slot.value.is_some()).then(|| at(index))
    }

    /// The one at a position that is known to live.
    pub(crate) fn at(&self, position: usize) -> &T {
        self.slots[position]
            .value
            .as_ref()
            .expect("positions are dropped with what stands there")
    }

    pub(crate) fn at_mut(&mut self, position: usize) -> &mut T {
        self.slots[position]
            .value
            .as_mut()
            .expect("positions are dropped with what stands there")
    }
}

fn at(index: u32) -> usize {
    usize::try_from(index).expect("usize has at least 32 bits here")
}
