//! Why a spec is refused, or cannot be judged.

use host_config::host_files::MOUNT_TABLE;

use crate::json::ShapeError;

/// What is wrong with a spec.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The host's mounts are not known, and so not what a path leads to.
    #[error("cannot read {MOUNT_TABLE}")]
    MountTable(#[source] std::io::Error),
    /// A container with a quota that is given what leads out of its slice.
    #[error(
        "{key} has {value:?}, which is not allowed together with a quota: {reason}; leave it out, or let it through with `[isolation] allow = [{needed}]` in cgpu.toml, which turns the container's isolation off"
    )]
    Exposed {
        /// Where in the spec.
        key: String,
        /// What is there, cut.
        value: String,
        /// Why it leads out.
        reason: &'static str,
        /// Everything that would have to be allowed, as TOML strings.
        needed: String,
    },
}
