//! The operator's program: `cgpu`.
//!
//! [`render`] turns the documents of `view` into tables for people; [`commands`] does what a command line asks, and alone writes to a
//! terminal.
//!
//! Without the feature `host` only what speaks to the driver's own nodes is built: that program can be linked statically
//! and carried into any container.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod commands;
pub mod output;
pub mod render;
