//! The files in `configs/grafana` are those that the code makes, and have what a dashboard needs that others import.

mod served;

use std::fs;

use anyhow::{Context, Result, ensure};
use dashboards::{FOLDER, expression, files};
use integration::cache::repository;
use serde_json::Value;

#[test]
fn the_files_are_as_the_code_makes_them() -> Result<()> {
    let folder = repository().join(FOLDER);
    for (name, text) in files()? {
        let there = fs::read_to_string(folder.join(&name)).unwrap_or_default();
        ensure!(
            there == text,
            "{FOLDER}/{name}: write it by `cargo xtask dashboards`"
        );
    }
    ensure!(fs::read_dir(folder)?.count() == files()?.len());
    Ok(())
}

fn dashboards() -> Result<Vec<Value>> {
    let parsed = files()?
        .into_iter()
        .map(|(_, text)| serde_json::from_str(&text));
    Ok(parsed.collect::<Result<_, _>>()?)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

#[test]
fn every_metric_of_a_panel_is_served() -> Result<()> {
    let known = served::series()?;
    for dashboard in dashboards()? {
        for panel in list(&dashboard, "panels") {
            for target in list(panel, "targets") {
                let text = target["expr"].as_str().context("an expression")?;
                let metrics = expression::metrics(text);
                ensure!(!metrics.is_empty(), "{text} reads nothing");
                for metric in metrics {
                    ensure!(known.contains(&metric), "{text}: no {metric}");
                }
            }
        }
        for variable in list(&dashboard["templating"], "list") {
            let Some(text) = variable["definition"].as_str() else {
                continue;
            };
            let series = text.strip_prefix("label_values(").context("a list")?;
            let metric = series
                .split(['{', ','])
                .next()
                .context("a name")?
                .to_owned();
            ensure!(known.contains(&metric), "{text}: no {metric}");
        }
    }
    Ok(())
}

#[test]
fn a_dashboard_can_be_imported_anywhere_and_explains_itself() -> Result<()> {
    const KINDS: [&str; 6] = [
        "row",
        "timeseries",
        "stat",
        "table",
        "bargauge",
        "state-timeline",
    ];
    for dashboard in dashboards()? {
        ensure!(dashboard["uid"].is_string() && dashboard["id"].is_null());
        let mut taken = Vec::new();
        for panel in list(&dashboard, "panels") {
            let title = panel["title"].as_str().context("a title")?;
            let kind = panel["type"].as_str().context("a kind")?;
            ensure!(KINDS.contains(&kind) && panel["id"].is_null(), "{title}");
            let side = |name: &str| panel["gridPos"][name].as_u64().context("a side");
            let (x, y, w, h) = (side("x")?, side("y")?, side("w")?, side("h")?);
            let is_free = |other: &(u64, u64, u64, u64)| {
                let (ox, oy, ow, oh) = *other;
                x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y
            };
            ensure!(
                x + w <= 24 && taken.iter().all(is_free),
                "{title} is on another panel"
            );
            taken.push((x, y, w, h));
            if kind == "row" {
                continue;
            }
            let described = panel["description"]
                .as_str()
                .is_some_and(|text| text.starts_with(char::is_uppercase) && text.ends_with('.'));
            ensure!(described, "{title} is not described");
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            ensure!(
                unit.is_string() || kind == "state-timeline",
                "{title} has no unit"
            );
            ensure!(list(panel, "targets").count() > 0, "{title} asks nothing");
            for source in list(panel, "targets").chain([panel]) {
                let uid = &source["datasource"]["uid"];
                ensure!(*uid == "${datasource}", "{title} is bound to {uid}");
            }
        }
    }
    Ok(())
}
