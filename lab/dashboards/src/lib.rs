//! Dashboards for Grafana on the metrics of `cgpu-agent`, and what holds them and the alerting rules to those metrics.
//!
//! ```text
//!   cluster, card, container ──▶ panel ──▶ JSON in configs/grafana    (cargo xtask dashboards)
//! ```
//!
//! It must not know the agent: a test reads the metrics from `docs/guide/metrics.md`, which is held to the code, and scrapes a real
//! agent by a real Prometheus.
#![forbid(unsafe_code)]

mod card;
mod cluster;
mod container;
pub mod expression;
mod panel;
mod variable;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::panel::{Panel, placed};
use crate::variable::Variable;

/// Where the files are in the repository.
pub const FOLDER: &str = "configs/grafana";

/// A dashboard as it is written down here.
struct Dashboard {
    /// Fixed, so that links lead to it and an import replaces it.
    uid: &'static str,
    title: &'static str,
    description: &'static str,
    variables: Vec<Variable>,
    panels: Vec<Panel>,
}

impl Dashboard {
    fn json(&self) -> Value {
        let variables = self.variables.iter().map(Variable::json);
        let variables = std::iter::once(variable::datasource()).chain(variables);
        json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["cgpu"],
            "schemaVersion": 39,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "links": [{
                "type": "dashboards", "tags": ["cgpu"], "title": "cgpu", "asDropdown": true,
                "includeVars": true, "keepTime": true, "icon": "external link", "tooltip": "", "targetBlank": false,
            }],
            "annotations": {"list": []},
            "templating": {"list": variables.collect::<Vec<_>>()},
            "panels": placed(&self.panels),
        })
    }
}

/// The file's name and the text of each dashboard.
///
/// # Errors
/// None that JSON of our own can meet.
pub fn files() -> Result<Vec<(String, String)>> {
    let all = [
        cluster::dashboard(),
        card::dashboard(),
        container::dashboard(),
    ];
    all.iter()
        .map(|dashboard| {
            let mut text = serde_json::to_string_pretty(&dashboard.json())?;
            text.push('\n');
            Ok((format!("{}.json", dashboard.uid), text))
        })
        .collect()
}

/// Writes the files below the repository, and returns their paths.
///
/// # Errors
/// A file that cannot be written.
pub fn write(repository: &Path) -> Result<Vec<PathBuf>> {
    let folder = repository.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let one = |(name, text): (String, String)| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    };
    files()?.into_iter().map(one).collect()
}
