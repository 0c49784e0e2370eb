//! What `cgpu metrics` exports: grants, what brokers say of them, and cards, as samples of one moment.
//!
//! Names end in their unit; counters live as long as the container's broker remembers them, which outlives its replacement.

pub mod text;

use cards::DriverSpec;
use control::HealthStatus;
use host_config::Config;
use vgpu::{BrokerState, OwnUsage, VgpuState};

use crate::cards::{Cards, collect as collect_cards};
use crate::ps::reserved;
use crate::share::Share;

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
    pub health: HealthStatus,
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
    let is_up = vgpu.broker == BrokerState::Alive && vgpu.status.is_some();
    let status = vgpu.status.clone().unwrap_or_default();
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
                share: Share::reported(reserved, reported.and_then(|card| card.compute.as_ref())),
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
    use control::{BrokerStatus, CallCounts, CardStatus, IncidentCounts, Status};
    use serde_json::json;

    use super::*;

    fn state(status: Option<Status>) -> VgpuState {
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
            names: vgpu::Names::default(),
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
        let status = Status {
            cards: vec![CardStatus {
                uuid: "GPU-1".to_owned(),
                quota_bytes: 8192,
                used_bytes: 10,
                peak_bytes: 20,
                refused: 3,
                ..CardStatus::default()
            }],
            calls: CallCounts {
                total: 7,
                answered: 5,
                refused: 2,
                ..CallCounts::default()
            },
            broker: BrokerStatus {
                replaced: 1,
                pid: 5,
                ..BrokerStatus::default()
            },
            health: HealthStatus {
                violations: 1,
                incidents: IncidentCounts {
                    xid: 2,
                    ..IncidentCounts::default()
                },
                ..HealthStatus::default()
            },
            ..Status::default()
        };
        let reported = one(&state(Some(status)), &[]);
        assert!(reported.is_up);
        assert_eq!(reported.mode, "strict");
        assert_eq!(
            (reported.slices[0].quota_bytes, reported.slices[0].refused),
            (8192, Some(3))
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
