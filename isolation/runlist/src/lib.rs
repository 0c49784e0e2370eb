//! The scheduler of a simulated card: runlists, channel groups, slices, preemption, and their cost, as discrete events.
//!
//! Time comes from outside, in nanoseconds and integers only: an experiment runs it in virtual time, `cgpu-sim` by the clock.
//! It must not know clients, memory or sockets.

#![forbid(unsafe_code)]
