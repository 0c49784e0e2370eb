//! Every vGPU of this host.

mod health;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cards::grant::{ComputeMode, ComputeTerms, Priority};
use cards::{
    Backend, Called, CardFigures, CardGrant, ContainerKey, DriverSpec, FrontendKind, Grant,
    IoUring, ManagedMemory, Mode, OnViolation, RegisteredMemory, Weakness,
};
use control::{CallCounts, CardStatus, Folded, HealthStatus, ProcessStatus, Status};
use host_config::{Config, chain};
use serde::{Deserialize, Serialize};
use strum::VariantArray;
use vgpu::{BrokerState, Life, OwnUsage, PodNames, VgpuState};

pub use self::health::OK;
pub(crate) use self::health::health_text;
use self::health::{BROKER_GONE, unanswered};
use crate::JSON_VERSION;
use crate::host_driver::{ANSWER, HostDriver};
use crate::share::Share;

/// What `cgpu ps` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ps {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// By namespace and container.
    pub vgpus: Vec<PsVgpu>,
    /// Folders of containers that the same `cgpu.toml` started when it named another `state_dir`: nothing knows of their grants.
    /// Root alone finds them,
    /// and those of its own mount namespace. Absent where they were not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<Vec<PathBuf>>,
    /// Containers whose state cannot be read, and why: they are not among the others.
    #[serde(skip)]
    pub unread: Vec<String>,
}

/// One container's vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsVgpu {
    /// The engine's namespace.
    pub namespace: String,
    /// The container's id.
    pub container: String,
    /// What its engine calls it: the name given with docker's, podman's or nerdctl's `--name`. Absent where it has none, as in a pod.
    pub name: Option<String>,
    /// Its place in a pod; absent where it is in none.
    pub pod: Option<PsPod>,
    /// Which program made it: `shim`, `runtime` or `run`.
    pub frontend: FrontendKind,
    /// Who holds its memory to the quota: `broker`, `driver-limit`, or with `share` nobody.
    pub backend: Backend,
    /// Why that one; empty for a grant of a cgpu that had no choice.
    pub backend_reason: String,
    /// Who executes its calls.
    pub driver: HostDriver,
    /// That driver's version.
    pub driver_version: String,
    /// Whether it is alive.
    pub state: State,
    /// The process that serves its calls; absent where it has not answered.
    pub broker_pid: Option<i32>,
    /// The process that starts another broker when that one ends. Absent where there is none, and for the moment in which the
    /// broker starts the next.
    pub supervisor_pid: Option<i32>,
    /// What supervisor, broker and executor use of the host, by their control group; absent where they have none.
    pub own_processes: Option<OwnUsage>,
    /// `on`; or `off` and why, where the configuration let the container have what leads out of its slice.
    pub isolation: String,
    /// The same reasons, one by one.
    pub weakened: Vec<Weakness>,
    /// Who executes its calls on a real driver: `strict` or `compat`.
    pub mode: Mode,
    /// What managed memory counts: `charge`, `deny` or `allow`.
    pub managed: ManagedMemory,
    /// Whether its processes may use io_uring: `allow` or `deny`.
    pub io_uring: IoUring,
    /// Whether its processes may register memory of their own with the driver: `allow` or `refuse`.
    #[serde(default)]
    pub registered_memory: RegisteredMemory,
    /// Whether its processes may map the driver's page of figures, which are the whole card's: `show` or `refuse`.
    #[serde(default)]
    pub card_figures: CardFigures,
    /// What happens when the driver counts more than the ledger: `log` or `kill`.
    pub on_violation: OnViolation,
    /// The group whose containers may import each other's exported memory.
    pub share_group: Option<String>,
    /// What it asked of its cards' time; its cards' `share` has what came of it.
    pub compute: PsCompute,
    /// What the driver has taken of the host's memory for it; absent where no broker limits that.
    pub host_memory: Option<PsHostMemory>,
    /// Its slices.
    pub cards: Vec<PsCard>,
    /// What the broker says of its processes, the largest that live; absent where it has not answered.
    pub processes: Option<Vec<ProcessStatus>>,
    /// What all others hold, those that have ended among them; absent where there are none, or it has not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_processes: Option<Folded>,
    /// What the broker says of its calls; absent where it has not answered.
    pub calls: Option<CallCounts>,
    /// What went wrong, in a few words; `ok` where nothing did. Absent where no broker has answered, but for one that is gone.
    pub health: Option<String>,
    /// The same as figures.
    pub incidents: Option<PsIncidents>,
    /// Whether the broker compares its ledger with what the driver counts; absent where it has not said so yet.
    pub reconciled: Option<PsReconciled>,
}

impl PsVgpu {
    /// As an answer to a person names it.
    #[must_use]
    pub fn called(&self) -> Called {
        let in_pod = self.pod.as_ref();
        let in_pod = in_pod.map(|pod| format!("{}/{}", pod.name, pod.container));
        let name = in_pod.or_else(|| self.name.clone());
        Called::of_parts(&self.namespace, &self.container, name.as_deref())
    }

    /// Whether nothing is known to be wrong with it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_well = self.health.as_deref().is_none_or(|text| text == "ok");
        self.state == State::Running && is_well
    }
}

/// A container's place in a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsPod {
    /// The pod's namespace in its cluster.
    pub namespace: String,
    /// The pod.
    pub name: String,
    /// The container in it.
    pub container: String,
}

impl From<&PodNames> for PsPod {
    fn from(names: &PodNames) -> Self {
        Self {
            namespace: names.namespace.to_string(),
            name: names.name.to_string(),
            container: names.container.to_string(),
        }
    }
}

/// What a driver has taken of the host's memory for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsHostMemory {
    /// The most that it may take, bytes.
    pub limit_bytes: u64,
    /// Held, bytes; absent where the broker has not answered.
    pub used_bytes: Option<u64>,
    /// Most ever held, bytes; absent where the broker has not answered.
    pub peak_bytes: Option<u64>,
    /// Allocations that did not fit; absent where the broker has not answered.
    pub refused: Option<u64>,
}

/// Whether a ledger is compared with the driver's own sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsReconciled {
    /// It is.
    pub by_driver: bool,
    /// Why it is not.
    pub reason: Option<String>,
}

/// What went wrong around a container since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsIncidents {
    /// Xids of its own.
    pub xid: u64,
    /// Cards lost under it.
    pub card_lost: u64,
    /// Calls that did not come back from the driver in time.
    pub hung_call: u64,
    /// Those of them that have not come back yet.
    pub hung_now: u64,
    /// Times that memory was found beyond the ledger: held by the driver, or mapped without a call.
    pub violations: u64,
}

impl From<&HealthStatus> for PsIncidents {
    fn from(health: &HealthStatus) -> Self {
        Self {
            xid: health.incidents.xid,
            card_lost: health.incidents.card_lost,
            hung_call: health.incidents.hung_call,
            hung_now: health.hung_calls,
            violations: health.violations,
        }
    }
}

/// Whether a vGPU is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its broker answers; with a backend that has none, its frontend or a process of it lives.
    Running,
    /// Its broker answers, and the executor or simulator behind it does not: its calls fail with EIO.
    DriverUnreachable,
    /// Its broker lives and has not answered in time.
    Silent,
    /// Its frontend or a process of it lives, its broker has ended: no call of the container succeeds.
    BrokerGone,
    /// Neither lives: the next start, or `cgpu doctor --repair`, takes it back.
    Stale,
}

impl State {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// As tables show it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::DriverUnreachable => "driver unreachable",
            Self::Silent => "silent",
            Self::BrokerGone => "broker gone",
            Self::Stale => "stale",
        }
    }
}

/// Compute terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsCompute {
    /// The policy's name; absent: the host's default.
    pub policy: Option<String>,
    /// Cap or share, percent of a card.
    pub percent: Option<u32>,
    /// Relative weight.
    pub weight: Option<u32>,
    /// `high`, `normal` or `low`.
    pub priority: Priority,
    /// Whether it had not started if its terms could not be held: `strict` or `best-effort`.
    pub mode: ComputeMode,
}

impl From<&ComputeTerms> for PsCompute {
    fn from(terms: &ComputeTerms) -> Self {
        Self {
            policy: terms.policy.map(|policy| policy.name().to_owned()),
            percent: terms.percent,
            weight: terms.weight,
            priority: terms.priority,
            mode: terms.mode,
        }
    }
}

/// One slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsCard {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`.
    pub minor: u32,
    /// All that the container may hold of it, bytes.
    pub quota_bytes: u64,
    /// What it holds, bytes; absent where the broker has not answered.
    pub used_bytes: Option<u64>,
    /// The most that it held, bytes.
    pub peak_bytes: Option<u64>,
    /// Allocations refused.
    pub refused: Option<u64>,
    /// Its part of the card's time.
    pub share: Share,
}

/// `broker.pid` of a container's folder: the supervisor, or a broker that has just lost it.
#[derive(Debug, Deserialize)]
struct NamedPid {
    pid: i32,
}

/// Asks the state folder and the brokers.
///
/// # Errors
/// A state folder that cannot be read.
pub fn collect(config: &Config) -> Result<Ps, vgpu::Error> {
    let (mut vgpus, mut unread) = (Vec::new(), Vec::new());
    for (key, read) in each(config, ANSWER)? {
        match read {
            Ok(vgpu) => vgpus.push(vgpu),
            Err(error) => unread.push(format!("{}: {}", Called::from(&key), chain(&error))),
        }
    }
    Ok(Ps {
        version: JSON_VERSION,
        vgpus,
        elsewhere: None,
        unread,
    })
}

/// A container that has a vGPU, and what is known of it.
pub type Each = (ContainerKey, Result<PsVgpu, vgpu::Error>);

/// The same by key: one that cannot be read is an error of its own. A simulator must answer in this time.
///
/// # Errors
/// A state folder that cannot be read.
pub fn each(config: &Config, patience: Duration) -> Result<Vec<Each>, vgpu::Error> {
    let states = vgpu::list_each(config)?;
    let is_simulated = |state: &VgpuState| matches!(state.grant.driver, DriverSpec::Sim { .. });
    let mut readable = states.iter().filter_map(|(_, state)| state.as_ref().ok());
    let simulator_is_silent =
        readable.any(is_simulated) && HostDriver::simulator_answers(config, patience).is_err();
    let read = |state: VgpuState| {
        let dir = config
            .state_dir
            .join("vgpus")
            .join(state.grant.key.relative_dir());
        let reserved = reserved(config, &state.grant)?;
        let mut vgpu = one(&state, named_pid(&dir), &reserved);
        if vgpu.state == State::BrokerGone {
            vgpu.health = Some(BROKER_GONE.to_owned());
        } else if simulator_is_silent && is_simulated(&state) {
            vgpu.health = Some(unanswered(vgpu.health.as_deref()));
        }
        Ok(vgpu)
    };
    let states = states.into_iter();
    Ok(states
        .map(|(key, state)| (key, state.and_then(read)))
        .collect())
}

/// What was promised of each card's time, in the order of the grant's cards.
pub(crate) fn reserved(config: &Config, grant: &Grant) -> Result<Vec<Share>, vgpu::Error> {
    grant
        .cards
        .iter()
        .map(|slice| {
            let terms = cards::rules::terms_on(&config.state_dir, &slice.uuid, &grant.compute)?;
            Ok(Share::reserved(&terms))
        })
        .collect()
}

fn named_pid(container_dir: &Path) -> Option<i32> {
    let text = std::fs::read(container_dir.join("broker.pid")).ok()?;
    let written: NamedPid = serde_json::from_slice(&text).ok()?;
    Some(written.pid)
}

fn state(vgpu: &VgpuState, status: Option<&Status>) -> State {
    match (vgpu.broker, status) {
        (BrokerState::None | BrokerState::Gone, _) if vgpu.life == Life::Stale => State::Stale,
        (BrokerState::None, _) => State::Running,
        (BrokerState::Gone, _) => State::BrokerGone,
        (BrokerState::Alive, Some(status)) if status.health.unreachable.is_some() => {
            State::DriverUnreachable
        }
        (BrokerState::Alive, Some(_)) => State::Running,
        (BrokerState::Alive, None) => State::Silent,
    }
}

/// What a broker reports of a slice.
pub(crate) fn reported<'a>(
    slice: &CardGrant,
    status: Option<&'a Status>,
) -> Option<&'a CardStatus> {
    let mut cards = status?.cards.iter();
    cards.find(|card| card.uuid == slice.uuid.as_str())
}

pub(crate) fn card(slice: &CardGrant, reported: Option<&CardStatus>, reserved: Share) -> PsCard {
    PsCard {
        uuid: slice.uuid.to_string(),
        minor: slice.minor,
        quota_bytes: slice.quota_bytes,
        used_bytes: reported.map(|card| card.used_bytes),
        peak_bytes: reported.map(|card| card.peak_bytes),
        refused: reported.map(|card| card.refused),
        share: Share::reported(reserved, reported.and_then(|card| card.compute.as_ref())),
    }
}

fn host_memory(grant: &Grant, status: Option<&Status>) -> Option<PsHostMemory> {
    let reported = status.and_then(|status| status.host_memory);
    let limit_bytes = reported
        .map(|reported| reported.limit_bytes)
        .or(grant.isolation.host_memory_bytes)?;
    (grant.backend == Backend::Broker).then(|| PsHostMemory {
        limit_bytes,
        used_bytes: reported.map(|reported| reported.used_bytes),
        peak_bytes: reported.map(|reported| reported.peak_bytes),
        refused: reported.map(|reported| reported.refused),
    })
}

fn one(vgpu: &VgpuState, named_pid: Option<i32>, reserved: &[Share]) -> PsVgpu {
    let grant = &vgpu.grant;
    let status = vgpu.status.as_ref();
    let cards = grant.cards.iter().enumerate().map(|(at, slice)| {
        let reserved = reserved.get(at).cloned().unwrap_or_default();
        card(slice, reported(slice, status), reserved)
    });
    let cards = cards.collect();
    let incidents = status
        .as_ref()
        .map(|status| PsIncidents::from(&status.health));
    let reconciled = status.and_then(|status| {
        Some(PsReconciled {
            by_driver: status.watching.sums?,
            reason: status.watching.sums_reason.clone(),
        })
    });
    let pids = status.map(|status| &status.broker);
    let supervisor_pid = match pids {
        Some(pids) => Some(pids.supervisor_pid).filter(|pid| *pid != 0),
        None => named_pid.filter(|_| vgpu.broker == BrokerState::Alive),
    };
    PsVgpu {
        health: status.as_ref().map(|status| health_text(status)),
        incidents,
        reconciled,
        namespace: grant.key.namespace().to_owned(),
        container: grant.key.id().to_owned(),
        name: vgpu.names.name.as_ref().map(ToString::to_string),
        pod: vgpu.names.pod.as_ref().map(PsPod::from),
        frontend: grant.frontend.kind,
        backend: grant.backend,
        backend_reason: grant.backend_reason.clone(),
        driver: match grant.driver {
            DriverSpec::Kernel => HostDriver::Kernel,
            DriverSpec::Sim { .. } => HostDriver::Sim,
        },
        driver_version: grant.driver_version.clone(),
        state: state(vgpu, status),
        broker_pid: pids.map(|pids| pids.pid),
        supervisor_pid,
        own_processes: vgpu.own,
        isolation: grant.isolation.summary(),
        weakened: grant.isolation.weakened.clone(),
        mode: grant.isolation.mode,
        managed: grant.isolation.managed,
        io_uring: grant.isolation.io_uring,
        registered_memory: grant.isolation.registered_memory,
        card_figures: grant.isolation.card_figures,
        on_violation: grant.isolation.on_violation,
        share_group: grant.isolation.share_group.clone(),
        compute: PsCompute::from(&grant.compute),
        host_memory: host_memory(grant, status),
        cards,
        calls: status.map(|status| status.calls),
        other_processes: status
            .as_ref()
            .map(|status| status.folded.clone())
            .filter(|folded| *folded != Folded::default()),
        processes: status.map(|status| status.processes.clone()),
    }
}

#[cfg(test)]
mod tests;
