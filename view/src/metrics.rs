//! What is exported to Prometheus: grants, what brokers report of them, and cards, as samples of one moment.
//!
//! Names end in their unit; counters live as long as the container's broker remembers them, which outlives its replacement.

pub mod text;

use std::time::Duration;

use cards::claims::Claims;
use cards::{DriverSpec, Names, PodNames};
use control::{CallDurations, HealthStatus, Status};
use host_config::Config;
use vgpu::{BrokerState, OwnUsage, VgpuState};

use crate::cards::{Cards, collect as collect_cards};
use crate::ps::{self, PsCard, reserved};
use crate::share::Share;
use crate::version::Build;

/// One moment of this host.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Metrics {
    /// Who collects.
    pub exporter: Exporter,
    /// Containers, by key.
    pub containers: Vec<ContainerMetrics>,
    /// Cards, by index.
    pub cards: Vec<CardMetrics>,
}

/// Who collects, and how it went.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Exporter {
    /// Its version.
    pub version: String,
    /// The commit that it is built from, or `unknown`.
    pub commit: String,
    /// The node's name.
    pub node: String,
    /// Who did not answer, and how often since the exporter began; empty where nobody keeps count.
    pub errors: Vec<(&'static str, u64)>,
    /// How long the last answers took; empty where they are asked for once.
    pub took: Vec<(&'static str, Duration)>,
    /// Containers that did not start, by reason; empty where nobody keeps count.
    pub starts_refused: Vec<(String, u64)>,
    /// What happened to containers and cards, by kind; empty where nobody keeps count.
    pub events: Vec<(&'static str, u64)>,
    /// Claims that are prepared on this node; absent where there never was one, or a record cannot be read.
    pub claims_prepared: Option<u64>,
    /// What the node's driver has done with claims; absent where none counts.
    pub claims: Option<ClaimCounts>,
}

/// What the driver of a Kubernetes node has done since it began.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimCounts {
    /// How long claims took to be prepared, the API server's answer included.
    pub prepare_durations: Histogram,
    /// Times that a claim was not prepared. The kubelet tries again and again.
    pub prepares_refused: u64,
    /// Happenings that are in no event of Kubernetes': too many at once, or the API server did not take them.
    pub events_lost: u64,
}

/// One container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerMetrics {
    /// The engine's namespace.
    pub namespace: String,
    /// Its id.
    pub container: String,
    /// What the engine calls it; where that is not known and it is in no pod, its id.
    pub name: String,
    /// The pod that it is in.
    pub pod: Option<PodNames>,
    /// When it was made, milliseconds since 1970.
    pub created_at_unix_ms: u64,
    /// Whether its broker answers; absent where its backend has none.
    pub is_up: Option<bool>,
    /// One of [`MODES`].
    pub mode: &'static str,
    /// Who holds it to its quota.
    pub backend: &'static str,
    /// How many ways out of its slice the configuration lets it have.
    pub weaknesses: usize,
    /// Which program made it.
    pub frontend: &'static str,
    /// The driver's version.
    pub driver_version: String,
    /// What supervisor, broker and executor use of the host.
    pub own: OwnUsage,
    /// Its slices.
    pub slices: Vec<SliceMetrics>,
    /// What its broker reports; absent where none has answered.
    pub reported: Option<Reported>,
}

/// What a broker reports of its container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reported {
    /// Calls by what became of them.
    pub calls: Vec<(&'static str, u64)>,
    /// How long they took; absent where the broker does not measure it.
    pub call_durations: Option<Histogram>,
    /// How often the broker was replaced.
    pub replaced: u64,
    /// What went wrong.
    pub health: HealthStatus,
    /// The same in a few words, as `cgpu ps` has it.
    pub health_text: String,
    /// Whether its ledger is compared with what the driver counts; absent where that is not known yet.
    pub is_reconciled: Option<bool>,
}

/// How often something took how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// All of it together, seconds.
    pub sum_seconds: f64,
    /// How often it took at most so long, in seconds, and more than the bucket before; the last bucket has no bound (infinity).
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// One without anything in it, with buckets up to these bounds and one without a bound.
    #[must_use]
    pub fn empty(bounds_seconds: &[f64]) -> Self {
        let bounds = bounds_seconds.iter().copied();
        Self {
            sum_seconds: 0.0,
            buckets: bounds
                .chain([f64::INFINITY])
                .map(|bound| (bound, 0))
                .collect(),
        }
    }

    /// Counts something that took so long.
    pub fn record(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.sum_seconds += seconds;
        let mut buckets = self.buckets.iter_mut();
        if let Some((_, count)) = buckets.find(|(at_most, _)| seconds <= *at_most) {
            *count = count.saturating_add(1);
        }
    }

    fn of(durations: &CallDurations) -> Self {
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let buckets = durations.buckets.iter();
        Self {
            sum_seconds: seconds(durations.sum_us),
            buckets: buckets
                .map(|bucket| {
                    let at_most = bucket.at_most_us.map_or(f64::INFINITY, seconds);
                    (at_most, bucket.calls)
                })
                .collect(),
        }
    }
}

/// Who makes a container's calls: the executor, or the caller; on a simulated card the simulator.
pub const MODES: [&str; 3] = ["strict", "compat", "sim"];

/// One slice.
#[derive(Debug, Clone, PartialEq)]
pub struct SliceMetrics {
    /// As `cgpu ps` has it, with the quota that its grant gives it.
    pub row: PsCard,
    /// The broker's quota, bytes; absent where it does not answer: it may not have the grant's yet.
    pub quota_bytes: Option<u64>,
}

/// One card.
#[derive(Debug, Clone, PartialEq)]
pub struct CardMetrics {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`.
    pub minor: u32,
    /// Its place in the driver's order.
    pub index: u32,
    /// Its PCI address.
    pub pci: String,
    /// Its name.
    pub model: String,
    /// The driver's version.
    pub driver_version: String,
    /// `shareable` or `unshareable`, as it is set.
    pub mode: &'static str,
    /// Why nothing is placed on it; absent: it is well.
    pub unhealthy: Option<String>,
    /// Containers that have a part of it.
    pub containers: u64,
    /// All that can be granted, bytes.
    pub memory_bytes: u64,
    /// What is granted, bytes.
    pub granted_bytes: u64,
    /// What of its time is reserved, parts of a million.
    pub reserved_ppm: u32,
    /// What can still be reserved, parts of a million.
    pub left_ppm: u32,
    /// What NVML reports of it.
    pub figures: Figures,
}

/// What NVML reports of a card; what is absent it does not.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Figures {
    /// `nvmlDeviceGetTemperature`, °C.
    pub temperature_celsius: Option<u32>,
    /// `nvmlDeviceGetPowerUsage`, mW.
    pub power_milliwatts: Option<u32>,
    /// `nvmlDeviceGetUtilizationRates`, `gpu`, percent.
    pub utilization_percent: Option<u32>,
    /// `nvmlDeviceGetUtilizationRates`, `memory`, percent.
    pub memory_utilization_percent: Option<u32>,
    /// `nvmlDeviceGetClockInfo`, `NVML_CLOCK_SM`, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// `nvmlDeviceGetClockInfo`, `NVML_CLOCK_MEM`, MHz.
    pub memory_clock_mhz: Option<u32>,
    /// `nvmlDeviceGetMemoryInfo`, `used`, bytes.
    pub memory_used_bytes: Option<u64>,
    /// `nvmlDeviceGetMemoryInfo`, `free`, bytes.
    pub memory_free_bytes: Option<u64>,
}

/// The containers of a moment, and how many are missing.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Containers {
    /// Those that can be read, by key.
    pub containers: Vec<ContainerMetrics>,
    /// Those whose state cannot be read.
    pub unread: u64,
    /// Those whose broker has not answered in time.
    pub silent: u64,
    /// Claims that are prepared; absent as in [`Exporter`].
    pub claims_prepared: Option<u64>,
}

/// Asks the state folder, the brokers and the reservations, once.
///
/// # Errors
/// A state folder or reservations that cannot be read.
pub fn collect(config: &Config, build: Build) -> anyhow::Result<Metrics> {
    let Containers {
        containers,
        unread,
        silent,
        claims_prepared,
    } = containers(config)?;
    if silent + unread > 0 {
        tracing::warn!(
            silent,
            unread,
            "figures are absent: brokers that do not answer in time, and containers whose state cannot be read"
        );
    }
    let cards = of_cards(collect_cards(config)?);
    Ok(Metrics {
        exporter: Exporter {
            version: build.version.to_owned(),
            commit: build.commit.to_owned(),
            node: node_name(),
            claims_prepared,
            ..Exporter::default()
        },
        containers,
        cards,
    })
}

/// Claims that are prepared on this node; `None`: none ever was since the node started, or a record cannot be read.
fn claims_prepared(config: &Config) -> Option<u64> {
    let claims = Claims::of(&config.state_dir);
    let records = claims.all().ok().filter(|_| claims.exist())?;
    u64::try_from(records.len()).ok()
}

/// What Kubernetes calls this node where the environment says so (`NODE_NAME`), else the host's name.
#[must_use]
pub fn node_name() -> String {
    let by_kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = std::env::var("NODE_NAME").unwrap_or_else(|_unset| by_kernel());
    name.trim().to_owned()
}

/// Asks the state folder and the brokers. A container that cannot be read, and figures of a broker that does not answer, are absent
/// and counted.
///
/// # Errors
/// A state folder that cannot be read.
pub fn containers(config: &Config) -> anyhow::Result<Containers> {
    let mut all = Containers {
        claims_prepared: claims_prepared(config),
        ..Containers::default()
    };
    for (key, state) in vgpu::list_each(config)? {
        let read = state.and_then(|state| {
            all.silent += u64::from(state.broker == BrokerState::Alive && state.status.is_none());
            let reserved = reserved(config, &state.grant)?;
            Ok(one(&state, &reserved))
        });
        match read {
            Ok(container) => all.containers.push(container),
            Err(error) => {
                tracing::debug!(%error, %key, "a container's state cannot be read");
                all.unread += 1;
            }
        }
    }
    Ok(all)
}

/// The cards' part of the metrics, without NVML's figures.
#[must_use]
pub fn of_cards(cards: Cards) -> Vec<CardMetrics> {
    let driver_version = cards.driver_version.unwrap_or_default();
    let one = |card: crate::cards::CardRow| CardMetrics {
        uuid: card.uuid,
        minor: card.minor,
        index: card.index,
        pci: card.pci,
        model: card.name,
        driver_version: driver_version.clone(),
        mode: match card.unshareable {
            None => "shareable",
            Some(_) => "unshareable",
        },
        // A driver may have named a process in it.
        unhealthy: card.unhealthy.map(|why| crate::printable(&why)),
        containers: u64::try_from(card.grants.len()).unwrap_or(u64::MAX),
        memory_bytes: card.memory_bytes,
        granted_bytes: card.granted_bytes,
        reserved_ppm: card.compute.reserved_ppm,
        left_ppm: card.compute.left_ppm,
        figures: Figures::default(),
    };
    cards.cards.into_iter().map(one).collect()
}

fn one(vgpu: &VgpuState, reserved: &[Share]) -> ContainerMetrics {
    let grant = &vgpu.grant;
    let status = vgpu.status.as_ref();
    let slices = grant
        .cards
        .iter()
        .enumerate()
        .map(|(at, slice)| {
            let reserved = reserved.get(at).cloned().unwrap_or_default();
            let reported = ps::reported(slice, status);
            SliceMetrics {
                row: ps::card(slice, reported, reserved),
                quota_bytes: match vgpu.broker {
                    BrokerState::Alive => reported.map(|card| card.quota_bytes),
                    BrokerState::Gone | BrokerState::None => Some(slice.quota_bytes),
                },
            }
        })
        .collect();
    ContainerMetrics {
        namespace: grant.key.namespace().to_owned(),
        container: grant.key.id().to_owned(),
        name: match &vgpu.names {
            Names {
                name: Some(name), ..
            } => name.to_string(),
            // Something must tell it from others.
            Names { pod: None, .. } => grant.key.id().to_owned(),
            Names { pod: Some(_), .. } => String::new(),
        },
        pod: vgpu.names.pod.clone(),
        created_at_unix_ms: grant.created_at_unix_ms,
        is_up: match vgpu.broker {
            BrokerState::Alive => Some(status.is_some()),
            BrokerState::Gone => Some(false),
            BrokerState::None => None,
        },
        mode: match &grant.driver {
            DriverSpec::Sim { .. } => "sim",
            DriverSpec::Kernel => grant.isolation.mode.into(),
        },
        backend: grant.backend.name(),
        weaknesses: grant.isolation.weakened.len(),
        frontend: grant.frontend.kind.into(),
        driver_version: grant.driver_version.clone(),
        own: vgpu.own.unwrap_or_default(),
        slices,
        reported: status.map(reported),
    }
}

fn reported(status: &Status) -> Reported {
    Reported {
        calls: vec![
            ("answered", status.calls.answered),
            ("executed", status.calls.executed),
            ("continued", status.calls.continued),
            ("refused", status.calls.refused),
            ("replayed", status.calls.replayed),
            ("unreached", status.calls.unreached),
        ],
        call_durations: status.call_durations.as_ref().map(Histogram::of),
        replaced: status.broker.replaced,
        health: status.health.clone(),
        health_text: ps::health_text(status),
        is_reconciled: status.watching.sums,
    }
}

#[cfg(test)]
mod tests;
