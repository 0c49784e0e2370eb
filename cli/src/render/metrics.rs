//! Metrics in the two text forms that Prometheus reads.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

use anyhow::Context;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::model::metrics::{ContainerMetrics, MODES, Metrics};

/// A text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TextForm {
    /// Prometheus' own text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfContainer {
    namespace: String,
    container: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSlice {
    namespace: String,
    container: String,
    uuid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    namespace: String,
    container: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfShare {
    namespace: String,
    container: String,
    uuid: String,
    policy: String,
    priority: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfEnforcementLevel {
    namespace: String,
    container: String,
    uuid: String,
    level: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCard {
    uuid: String,
    minor: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMode {
    namespace: String,
    container: String,
    mode: &'static str,
}

type Gauges<L> = Family<L, Gauge<u64, AtomicU64>>;
type Ratios<L> = Family<L, Gauge<f64, AtomicU64>>;
type Counters<L> = Family<L, Counter<u64, AtomicU64>>;
type Seconds<L> = Family<L, Counter<f64, AtomicU64>>;

/// One text for one scrape.
///
/// # Errors
/// Never for what [`Metrics`] can hold; the encoder's type says otherwise.
pub fn render(metrics: &Metrics, form: TextForm) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("cgpu");
    containers(&mut registry, &metrics.containers);
    own_processes(&mut registry, &metrics.containers);
    shares(&mut registry, &metrics.containers);
    let (reserved, left) = (Ratios::default(), Ratios::default());
    let (memory, granted) = (Gauges::default(), Gauges::default());
    for card in &metrics.cards {
        let labels = OfCard {
            uuid: card.uuid.clone(),
            minor: card.minor,
        };
        memory.get_or_create(&labels).set(card.memory_bytes);
        granted.get_or_create(&labels).set(card.granted_bytes);
        reserved
            .get_or_create(&labels)
            .set(ratio(card.reserved_ppm.into()));
        left.get_or_create(&labels).set(ratio(card.left_ppm.into()));
    }
    registry.register(
        "card_compute_reserved_ratio",
        "Part of a card's time that is reserved for containers, used or not",
        reserved,
    );
    registry.register(
        "card_compute_left_ratio",
        "Part of a card's time that can still be reserved",
        left,
    );
    registry.register(
        "card_memory_bytes",
        "Memory of a card that can be granted in all",
        memory,
    );
    registry.register(
        "card_granted_bytes",
        "Memory of a card that is granted to containers",
        granted,
    );
    let mut text = String::new();
    encode(&mut text, &registry).context("write the metrics")?;
    let text = in_order(&text);
    Ok(match form {
        TextForm::Prometheus => classic(&text),
        TextForm::Openmetrics => text,
    })
}

/// The same in Prometheus' own form: there the help and the type of a counter carry the name of its samples.
fn classic(text: &str) -> String {
    let counters: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let lines = text.lines().filter(|line| *line != "# EOF");
    lines
        .map(|line| {
            let mut parts = line.splitn(4, ' ');
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                    format!("# {kind} {name}_total {rest}\n")
                }
                _ => format!("{line}\n"),
            }
        })
        .collect()
}

/// The samples of each metric by their labels: the library keeps them in a table without an order.
fn in_order(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for samples in lines.split_mut(|line| line.starts_with('#')) {
        samples.sort_unstable();
    }
    lines.join("\n") + "\n"
}

/// Parts of a million as a ratio; exact for a double.
fn ratio(ppm: u64) -> f64 {
    f64::from(u32::try_from(ppm).unwrap_or(u32::MAX)) / 1e6
}

/// Nanoseconds as seconds: exact to a microsecond for 270 years, which is what a double holds.
fn seconds(ns: u64) -> f64 {
    let of = |part: u64| f64::from(u32::try_from(part).unwrap_or(u32::MAX));
    of(ns / 1_000_000_000) + of(ns % 1_000_000_000) / 1e9
}

fn shares(registry: &mut Registry, all: &[ContainerMetrics]) {
    let (entitlement, part) = (Ratios::default(), Ratios::default());
    let (terms, enforcement_levels) = (
        Gauges::<OfShare>::default(),
        Gauges::<OfEnforcementLevel>::default(),
    );
    let (percent, weight) = (Gauges::default(), Gauges::default());
    let (used, latency) = (Seconds::<OfSlice>::default(), Ratios::default());
    let (knobs, alarms) = (
        Counters::<OfSlice>::default(),
        Counters::<OfSlice>::default(),
    );
    for one in all {
        for slice in &one.slices {
            let labels = OfSlice {
                namespace: one.namespace.clone(),
                container: one.container.clone(),
                uuid: slice.uuid.clone(),
            };
            let share = &slice.share;
            if let (Some(policy), Some(priority)) = (&share.policy, &share.priority) {
                let of = OfShare {
                    namespace: one.namespace.clone(),
                    container: one.container.clone(),
                    uuid: slice.uuid.clone(),
                    policy: policy.clone(),
                    priority: priority.clone(),
                };
                terms.get_or_create(&of).set(1);
            }
            if let Some(enforcement_level) = &share.enforcement_level {
                let of = OfEnforcementLevel {
                    namespace: one.namespace.clone(),
                    container: one.container.clone(),
                    uuid: slice.uuid.clone(),
                    level: enforcement_level.clone(),
                };
                enforcement_levels.get_or_create(&of).set(1);
            }
            for (family, value) in [(&percent, share.percent), (&weight, share.weight)] {
                if let Some(value) = value {
                    Family::get_or_create(family, &labels).set(value);
                }
            }
            for (family, ppm) in [
                (&entitlement, share.entitlement_ppm),
                (&part, share.used_ppm),
            ] {
                if let Some(ppm) = ppm {
                    Family::get_or_create(family, &labels).set(ratio(ppm));
                }
            }
            if let Some(ns) = share.used_ns {
                used.get_or_create(&labels).inc_by(seconds(ns));
            }
            if let Some(ns) = share.knob_latency_ns {
                latency.get_or_create(&labels).set(seconds(ns));
            }
            for (family, count) in [(&knobs, share.knob_calls), (&alarms, share.alarms)] {
                if let Some(count) = count {
                    Family::get_or_create(family, &labels).inc_by(count);
                }
            }
        }
    }
    registry.register(
        "compute_terms",
        "1 for the container's compute policy and priority on a card",
        terms,
    );
    registry.register(
        "compute_percent",
        "The container's cap (fixed) or floor (soft), percent of a card's time",
        percent,
    );
    registry.register("compute_weight", "The container's weight", weight);
    registry.register(
        "compute_entitlement_ratio",
        "Part of a card's time that the container is entitled to now",
        entitlement,
    );
    registry.register(
        "compute_used_ratio",
        "Part of a card's time that the container had in the last second or so",
        part,
    );
    registry.register(
        "compute_used_seconds",
        "Time of a card that the container has used",
        used,
    );
    registry.register(
        "compute_enforcement_level",
        "1 for the way in which the container's share is enforced",
        enforcement_levels,
    );
    registry.register(
        "compute_knob_calls",
        "Calls to a card's scheduler for the container",
        knobs,
    );
    registry.register(
        "compute_knob_latency_seconds",
        "Duration of such a call",
        latency,
    );
    registry.register(
        "compute_alarms",
        "Number of times that the container's share could not be enforced",
        alarms,
    );
}

/// What supervisor, broker and executor use of the host; nothing where no control group counts it.
fn own_processes(registry: &mut Registry, all: &[ContainerMetrics]) {
    let cpu = Seconds::<OfContainer>::default();
    let (memory, threads) = (Gauges::default(), Gauges::default());
    for one in all {
        let labels = OfContainer {
            namespace: one.namespace.clone(),
            container: one.container.clone(),
        };
        if let Some(ns) = one.own.cpu_ns {
            cpu.get_or_create(&labels).inc_by(seconds(ns));
        }
        if let Some(bytes) = one.own.memory_bytes {
            memory.get_or_create(&labels).set(bytes);
        }
        if let Some(count) = one.own.threads {
            threads.get_or_create(&labels).set(count);
        }
    }
    registry.register(
        "broker_cpu_seconds",
        "CPU time of the container's supervisor, broker and executor",
        cpu,
    );
    registry.register(
        "broker_memory_bytes",
        "Host memory of the container's supervisor, broker and executor",
        memory,
    );
    registry.register(
        "broker_threads",
        "Threads of the container's supervisor, broker and executor",
        threads,
    );
}

fn containers(registry: &mut Registry, all: &[ContainerMetrics]) {
    let (up, hung) = (Gauges::default(), Gauges::default());
    let (compared, reachable) = (Gauges::default(), Gauges::default());
    let modes = Gauges::<OfMode>::default();
    let (quota, used, peak) = (Gauges::default(), Gauges::default(), Gauges::default());
    let (driver_counts, ledger_has) = (Gauges::default(), Gauges::default());
    let (calls, incidents) = (Counters::<OfKind>::default(), Counters::<OfKind>::default());
    let over_quota = Counters::<OfSlice>::default();
    let of_container = || Counters::<OfContainer>::default();
    let (replaced, reconciled, violations) = (of_container(), of_container(), of_container());
    let (suppressed, throttled, unknown) = (of_container(), of_container(), of_container());
    let inconsistencies = of_container();
    for one in all {
        let labels = OfContainer {
            namespace: one.namespace.clone(),
            container: one.container.clone(),
        };
        let slice = |uuid: &str| OfSlice {
            namespace: one.namespace.clone(),
            container: one.container.clone(),
            uuid: uuid.to_owned(),
        };
        let kind = |kind: &'static str| OfKind {
            namespace: one.namespace.clone(),
            container: one.container.clone(),
            kind,
        };
        up.get_or_create(&labels).set(u64::from(one.is_up));
        for mode in MODES {
            let labels = OfMode {
                namespace: one.namespace.clone(),
                container: one.container.clone(),
                mode,
            };
            modes
                .get_or_create(&labels)
                .set(u64::from(mode == one.mode));
        }
        if one.is_up {
            reachable
                .get_or_create(&labels)
                .set(u64::from(one.health.unreachable.is_none()));
        }
        hung.get_or_create(&labels).set(one.health.hung_calls);
        if let Some(is_reconciled) = one.is_reconciled {
            compared
                .get_or_create(&labels)
                .set(u64::from(is_reconciled));
        }
        replaced.get_or_create(&labels).inc_by(one.replaced);
        reconciled
            .get_or_create(&labels)
            .inc_by(one.health.reconciled);
        violations
            .get_or_create(&labels)
            .inc_by(one.health.violations);
        suppressed
            .get_or_create(&labels)
            .inc_by(one.health.suppressed_logs);
        throttled
            .get_or_create(&labels)
            .inc_by(one.health.throttled);
        unknown
            .get_or_create(&labels)
            .inc_by(one.health.unknown_calls);
        inconsistencies
            .get_or_create(&labels)
            .inc_by(one.health.inconsistencies);
        for (name, count) in &one.calls {
            calls.get_or_create(&kind(name)).inc_by(*count);
        }
        for (name, count) in [
            ("xid", one.health.incidents.xid),
            ("card_lost", one.health.incidents.card_lost),
            ("hung_call", one.health.incidents.hung_call),
        ] {
            incidents.get_or_create(&kind(name)).inc_by(count);
        }
        for drift in &one.health.drift {
            driver_counts
                .get_or_create(&slice(&drift.uuid))
                .set(drift.driver_bytes);
            ledger_has
                .get_or_create(&slice(&drift.uuid))
                .set(drift.ledger_bytes);
        }
        for card in &one.slices {
            let labels = slice(&card.uuid);
            quota.get_or_create(&labels).set(card.quota_bytes);
            if let Some(bytes) = card.used_bytes {
                used.get_or_create(&labels).set(bytes);
            }
            if let Some(bytes) = card.peak_bytes {
                peak.get_or_create(&labels).set(bytes);
            }
            over_quota
                .get_or_create(&labels)
                .inc_by(card.refused.unwrap_or(0));
        }
    }
    registry.register("broker_up", "Whether the container's broker answers", up);
    registry.register(
        "driver_reachable",
        "Whether the executor or the simulator of the container's calls answers; 0: they fail with EIO",
        reachable,
    );
    registry.register(
        "isolation_mode",
        "1 for the container's isolation mode, 0 for the others",
        modes,
    );
    registry.register(
        "hung_calls",
        "Calls that the driver has not answered in time",
        hung,
    );
    registry.register("quota_bytes", "The container's quota on a card", quota);
    registry.register(
        "used_bytes",
        "Memory of a card that the container uses",
        used,
    );
    registry.register(
        "peak_bytes",
        "Most memory of a card that the container has used",
        peak,
    );
    registry.register(
        "over_quota",
        "Allocations refused because they exceed the quota",
        over_quota,
    );
    registry.register("calls", "Driver calls by outcome", calls);
    registry.register(
        "incidents",
        "Xid errors, lost cards and hung calls of the container",
        incidents,
    );
    registry.register(
        "broker_replacements",
        "How often the broker was replaced",
        replaced,
    );
    registry.register(
        "reconciliations",
        "Comparisons with the driver's own sums",
        reconciled,
    );
    registry.register(
        "reconciled",
        "Whether the driver reports what it counts for the container",
        compared,
    );
    registry.register(
        "violations",
        "Comparisons in which the driver counted more",
        violations,
    );
    registry.register(
        "driver_counted_bytes",
        "Memory that the driver counts for the container",
        driver_counts,
    );
    registry.register(
        "ledger_counted_bytes",
        "Memory of the same kind that cgpu's ledger counts for the container",
        ledger_has,
    );
    registry.register(
        "suppressed_logs",
        "Log lines suppressed by the rate limit",
        suppressed,
    );
    registry.register(
        "throttled_calls",
        "Refused calls delayed by the rate limit",
        throttled,
    );
    registry.register(
        "unknown_calls",
        "Refused calls that have no row in cgpu's tables",
        unknown,
    );
    registry.register(
        "inconsistencies",
        "Impossible changes left out of the account: a bug of cgpu's",
        inconsistencies,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::metrics::{CardMetrics, Drift, Health, Incidents, SliceMetrics};
    use crate::model::share::Share;

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
                health: Health {
                    violations: 1,
                    drift: vec![Drift {
                        uuid: "GPU-1".to_owned(),
                        driver_bytes: 7,
                        ledger_bytes: 6,
                    }],
                    incidents: Incidents {
                        xid: 3,
                        ..Incidents::default()
                    },
                    ..Health::default()
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
}
