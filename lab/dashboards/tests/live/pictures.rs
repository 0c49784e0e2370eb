//! What Prometheus answers to every panel, for `pictures/dashboard.tsx`, which draws the dashboards with Grafana's components.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use dashboards::files;
use serde_json::{Map, Value, json};

use crate::scrape::{Scrape, encoded};
use crate::{filled, list};

/// A picture's time, from left to right.
const SPAN: Duration = Duration::from_secs(180);
const STEP_SECONDS: u64 = 2;

/// Leaves a script with the dashboard and its answers for each dashboard in the folder, `cgpu-card.js`. It waits for [`SPAN`].
pub(crate) fn leave(scrape: &Scrape, chosen: &[(&str, &str)], folder: &Path) -> Result<()> {
    std::thread::sleep(SPAN);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let (from, to) = ((now - SPAN).as_secs(), now.as_secs());
    for (name, text) in files()? {
        let dashboard: Value = serde_json::from_str(&text)?;
        let mut panels = Map::new();
        for panel in list(&dashboard, "panels") {
            let mut answers = Vec::new();
            for target in list(panel, "targets") {
                let text = filled(target["expr"].as_str().context("an expression")?, chosen);
                let query = encoded(&text);
                let path = match target["instant"] == true {
                    true => format!("/api/v1/query?query={query}&time={to}"),
                    false => format!(
                        "/api/v1/query_range?query={query}&start={from}&end={to}&step={STEP_SECONDS}"
                    ),
                };
                answers.push(scrape.api(&path)?["result"].take());
            }
            panels.insert(panel["id"].to_string(), Value::Array(answers));
        }
        let answers = json!({"from": from, "to": to, "panels": panels});
        std::fs::write(
            folder.join(name).with_extension("js"),
            format!("window.DASHBOARD = {text};\nwindow.ANSWERS = {answers};\n"),
        )?;
    }
    Ok(())
}
