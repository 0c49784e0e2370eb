//! Kubernetes' own servers and what is recorded of them, on nodes that are objects alone. One executable: all of it skips where they are not built.

mod chart;
mod classic_pods;
mod placement;
mod policies;
