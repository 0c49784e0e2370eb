//! What share of a card's time each container gets: the terms of all live containers → timeslices and segments of a cyclic schedule.
//!
//! ```text
//! RequestedTerms + CardRules ─resolve─▶ Terms ─admit─▶ reservations          (a frontend, once)
//! Records of live brokers ─epochs::tenants(at)─▶ Tenants ─layout─▶ Layout {window, shares}   (every broker, for itself)
//! Share {slices, Gate} + time ─▶ is the gate open, when does it change        (the governor)
//! ```
//!
//! Pure functions of what the records say and of the time: every broker computes the same layout for itself, and no one leads.
//! It must not know drivers, files or clocks. Times are nanoseconds of one clock (CLOCK_MONOTONIC, or virtual time); shares are
//! parts of a million (ppm); nothing here is a float, so that all brokers agree to the last bit.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod admission;
mod circle;
pub mod drift_correction;
pub mod enforcement_level;
pub mod epochs;
pub mod gate;
pub mod layout;
pub mod policy;
mod portions;
pub mod rules;
pub mod share_record;
pub mod slice;
pub mod terms;
mod window;

pub use admission::{Refusal, admit, admit_all};
pub use drift_correction::{Demand, DriftCorrection, Least, Paid};
pub use enforcement_level::EnforcementLevel;
pub use gate::{Edge, EdgeKind, GateSchedule, Segment};
pub use layout::{Gang, Layout, Promise, Share, Tenant, fnv1a, gang_place, layout};
pub use policy::Policy;
pub use rules::{CardKind, CardRules, Costs, Idle, RulesError};
pub use share_record::{Claim, GateState, Recovery, ShareRecord, ShareRecordError};
pub use terms::{Priority, RequestedTerms, Terms, TermsError};

/// The whole of a card's time, or of a window.
pub const WHOLE_PPM: u32 = 1_000_000;

/// One percent.
pub const PERCENT_PPM: u32 = WHOLE_PPM / 100;
