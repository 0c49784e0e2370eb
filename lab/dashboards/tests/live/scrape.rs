//! A private Prometheus with the rules that are shipped.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use integration::cache::repository;
use integration::daemon::Daemon;
use serde_json::{Value, json};

use crate::host::{Host, get};
use crate::prometheus;

const PATIENCE: Duration = Duration::from_secs(20);

/// As a part of a query (RFC 3986).
pub(crate) fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(one).collect()
}

/// A Prometheus that scrapes; it ends with the test.
pub(crate) struct Scrape {
    prometheus: Daemon,
    address: String,
}

impl Scrape {
    /// Of the host's agent, and of another exporter at `other`.
    pub(crate) fn start(host: &Host, other: &str) -> Result<Self> {
        let at = host.folder();
        let rules = repository().join("configs/prometheus/cgpu.rules.yml");
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{
                "job_name": "cgpu", "honor_labels": true,
                "static_configs": [{"targets": [host.agent_address, other]}],
            }],
        });
        fs::write(at.join("prometheus.yml"), config.to_string())?;
        // Free a moment ago; nobody else here asks the system for one by its number.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut command = Command::new(prometheus::program("prometheus")?);
        command
            .arg(format!(
                "--config.file={}",
                at.join("prometheus.yml").display()
            ))
            .arg(format!("--storage.tsdb.path={}", at.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(at);
        let mut prometheus = Daemon::start("prometheus", &command, &at.join("prometheus.log"))?;
        prometheus.wait_ready(PATIENCE, || Ok(get(&address, "/-/ready").is_ok()))?;
        Ok(Self {
            prometheus,
            address,
        })
    }

    /// What it answers to a question of its HTTP API.
    pub(crate) fn api(&self, path: &str) -> Result<Value> {
        let reply: Value = serde_json::from_str(&get(&self.address, path)?)?;
        ensure!(reply["status"] == "success", "{path}: {reply}");
        Ok(reply["data"].clone())
    }

    /// What it has logged, for a test that fails.
    pub(crate) fn tail(&self) -> String {
        self.prometheus.tail()
    }
}
