//! A grant: one container's placed request. The broker is started from it, and from nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use plan::{Policy as ComputePolicy, Priority};
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr, VariantArray};

use crate::Error;
use crate::identity::{ContainerKey, GpuUuid, Pointer};
use crate::store::{self, Store};

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The name of the file in the container's folder.
pub const FILE_NAME: &str = "grant.json";

/// No grant of ours comes near this.
const SIZE_MAX_BYTES: u64 = 1 << 20;

/// What one container holds, until it is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// [`VERSION`].
    pub version: u32,
    /// Whose it is.
    pub key: ContainerKey,
    /// Who executes its calls.
    pub driver: DriverSpec,
    /// Version of that driver, for example `570.195.03`; it selects the layouts.
    pub driver_version: String,
    /// The layouts, where a file of the host's operator said at the start what they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layouts: Option<releases::Known>,
    /// Its slices, one a card, in the order in which the container numbers them.
    pub cards: Vec<CardGrant>,
    /// Its share of the cards' time.
    pub compute: ComputeTerms,
    /// The shares of Kubernetes' claims that it is; empty where the container itself asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Pointer>,
    /// Who holds its memory. A grant that does not say is a broker's.
    #[serde(default)]
    pub backend: Backend,
    /// Why that one, for people who look.
    #[serde(default)]
    pub backend_reason: String,
    /// How its memory is held.
    #[serde(default)]
    pub isolation: Isolation,
    /// Who asked.
    pub frontend: Frontend,
    /// The engine's bundle; `cgpu run` has none.
    pub bundle: Option<PathBuf>,
    /// When it was granted, milliseconds since 1970.
    pub created_at_unix_ms: u64,
}

/// The driver behind the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DriverSpec {
    /// The kernel's driver.
    Kernel,
    /// `cgpu-sim`.
    Sim {
        /// Its request socket.
        socket: PathBuf,
    },
}

/// Who holds a container to its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Backend {
    /// A broker of its own decides every call.
    #[default]
    Broker,
    /// NVIDIA's driver, by the limit of the container's control group.
    DriverLimit,
    /// Nobody: the cards are shared without isolation.
    Share,
}

impl Backend {
    /// The word of configuration, tables and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How a container is held to its grant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Isolation {
    /// Who executes its calls on a real driver.
    pub mode: Mode,
    /// What managed memory counts.
    pub managed: ManagedMemory,
    /// Containers that name the same group may import each other's exported memory. The whole name,
    /// `<namespace>/[<pod namespace>/]<group>`: equal texts are one group, whoever wrote them.
    pub share_group: Option<String>,
    /// What happens when the driver counts more than the ledger.
    pub on_violation: OnViolation,
    /// Whether its processes may use io_uring.
    pub io_uring: IoUring,
    /// What the container was let have that can lead out of its slice; none: it is held.
    pub weakened: Vec<Weakness>,
    /// What its broker looks at, and how often.
    pub watch: Watch,
    /// What its libraries may be for beside compute and utility.
    pub capabilities: BTreeSet<Capability>,
    /// Whether it may map the driver's page of figures, which are the whole card's.
    pub card_figures: CardFigures,
    /// Whether it may register memory of its own with the driver.
    pub registered_memory: RegisteredMemory,
    /// What the driver may take of the host's memory for it, bytes; `None` in grants of a cgpu that had no such limit.
    pub host_memory_bytes: Option<u64>,
}

/// How closely a broker watches its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    /// Time between two comparisons of the ledger with the driver's own sums, milliseconds.
    pub reconcile_ms: u64,
    /// A call that has been at the driver for longer is reported, milliseconds.
    pub hung_call_ms: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            reconcile_ms: 5_000,
            hung_call_ms: 30_000,
        }
    }
}

impl Isolation {
    /// One word for people: `on`, or `off` with the reasons.
    #[must_use]
    pub fn summary(&self) -> String {
        if self.weakened.is_empty() {
            return "on".to_owned();
        }
        let names: Vec<&str> = self
            .weakened
            .iter()
            .map(|weakness| weakness.name())
            .collect();
        format!("off ({})", names.join(", "))
    }
}

/// A word of `NVIDIA_DRIVER_CAPABILITIES` that admits calls which no other container may make. Compute and utility are everybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// 3D, 2D and inline-to-memory, without a display.
    Graphics,
    /// The video engines.
    Video,
}

/// Whether a container may map the driver's own page of figures (class RM_USER_SHARED_DATA): how much of the whole card's memory is free, its
/// load and clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CardFigures {
    /// As the driver does: libcuda maps it when a context is made, and whether it goes on without is not known.
    #[default]
    Show,
    /// Refused as by a virtual GPU.
    Refuse,
}

/// Whether a container may register memory of its own with the driver (class NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, `cudaHostRegister`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RegisteredMemory {
    /// The caller makes the call, since the pages are its own. The kernel reads it a second time: what a second thread has made of it by then
    /// may be memory of the host's that nothing counts.
    #[default]
    Allow,
    /// Refused as not supported.
    Refuse,
}

/// Whether a container's processes may use io_uring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoUring {
    /// As the engine's profile says. No NVIDIA module answers `uring_cmd`, and a ring can make neither an ioctl nor a
    /// mapping of a device: it leads to no card memory.
    #[default]
    Allow,
    /// Its three system calls fail as on a kernel without it.
    Deny,
}

/// Who executes a container's calls on a real driver. A simulated one executes all of them itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// One unprivileged executor process (mode B): no check is followed by a second read of the tenant's memory, but
    /// for the call that registers memory.
    #[default]
    Strict,
    /// The caller, for what the driver binds to the calling process (mode A): a hostile tenant can race those calls.
    Compat,
}

/// What managed memory (`cudaMallocManaged`) counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ManagedMemory {
    /// Its whole address range is charged on each of the container's cards, as if it were resident there.
    #[default]
    Charge,
    /// It is refused.
    Deny,
    /// It is not charged: the driver evicts it when others allocate.
    Allow,
}

/// What happens when the driver itself counts more for a container than the ledger holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OnViolation {
    /// It is logged, counted and shown.
    #[default]
    Log,
    /// The container's processes are killed as well.
    Kill,
}

/// What a container can be given that leads out of its slice: refused together with a quota unless the
/// configuration lets it through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Weakness {
    /// CAP_SYS_ADMIN: the driver lets its holders past every limit.
    CapSysAdmin,
    /// CAP_SYS_PTRACE: takes over processes that runc starts in the container before they are under the filter.
    CapSysPtrace,
    /// CAP_SYS_MODULE: code in the kernel.
    CapSysModule,
    /// CAP_SYS_RAWIO: the card's registers without its driver.
    CapSysRawio,
    /// CAP_SYS_BOOT: another kernel by kexec.
    CapSysBoot,
    /// CAP_BPF: programs in the kernel, among them those that decide over devices.
    CapBpf,
    /// CAP_PERFMON: samples of every process of the host, with stacks and registers.
    CapPerfmon,
    /// CAP_DAC_READ_SEARCH: any file of the host by its handle.
    CapDacReadSearch,
    /// `/dev/dri`: card memory by the display driver.
    Dri,
    /// `/dev/nvidia-modeset`: card memory by the modesetting driver.
    Modeset,
    /// `/dev/nvidia-caps`: MIG's and the fabric's privileges.
    NvidiaCaps,
    /// GPUDirect's own modules: nvidia-fs, gdrdrv.
    GpuDirect,
    /// Other nodes that NVIDIA's modules make.
    DriverDevices,
    /// Raw memory, disks, machine registers, VFIO; or a device cgroup that allows all, or none beside CAP_MKNOD.
    HostDevices,
    /// The host's process numbers: the broker can be killed, others' processes taken over.
    HostPid,
    /// The host's files, by a mount of `/` or without a mount namespace.
    HostRoot,
    /// The host's `/dev`.
    HostDev,
    /// The host's `/proc`.
    HostProc,
    /// `/proc/sys` without protection: the kernel starts programs named there, on the host and as root.
    ProcSys,
    /// A writable `/sys`: cards' registers and memory, drivers bound and unbound.
    HostSys,
    /// Writable control groups of the host.
    HostCgroup,
    /// cgpu's own state folder.
    CgpuState,
    /// A container engine's socket: it starts containers without a quota.
    EngineSocket,
    /// The pipes of an MPS server, which allocates outside the filter.
    Mps,
    /// The sockets of an X server, which allocates outside the filter.
    X11,
}

impl Weakness {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// As configuration, grants and tables write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardGrant {
    /// Of which card.
    pub uuid: GpuUuid,
    /// The card's device number, as in `/dev/nvidia<minor>`.
    pub minor: u32,
    /// All memory of that card that the container may hold; 0 where it shares without a quota ([`Backend::Share`]).
    pub quota_bytes: u64,
}

/// What a container asks of the cards' compute time. What is absent follows the card's rules ([`crate::rules`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeTerms {
    /// cGPU's policy number, if the container asked for one.
    pub policy: Option<ComputePolicy>,
    /// Cap or floor in percent of a card, 1 to 100.
    pub percent: Option<u32>,
    /// Relative weight, 1 to [`plan::terms::WEIGHT_MAX`].
    pub weight: Option<u32>,
    /// Before the others, among them, or after them.
    pub priority: Priority,
    /// Whether it starts where its terms cannot be held in full. A grant that does not say is of the lenient kind.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: ComputeMode,
    /// What becomes of its work when nobody holds its share any more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fail: OnShareLost,
}

/// Whether terms must be held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ComputeMode {
    /// As well as this driver lets it; how well is said.
    #[default]
    BestEffort,
    /// In full, or the container does not start.
    Strict,
}

impl ComputeMode {
    /// The word of configuration and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What becomes of a container's work on a card when nobody holds its share any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnShareLost {
    /// It goes on, without a bound.
    #[default]
    Open,
    /// It does not move until somebody holds it again.
    Closed,
}

/// For fields that are written only where they say something.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Who made the grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frontend {
    /// Which kind of program.
    pub kind: FrontendKind,
    /// Its process, for people who look; the lock says whether it lives. Of a hook, the engine that called it.
    pub pid: u32,
}

/// The programs that start vGPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum FrontendKind {
    /// `containerd-shim-cgpu-v2`: lives as long as its containers.
    Shim,
    /// `cgpu-runtime`: ends once the container is created.
    Runtime,
    /// `cgpu run`: lives as long as its process.
    Run,
    /// `cgpu-hook`: ends before the container is created.
    Hook,
}

impl Grant {
    /// Reads `<container folder>/grant.json`.
    ///
    /// # Errors
    /// Unreadable, oversized, or of a newer cgpu.
    pub fn read(container_dir: &Path) -> Result<Self, Error> {
        let path = container_dir.join(FILE_NAME);
        let bytes = store::read_capped("grant", &path, SIZE_MAX_BYTES)?;
        store::parse_versioned("grant", &path, &bytes, VERSION)
    }

    /// Writes `<container folder>/grant.json` durably.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn write(&self, store: &dyn Store, container_dir: &Path) -> Result<(), Error> {
        store::write_json(store, "grant", &container_dir.join(FILE_NAME), self)
    }
}

#[cfg(test)]
mod tests;
