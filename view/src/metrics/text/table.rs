//! Every metric as a row: its name, its help, and its samples of one container, slice or card.

use control::{Drift, HealthStatus};

use crate::metrics::text::family::{Family, Kind, Labels, Value};
use crate::metrics::{ContainerMetrics, Histogram, SliceMetrics};

/// One metric of every `T`.
pub(super) struct Metric<T> {
    /// Without a counter's `_total`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Samples<T>,
}

/// Its samples; `None`, or none: nothing is known.
pub(super) enum Samples<T> {
    Gauge(fn(&T) -> Option<u64>),
    Ratio(fn(&T) -> Option<f64>),
    Counter(fn(&T) -> Option<u64>),
    /// A counter of seconds.
    Seconds(fn(&T) -> Option<f64>),
    /// Gauges that further labels tell apart.
    Gauges(fn(&T) -> Vec<(Labels, u64)>),
    /// The same, of parts.
    Ratios(fn(&T) -> Vec<(Labels, f64)>),
    /// Counters that further labels tell apart.
    Counters(fn(&T) -> Vec<(Labels, u64)>),
    /// How often something took how long.
    Histogram(fn(&T) -> Option<&Histogram>),
}

impl<T> Samples<T> {
    fn kind(&self) -> Kind {
        match self {
            Self::Gauge(_) | Self::Ratio(_) | Self::Gauges(_) | Self::Ratios(_) => Kind::Gauge,
            Self::Counter(_) | Self::Seconds(_) | Self::Counters(_) => Kind::Counter,
            Self::Histogram(_) => Kind::Histogram,
        }
    }

    fn of(&self, item: &T) -> Vec<(Labels, Value)> {
        let alone = |value: Value| (Labels::new(), value);
        match self {
            Self::Gauge(value) | Self::Counter(value) => value(item)
                .map(Value::from)
                .map(alone)
                .into_iter()
                .collect(),
            Self::Ratio(value) | Self::Seconds(value) => value(item)
                .map(Value::from)
                .map(alone)
                .into_iter()
                .collect(),
            Self::Gauges(values) | Self::Counters(values) => {
                let values = values(item).into_iter();
                values
                    .map(|(labels, value)| (labels, value.into()))
                    .collect()
            }
            Self::Histogram(value) => {
                let value = value(item).cloned().map(Value::Histogram);
                value.map(alone).into_iter().collect()
            }
            Self::Ratios(values) => {
                let values = values(item).into_iter();
                values
                    .map(|(labels, value)| (labels, value.into()))
                    .collect()
            }
        }
    }
}

/// The metrics with their samples of all `items`, each with its labels.
pub(super) fn families<T>(metrics: &[Metric<T>], items: &[(Labels, &T)]) -> Vec<Family> {
    let family = |metric: &Metric<T>| {
        let of_one = |(labels, item): &(Labels, &T)| {
            let samples = metric.samples.of(item).into_iter();
            let with =
                |(further, value): (Labels, Value)| ([labels.clone(), further].concat(), value);
            samples.map(with).collect::<Vec<_>>()
        };
        let samples = items.iter().flat_map(of_one).collect();
        Family::new((metric.name, metric.help), metric.samples.kind(), samples)
    };
    metrics.iter().map(family).collect()
}

/// Names as they are scraped, with their help: for the table of the guide.
#[cfg(test)]
pub(super) fn names() -> Vec<(String, &'static str)> {
    fn of<T>(metrics: &[Metric<T>]) -> impl Iterator<Item = (String, &'static str)> {
        metrics.iter().map(|metric| {
            let suffix = match metric.samples.kind() {
                Kind::Counter => "_total",
                Kind::Gauge | Kind::Histogram => "",
            };
            (format!("{}{suffix}", metric.name), metric.help)
        })
    }
    let host = of(OF_EXPORTER).chain(of(OF_CARD));
    host.chain(of(OF_CONTAINER))
        .chain(of(OF_SLICE))
        .chain(of(OF_DRIFT))
        .collect()
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

/// Percent as a ratio.
fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn one_label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// Counts that this label tells apart.
fn counts(label: &'static str, counts: &[(impl AsRef<str>, u64)]) -> Vec<(Labels, u64)> {
    let counts = counts.iter();
    counts
        .map(|(value, count)| (one_label(label, value.as_ref()), *count))
        .collect()
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

mod host;

pub(super) use self::host::{OF_CARD, OF_EXPORTER};

/// Of a container.
pub(super) const OF_CONTAINER: &[Metric<ContainerMetrics>] = &[
    metric!(
        Gauges "cgpu_container_info",
        "The container's id, and how it got its vGPU",
        |of| {
            let labels = [
                ("container_id", of.container.as_str()),
                ("frontend", of.frontend),
                ("driver_version", &of.driver_version),
            ];
            vec![(labels.map(|(name, value)| (name, value.to_owned())).to_vec(), 1)]
        }
    ),
    metric!(
        Gauges "cgpu_isolation_info",
        "How the container is held to its quota, and by whom",
        |of| {
            let labels = [("mode", of.mode), ("backend", of.backend)];
            vec![(labels.map(|(name, value)| (name, value.to_owned())).to_vec(), 1)]
        }
    ),
    metric!(
        Gauge "cgpu_isolation_weaknesses",
        "Ways out of its slice that the configuration lets the container have",
        |of| u64::try_from(of.weaknesses).ok()
    ),
    metric!(
        Gauge "cgpu_broker_up",
        "Whether the container's broker answers",
        |of| of.is_up.map(u64::from)
    ),
    metric!(
        Counter "cgpu_broker_restarts",
        "How often the broker was replaced",
        |of| of.reported.as_ref().map(|reported| reported.replaced)
    ),
    metric!(
        Gauge "cgpu_driver_reachable",
        "Whether the executor or the simulator of the container's calls answers; 0: they fail with EIO",
        |of| health(of, |health| health.unreachable.is_none().into())
    ),
    metric!(
        Counters "cgpu_calls",
        "Driver calls by outcome",
        |of| {
            let calls = of.reported.iter().flat_map(|reported| &reported.calls);
            calls.map(|(verdict, count)| (one_label("verdict", verdict), *count)).collect()
        }
    ),
    metric!(
        Histogram "cgpu_call_duration_seconds",
        "How long a driver call takes, from its arrival at the broker to its answer",
        |of| of.reported.as_ref()?.call_durations.as_ref()
    ),
    metric!(
        Gauge "cgpu_hung_calls",
        "Calls that the driver has not answered in time",
        |of| health(of, |health| health.hung_calls)
    ),
    metric!(
        Counters "cgpu_incidents",
        "Xid errors, lost cards and hung calls of the container",
        |of| {
            let Some(reported) = &of.reported else {
                return Vec::new();
            };
            let all = &reported.health.incidents;
            let kinds = [("xid", all.xid), ("card_lost", all.card_lost), ("hung_call", all.hung_call)];
            kinds.map(|(kind, count)| (one_label("kind", kind), count)).to_vec()
        }
    ),
    metric!(
        Counter "cgpu_violations",
        "Times that memory was found beyond the account of cgpu: held by the driver, or mapped without a call",
        |of| health(of, |health| health.violations)
    ),
    metric!(
        Counter "cgpu_reconciliations",
        "Comparisons of cgpu's account with the driver's own sums",
        |of| health(of, |health| health.reconciled)
    ),
    metric!(
        Gauge "cgpu_reconciled",
        "Whether the driver reports what it counts for the container",
        |of| of.reported.as_ref()?.is_reconciled.map(u64::from)
    ),
    metric!(
        Counter "cgpu_suppressed_logs",
        "Log lines suppressed by the rate limit",
        |of| health(of, |health| health.suppressed_logs)
    ),
    metric!(
        Counter "cgpu_throttled_calls",
        "Refused calls delayed by the rate limit",
        |of| health(of, |health| health.throttled)
    ),
    metric!(
        Counter "cgpu_unknown_calls",
        "Refused calls that have no row in cgpu's tables",
        |of| health(of, |health| health.unknown_calls)
    ),
    metric!(
        Counter "cgpu_inconsistencies",
        "Impossible changes left out of the account: a bug of cgpu's",
        |of| health(of, |health| health.inconsistencies)
    ),
    // What supervisor, broker and executor use of the host; nothing where no control group counts it.
    metric!(
        Seconds "cgpu_process_cpu_seconds",
        "CPU time of the container's supervisor, broker and executor",
        |of| of.own.cpu_ns.map(seconds)
    ),
    metric!(
        Gauge "cgpu_process_memory_bytes",
        "Host memory of the container's supervisor, broker and executor",
        |of| of.own.memory_bytes
    ),
    metric!(
        Gauge "cgpu_process_threads",
        "Threads of the container's supervisor, broker and executor",
        |of| of.own.threads
    ),
];

/// A figure that only a broker knows.
fn health(of: &ContainerMetrics, figure: fn(&HealthStatus) -> u64) -> Option<u64> {
    of.reported
        .as_ref()
        .map(|reported| figure(&reported.health))
}

/// Of one card's comparison with the driver.
pub(super) const OF_DRIFT: &[Metric<Drift>] = &[
    metric!(
        Gauge "cgpu_driver_counted_bytes",
        "Memory that the driver counts for the container",
        |of| Some(of.driver_bytes)
    ),
    metric!(
        Gauge "cgpu_ledger_counted_bytes",
        "Memory of the same kind that cgpu's ledger counts for the container",
        |of| Some(of.ledger_bytes)
    ),
];

/// Of a container's slice of a card.
pub(super) const OF_SLICE: &[Metric<SliceMetrics>] = &[
    metric!(
        Gauge "cgpu_memory_quota_bytes",
        "The container's quota on a card",
        |of| of.quota_bytes
    ),
    metric!(
        Gauge "cgpu_memory_requested_bytes",
        "What the container's grant gives it of a card: what it asked for when it started, or what cgpu set gave it since",
        |of| Some(of.row.quota_bytes)
    ),
    metric!(
        Gauge "cgpu_memory_used_bytes",
        "Memory of a card that the container uses",
        |of| of.row.used_bytes
    ),
    metric!(
        Gauge "cgpu_memory_peak_bytes",
        "Most memory of a card that the container has used",
        |of| of.row.peak_bytes
    ),
    metric!(
        Counter "cgpu_allocations_refused",
        "Allocations refused because they exceed the quota",
        |of| of.row.refused
    ),
    metric!(
        Gauges "cgpu_compute_terms_info",
        "The container's compute policy and priority on a card",
        |of| {
            let (Some(policy), Some(priority)) = (&of.row.share.policy, &of.row.share.priority) else {
                return Vec::new();
            };
            vec![(vec![("policy", policy.clone()), ("priority", priority.clone())], 1)]
        }
    ),
    metric!(
        Ratio "cgpu_compute_requested_ratio",
        "Part of a card's time that the container's terms give: its cap (policy fixed) or floor (policy soft)",
        |of| of.row.share.percent.map(|percent| ratio(percent.saturating_mul(10_000)))
    ),
    metric!(Gauge "cgpu_compute_weight", "The container's weight", |of| of.row.share.weight),
    metric!(
        Ratio "cgpu_compute_entitled_ratio",
        "Part of a card's time that the container is entitled to now",
        |of| of.row.share.entitlement_ppm.map(ratio)
    ),
    metric!(
        Ratio "cgpu_compute_used_ratio",
        "Part of a card's time that the container had in the last second or so",
        |of| of.row.share.used_ppm.map(ratio)
    ),
    metric!(
        Seconds "cgpu_compute_used_seconds",
        "Time of a card that the container has used",
        |of| of.row.share.used_ns.map(seconds)
    ),
    metric!(
        Seconds "cgpu_compute_throttled_seconds",
        "Time for which the container had work and its part of a card's time was over",
        |of| of.row.share.throttled_ns.map(seconds)
    ),
    metric!(
        Gauges "cgpu_compute_enforcement_info",
        "The way in which the container's share is enforced",
        |of| {
            let level = of.row.share.enforcement_level.iter();
            level.map(|level| (one_label("level", level), 1)).collect()
        }
    ),
    metric!(
        Counter "cgpu_compute_knob_calls",
        "Calls to a card's scheduler for the container",
        |of| of.row.share.knob_calls
    ),
    metric!(
        Ratio "cgpu_compute_knob_latency_seconds",
        "Duration of such a call, averaged over the last ones",
        |of| of.row.share.knob_latency_ns.map(seconds)
    ),
    metric!(
        Counter "cgpu_compute_alarms",
        "Number of times that the container's share could not be enforced",
        |of| of.row.share.alarms
    ),
];
