//! A node's part of a Kubernetes cluster: the DRA driver `gpu.cgpu.io`, which `cgpu-agent` runs.
//!
//! ```text
//!   kubelet ──registration, Prepare, Unprepare, health──▶ kubelet/ ──▶ prepare ──▶ claim's record, CDI file
//!   API server ◀──slices── publish ◀── monitor ◀── cards, their health, what is reserved of them
//!              ◀──events── events ◀─── refused claims, health, containers' logs
//! ```
//!
//! - [`slice`]: cards → ResourceSlices; [`topology`]: where a card is in the machine; both pure but for sysfs.
//! - [`configuration`]: what a class and a claim may say beside amounts; [`allocation`]: a claim → what it was given; pure.
//! - [`prepare`]: a claim of the kubelet's → a record that root alone can write, and a CDI device that points to it.
//! - [`reconcile`]: records without a claim are released.
//! - [`kubelet`]: the sockets and services that the kubelet calls.
//! - [`device_plugin`]: instead of the DRA driver, for clusters below 1.34.
//! - [`publish`]: the node's slices in the API, by its labels ([`node_labels`]); [`given`]: the label that it keeps itself; [`status`]: what a claim's status shows of its devices.
//! - [`events`]: what happened, for people who look with `kubectl`; [`counts`]: how often, for the node's metrics.
//! - [`templates`]: for the whole cluster, not for a node: the templates that classic pods' claims are made from; [`quota`]: GPU memory of
//!   namespaces; [`follow`]: objects as a channel; [`reports`]: how many events of what these refuse.
//! - [`preempt`]: for the whole cluster too, where an administrator has it: pods of lower priority are evicted for one that waits.
//! - [`monitor`]: looks at the node again and again; [`api`]: the connection to the API server.
//!
//! The scheduler's word is law: amounts come from a claim's allocation alone. This crate must not know of containers: a container comes to
//! its share by the record, which `vgpu` reads. It is the only one that knows of gRPC, and beside the plugin
//! `kubectl` the only one that knows of Kubernetes' API.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod allocation;
mod api;
mod backoff;
mod cdi;
mod configuration;
mod counts;
mod device_plugin;
mod driver;
mod error;
mod events;
mod follow;
mod given;
mod host;
mod kubelet;
mod monitor;
mod names;
mod node;
mod node_labels;
mod object_event;
mod preempt;
mod prepare;
pub mod proto;
mod publish;
mod quantity;
mod quota;
mod reconcile;
mod reports;
mod slice;
mod status;
mod templates;
mod topology;

pub use api::Access;
pub use counts::Counts;
pub use device_plugin::ResourceName;
pub use driver::{Interface, Settings, run};
pub use error::Error;
pub use host::Host;
pub use names::{DRIVER, NodeName};
pub use node::{Fault, Node, NodeCard, NodeCards, PodOfLog, Reserve, Trouble, TroubleKind};
pub use preempt::{PreemptionPace, run_preemption};
pub use templates::{TemplatesPace, run_templates};
