//! Table `[metrics]`: what `cgpu-agent` serves, and where.

use serde::Deserialize;

/// Table `[metrics]`, as it is written: the agent alone reads it, and a wrong value keeps no container from its start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Where the agent listens: an address and port, or `unix:` and a path.
    pub listen: String,
    /// Whose names the metrics have.
    pub dialects: Vec<String>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9402".to_owned(),
            dialects: ["cgpu", "ack"].map(str::to_owned).to_vec(),
        }
    }
}
