//! The scheduler of a simulated card: runlists, channel groups, slices, preemption, and their cost, as discrete events.
//!
//! Time comes from outside, in nanoseconds and integers only: an experiment runs it in virtual time, `cgpu-sim` by the clock.
//! It must not know clients of a driver, memory or sockets.
//!
//! [`Runlist`] is one engine:
//!
//! ```text
//!          work            woken                    loaded
//!   Idle ────────▶ Wake ─────────▶ whose turn? ──────────────▶ Stay ─┐ next entry after the gap
//!    ▲                               │  ▲   └──▶ Load ──────────▶ │ ▲─┘
//!    └───────── nobody's ────────────┘  └────── Unload ◀──────────┘
//!                                          slice over, gate closed, told to leave, nothing left
//! ```
//!
//! - One entry runs at a time: the oldest whose channel's gate is open, of the group that has the engine.
//! - A group without work is passed over and loses its turn. A group that alone has work renews its slice without a switch; a
//!   competitor waits for the end of the slice that is running then.
//! - At the end of a slice, or when told, a group leaves as its [`Mode`] allows: at once with its state saved, at the end of the
//!   thread block, or at the end of the kernel. Between kernels there is nothing to save and leaving is cheaper.
//! - A closed gate keeps its channel off from the moment at which the group has left.
//! - The gap between two kernels is the group's time; waking, saving and loading are nobody's.
//!
//! Whoever runs it by a clock calls [`Runlist::advance`] at [`Runlist::next_event`], or later: what ends is dated by the card's time, not
//! by the caller's, so lateness does not add up, and an idle or undisturbed engine has no events to catch up with. A copy engine is one
//! more [`Runlist`] with [`Costs::free`] and work as long as its bytes take.
//!
//! [`world::World`] puts cards, the driver in front of them, programs and agents around it, in virtual time.

#![forbid(unsafe_code)]

mod costs;
mod engine;
mod queue;
mod round;
mod slab;
mod work;
pub mod world;

pub use costs::{Costs, LONGEST_SLICE_US, Slices, quantise_us};
pub use engine::{Progress, Runlist};
pub use work::{
    Change, ChannelId, Enable, Error, Finished, GroupId, Interleave, Kind, Mode, Outcome, Presence,
    Stay, Time, Userd, Work,
};
