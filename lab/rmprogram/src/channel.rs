//! A channel that copies, with a word that tells how far the card has come.
//!
//! ```text
//! copy ──▶ words behind the ring ──▶ ring entry ──▶ GP_PUT ──▶ doorbell          (no call)
//!   └──▶ fence n ◀── the card's release of n ◀── wait
//! ```
//!
//! Sources of methods and fields: `clc56f.h`, `clc7b5.h`. It has run on simulated cards only.

use std::time::Duration;

use rmclient::{Card, Handle, Uuid};

use crate::Error;
use crate::ring::{Ring, Space, classes, first, halves, methods};
use crate::uvm::Uvm;

const FENCE_AT: usize = 0x2000;
/// Copy classes, newest first.
pub(crate) const COPIES: &[u32] = &[
    0xc9b5, 0xcab5, 0xc8b5, 0xc7b5, 0xc6b5, 0xc5b5, 0xc3b5, 0xc1b5, 0xc0b5,
];
/// The subchannel that the copy engine is bound to.
const COPY: u32 = 4;

/// A channel with a copy engine.
#[derive(Debug)]
pub struct CopyChannel<'card> {
    card: &'card Card<'card>,
    ring: Ring,
    fence: u32,
}

impl<'card> CopyChannel<'card> {
    /// Makes a channel that copies within an address space, which is registered with `uvm`.
    ///
    /// # Errors
    /// [`Error::NoClass`] for a card whose generation is not known here; otherwise the driver's status.
    pub fn make(
        card: &'card Card<'card>,
        uvm: &Uvm<'_>,
        uuid: Uuid,
        va_space: Handle,
    ) -> Result<Self, Error> {
        let classes = classes(card)?;
        let class = first(COPIES, &classes, "copy engine")?;
        let space = Space {
            uvm,
            uuid,
            handle: va_space,
        };
        let mut ring = Ring::make(card, space, class, &classes, 0)?;
        // SET_OBJECT binds the class to its subchannel.
        ring.submit(&methods(COPY, 0, &[class]));
        Ok(Self {
            card,
            ring,
            fence: 0,
        })
    }
}

impl CopyChannel<'_> {
    /// Whether the driver still knows the channel as one that works.
    ///
    /// # Errors
    /// The driver's status.
    pub fn check(&self) -> Result<(), Error> {
        self.ring.check(self.card)
    }

    /// Copies within the address space and waits for the end. Every submission is waited for, so the ring is empty but for
    /// the setup, and an entry's room is free again long before its turn comes.
    ///
    /// # Errors
    /// [`Error::NotDone`] when it has not come in time.
    pub fn copy(
        &mut self,
        from: u64,
        to: u64,
        size_bytes: u32,
        patience: Duration,
    ) -> Result<(), Error> {
        let ((from_high, from_low), (to_high, to_low)) = (halves(from), halves(to));
        let mut commands = methods(COPY, 0x400, &[from_high, from_low, to_high, to_low]);
        commands.extend(methods(COPY, 0x418, &[size_bytes]));
        // Pitch-linear, not pipelined, flushed.
        commands.extend(methods(COPY, 0x300, &[0x182]));
        self.fence = self.fence.wrapping_add(1);
        let fence = self.fence;
        let fence_address = self.ring.address + u64::try_from(FENCE_AT).unwrap_or(0);
        commands.extend(self.ring.release(fence_address, fence));
        self.ring.submit(&commands);
        self.ring.until(FENCE_AT, fence, patience)
    }
}
