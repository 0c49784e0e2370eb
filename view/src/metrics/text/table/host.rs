//! Rows of the host: who collects, and its cards.

use super::{Metric, Samples, counts, one_label, percent, ratio};
use crate::metrics::{CardMetrics, Exporter};

/// Of whoever collects.
pub(in crate::metrics::text) const OF_EXPORTER: &[Metric<Exporter>] = &[
    metric!(Gauges "cgpu_build_info", "The version of the program that collects, and its commit", |of| {
        let labels = vec![
            ("version", of.version.clone()),
            ("commit", of.commit.clone()),
        ];
        vec![(labels, 1)]
    }),
    metric!(
        Counters "cgpu_scrape_errors",
        "Answers that did not come in time or could not be read, by who was asked; their samples are absent",
        |of| counts("source", &of.errors)
    ),
    metric!(
        Ratios "cgpu_scrape_duration_seconds",
        "How long the last collection took, by who was asked",
        |of| {
            let took = of.took.iter();
            took.map(|(source, took)| (one_label("source", source), took.as_secs_f64())).collect()
        }
    ),
    metric!(
        Counters "cgpu_starts_refused",
        "Containers that did not start for want of their vGPU, by whose fault it was",
        |of| counts("reason", &of.starts_refused)
    ),
    metric!(
        Counters "cgpu_events",
        "What happened to containers, also to those that have ended, and to cards, by kind",
        |of| counts("kind", &of.events)
    ),
    metric!(Gauge "cgpu_claims_prepared", "Claims of Kubernetes that are prepared on this node", |of| of.claims_prepared),
    metric!(
        Histogram "cgpu_prepare_duration_seconds",
        "How long a claim takes to be prepared, the API server's answer included",
        |of| of.claims.as_ref().map(|claims| &claims.prepare_durations)
    ),
    metric!(
        Counter "cgpu_prepares_refused",
        "Times that a claim was not prepared; the kubelet tries again",
        |of| of.claims.as_ref().map(|claims| claims.prepares_refused)
    ),
    metric!(
        Counter "cgpu_kubernetes_events_lost",
        "Happenings that are in no event of Kubernetes', since they were too many or the API server did not take them",
        |of| of.claims.as_ref().map(|claims| claims.events_lost)
    ),
];

/// Of a card.
pub(in crate::metrics::text) const OF_CARD: &[Metric<CardMetrics>] = &[
    metric!(
        Gauges "cgpu_card_info",
        "The model and the driver of a card, and whether containers can share it as it is set",
        |of| {
            let labels = [
                ("pci", of.pci.as_str()),
                ("model", &of.model),
                ("driver_version", &of.driver_version),
                ("mode", of.mode),
            ];
            vec![(labels.map(|(name, value)| (name, value.to_owned())).to_vec(), 1)]
        }
    ),
    metric!(
        Gauges "cgpu_card_healthy",
        "Whether new containers are placed on a card; 0: with the reason",
        |of| {
            let reason = of.unhealthy.as_deref();
            vec![(one_label("reason", reason.unwrap_or_default()), reason.is_none().into())]
        }
    ),
    metric!(
        Gauge "cgpu_card_containers",
        "Containers that have a part of a card",
        |of| Some(of.containers)
    ),
    metric!(
        Gauge "cgpu_card_memory_bytes",
        "Memory of a card that can be granted in all",
        |of| Some(of.memory_bytes)
    ),
    metric!(
        Gauge "cgpu_card_granted_bytes",
        "Memory of a card that is granted to containers",
        |of| Some(of.granted_bytes)
    ),
    metric!(
        Ratio "cgpu_card_compute_reserved_ratio",
        "Part of a card's time that is reserved for containers, used or not",
        |of| Some(ratio(of.reserved_ppm.into()))
    ),
    metric!(
        Ratio "cgpu_card_compute_left_ratio",
        "Part of a card's time that can still be reserved",
        |of| Some(ratio(of.left_ppm.into()))
    ),
    // What NVML reports of a real card.
    metric!(
        Gauge "cgpu_card_memory_used_bytes",
        "Memory of a card in use, by whatever program",
        |of| of.figures.memory_used_bytes
    ),
    metric!(
        Ratio "cgpu_card_utilization_ratio",
        "Part of the last moments in which a card executed a kernel",
        |of| of.figures.utilization_percent.map(percent)
    ),
    metric!(
        Ratio "cgpu_card_memory_utilization_ratio",
        "Part of the last moments in which a card's memory was read or written",
        |of| of.figures.memory_utilization_percent.map(percent)
    ),
    metric!(
        Gauge "cgpu_card_temperature_celsius",
        "Temperature of a card",
        |of| of.figures.temperature_celsius.map(u64::from)
    ),
    metric!(
        Ratio "cgpu_card_power_watts",
        "Power that a card draws",
        |of| of.figures.power_milliwatts.map(|power| f64::from(power) / 1e3)
    ),
    metric!(
        Gauges "cgpu_card_clock_hertz",
        "Clock of a card's multiprocessors and of its memory",
        |of| {
            let clocks = [("sm", of.figures.sm_clock_mhz), ("memory", of.figures.memory_clock_mhz)];
            let known = clocks.into_iter().filter_map(|(clock, mhz)| Some((clock, mhz?)));
            let hertz = |mhz: u32| u64::from(mhz) * 1_000_000;
            known.map(|(clock, mhz)| (one_label("clock", clock), hertz(mhz))).collect()
        }
    ),
];
