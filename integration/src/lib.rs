//! The harness: real engines, real images and our real programs on a private node.
//!
//! What it does: fetches engines from the distribution's packages without installing them, builds images
//! without a registry, starts daemons with their own root, state and socket, and at the end checks that no
//! process, mount, socket, cgroup or grant is left.
//!
//! What it must not know: any of our crates. It drives the programs as a user does, so that what a test sees
//! is what a user sees.
//!
//! ```text
//!   packages ─► cache/engines/{host,newer}     programs ─► bin/, bin/static
//!   go ─► cache/{nerdctl,…,kubernetes,containerd-2.N} │
//!                      │                            │
//!                      ▼                            ▼
//!   Node (cgpu-sim, cgpu.toml) ─► Containerd ─► Docker, Nerdctl      image ─► *.tar
//!                      │           └─► OwnHost (default paths) ─► walk/*.md
//!                      ├─► ControlPlane (Kubernetes' own servers, on the loopback device)
//!                      ▼
//!                  leftovers: must be empty
//! ```
#![forbid(unsafe_code)]

pub mod apparmor;
pub mod bundle;
pub mod cache;
pub mod claims;
pub mod cluster;
pub mod command;
pub mod containerd;
pub mod control_groups;
pub mod cpu_time;
pub mod crictl;
pub mod crio;
pub mod daemon;
pub mod docker;
pub mod engines;
pub mod former;
pub mod freezer;
pub mod go;
pub mod guest;
pub mod image;
pub mod leftovers;
pub mod matrix;
pub mod mounts;
pub mod nerdctl;
pub mod node;
pub mod oci;
pub mod origin;
pub mod own_host;
pub mod packages;
pub mod picture;
pub mod podman;
pub mod pods;
pub mod prefetch;
pub mod programs;
pub mod python;
pub mod rig;
pub mod rootless;
pub mod roots;
pub mod skip;
pub mod tenant;
pub mod walk;
pub mod whole;
