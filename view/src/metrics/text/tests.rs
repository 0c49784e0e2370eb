use control::{Drift, HealthStatus, IncidentCounts};

use super::*;
use crate::metrics::{CardMetrics, ContainerMetrics, SliceMetrics};
use crate::share::Share;

/// Of every kind of metric something, of some nothing.
fn sample() -> Metrics {
    Metrics {
        containers: vec![ContainerMetrics {
            namespace: "default".to_owned(),
            container: "c\"1".to_owned(),
            is_up: true,
            mode: "sim",
            own: vgpu::OwnUsage {
                cpu_ns: Some(1_500_000_000),
                memory_bytes: Some(4096),
                threads: None,
            },
            slices: vec![SliceMetrics {
                uuid: "GPU-1".to_owned(),
                quota_bytes: 4096,
                used_bytes: Some(64),
                peak_bytes: None,
                refused: Some(2),
                share: Share {
                    policy: Some("fixed".to_owned()),
                    percent: Some(30),
                    weight: Some(1),
                    priority: Some("normal".to_owned()),
                    entitlement_ppm: Some(300_000),
                    enforcement_level: Some("0.5".to_owned()),
                    used_ns: Some(2_500_000_000),
                    used_ppm: Some(250_000),
                    knob_calls: Some(40),
                    knob_latency_ns: Some(160_000),
                    ..Share::default()
                },
            }],
            calls: vec![("executed", 9)],
            replaced: 1,
            health: HealthStatus {
                violations: 1,
                drift: vec![Drift {
                    uuid: "GPU-1".to_owned(),
                    driver_bytes: 7,
                    ledger_bytes: 6,
                }],
                incidents: IncidentCounts {
                    xid: 3,
                    ..IncidentCounts::default()
                },
                ..HealthStatus::default()
            },
            is_reconciled: Some(false),
        }],
        cards: vec![CardMetrics {
            uuid: "GPU-1".to_owned(),
            minor: 0,
            memory_bytes: 1 << 30,
            granted_bytes: 4096,
            reserved_ppm: 300_000,
            left_ppm: 700_000,
        }],
    }
}

#[test]
fn two_texts_of_one_moment_are_the_same() {
    let mut metrics = sample();
    let one = metrics.containers.remove(0);
    metrics.containers = (0..16)
        .map(|number| ContainerMetrics {
            container: format!("c{number:02}"),
            calls: vec![("answered", 1), ("refused", 2), ("executed", 3)],
            ..one.clone()
        })
        .collect();
    let text = render(&metrics, TextForm::Prometheus).unwrap();
    // The library's tables have another order each.
    metrics.containers.reverse();
    assert_eq!(text, render(&metrics, TextForm::Prometheus).unwrap());
    let ups: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("cgpu_broker_up{"))
        .collect();
    assert!(ups.len() == 16 && ups.is_sorted(), "{text}");
}

/// The metric of a sample, a help or a type.
fn metric(line: &str) -> &str {
    let line = ["# HELP ", "# TYPE "]
        .iter()
        .find_map(|start| line.strip_prefix(start))
        .unwrap_or(line);
    line.split(['{', ' ']).next().unwrap()
}

#[test]
fn every_sample_has_help_and_type_under_its_own_name() {
    let text = render(&sample(), TextForm::Prometheus).unwrap();
    let with = |start: &str| -> Vec<&str> {
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.map(metric).collect()
    };
    let (helps, types) = (with("# HELP "), with("# TYPE "));
    assert_eq!(helps, types);
    let mut once = helps.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), helps.len(), "a metric is there twice");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(helps.contains(&metric(line)), "{line}\n{text}");
    }
    assert!(
        helps.contains(&"cgpu_calls_total") && !text.contains("# EOF"),
        "{text}"
    );
    let open = render(&sample(), TextForm::Openmetrics).unwrap();
    assert!(
        open.contains("# HELP cgpu_calls Driver") && open.ends_with("# EOF\n"),
        "{open}"
    );
}

#[test]
fn promtool_has_nothing_to_report() {
    let command = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut promtool = match command {
        Ok(promtool) => promtool,
        Err(absent) => {
            println!(
                "SKIP: promtool_has_nothing_to_report: promtool: {absent} (package prometheus)"
            );
            return;
        }
    };
    let text = render(&sample(), TextForm::Prometheus).unwrap();
    let mut input = promtool.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, text.as_bytes()).unwrap();
    drop(input);
    let output = promtool.wait_with_output().unwrap();
    let reply = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && reply.is_empty(),
        "{reply}\n{text}"
    );
}

#[test]
fn every_sample_is_named_with_its_container_and_card() {
    let text = render(&sample(), TextForm::Openmetrics).unwrap();
    for line in [
        "cgpu_quota_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 4096",
        "cgpu_used_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 64",
        "cgpu_over_quota_total{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 2",
        "cgpu_calls_total{namespace=\"default\",container=\"c\\\"1\",kind=\"executed\"} 9",
        "cgpu_incidents_total{namespace=\"default\",container=\"c\\\"1\",kind=\"xid\"} 3",
        "cgpu_isolation_mode{namespace=\"default\",container=\"c\\\"1\",mode=\"sim\"} 1",
        "cgpu_isolation_mode{namespace=\"default\",container=\"c\\\"1\",mode=\"strict\"} 0",
        "cgpu_reconciled{namespace=\"default\",container=\"c\\\"1\"} 0",
        "cgpu_violations_total{namespace=\"default\",container=\"c\\\"1\"} 1",
        "cgpu_driver_counted_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 7",
        "cgpu_card_granted_bytes{uuid=\"GPU-1\",minor=\"0\"} 4096",
        "cgpu_compute_terms{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\",policy=\"fixed\",priority=\"normal\"} 1",
        "cgpu_compute_percent{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 30",
        "cgpu_compute_entitlement_ratio{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 0.3",
        "cgpu_compute_used_ratio{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 0.25",
        "cgpu_compute_used_seconds_total{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 2.5",
        "cgpu_compute_enforcement_level{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\",level=\"0.5\"} 1",
        "cgpu_compute_knob_calls_total{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 40",
        "cgpu_compute_knob_latency_seconds{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 0.00016",
        "cgpu_card_compute_left_ratio{uuid=\"GPU-1\",minor=\"0\"} 0.7",
        "# EOF",
    ] {
        assert!(
            text.lines().any(|reply| reply == line),
            "{line} is not in\n{text}"
        );
    }
    // What is not known has no sample.
    for absent in ["cgpu_peak_bytes{", "cgpu_compute_alarms_total{"] {
        assert!(!text.contains(absent), "{text}");
    }
}
