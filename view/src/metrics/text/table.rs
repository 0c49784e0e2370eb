//! Every metric as a row: its name, its help, and its samples of one container, slice or card.

use std::sync::atomic::AtomicU64;

use control::Drift;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::{CardMetrics, ContainerMetrics, MODES, SliceMetrics};

/// Names and values, in the order in which they are written.
pub(super) type Labels = Vec<(&'static str, String)>;

/// One metric of every `T`.
pub(super) struct Metric<T> {
    /// Without the prefix, and without a counter's `_total`.
    name: &'static str,
    help: &'static str,
    samples: Samples<T>,
}

/// Its samples; `None`, or none: nothing is known.
enum Samples<T> {
    Gauge(fn(&T) -> Option<u64>),
    Ratio(fn(&T) -> Option<f64>),
    Counter(fn(&T) -> Option<u64>),
    /// A counter of seconds.
    Seconds(fn(&T) -> Option<f64>),
    /// Gauges that further labels tell apart.
    Gauges(fn(&T) -> Vec<(Labels, u64)>),
    /// Counters that further labels tell apart.
    Counters(fn(&T) -> Vec<(Labels, u64)>),
}

/// Registers the metrics with their samples of all `items`, each with its labels.
pub(super) fn register<T>(registry: &mut Registry, metrics: &[Metric<T>], items: &[(Labels, &T)]) {
    for metric in metrics {
        let (name, help) = (metric.name, metric.help);
        match metric.samples {
            Samples::Gauge(value) => {
                let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
                for (labels, value) in known(items, value) {
                    family.get_or_create(labels).set(value);
                }
                registry.register(name, help, family);
            }
            Samples::Ratio(value) => {
                let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
                for (labels, value) in known(items, value) {
                    family.get_or_create(labels).set(value);
                }
                registry.register(name, help, family);
            }
            Samples::Counter(value) => {
                let family = Family::<Labels, Counter<u64, AtomicU64>>::default();
                for (labels, value) in known(items, value) {
                    family.get_or_create(labels).inc_by(value);
                }
                registry.register(name, help, family);
            }
            Samples::Seconds(value) => {
                let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
                for (labels, value) in known(items, value) {
                    family.get_or_create(labels).inc_by(value);
                }
                registry.register(name, help, family);
            }
            Samples::Gauges(values) => {
                let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
                for (labels, value) in apart(items, values) {
                    family.get_or_create(&labels).set(value);
                }
                registry.register(name, help, family);
            }
            Samples::Counters(values) => {
                let family = Family::<Labels, Counter<u64, AtomicU64>>::default();
                for (labels, value) in apart(items, values) {
                    family.get_or_create(&labels).inc_by(value);
                }
                registry.register(name, help, family);
            }
        }
    }
}

fn known<'a, T, V>(
    items: &'a [(Labels, &T)],
    value: fn(&T) -> Option<V>,
) -> impl Iterator<Item = (&'a Labels, V)> {
    items
        .iter()
        .filter_map(move |(labels, item)| Some((labels, value(item)?)))
}

fn apart<T>(
    items: &[(Labels, &T)],
    values: fn(&T) -> Vec<(Labels, u64)>,
) -> impl Iterator<Item = (Labels, u64)> {
    items.iter().flat_map(move |(labels, item)| {
        let further = values(item).into_iter();
        further.map(|(further, value)| ([labels.clone(), further].concat(), value))
    })
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

fn one_label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// A row.
macro_rules! metric {
    ($samples:ident $name:literal, $help:literal, $value:expr) => {
        Metric {
            name: $name,
            help: $help,
            samples: Samples::$samples($value),
        }
    };
}

/// Of a container.
pub(super) const OF_CONTAINER: &[Metric<ContainerMetrics>] = &[
    metric!(Gauge "broker_up", "Whether the container's broker answers", |of| Some(of.is_up.into())),
    metric!(
        Gauge "driver_reachable",
        "Whether the executor or the simulator of the container's calls answers; 0: they fail with EIO",
        |of| of.is_up.then(|| of.health.unreachable.is_none().into())
    ),
    metric!(
        Gauges "isolation_mode",
        "1 for the container's isolation mode, 0 for the others",
        |of| MODES.map(|mode| (one_label("mode", mode), u64::from(mode == of.mode))).to_vec()
    ),
    metric!(
        Gauge "hung_calls",
        "Calls that the driver has not answered in time",
        |of| Some(of.health.hung_calls)
    ),
    metric!(Counters "calls", "Driver calls by outcome", |of| {
        let calls = of.calls.iter();
        calls.map(|(kind, count)| (one_label("kind", kind), *count)).collect()
    }),
    metric!(
        Counters "incidents",
        "Xid errors, lost cards and hung calls of the container",
        |of| {
            let all = &of.health.incidents;
            let kinds = [("xid", all.xid), ("card_lost", all.card_lost), ("hung_call", all.hung_call)];
            kinds.map(|(kind, count)| (one_label("kind", kind), count)).to_vec()
        }
    ),
    metric!(
        Counter "broker_replacements",
        "How often the broker was replaced",
        |of| Some(of.replaced)
    ),
    metric!(
        Counter "reconciliations",
        "Comparisons with the driver's own sums",
        |of| Some(of.health.reconciled)
    ),
    metric!(
        Gauge "reconciled",
        "Whether the driver reports what it counts for the container",
        |of| of.is_reconciled.map(u64::from)
    ),
    metric!(
        Counter "violations",
        "Comparisons in which the driver counted more",
        |of| Some(of.health.violations)
    ),
    metric!(
        Counter "suppressed_logs",
        "Log lines suppressed by the rate limit",
        |of| Some(of.health.suppressed_logs)
    ),
    metric!(
        Counter "throttled_calls",
        "Refused calls delayed by the rate limit",
        |of| Some(of.health.throttled)
    ),
    metric!(
        Counter "unknown_calls",
        "Refused calls that have no row in cgpu's tables",
        |of| Some(of.health.unknown_calls)
    ),
    metric!(
        Counter "inconsistencies",
        "Impossible changes left out of the account: a bug of cgpu's",
        |of| Some(of.health.inconsistencies)
    ),
    // What supervisor, broker and executor use of the host; nothing where no control group counts it.
    metric!(
        Seconds "broker_cpu_seconds",
        "CPU time of the container's supervisor, broker and executor",
        |of| of.own.cpu_ns.map(seconds)
    ),
    metric!(
        Gauge "broker_memory_bytes",
        "Host memory of the container's supervisor, broker and executor",
        |of| of.own.memory_bytes
    ),
    metric!(
        Gauge "broker_threads",
        "Threads of the container's supervisor, broker and executor",
        |of| of.own.threads
    ),
];

/// Of one card's comparison with the driver.
pub(super) const OF_DRIFT: &[Metric<Drift>] = &[
    metric!(
        Gauge "driver_counted_bytes",
        "Memory that the driver counts for the container",
        |of| Some(of.driver_bytes)
    ),
    metric!(
        Gauge "ledger_counted_bytes",
        "Memory of the same kind that cgpu's ledger counts for the container",
        |of| Some(of.ledger_bytes)
    ),
];

/// Of a container's slice of a card.
pub(super) const OF_SLICE: &[Metric<SliceMetrics>] = &[
    metric!(Gauge "quota_bytes", "The container's quota on a card", |of| Some(of.quota_bytes)),
    metric!(Gauge "used_bytes", "Memory of a card that the container uses", |of| of.used_bytes),
    metric!(
        Gauge "peak_bytes",
        "Most memory of a card that the container has used",
        |of| of.peak_bytes
    ),
    metric!(
        Counter "over_quota",
        "Allocations refused because they exceed the quota",
        |of| Some(of.refused.unwrap_or(0))
    ),
    metric!(
        Gauges "compute_terms",
        "1 for the container's compute policy and priority on a card",
        |of| {
            let (Some(policy), Some(priority)) = (&of.share.policy, &of.share.priority) else {
                return Vec::new();
            };
            vec![(vec![("policy", policy.clone()), ("priority", priority.clone())], 1)]
        }
    ),
    metric!(
        Gauge "compute_percent",
        "The container's cap (fixed) or floor (soft), percent of a card's time",
        |of| of.share.percent
    ),
    metric!(Gauge "compute_weight", "The container's weight", |of| of.share.weight),
    metric!(
        Ratio "compute_entitlement_ratio",
        "Part of a card's time that the container is entitled to now",
        |of| of.share.entitlement_ppm.map(ratio)
    ),
    metric!(
        Ratio "compute_used_ratio",
        "Part of a card's time that the container had in the last second or so",
        |of| of.share.used_ppm.map(ratio)
    ),
    metric!(
        Seconds "compute_used_seconds",
        "Time of a card that the container has used",
        |of| of.share.used_ns.map(seconds)
    ),
    metric!(
        Gauges "compute_enforcement_level",
        "1 for the way in which the container's share is enforced",
        |of| {
            let level = of.share.enforcement_level.iter();
            level.map(|level| (one_label("level", level), 1)).collect()
        }
    ),
    metric!(
        Counter "compute_knob_calls",
        "Calls to a card's scheduler for the container",
        |of| of.share.knob_calls
    ),
    metric!(
        Ratio "compute_knob_latency_seconds",
        "Duration of such a call",
        |of| of.share.knob_latency_ns.map(seconds)
    ),
    metric!(
        Counter "compute_alarms",
        "Number of times that the container's share could not be enforced",
        |of| of.share.alarms
    ),
];

/// Of a card.
pub(super) const OF_CARD: &[Metric<CardMetrics>] = &[
    metric!(
        Ratio "card_compute_reserved_ratio",
        "Part of a card's time that is reserved for containers, used or not",
        |of| Some(ratio(of.reserved_ppm.into()))
    ),
    metric!(
        Ratio "card_compute_left_ratio",
        "Part of a card's time that can still be reserved",
        |of| Some(ratio(of.left_ppm.into()))
    ),
    metric!(
        Gauge "card_memory_bytes",
        "Memory of a card that can be granted in all",
        |of| Some(of.memory_bytes)
    ),
    metric!(
        Gauge "card_granted_bytes",
        "Memory of a card that is granted to containers",
        |of| Some(of.granted_bytes)
    ),
];
