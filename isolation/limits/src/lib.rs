//! NVIDIA's own memory limit of a control group (drivers R615 and later), asked of a program that loads NVML for one question.
//!
//! NVML is a large library of another's making with threads of its own: a shim that lives as long as its container, and a
//! runtime wrapper that runs as root beside any image, must not have it in them. So [`ask`] starts `cgpu-limits`, writes one
//! [`Question`] to it and reads one [`Answer`]:
//!
//! ```text
//!   vgpu ── ask ──▶ cgpu-limits ── libnvidia-ml.so.1 ──▶ driver
//!        ◀─ Answer ─┘ ends
//! ```
//!
//! This crate must not know of containers, grants or quotas: it sets what it is told on the folder that it is told, reads it
//! back, and says what it found. Which numbers are right is its caller's business.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod client;
#[cfg(feature = "nvml")]
mod driver;
mod question;

pub use client::{Error, ask};
#[cfg(feature = "nvml")]
pub use driver::answer;
pub use question::{Answer, CardLimit, CardUse, Question, Refusal, UNLIMITED_BYTES, What};
