//! Kubernetes itself: its servers and `kubectl`, private to a test.
//!
//! ```text
//!   go ─► cache/kubernetes ─► ControlPlane: etcd, kube-apiserver, and, if it is a whole one,
//!   deb ─► cache/engines/etcd               kube-scheduler and kube-controller-manager
//!                                │
//!   cluster/policies ────────────┤ Kubectl, under any identity
//!   cases.yaml ─► recorded ──────┘
//! ```
//!
//! Nodes may be objects alone: a node and its slices are posted, and the scheduler places pods on it that no kubelet starts. A [`KubeletNode`]
//! has a kubelet, a containerd and simulated cards, in a mount namespace of its thread and the network of the control plane.

mod agent;
mod agents;
mod allocator;
mod bare_host;
mod cases;
mod chart;
mod control_plane;
mod identity;
mod kubectl;
mod kubelet;
mod nodes;
mod placed;
mod policies;
mod programs;
mod recorded;
mod shapes;
mod starts;
mod tenants;

pub use agent::{Controller, NodeAgent};
pub use agents::{agent_attempts, check_agents};
pub use allocator::{Allocator, Situation};
pub use cases::{Case, cases};
pub use chart::{CHART_NAMESPACE, Chart, chart_hash, kept_rendering};
pub use control_plane::{ControlPlane, Extent, on_control_plane};
pub use kubectl::Kubectl;
pub use kubelet::{Host, KubeletNode, Nth};
pub use nodes::{Card, add_node, post_slice, slice};
pub use placed::{Share, pods, reap, remove, shares, wait_event, wait_placed, workload};
pub use policies::{apply, apply_for_plugin, files, hash, objects};
pub use programs::KubernetesPrograms;
pub use recorded::{Answer, Recorded, UNTRANSLATED, answer, prepare};
pub use shapes::template;
pub use starts::{Bindings, Steps};
