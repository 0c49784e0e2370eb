//! Why a spec cannot be edited.

use crate::json::ShapeError;

/// What is wrong with a spec that is to be edited.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// It is annotated for what is no container's name.
    #[error(
        "the annotation cgpu.io/applied, which cgpu alone writes, names no container: leave it out"
    )]
    Name(#[source] cards::NameError),
    /// A seccomp profile that cannot be combined with ours.
    #[error("the container's seccomp profile cannot be used with a vGPU: {problem}")]
    SeccompProfile {
        /// Why.
        problem: String,
    },
    /// A node of a card that was not granted.
    #[error(
        "{key} has {value:?}, a card that is not among those granted ({granted}): leave it out, ask for it with cgpu.io/cards, or let cgpu leave such nodes out with `[isolation] allow = [\"other-cards\"]` in cgpu.toml"
    )]
    OtherCard {
        /// Where in the spec.
        key: &'static str,
        /// What is there, cut.
        value: String,
        /// The nodes of the granted cards.
        granted: String,
    },
}
