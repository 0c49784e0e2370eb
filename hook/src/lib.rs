//! `cgpu-runtime` and `cgpu-hook`: the frontends for engines that know nothing but OCI runtimes and hooks (docker 20.10, podman,
//! CRI-O).
//!
//! **`cgpu-runtime`** ([`runtime`]) finds the subcommand, the bundle and the container's name in the runtime's own command
//! line, calls `vgpu`, and leaves everything else, word for word, to runc or crun:
//!
//! ```text
//!   create        vgpu::create, then the runtime, then Prepared::verify_filter; if one fails, Ended::release
//!   run           the runtime; refused for a container with a vGPU, which nobody could hold between create and start
//!   start         the runtime; a container whose filter is loaded only now is followed to its program
//!   exec          the file behind --process is edited, then the runtime; its process is looked at
//!   delete        Running::teardown, then the runtime, then Ended::release
//!   update        the runtime, then Running::follow
//!   checkpoint,   refused for a container with a vGPU, else the runtime
//!   restore
//!   all others    the runtime
//! ```
//!
//! Without a vGPU the runtime takes this process's place. With one it is a child while it creates: the frontend's lock is held
//! until the container's listener has reached the broker.
//!
//! **`cgpu-hook`** ([`stage`]) is called by an engine at one point of a container's life, with a spec or a state as its
//! input:
//!
//! ```text
//!   precreate       podman's: the spec goes in, the edited one comes out; the broker is started. Hooks are written into the
//!                   spec, so that the same program is called at
//!   createRuntime   the vGPU is there and this container's, or the container is refused
//!   poststart       the container's filter holds it, or it is killed
//!   poststop        Ended::release
//! ```
//!
//! At createRuntime it is too late to edit anything: where a container asks for a vGPU and nobody has edited its spec, it is
//! refused there.
//!
//! This crate must not know of an engine beyond what it sends, and uses neither an asynchronous runtime nor NVML.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod child;
pub mod command_line;
pub mod error_log;
mod kept;
pub mod runtime;
mod sealed_file;
pub mod stage;
pub mod system_log;
