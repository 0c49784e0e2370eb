//! The files in `configs/grafana` are those that the code makes, and have what a dashboard needs that others import.

mod served;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dashboards::{FOLDER, expression, files};
use integration::cache::repository;
use integration::command::capture;
use integration::go::{Effort, GoProgram};
use integration::skip;
use serde_json::Value;

/// Grafana's own types of its dashboards, which refuse unknown, absent and mistyped fields.
const SCHEMA: GoProgram = GoProgram {
    name: "dashboard-schema",
    packages: &["."],
    tags: "",
    module: include_str!("../schema/go.mod"),
    sums: include_str!("../schema/go.sum"),
    source: include_str!("../schema/main.go"),
    effort: Effort::USUAL,
};

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
        let mut ids = BTreeSet::new();
        for panel in list(&dashboard, "panels") {
            let title = panel["title"].as_str().context("a title")?;
            let kind = panel["type"].as_str().context("a kind")?;
            let id = panel["id"].as_u64().context("a number")?;
            ensure!(KINDS.contains(&kind) && ids.insert(id), "{title}");
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

#[test]
fn grafana_s_schema_knows_every_field() -> Result<()> {
    const TEST: &str = "grafana_s_schema_knows_every_field";
    let program = match SCHEMA.fetch() {
        Ok(program) => program,
        Err(reason) => skip!(TEST, "{reason:#}"),
    };
    let folder = tempfile::tempdir()?;
    let judge = |name: &str, text: &str| -> Result<String> {
        let path = folder.path().join(name);
        fs::write(&path, text)?;
        let judged = capture(Command::new(&program).arg(path), Duration::from_secs(60))?;
        let expected = i32::from(!judged.stdout.is_empty());
        ensure!(judged.code == Some(expected), "{name}: {}", judged.stderr);
        Ok(judged.stdout)
    };
    for (name, text) in files()? {
        let faults = judge(&name, &text)?;
        ensure!(faults.is_empty(), "{faults}");
        // It tells a wrong name and a wrong type.
        for (right, wrong) in [
            ("\"gridPos\"", "\"gridPlace\""),
            ("\"w\": 24", "\"w\": \"24\""),
        ] {
            ensure!(text.contains(right), "{name} has no {right}");
            let faults = judge(&name, &text.replace(right, wrong))?;
            ensure!(!faults.is_empty(), "{name}: {wrong} is taken");
        }
    }
    Ok(())
}
