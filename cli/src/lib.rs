//! The operator's program: `cgpu`.
//!
//! Three layers: [`model`] is what is known, and the JSON that scripts may rely on; [`render`] turns a model into tables
//! for people; [`commands`] does what a command line asks. The model knows nothing of how it is shown, and no layer but the
//! commands writes to a terminal.
//!
//! Without the feature `nvml` only what speaks to the driver's own nodes is built: that program can be linked statically
//! and carried into any container.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod commands;
pub mod model;
pub mod output;
pub mod render;
pub mod size;
