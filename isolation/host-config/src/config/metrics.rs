//! Table `[metrics]`: what `cgpu-agent` serves, and where.

use serde::Deserialize;
use toml::Value;

const LISTEN_ALLOWED: &str = "an address such as \"127.0.0.1:9402\", or \"unix:\" and a path";
const DIALECTS_ALLOWED: &str = "a list of one or more of \"cgpu\", \"ack\", \"dcgm\" and \"hami\"";

/// `metrics`, as it is written: the agent alone reads it, and a wrong value, be it of a wrong type, keeps no container from its start.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct MetricsConfig(Option<Value>);

/// Two that are written in different ways may be the same.
impl PartialEq for MetricsConfig {
    fn eq(&self, other: &Self) -> bool {
        self.read() == other.read()
    }
}

/// What `[metrics]` says, or its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Where the agent listens: an address and port, or `unix:` and a path.
    pub listen: String,
    /// Whose names the metrics have.
    pub dialects: Vec<String>,
}

/// A value of `[metrics]` that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value} is not allowed: {allowed}")]
pub struct WrongMetrics {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub allowed: &'static str,
}

impl MetricsConfig {
    /// The table's keys by type; what the texts mean the agent knows.
    ///
    /// # Errors
    /// No table, an unknown key, a value of the wrong type.
    pub fn read(&self) -> Result<Metrics, WrongMetrics> {
        let wrong = |key: &str, value: &Value, allowed| WrongMetrics {
            key: key.to_owned(),
            value: value.to_string(),
            allowed,
        };
        let mut metrics = Metrics {
            listen: "127.0.0.1:9402".to_owned(),
            dialects: ["cgpu", "ack"].map(str::to_owned).to_vec(),
        };
        let table = match &self.0 {
            None => return Ok(metrics),
            Some(value) => value.as_table().ok_or_else(|| {
                wrong(
                    "metrics",
                    value,
                    "a table with the keys listen and dialects",
                )
            })?,
        };
        for (key, value) in table {
            let path = format!("metrics.{key}");
            match key.as_str() {
                "listen" => {
                    let text = value.as_str();
                    let text = text.ok_or_else(|| wrong(&path, value, LISTEN_ALLOWED))?;
                    text.clone_into(&mut metrics.listen);
                }
                "dialects" => {
                    let names = value.as_array().and_then(|names| {
                        let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                        names.collect::<Option<Vec<_>>>()
                    });
                    metrics.dialects =
                        names.ok_or_else(|| wrong(&path, value, DIALECTS_ALLOWED))?;
                }
                _ => return Err(wrong(&path, value, "the keys are listen and dialects")),
            }
        }
        Ok(metrics)
    }
}
