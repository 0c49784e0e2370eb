//! What `cgpu metrics` exports: grants, what brokers say of them, and cards, as samples of one moment.
//!
//! Names end in their unit; counters live as long as the container's broker remembers them, which outlives its replacement.

use cards::DriverSpec;
use serde::Deserialize;
use vgpu::{BrokerState, Config, OwnUsage, VgpuState};

use super::cards::{Cards, collect as collect_cards};
use super::ps::reserved;
use super::share::Share;

/// One moment of this host.
#[derive(Debug, Default, PartialEq)]
pub struct Metrics {
    /// Containers, by key.
    pub containers: Vec<ContainerMetrics>,
    /// Cards, by index.
    pub cards: Vec<CardMetrics>,
}

/// One container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerMetrics {
    /// The engine's namespace.
    pub namespace: String,
    /// Its id.
    pub container: String,
    /// Whether its broker answers.
    pub is_up: bool,
    /// One of [`MODES`].
    pub mode: &'static str,
    /// What supervisor, broker and executor use of the host.
    pub own: OwnUsage,
    /// Its slices.
    pub slices: Vec<SliceMetrics>,
    /// Calls by what became of them.
    pub calls: Vec<(&'static str, u64)>,
    /// How often its broker was replaced.
    pub replaced: u64,
    /// What went wrong.
    pub health: Health,
    /// Whether its ledger is compared with what the driver counts; absent where no broker has said.
    pub is_reconciled: Option<bool>,
}

/// Who makes a container's calls: the executor, or the caller; on a simulated card the simulator.
pub const MODES: [&str; 3] = ["strict", "compat", "sim"];

/// One slice.
#[derive(Debug, Clone, PartialEq)]
pub struct SliceMetrics {
    /// `GPU-…`
    pub uuid: String,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held, bytes; absent where no broker answers.
    pub used_bytes: Option<u64>,
    /// Most ever held, bytes.
    pub peak_bytes: Option<u64>,
    /// Allocations that did not fit.
    pub refused: Option<u64>,
    /// Its part of the card's time.
    pub share: Share,
}

/// One card.
#[derive(Debug, Clone, PartialEq)]
pub struct CardMetrics {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`.
    pub minor: u32,
    /// All that can be granted, bytes.
    pub memory_bytes: u64,
    /// What is granted, bytes.
    pub granted_bytes: u64,
    /// What of its time is reserved, parts of a million.
    pub reserved_ppm: u32,
    /// What can still be reserved, parts of a million.
    pub left_ppm: u32,
}

/// What a broker says went wrong. A field that it does not know is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Comparisons of the ledger with the driver's own sums.
    pub reconciled: u64,
    /// Comparisons in which the driver counted more.
    pub violations: u64,
    /// The last comparison, by card.
    pub drift: Vec<Drift>,
    /// What the card reported.
    pub incidents: Incidents,
    /// Calls that have not come back from the driver, now.
    pub hung_calls: u64,
    /// Log lines left out for their number.
    pub suppressed_logs: u64,
    /// Refused calls that were made to wait for their number.
    pub throttled: u64,
    /// Refused calls that no row knows.
    pub unknown_calls: u64,
    /// What could not be in its account, and was left out.
    pub inconsistencies: u64,
    /// Why its log or events cannot be written.
    pub unwritten: Option<String>,
    /// What the system does not give it.
    pub short_of: Option<String>,
    /// Why the executor or the simulator cannot be reached.
    pub unreachable: Option<String>,
}

/// One card's comparison.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Drift {
    /// `GPU-…`
    pub uuid: String,
    /// What the driver counts, bytes.
    pub driver_bytes: u64,
    /// What the ledger has of the same kind, bytes.
    pub ledger_bytes: u64,
}

/// Counts of incidents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Incidents {
    /// Xids of the container's own.
    pub xid: u64,
    /// Cards that were lost under it.
    pub card_lost: u64,
    /// Calls that did not come back in time.
    pub hung_call: u64,
}

/// What a broker answers to `status`, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    cards: Vec<StatusCard>,
    calls: Calls,
    broker: Broker,
    health: Health,
    watching: Watching,
}

/// Where a broker looks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Watching {
    sums: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct StatusCard {
    uuid: String,
    quota_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
    #[serde(default)]
    refused: u64,
    #[serde(default)]
    compute: serde_json::Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Calls {
    answered: u64,
    executed: u64,
    continued: u64,
    refused: u64,
    replayed: u64,
    unreached: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Broker {
    replaced: u64,
}

/// Asks the state folder, the brokers and the reservations.
///
/// # Errors
/// A state folder, grant or reservations that cannot be read.
pub fn collect(config: &Config) -> anyhow::Result<Metrics> {
    let containers = vgpu::list(config)?
        .iter()
        .map(|state| Ok(one(state, &reserved(config, &state.grant)?)))
        .collect::<Result<_, vgpu::Error>>()?;
    Ok(Metrics {
        containers,
        cards: of_cards(collect_cards(config)?),
    })
}

fn of_cards(cards: Cards) -> Vec<CardMetrics> {
    cards
        .cards
        .into_iter()
        .map(|card| CardMetrics {
            uuid: card.uuid,
            minor: card.minor,
            memory_bytes: card.memory_bytes,
            granted_bytes: card.granted_bytes,
            reserved_ppm: card.compute.reserved_ppm,
            left_ppm: card.compute.left_ppm,
        })
        .collect()
}

fn one(vgpu: &VgpuState, reserved: &[Share]) -> ContainerMetrics {
    let grant = &vgpu.grant;
    let answered = vgpu
        .status
        .clone()
        .and_then(|status| serde_json::from_value::<Status>(status).ok());
    let is_up = vgpu.broker == BrokerState::Alive && answered.is_some();
    let status = answered.unwrap_or_default();
    let slices = grant
        .cards
        .iter()
        .enumerate()
        .map(|(at, slice)| {
            let reserved = reserved.get(at).cloned().unwrap_or_default();
            let reported = status
                .cards
                .iter()
                .find(|card| card.uuid == slice.uuid.as_str());
            SliceMetrics {
                uuid: slice.uuid.to_string(),
                quota_bytes: reported.map_or(slice.quota_bytes, |card| card.quota_bytes),
                used_bytes: reported.map(|card| card.used_bytes),
                peak_bytes: reported.map(|card| card.peak_bytes),
                refused: reported.map(|card| card.refused),
                share: match reported {
                    Some(card) => Share::reported(reserved, &card.compute),
                    None => reserved,
                },
            }
        })
        .collect();
    ContainerMetrics {
        namespace: grant.key.namespace().to_owned(),
        container: grant.key.id().to_owned(),
        is_up,
        mode: match (&grant.driver, grant.isolation.mode) {
            (DriverSpec::Sim { .. }, _) => "sim",
            (DriverSpec::Kernel, cards::Mode::Strict) => "strict",
            (DriverSpec::Kernel, cards::Mode::Compat) => "compat",
        },
        own: vgpu.own.unwrap_or_default(),
        slices,
        calls: vec![
            ("answered", status.calls.answered),
            ("executed", status.calls.executed),
            ("continued", status.calls.continued),
            ("refused", status.calls.refused),
            ("replayed", status.calls.replayed),
            ("unreached", status.calls.unreached),
        ],
        replaced: status.broker.replaced,
        health: status.health,
        is_reconciled: status.watching.sums,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(status: Option<serde_json::Value>) -> VgpuState {
        let grant = serde_json::from_value(json!({
            "version": 1,
            "key": {"namespace": "default", "id": "c1"},
            "driver": {"kind": "kernel"},
            "driver_version": "570.195.03",
            "cards": [{"uuid": "GPU-1", "minor": 0, "quota_bytes": 4096}],
            "compute": {"policy": null, "percent": null, "weight": null, "priority": "normal"},
            "frontend": {"kind": "shim", "pid": 7},
            "bundle": null,
            "created_at_unix_ms": 1,
        }))
        .unwrap();
        VgpuState {
            grant,
            broker: BrokerState::Alive,
            life: vgpu::Life::Live,
            status,
            own: None,
        }
    }

    #[test]
    fn what_the_broker_reports_counts_and_what_it_does_not_report_is_absent_or_zero() {
        let silent = one(&state(None), &[]);
        assert!(!silent.is_up);
        assert_eq!(
            (silent.slices[0].quota_bytes, silent.slices[0].used_bytes),
            (4096, None)
        );
        let reported = one(
            &state(Some(json!({
                "cards": [{"uuid": "GPU-1", "quota_bytes": 8192, "used_bytes": 10, "peak_bytes": 20, "refused": 3,
                           "compute": {"enforcement_level": "three", "used_ns": 9, "counts": {"calls": 4}}}],
                "calls": {"total": 7, "answered": 5, "refused": 2},
                "broker": {"replaced": 1, "pid": 5},
                "health": {"violations": 1, "incidents": {"xid": 2},
                           "drift": [{"uuid": "GPU-1", "driver_bytes": 9, "ledger_bytes": 8}]},
            }))),
            &[],
        );
        assert!(reported.is_up);
        assert_eq!(reported.mode, "strict");
        assert_eq!(
            (reported.slices[0].quota_bytes, reported.slices[0].refused),
            (8192, Some(3))
        );
        let share = &reported.slices[0].share;
        assert_eq!(
            (
                share.enforcement_level.as_deref(),
                share.used_ns,
                share.knob_calls
            ),
            (Some("3"), Some(9), Some(4))
        );
        assert_eq!(
            reported.calls.iter().map(|(_, count)| count).sum::<u64>(),
            7
        );
        assert!(
            reported.calls.contains(&("refused", 2)) && reported.calls.contains(&("replayed", 0))
        );
        assert_eq!(
            (
                reported.replaced,
                reported.health.violations,
                reported.health.incidents.xid
            ),
            (1, 1, 2)
        );
    }
}
