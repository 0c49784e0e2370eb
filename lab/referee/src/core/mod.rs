//! The whole of RM's core as the referee: what it asks before anything of a card, as nvidia.ko hands it a call.
//!
//! ```text
//!   tree ─► gcc, all of srcs.mk, with harness/{os,core_os,core}.c ─► Core (rm_ioctl) ┐
//!   Draw (seed, number) ─► calls ─► Player: blocks of bytes ─────────────────────────┤ lines equal?
//!                                                                 simulator (ioctl)  ┘
//! ```
//!
//! [`Device`] is the core with an invented card below it: what memory takes of it is RM's own word.
//!
//! Both sides are handed the same ioctls, byte for byte, but for the handles that they have made up themselves.

mod card_sequence;
mod device;
mod player;
mod program;
mod sequence;

pub use device::{CHIPS, Chip, Device, Given};
pub use program::{Core, CoreWithCard};
pub use sequence::{Kind, Made, Request, Requested, Size};
