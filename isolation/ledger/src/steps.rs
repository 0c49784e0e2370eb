//! How many entries of its tables a thread has walked through, so that tests can hold an operation to a bound without a clock.
//!
//! Every loop over entries that are there counts them, by [`Stepped::stepped`]. Look-ups by key count nothing. Release builds count
//! nothing at all.

use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// How many entries this thread has walked through so far; 0 in a release build.
#[must_use]
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Iterators whose items are counted.
pub trait Stepped: Iterator + Sized {
    /// The same items, each of them counted when it is taken.
    fn stepped(self) -> impl Iterator<Item = Self::Item> {
        self.inspect(|_| {
            if cfg!(debug_assertions) {
                TAKEN.set(TAKEN.get().wrapping_add(1));
            }
        })
    }
}

impl<I: Iterator> Stepped for I {}
