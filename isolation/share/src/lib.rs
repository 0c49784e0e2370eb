//! A container's share of its cards' time: what its tenants may do to their scheduler, the gates that they meet, and the governor that
//! holds the share.
//!
//! ```text
//! call ───▶ tenant ──▶ gates ◀── knobs ◀── governor ◀── terms (grant, journal, cards/<uuid>/rules.json)
//!             │                     │          └──▶ records (compute::table)
//!             └─▶ scheduling (State) ◀┘
//! ```
//!
//! A container whose terms are the driver's own (native, normal priority) has no governor as long as no other one of its cards has terms: no
//! thread, no share record, no call of the broker's own. Beside one that has, it counts as one of weight 1 and has slices like that, or the other's
//! part would be what its channel groups leave.
//!
//! Of the broker a share needs the journal, the driver, and a [`Broker`], who lends it a file of the tenant's for a call and reports for it.
//! It must not know who makes calls, what they cost in memory, or who the supervisor is.
//!
//! Lock order: a gate that is passed → `Journal` → `Share`; the last two are never held across a driver call. The governor's thread holds
//! none of them while it waits, and waits for a passing call no longer than 20 ms.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm,
        clippy::arithmetic_side_effects
    )
)]

mod admission;
pub mod bucket;
mod counted;
pub mod engines;
mod followed;
pub mod gates;
mod govern;
mod governor;
pub mod knobs;
mod mailbox;
mod node;
mod pace;
mod passage;
mod probe;
mod record;
mod share;
mod shown;
mod tables;
mod tenant;
mod terms;
mod touched;
mod why;

pub use govern::Error;
pub use passage::Passage;
pub use probe::ProbeError;
pub use record::{Beginning, NotStrict, TooLow};
pub use share::{Broker, Card, Context, Share};
pub use tenant::Disposition;
pub use terms::{Sources, TermsRefused, is_native};
pub use why::Why;
