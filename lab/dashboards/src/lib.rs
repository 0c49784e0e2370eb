//! Dashboards for Grafana on the metrics of `cgpu-agent`, and what holds them and the alerting rules to those metrics.
//!
//! It must not know the agent: a test reads the metrics from `docs/guide/metrics.md`, which is held to the code, and scrapes a real
//! agent by a real Prometheus.
#![forbid(unsafe_code)]

pub mod expression;
