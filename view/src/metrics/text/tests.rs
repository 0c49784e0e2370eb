use std::time::Duration;

use control::{Drift, HealthStatus, IncidentCounts};
use serde_json::json;

use super::*;
use crate::metrics::{ClaimCounts, Exporter, Figures, Histogram, Reported, SliceMetrics};
use crate::ps::PsCard;
use crate::share::Share;

const ALL: [Dialect; 4] = [Dialect::Cgpu, Dialect::Ack, Dialect::Dcgm, Dialect::Hami];

/// Of every kind of metric something, of some nothing.
fn sample() -> Metrics {
    Metrics {
        exporter: Exporter {
            version: "0.1.0".to_owned(),
            commit: "c0ffee".to_owned(),
            node: "node-1".to_owned(),
            errors: vec![("broker", 2), ("state", 0)],
            took: vec![("containers", Duration::from_millis(1500))],
            starts_refused: vec![("host".to_owned(), 4)],
            events: vec![("xid", 6)],
            claims_prepared: Some(3),
            claims: Some(ClaimCounts {
                prepare_durations: Histogram {
                    sum_seconds: 0.5,
                    buckets: vec![(0.1, 2), (f64::INFINITY, 1)],
                },
                prepares_refused: 5,
                events_lost: 7,
            }),
        },
        containers: vec![container()],
        cards: vec![card("GPU-1", 0), card("GPU-2", 1)],
    }
}

fn container() -> ContainerMetrics {
    ContainerMetrics {
        namespace: "default".to_owned(),
        container: "c1".to_owned(),
        name: "web\"\\\n} 1\n# EOF".to_owned(),
        pod: None,
        created_at_unix_ms: 1,
        is_up: Some(true),
        mode: "sim",
        backend: "broker",
        weaknesses: 1,
        frontend: "run",
        driver_version: "570.195.03".to_owned(),
        own: vgpu::OwnUsage {
            cpu_ns: Some(1_500_000_000),
            memory_bytes: Some(4096),
            threads: None,
        },
        slices: vec![slice()],
        reported: Some(Reported {
            calls: vec![("executed", 9), ("answered", 1)],
            call_durations: Some(Histogram {
                sum_seconds: 0.25,
                buckets: vec![(0.001, 7), (0.01, 2), (f64::INFINITY, 1)],
            }),
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
            health_text: "violation, 3 Xids, not reconciled".to_owned(),
            is_reconciled: Some(false),
        }),
    }
}

fn slice() -> SliceMetrics {
    SliceMetrics {
        row: PsCard {
            uuid: "GPU-1".to_owned(),
            minor: 0,
            quota_bytes: 2 << 20,
            used_bytes: Some(1 << 20),
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
        },
        quota_bytes: Some(4 << 20),
    }
}

fn card(uuid: &str, minor: u32) -> CardMetrics {
    CardMetrics {
        uuid: uuid.to_owned(),
        minor,
        index: minor,
        pci: "00000000:01:00.0".to_owned(),
        model: "NVIDIA L4".to_owned(),
        driver_version: "570.195.03".to_owned(),
        mode: "shareable",
        unhealthy: (minor == 1).then(|| "Xid 79".to_owned()),
        containers: u64::from(minor == 0),
        memory_bytes: 1 << 30,
        granted_bytes: 4096,
        reserved_ppm: 300_000,
        left_ppm: 700_000,
        figures: Figures {
            temperature_celsius: Some(41),
            power_milliwatts: Some(72_500),
            utilization_percent: Some(55),
            sm_clock_mhz: Some(2040),
            ..Figures::default()
        },
    }
}

fn rendered(form: TextForm) -> String {
    render(&sample(), form, &ALL).unwrap()
}

/// The labels of [`container`] and [`slice`], as they are escaped.
const LABELS: &str =
    r#"namespace="",pod="",container="",engine_namespace="default",name="web\"\\\n} 1\n# EOF""#;

#[test]
fn two_texts_of_one_moment_are_the_same() {
    let mut metrics = sample();
    let one = metrics.containers.remove(0);
    metrics.containers = (0..16)
        .map(|number| ContainerMetrics {
            name: format!("c{number:02}"),
            ..one.clone()
        })
        .collect();
    let text = render(&metrics, TextForm::Prometheus, &ALL).unwrap();
    metrics.containers.reverse();
    assert_eq!(text, render(&metrics, TextForm::Prometheus, &ALL).unwrap());
    let ups: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("cgpu_broker_up{"))
        .collect();
    assert!(ups.len() == 16 && ups.is_sorted(), "{text}");
}

#[test]
fn of_two_containers_of_one_name_the_later_one_has_the_series() {
    let mut metrics = sample();
    metrics.containers.push(ContainerMetrics {
        container: "c2".to_owned(),
        created_at_unix_ms: 2,
        is_up: Some(false),
        reported: None,
        ..container()
    });
    let text = render(&metrics, TextForm::Openmetrics, &[Dialect::Cgpu]).unwrap();
    let ups: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("cgpu_broker_up{"))
        .collect();
    assert!(ups.len() == 1 && ups[0].ends_with("} 0"), "{text}");
    // A join by name finds one, and a silent broker has no other one's figures.
    assert_eq!(text.matches("\ncgpu_container_info{").count(), 1, "{text}");
    assert!(!text.contains("\ncgpu_container_charged_bytes{"), "{text}");
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
    let text = rendered(TextForm::Prometheus);
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
        let name = metric(line);
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        let is_known = helps.contains(&name) || family.is_some_and(|name| helps.contains(&name));
        assert!(is_known, "{line}\n{text}");
    }
    assert!(
        helps.contains(&"cgpu_calls_total") && !text.ends_with("# EOF\n"),
        "{text}"
    );
    let open = rendered(TextForm::Openmetrics);
    assert!(
        open.contains("# HELP cgpu_calls Driver calls") && open.ends_with("# EOF\n"),
        "{open}"
    );
}

/// Both forms: promtool reads Prometheus' own, of which OpenMetrics differs in counters' names and its end.
#[test]
fn promtool_has_nothing_to_report_of_our_own_metrics() {
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
                "SKIP: promtool_has_nothing_to_report_of_our_own_metrics: promtool: {absent} (package prometheus)"
            );
            return;
        }
    };
    let text = render(&sample(), TextForm::Prometheus, &[Dialect::Cgpu]).unwrap();
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
fn a_sample_without_labels_has_no_braces() {
    for form in [TextForm::Prometheus, TextForm::Openmetrics] {
        let text = rendered(form);
        assert!(!text.contains("{}"), "{text}");
        for line in [
            "cgpu_claims_prepared 3",
            "cgpu_prepare_duration_seconds_count 3",
            "cgpu_prepares_refused_total 5",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}

#[test]
fn every_sample_is_named_with_its_container_and_card() {
    let text = rendered(TextForm::Openmetrics);
    let of_slice = format!("{LABELS},uuid=\"GPU-1\"");
    let of_card = r#"uuid="GPU-1",minor="0""#;
    for (name, labels, value) in [
        ("cgpu_build_info", r#"version="0.1.0",commit="c0ffee""#, "1"),
        ("cgpu_scrape_errors_total", r#"source="broker""#, "2"),
        (
            "cgpu_scrape_duration_seconds",
            r#"source="containers""#,
            "1.5",
        ),
        ("cgpu_starts_refused_total", r#"reason="host""#, "4"),
        ("cgpu_events_total", r#"kind="xid""#, "6"),
        ("cgpu_memory_quota_bytes", &of_slice, "4194304"),
        ("cgpu_memory_requested_bytes", &of_slice, "2097152"),
        ("cgpu_memory_used_bytes", &of_slice, "1048576"),
        ("cgpu_allocations_refused_total", &of_slice, "2"),
        (
            "cgpu_calls_total",
            &format!("{LABELS},verdict=\"executed\""),
            "9",
        ),
        ("cgpu_call_duration_seconds_count", LABELS, "10"),
        ("cgpu_call_duration_seconds_sum", LABELS, "0.25"),
        (
            "cgpu_call_duration_seconds_bucket",
            &format!("le=\"0.01\",{LABELS}"),
            "9",
        ),
        (
            "cgpu_call_duration_seconds_bucket",
            &format!("le=\"+Inf\",{LABELS}"),
            "10",
        ),
        (
            "cgpu_incidents_total",
            &format!("{LABELS},kind=\"xid\""),
            "3",
        ),
        (
            "cgpu_isolation_info",
            &format!("{LABELS},mode=\"sim\",backend=\"broker\""),
            "1",
        ),
        (
            "cgpu_container_info",
            &format!("{LABELS},container_id=\"c1\",frontend=\"run\",driver_version=\"570.195.03\""),
            "1",
        ),
        ("cgpu_reconciled", LABELS, "0"),
        ("cgpu_violations_total", LABELS, "1"),
        ("cgpu_broker_up", LABELS, "1"),
        ("cgpu_broker_restarts_total", LABELS, "1"),
        ("cgpu_process_cpu_seconds_total", LABELS, "1.5"),
        ("cgpu_process_memory_bytes", LABELS, "4096"),
        ("cgpu_driver_counted_bytes", &of_slice, "7"),
        (
            "cgpu_compute_terms_info",
            &format!("{of_slice},policy=\"fixed\",priority=\"normal\""),
            "1",
        ),
        ("cgpu_compute_requested_ratio", &of_slice, "0.3"),
        ("cgpu_compute_entitled_ratio", &of_slice, "0.3"),
        ("cgpu_compute_used_ratio", &of_slice, "0.25"),
        ("cgpu_compute_used_seconds_total", &of_slice, "2.5"),
        (
            "cgpu_compute_enforcement_info",
            &format!("{of_slice},level=\"0.5\""),
            "1",
        ),
        ("cgpu_compute_knob_calls_total", &of_slice, "40"),
        ("cgpu_compute_knob_latency_seconds", &of_slice, "0.00016"),
        ("cgpu_card_granted_bytes", of_card, "4096"),
        ("cgpu_card_containers", of_card, "1"),
        ("cgpu_card_healthy", &format!("{of_card},reason=\"\""), "1"),
        (
            "cgpu_card_healthy",
            r#"uuid="GPU-2",minor="1",reason="Xid 79""#,
            "0",
        ),
        ("cgpu_card_compute_left_ratio", of_card, "0.7"),
        ("cgpu_card_temperature_celsius", of_card, "41"),
        ("cgpu_card_power_watts", of_card, "72.5"),
        (
            "cgpu_card_clock_hertz",
            &format!("{of_card},clock=\"sm\""),
            "2040000000",
        ),
        (
            "cgpu_card_info",
            &format!(
                "{of_card},pci=\"00000000:01:00.0\",model=\"NVIDIA L4\",driver_version=\"570.195.03\",mode=\"shareable\""
            ),
            "1",
        ),
    ] {
        let line = format!("{name}{{{labels}}} {value}");
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    // What is not known has no sample.
    for absent in [
        "cgpu_memory_peak_bytes",
        "cgpu_compute_alarms",
        "cgpu_process_threads",
    ] {
        assert!(!text.contains(absent), "{text}");
    }
}

#[test]
fn a_name_ends_no_line_and_begins_none() {
    let text = rendered(TextForm::Openmetrics);
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("# EOF"))
            .count(),
        1
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let first = line.as_bytes()[0];
        assert!(first.is_ascii_alphabetic(), "{line}");
    }
}

#[test]
fn other_exporters_names_have_the_same_figures_in_their_units() {
    let mut metrics = sample();
    metrics.containers[0].pod = serde_json::from_value::<cards::Names>(json!({
        "pod": {"namespace": "team-a", "name": "p1", "container": "app"}
    }))
    .unwrap()
    .pod;
    let text = render(&metrics, TextForm::Prometheus, &ALL).unwrap();
    let ack = |mode: &str, names: [&str; 3], card: &str, minor: u32| {
        let [namespace, pod, container] = names;
        format!(
            r#"allocate_mode="{mode}",container_name="{container}",minor_number="{minor}",name="NVIDIA L4",namespace_name="{namespace}",node_name="node-1",pod_name="{pod}",uuid="{card}""#
        )
    };
    let shared = ack("share", ["team-a", "p1", "app"], "GPU-1", 0);
    let free = ack("exclusive", [""; 3], "GPU-2", 1);
    let dcgm = r#"gpu="0",UUID="GPU-1",pci_bus_id="00000000:01:00.0",device="nvidia0",modelName="NVIDIA L4",Hostname="node-1""#;
    let of_pod = r#"container="app",namespace="team-a",pod="p1""#;
    let hami =
        r#"namespace="team-a",pod="p1",container="app",vdevice_index="0",device_uuid="GPU-1""#;
    for (name, labels, value) in [
        ("nvidia_gpu_duty_cycle", &shared, "25"),
        ("nvidia_gpu_memory_total_bytes", &shared, "4194304"),
        ("nvidia_gpu_memory_used_bytes", &shared, "1048576"),
        ("nvidia_gpu_duty_cycle", &free, "55"),
        ("nvidia_gpu_memory_total_bytes", &free, "1073741824"),
        ("nvidia_gpu_power_usage_milliwatts", &free, "72500"),
        (
            "nvidia_gpu_num_devices",
            &r#"node_name="node-1""#.to_owned(),
            "2",
        ),
        ("DCGM_FI_DEV_GPU_TEMP", &dcgm.to_owned(), "41"),
        ("DCGM_FI_DEV_POWER_USAGE", &dcgm.to_owned(), "72.5"),
        (
            "DCGM_CUSTOM_PROCESS_MEM_USED",
            &format!("{dcgm},{of_pod}"),
            "1",
        ),
        (
            "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
            &format!("{dcgm},{of_pod}"),
            "4",
        ),
        (
            "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
            &format!("{dcgm},{of_pod}"),
            "0.3",
        ),
        ("DCGM_CUSTOM_ALLOCATE_MODE", &dcgm.to_owned(), "2"),
        ("hami_vgpu_memory_limit_bytes", &hami.to_owned(), "4194304"),
        (
            "hami_container_device_utilization_ratio",
            &hami.to_owned(),
            "25",
        ),
    ] {
        let line = format!("{name}{{{labels}}} {value}");
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    let own = render(&metrics, TextForm::Prometheus, &[Dialect::Cgpu]).unwrap();
    assert!(!own.contains("nvidia_gpu_") && !own.contains("DCGM") && !own.contains("hami"));
}

/// `docs/guide/metrics.md` has every metric with its help, and no other. With `UPDATE_SNAPSHOTS` in the environment, writes its table.
#[test]
fn the_guide_lists_every_metric() {
    const BEGIN: &str = "| metric | meaning |\n|---|---|\n";
    let path = format!("{}/../docs/guide/metrics.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let rows = table::names();
    let rows = rows
        .iter()
        .map(|(name, help)| format!("| `{name}` | {help} |\n"));
    let rows: String = rows.collect();
    let begin = page.find(BEGIN).unwrap() + BEGIN.len();
    let end = begin + page[begin..].find("\n\n").unwrap() + 1;
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let page = format!("{}{rows}{}", &page[..begin], &page[end..]);
        std::fs::write(&path, page).unwrap();
        return;
    }
    assert_eq!(&page[begin..end], rows, "{path}");
}
