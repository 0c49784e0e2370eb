//! The alerting and recording rules: on metrics that are served, explained, and tried one by one by Prometheus' own tool.

mod prometheus;
mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dashboards::expression;
use integration::cache::repository;
use integration::command::succeed;
use integration::skip;
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(rename = "name")]
    _name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
    #[serde(rename = "for")]
    _for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// `promtool test rules`' file, as far as it is looked at here.
#[derive(Deserialize)]
struct Tests {
    tests: Vec<TestGroup>,
}

#[derive(Deserialize)]
struct TestGroup {
    #[serde(default)]
    input_series: Vec<BTreeMap<String, String>>,
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(rename = "exp_labels")]
    _labels: BTreeMap<String, String>,
}

fn rules_file() -> PathBuf {
    repository().join("configs/prometheus/cgpu.rules.yml")
}

fn tests_file() -> PathBuf {
    repository().join("lab/dashboards/tests/rules.test.yml")
}

fn read<T: DeserializeOwned>(path: &PathBuf) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

fn rules() -> Result<Vec<Rule>> {
    let rules: Rules = read(&rules_file())?;
    let all: Vec<Rule> = rules
        .groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect();
    ensure!(all.len() > 15, "only {} rules", all.len());
    Ok(all)
}

#[test]
fn every_metric_of_a_rule_is_served() -> Result<()> {
    let mut known = served::series()?;
    // Prometheus' own, of a scrape.
    known.insert("up".to_owned());
    for rule in rules()? {
        let metrics = expression::metrics(&rule.expr);
        ensure!(!metrics.is_empty(), "{} reads nothing", rule.expr);
        for metric in metrics {
            ensure!(known.contains(&metric), "{}: no {metric}", rule.expr);
        }
    }
    Ok(())
}

/// A heading's anchor, as code hosts make it of one word.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    headings.map(str::to_lowercase).collect()
}

#[test]
fn every_alert_has_its_section_and_every_section_its_alert() -> Result<()> {
    const PAGE: &str = "file:///usr/share/doc/cgpu/guide/alerts.md#";
    let page = fs::read_to_string(repository().join("docs/guide/alerts.md"))?;
    let mut explained = anchors(&page);
    for rule in rules()? {
        let Some(name) = rule.alert else {
            let record = rule.record.context("a rule alerts or records")?;
            ensure!(
                page.contains(&format!("| `{record}` |")),
                "{record} is not explained"
            );
            continue;
        };
        let anchor = name.to_lowercase();
        ensure!(explained.remove(&anchor), "{name} has no section");
        let severity = rule.labels.get("severity").map(String::as_str);
        ensure!(
            matches!(severity, Some("critical" | "warning" | "info")),
            "{name}: severity {severity:?}"
        );
        for part in ["summary", "description", "runbook_url"] {
            ensure!(rule.annotations.contains_key(part), "{name} has no {part}");
        }
        let url = rule.annotations.get("runbook_url");
        ensure!(
            url == Some(&format!("{PAGE}{anchor}")),
            "{name} leads to {url:?}"
        );
        let heading = format!("### {name}\n");
        let (_, section) = page.split_once(&heading).context("a section")?;
        let section = section.split("\n#").next().unwrap_or_default();
        for part in ["\n- Look: ", "\n- Do: "] {
            ensure!(section.contains(part), "{name}: its section has no {part}");
        }
    }
    ensure!(explained.is_empty(), "no alert has {explained:?}");
    Ok(())
}

#[test]
fn every_alert_is_tried_with_a_series_that_raises_it_and_one_that_does_not() -> Result<()> {
    let tests: Tests = read(&tests_file())?;
    for name in rules()?.into_iter().filter_map(|rule| rule.alert) {
        let is_tried = |group: &&TestGroup| {
            let of_alert = group.alert_rule_test.iter();
            of_alert
                .filter(|test| test.alertname == name)
                .any(|test| !test.exp_alerts.is_empty())
        };
        let group = tests.tests.iter().find(is_tried);
        let group = group.with_context(|| format!("{name} is not tried"))?;
        let raised: usize = group
            .alert_rule_test
            .iter()
            .map(|test| test.exp_alerts.len())
            .sum();
        ensure!(
            group.input_series.len() > raised,
            "{name}: every series raises it"
        );
    }
    Ok(())
}

#[test]
fn prometheus_reads_the_rules_and_raises_what_is_expected() -> Result<()> {
    const TEST: &str = "prometheus_reads_the_rules_and_raises_what_is_expected";
    let promtool = match prometheus::program("promtool") {
        Ok(promtool) => promtool,
        Err(absent) => skip!(TEST, "no promtool (package prometheus): {absent:#}"),
    };
    succeed(
        Command::new(&promtool)
            .args(["check", "rules", "--lint-fatal"])
            .arg(rules_file()),
    )?;
    succeed(
        Command::new(&promtool)
            .args(["test", "rules"])
            .arg(tests_file()),
    )?;
    Ok(())
}
