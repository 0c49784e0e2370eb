//! What the experiments measure, held to their targets.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is its failure")]

mod attacks;
mod priority_and_rhythm;
mod targets;
