//! Which call is asked for: what a broker's successor asks for again is not made twice.

use serde::{Deserialize, Serialize};

/// Which execution a request is, so that one that is asked for again after a broker was replaced is not done twice.
///
/// A call slot carries one call at a time, and their numbers rise. An executor that outlives the broker remembers the last answer of each call slot, and gives
/// it again to the same ticket; a ticket that is still under way is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The call slot, from 0; a broker has as many as calls under way.
    pub call_slot: u32,
    /// The call's number in its container, never used again; 0: nothing is remembered.
    pub call: u64,
}

impl Ticket {
    /// For a call whose repetition does no harm.
    pub const UNREMEMBERED: Self = Self {
        call_slot: 0,
        call: 0,
    };

    /// The bit in the call slot of a call that a real driver would have had from the kernel.
    const NATIVE: u32 = 1 << 31;
    /// The bit in the call slot of a call that the broker makes before another one.
    const BEFORE: u32 = 1 << 30;

    /// For a call that a real driver would have had from the kernel, by the kernel's number of its notification. These numbers are
    /// in no order; a call slot's calls of this kind are told from the others.
    #[must_use]
    pub const fn native(call_slot: u32, notification: u64) -> Self {
        Self {
            call_slot: call_slot | Self::NATIVE,
            call: notification,
        }
    }

    /// The ticket without its bit, where it is one of [`Ticket::native`].
    #[must_use]
    pub fn as_native(self) -> Option<Self> {
        (self.call_slot & Self::NATIVE != 0).then_some(Self {
            call_slot: self.call_slot & !Self::NATIVE,
            call: self.call,
        })
    }

    /// For the call of the broker's own that comes before the one with this ticket: it is remembered beside that one's.
    #[must_use]
    pub const fn before(self) -> Self {
        Self {
            call_slot: self.call_slot | Self::BEFORE,
            call: self.call,
        }
    }

    /// The number of the call slot, whatever is remembered there.
    #[must_use]
    pub const fn slot_number(self) -> u32 {
        self.call_slot & !(Self::NATIVE | Self::BEFORE)
    }
}
