//! Metrics in the OpenMetrics text form, which Prometheus reads.

use std::sync::atomic::AtomicU64;

use anyhow::Context;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::model::metrics::{ContainerMetrics, Metrics};

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
struct OfCard {
    uuid: String,
    minor: u32,
}

type Gauges<L> = Family<L, Gauge<u64, AtomicU64>>;
type Counters<L> = Family<L, Counter<u64, AtomicU64>>;

/// One text for one scrape.
///
/// # Errors
/// Never for what [`Metrics`] can hold; the encoder's type says otherwise.
pub fn render(metrics: &Metrics) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("cgpu");
    containers(&mut registry, &metrics.containers);
    let (memory, granted) = (Gauges::default(), Gauges::default());
    for card in &metrics.cards {
        let labels = OfCard {
            uuid: card.uuid.clone(),
            minor: card.minor,
        };
        memory.get_or_create(&labels).set(card.memory_bytes);
        granted.get_or_create(&labels).set(card.granted_bytes);
    }
    registry.register(
        "card_memory_bytes",
        "All of a card's memory that can be granted",
        memory,
    );
    registry.register(
        "card_granted_bytes",
        "What is granted of a card's memory",
        granted,
    );
    let mut text = String::new();
    encode(&mut text, &registry).context("write the metrics")?;
    Ok(text)
}

fn containers(registry: &mut Registry, all: &[ContainerMetrics]) {
    let (up, hung) = (Gauges::default(), Gauges::default());
    let modes = Gauges::<OfKind>::default();
    let (quota, used, peak) = (Gauges::default(), Gauges::default(), Gauges::default());
    let (driver_counts, ledger_has) = (Gauges::default(), Gauges::default());
    let (calls, incidents) = (Counters::<OfKind>::default(), Counters::<OfKind>::default());
    let over_quota = Counters::<OfSlice>::default();
    let of_container = || Counters::<OfContainer>::default();
    let (replaced, reconciled, violations) = (of_container(), of_container(), of_container());
    let (suppressed, throttled) = (of_container(), of_container());
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
        modes.get_or_create(&kind(one.mode)).set(1);
        hung.get_or_create(&labels).set(one.health.hung_calls);
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
        "isolation_mode",
        "1 for the mode in which the container is held",
        modes,
    );
    registry.register(
        "hung_calls",
        "Calls that have not come back from the driver",
        hung,
    );
    registry.register("quota_bytes", "The container's quota on a card", quota);
    registry.register("used_bytes", "What the container holds of a card", used);
    registry.register(
        "peak_bytes",
        "The most that the container held of a card",
        peak,
    );
    registry.register("over_quota", "Allocations that did not fit", over_quota);
    registry.register("calls", "Driver calls by what became of them", calls);
    registry.register("incidents", "What went wrong for the container", incidents);
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
        "violations",
        "Comparisons in which the driver counted more",
        violations,
    );
    registry.register(
        "driver_counted_bytes",
        "The driver's own sum",
        driver_counts,
    );
    registry.register(
        "ledger_counted_bytes",
        "The ledger's sum of the same kind",
        ledger_has,
    );
    registry.register(
        "suppressed_logs",
        "Log lines left out for their number",
        suppressed,
    );
    registry.register(
        "throttled_calls",
        "Refused calls made to wait for their number",
        throttled,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::metrics::{CardMetrics, Drift, Health, Incidents, SliceMetrics};

    #[test]
    fn every_sample_is_named_with_its_container_and_card() {
        let metrics = Metrics {
            containers: vec![ContainerMetrics {
                namespace: "default".to_owned(),
                container: "c\"1".to_owned(),
                is_up: true,
                mode: "sim",
                slices: vec![SliceMetrics {
                    uuid: "GPU-1".to_owned(),
                    quota_bytes: 4096,
                    used_bytes: Some(64),
                    peak_bytes: None,
                    refused: Some(2),
                }],
                calls: vec![("total", 9)],
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
            }],
            cards: vec![CardMetrics {
                uuid: "GPU-1".to_owned(),
                minor: 0,
                memory_bytes: 1 << 30,
                granted_bytes: 4096,
            }],
        };
        let text = render(&metrics).unwrap();
        for line in [
            "cgpu_quota_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 4096",
            "cgpu_used_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 64",
            "cgpu_over_quota_total{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 2",
            "cgpu_calls_total{namespace=\"default\",container=\"c\\\"1\",kind=\"total\"} 9",
            "cgpu_incidents_total{namespace=\"default\",container=\"c\\\"1\",kind=\"xid\"} 3",
            "cgpu_isolation_mode{namespace=\"default\",container=\"c\\\"1\",kind=\"sim\"} 1",
            "cgpu_violations_total{namespace=\"default\",container=\"c\\\"1\"} 1",
            "cgpu_driver_counted_bytes{namespace=\"default\",container=\"c\\\"1\",uuid=\"GPU-1\"} 7",
            "cgpu_card_granted_bytes{uuid=\"GPU-1\",minor=\"0\"} 4096",
            "# EOF",
        ] {
            assert!(
                text.lines().any(|said| said == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("cgpu_peak_bytes{"), "{text}");
    }
}
