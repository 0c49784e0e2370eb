//! The example of an autoscaler: it asks for metrics that the adapter has, which asks Prometheus for series that are recorded.

mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::command::succeed;
use integration::skip;
use serde::Deserialize;
use serde_json::{Value, json};

/// prometheus-adapter's file, as far as it is used.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Adapter {
    rules: Vec<AdapterRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AdapterRule {
    series_query: String,
    #[serde(rename = "resources")]
    _resources: Value,
    name: AdapterName,
    metrics_query: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterName {
    #[serde(rename = "as")]
    is: String,
}

impl AdapterRule {
    fn series(&self) -> &str {
        self.series_query.split('{').next().unwrap_or_default()
    }

    /// What the adapter asks Prometheus for pods of a namespace.
    fn query(&self, pods: &str) -> String {
        let matchers = format!("namespace=\"team-a\",pod=~\"{pods}\"");
        self.metrics_query
            .replace("<<.Series>>", self.series())
            .replace("<<.LabelMatchers>>", &matchers)
            .replace("<<.GroupBy>>", "pod")
    }
}

fn example(name: &str) -> Result<String> {
    let path = repository().join("examples/kubernetes").join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn adapter() -> Result<Adapter> {
    Ok(serde_saphyr::from_str(&example(
        "prometheus-adapter.yaml",
    )?)?)
}

fn rules() -> PathBuf {
    repository().join("configs/prometheus/cgpu.rules.yml")
}

#[test]
fn the_autoscaler_asks_for_what_is_recorded() -> Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(&example("autoscale.yaml")?)?;
    let autoscaler = objects
        .iter()
        .find(|object| object["kind"] == "HorizontalPodAutoscaler");
    let metrics = autoscaler.context("an autoscaler")?["spec"]["metrics"].as_array();
    let requested: BTreeSet<&str> = metrics
        .into_iter()
        .flatten()
        .filter_map(|metric| metric["pods"]["metric"]["name"].as_str())
        .collect();
    let adapter = adapter()?;
    let known = adapter.rules.iter().map(|rule| rule.name.is.as_str());
    // Used time is in the adapter too, and has a value on simulated cards alone: the example asks for what every card has.
    assert_eq!(requested, BTreeSet::from(["cgpu_pod_memory_used_ratio"]));
    ensure!(requested.is_subset(&known.collect()), "{requested:?}");
    let recorded: Value = serde_saphyr::from_str(&fs::read_to_string(rules())?)?;
    let groups = recorded["groups"].as_array().into_iter().flatten();
    let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let recorded: BTreeSet<&str> = rules.filter_map(|rule| rule["record"].as_str()).collect();
    for rule in &adapter.rules {
        ensure!(recorded.contains(rule.series()), "{}", rule.series());
    }
    Ok(())
}

/// Two containers of one pod, and a pod beside it: what was scraped of them, as parts of a hundred.
const SCRAPED: [(&str, &str, u32, u32); 3] = [
    ("web-0", "app", 90, 100),
    ("web-0", "helper", 0, 20),
    ("web-1", "app", 30, 100),
];

#[test]
fn prometheus_answers_the_adapter_with_a_value_for_each_pod() -> Result<()> {
    const TEST: &str = "prometheus_answers_the_adapter_with_a_value_for_each_pod";
    let promtool = match prometheus::program("promtool") {
        Ok(promtool) => promtool,
        Err(absent) => skip!(TEST, "no promtool (package prometheus): {absent:#}"),
    };
    let names = [
        ("cgpu_memory_used_bytes", "cgpu_memory_quota_bytes"),
        ("cgpu_compute_used_ratio", "cgpu_compute_entitled_ratio"),
    ];
    let mut series = Vec::new();
    for (used, most) in names {
        for (pod, container, has, may) in SCRAPED {
            for (name, value) in [(used, has), (most, may)] {
                let labels = format!(
                    "namespace=\"team-a\",pod=\"{pod}\",container=\"{container}\",uuid=\"GPU-1\""
                );
                series.push(json!({"series": format!("{name}{{{labels}}}"), "values": format!("{value}+0x5")}));
            }
        }
    }
    let expected = BTreeMap::from([("web-0", 0.75), ("web-1", 0.3)]);
    let samples: Vec<Value> = expected
        .iter()
        .map(|(pod, value)| json!({"labels": format!("{{pod=\"{pod}\"}}"), "value": value}))
        .collect();
    let adapter = adapter()?;
    let mut tests: Vec<Value> = adapter
        .rules
        .iter()
        .map(|rule| json!({"expr": rule.query("web-0|web-1"), "eval_time": "3m", "exp_samples": samples}))
        .collect();
    // One that has no pod with a GPU.
    tests.extend(
        adapter
            .rules
            .iter()
            .map(|rule| json!({"expr": rule.query("other"), "eval_time": "3m", "exp_samples": []})),
    );
    let document = json!({
        "rule_files": [rules()],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    });
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("autoscaling.json");
    fs::write(&file, serde_json::to_vec_pretty(&document)?)?;
    succeed(Command::new(promtool).args(["test", "rules"]).arg(&file))?;
    Ok(())
}
