//! Between protobuf and the shim's own words: requests in, answers, events, numbers and statuses out. Nothing else: no
//! decision, no effect.

mod any;
pub mod events;
mod generic_options;
mod linux_options;
mod metrics;
mod options;
mod service;
mod status;

pub use options::{are_options, runc_options};
pub use service::{TaskService, services};
