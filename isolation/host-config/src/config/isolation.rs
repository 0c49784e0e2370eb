//! Table `[isolation]`: how containers are held, and what they may have beside a quota.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cards::{
    Capability, CardFigures, IoUring, Isolation, ManagedMemory, Mode, OnViolation,
    RegisteredMemory, Watch, Weakness,
};
use serde::{Deserialize, Deserializer, de};

/// Table `[isolation]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationConfig {
    /// Who executes the containers' calls on a real driver.
    pub mode: Mode,
    /// What managed memory counts.
    pub managed: ManagedMemory,
    /// What happens when the driver counts more than the ledger.
    pub on_violation: OnViolation,
    /// Time between two comparisons of a ledger with its driver's own sums.
    pub reconcile_ms: u64,
    /// What the driver may take of the host's memory for a container, bytes; absent: the container's own memory limit, else half of the
    /// machine's memory.
    #[serde(deserialize_with = "amount")]
    pub host_memory: Option<u64>,
    /// What `NVIDIA_DRIVER_CAPABILITIES` may ask for beside compute and utility. A container keeps what its grant says.
    pub capabilities: BTreeSet<Capability>,
    /// Whether containers may map the driver's page of figures.
    pub card_figures: CardFigures,
    /// Whether containers may register memory of their own with the driver.
    pub registered_memory: RegisteredMemory,
    /// Whether containers with a quota may use io_uring.
    pub io_uring: IoUring,
    /// What a container with a quota may be given although it leads out of the slice.
    pub allow: Allow,
    /// Folders that may be bound into a container with a quota, writable, although they are where systems keep their own.
    pub data_folders: Vec<PathBuf>,
}

impl Default for IsolationConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            managed: ManagedMemory::default(),
            on_violation: OnViolation::default(),
            reconcile_ms: Watch::default().reconcile_ms,
            host_memory: None,
            capabilities: BTreeSet::from([Capability::Graphics, Capability::Video]),
            card_figures: CardFigures::default(),
            registered_memory: RegisteredMemory::default(),
            io_uring: IoUring::default(),
            allow: Allow::default(),
            data_folders: Vec::new(),
        }
    }
}

impl IsolationConfig {
    /// For a container that asks for nothing of its own.
    #[must_use]
    pub fn terms(&self) -> Isolation {
        Isolation {
            mode: self.mode,
            managed: self.managed,
            share_group: None,
            on_violation: self.on_violation,
            card_figures: self.card_figures,
            registered_memory: self.registered_memory,
            io_uring: self.io_uring,
            weakened: Vec::new(),
            watch: Watch {
                reconcile_ms: self.reconcile_ms,
                ..Watch::default()
            },
            // None asks for any.
            capabilities: BTreeSet::new(),
            host_memory_bytes: self.host_memory,
        }
    }
}

/// As the annotation `cgpu.io/memory` writes it.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = crate::terms::memory_amount("isolation.host_memory", &text);
    bytes.map(Some).map_err(de::Error::custom)
}

/// `isolation.allow`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    through: BTreeSet<Weakness>,
    /// What happens to nodes of cards that were not granted.
    pub other_cards: OtherCards,
}

/// What happens to nodes of cards that were not granted. Isolation holds either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OtherCards {
    /// The container does not start.
    #[default]
    Refuse,
    /// They are left out of its spec.
    LeaveOut,
}

/// `allow = ["other-cards"]`
const OTHER_CARDS: &str = "other-cards";

/// `allow = ["privileged"]`
const PRIVILEGED: &str = "privileged";

/// What `--privileged` gives with every engine.
const OF_PRIVILEGED: [Weakness; 17] = [
    Weakness::CapSysAdmin,
    Weakness::CapSysPtrace,
    Weakness::CapSysModule,
    Weakness::CapSysRawio,
    Weakness::CapSysBoot,
    Weakness::CapBpf,
    Weakness::CapPerfmon,
    Weakness::CapDacReadSearch,
    Weakness::Dri,
    Weakness::Modeset,
    Weakness::NvidiaCaps,
    Weakness::GpuDirect,
    Weakness::DriverDevices,
    Weakness::HostDevices,
    Weakness::ProcSys,
    Weakness::HostSys,
    Weakness::HostCgroup,
];

impl Allow {
    /// Lets these through.
    #[must_use]
    pub fn of(through: &[Weakness]) -> Self {
        Self {
            through: through.iter().copied().collect(),
            other_cards: OtherCards::default(),
        }
    }

    /// What is let through although it turns isolation off, by name.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.through
            .iter()
            .map(|weakness| weakness.name())
            .collect()
    }

    /// Whether a container may have it.
    #[must_use]
    pub fn lets_through(&self, weakness: Weakness) -> bool {
        // To the kernel the one contains the other (`perfmon_capable`).
        let contained = (weakness == Weakness::CapPerfmon).then_some(Weakness::CapSysAdmin);
        let mut any = [Some(weakness), contained].into_iter().flatten();
        any.any(|weakness| self.through.contains(&weakness))
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut allow = Self::default();
        for name in Vec::<String>::deserialize(deserializer)? {
            if name == OTHER_CARDS {
                allow.other_cards = OtherCards::LeaveOut;
            } else if name == PRIVILEGED {
                allow.through.extend(OF_PRIVILEGED);
            } else if let Some(weakness) = Weakness::ALL
                .iter()
                .find(|weakness| weakness.name() == name)
            {
                allow.through.insert(*weakness);
            } else {
                let names: Vec<&str> = Weakness::ALL
                    .iter()
                    .map(|weakness| weakness.name())
                    .chain([PRIVILEGED, OTHER_CARDS])
                    .collect();
                return Err(de::Error::custom(format!(
                    "isolation.allow has {name:?}, which is not allowed: allowed are {}",
                    names.join(", ")
                )));
            }
        }
        Ok(allow)
    }
}
