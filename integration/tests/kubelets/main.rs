//! Kubernetes' own servers with real kubelets. One executable: all of it skips where they are not built.

mod kubelet;
mod pods;
mod random;
