//! The broker: one process per container that receives the container's NVIDIA system calls and answers them.
//!
//! ```text
//! notify.sock ─ listener ▶ workers ─▶ call: receive ─▶ admit ─▶ begin ─▶ execute ─▶ commit ─▶ reply
//!                                          │           │        │          │          │
//!                                     replay, files  fetch,  account,   driver     account,
//!                                                    verdict journal               journal
//! ```
//!
//! It decides nothing itself: what a call may do is `verdict`'s, what still fits is `ledger`'s, what executes is `driver`'s.
//! It must not know engines, bundles or annotations: it is started from a grant and sees files and calls.
//!
//! `container` has what is known; who acts on it is above: `call` answers calls, `watch` looks whether the container is well. Its share of
//! its cards' time is the crate `share`, which knows the broker by `sharing`.
//!
//! Lock order: a thread's turn (`replay`) → a gate that is passed (`share`) → `order` → `Reaper`'s round or `ManagedMappings` →
//! `FileTable` → `Journal` → `Share`; the last three are never held across a driver call. The governor's thread holds none of them while
//! it waits, and waits for a passing call no longer than 20 ms.

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

pub mod account;
pub mod answer_files;
pub mod call;
pub mod call_rules;
mod close_files;
pub mod container;
mod control_group;
pub mod control_socket;
pub mod cpu_time;
pub mod driver_side;
pub mod fetch;
pub mod files;
mod given_up;
pub mod health;
mod initialised;
mod last_calls;
pub mod last_reference;
pub mod looked;
pub mod managed;
mod maps;
pub mod memories;
mod native;
mod numbering;
pub mod open_file_scan;
pub mod order;
mod pace;
mod pci;
pub mod peers;
mod pids;
mod privilege;
pub mod processes;
pub mod quota;
pub mod reaper;
pub mod replay;
pub mod resume;
mod second_file;
pub mod serving;
mod sharing;
pub mod start;
mod syscall;
mod table;
pub mod usage_report;
pub mod watch;
pub mod workers;
