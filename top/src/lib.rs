//! The full screen of `cgpu top`: cards and containers, anew once a period.
//!
//! [`state`] is what was learnt and what the user has chosen: pure, driven by keys and documents. [`screen`] draws it. [`run`] has the
//! threads: one reads keys, one asks the host, one draws.
//!
//! ```text
//!   keys ──▶ ┌───────┐ ──▶ screen
//!   host ──▶ │ state │
//!            └───────┘ ──▶ whose events are asked next
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod rows;
pub mod run;
pub mod screen;
pub mod state;
