//! The driver as kubelet and API server meet it: the test plays both, on a real state folder with simulated cards.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

mod allocator;
mod among;
mod claims;
mod device_plugin;
mod events;
mod fixture;
mod node;
mod preemption;
mod quota;
mod random;
mod real;
mod records;
mod templates;
