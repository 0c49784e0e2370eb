//! What can go wrong around a vGPU, one variant per step. Errors reach people through engines: each stands alone.

mod fault;
mod unconfirmed;
mod why_not;

use std::path::PathBuf;

use driver_libraries::{drivers, uvm_module};
use host_config::{config, terms, trusted};
use spec::escape_checks;
use spec::json::ShapeError;
use spec::{capabilities, edit, nodes, request};

pub use self::fault::Fault;
pub(crate) use self::unconfirmed::unconfirmed;
pub use self::why_not::WhyNot;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Cards, reservations, grants, placement, names.
    #[error(transparent)]
    Cards(#[from] cards::Error),
    /// A single term.
    #[error(transparent)]
    Terms(#[from] terms::Error),
    /// A program or a file that others can change.
    #[error(transparent)]
    Trusted(#[from] trusted::Error),
    /// The host's configuration.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// A spec of another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// What the container asks of the driver's libraries.
    #[error(transparent)]
    Capabilities(#[from] capabilities::Error),
    /// What a process is given leads out of the container's slice.
    #[error(transparent)]
    EscapeChecks(#[from] escape_checks::Error),
    /// What the container asks for.
    #[error(transparent)]
    Request(#[from] request::Error),
    /// The container's device nodes.
    #[error(transparent)]
    Nodes(#[from] nodes::Error),
    /// The edits of the spec.
    #[error(transparent)]
    Edit(#[from] edit::Error),
    /// The driver's user libraries.
    #[error(transparent)]
    DriverLibraries(#[from] driver_libraries::Error),
    /// A file of a driver version.
    #[error(transparent)]
    Drivers(#[from] drivers::Error),
    /// The kernel module that CUDA needs.
    #[error(transparent)]
    UvmModule(#[from] uvm_module::Error),
    /// A process for a container whose broker is gone.
    #[error(
        "the broker of {key} is gone, so that no process can be added to this container and no GPU call in it succeeds: restart the container"
    )]
    BrokerGone {
        /// The container.
        key: cards::Called,
    },
    /// The control group of a vGPU's own processes.
    #[error(
        "{} cannot be made or changed (`[broker] cgroup_root` of cgpu.toml is where control groups are mounted): supervisor, broker and executor of a container are limited in a control group of their own, and a container whose own cannot be limited is refused",
        path.display()
    )]
    OwnGroup {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] sys::FileError),
    /// A spec that is not JSON.
    #[error("{} is not a container spec", path.display())]
    SpecJson {
        /// The file.
        path: PathBuf,
        /// Where it breaks off.
        #[source]
        source: serde_json::Error,
    },
    /// A state folder that somebody else can write.
    #[error("state folder {} belongs to user {owner} with mode {mode:o}: it must be this user's, and writable by no other", path.display())]
    StateDir {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// Neither a loaded driver nor a running simulator.
    #[error("no NVIDIA driver is loaded ({kernel} does not exist) and no GPUs are simulated ({} does not exist): load the driver, or start cgpu-sim", simulated.display())]
    NoDriver {
        /// Where the kernel's driver would speak.
        kernel: &'static str,
        /// Where the simulator would.
        simulated: PathBuf,
    },
    /// The frontend is not the host's root.
    #[error(
        "the container asks for a vGPU, and its engine runs {who}: grants and brokers are root's. A rootless engine runs containers that ask for nothing; start this one by an engine of root's"
    )]
    Rootless {
        /// How it runs.
        who: String,
    },
    /// The kernel's driver says no version.
    #[error("{path} names no driver version")]
    KernelVersion {
        /// The file.
        path: &'static str,
    },
    /// A driver version that is none.
    #[error("driver version {version:?}")]
    DriverVersion {
        /// The text.
        version: String,
        /// Why.
        #[source]
        source: nvabi::ParseVersionError,
    },
    /// A driver whose layouts are not known.
    #[error("cannot hold containers to their memory")]
    DriverRelease {
        /// The driver.
        #[source]
        source: drivers::UnknownDriver,
    },
    /// The only backend that comes into question cannot be had.
    #[error("backend {backend} cannot be had on this host: {why}")]
    NotOffered {
        /// Its name.
        backend: &'static str,
        /// What it lacks.
        why: Box<WhyNot>,
    },
    /// No backend is offered and strong enough.
    #[error("nothing on this host can hold a container to its memory: {lacks}")]
    NoBackend {
        /// What each lacks.
        lacks: String,
    },
    /// A container that asks to share without isolation, where that is not allowed.
    #[error(
        "cgpu.io/policy = native without cgpu.io/memory asks to share cards without isolation, which this host does not allow (backend.kind = {kind}, backend.min_strength = {min_strength}; it needs auto or share, and none): set cgpu.io/memory"
    )]
    SharingRefused {
        /// `backend.kind`
        kind: &'static str,
        /// `backend.min_strength`
        min_strength: &'static str,
    },
    /// A filter that does not bring all calls to the broker.
    #[error(
        "the container's seccomp filter does not hold it to its share: {hole}. It is not what the profile in config.json asks for, so the runtime, or a wrapper below it, must be at fault; the container is not started"
    )]
    FilterOpen {
        /// What is open.
        hole: verdict::filter_check::Hole,
    },
    /// A filter that cannot be looked at.
    #[error(
        "the seccomp filter of process {pid} cannot be read (this needs CAP_SYS_ADMIN and CAP_SYS_PTRACE, a kernel with CONFIG_CHECKPOINT_RESTORE, kernel.yama.ptrace_scope below 3, and no seccomp filter on the runtime itself); the container is not started"
    )]
    FilterUnread {
        /// Whose.
        pid: i32,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A container whose calls would wait for nobody, or for somebody else.
    #[error(
        "the broker was not handed the listener of the container's seccomp filter; the container is not started"
    )]
    NoListener,
    /// A container that nobody has held.
    #[error("the container was not held when it was created, and is not started")]
    NotArmed,
    /// A process without the container's filter.
    #[error("process {pid} was started in {key} without the container's seccomp filter")]
    ExecOpen {
        /// The container.
        key: cards::Called,
        /// The process.
        pid: i32,
    },
    /// A pod's amount of memory, and a second container that would have it.
    #[error(
        "the annotation cgpu.io/memory is for the pod as a whole, and container {holder} has it: write cgpu.io/memory.{holder}, so that {container} starts without a card, or an amount for each of them (cgpu.io/memory.{container})"
    )]
    PodAmountTaken {
        /// Who asks.
        container: String,
        /// Who has it.
        holder: String,
    },
    /// Names that no engine gives.
    #[error(
        "the names of the pod and its container take {bytes} bytes, of which at most {most} are allowed"
    )]
    PodNames {
        /// Written down.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// The container's first process ended before it was held.
    #[error("the container's first process, {pid}, is gone")]
    InitGone {
        /// Its number.
        pid: i32,
    },
    /// A host without version 2 of control groups.
    #[error("backend driver-limit needs cgroup v2 at {}", root.display())]
    NoCgroupV2 {
        /// `backend.cgroup_root`
        root: PathBuf,
    },
    /// A container in a control group that is not its own.
    #[error(
        "backend driver-limit needs a control group of the container's own: process {pid} is in {path:?}"
    )]
    NoOwnCgroup {
        /// The container's first process.
        pid: i32,
        /// Its group in version 2's tree.
        path: String,
    },
    /// A new quota for a container that nobody holds to one.
    #[error("container {key} is held to no quota: it shares its cards, or has not started yet")]
    NotHeld {
        /// The container.
        key: cards::Called,
    },
    /// NVIDIA's own limit was not set as asked.
    #[error("the driver's memory limit is not set")]
    Limits {
        /// Why.
        #[source]
        source: limits::Error,
    },
    /// The note of the limits is not ours.
    #[error("{} is no note of memory limits", path.display())]
    LimitsRecord {
        /// The file.
        path: PathBuf,
        /// Where it breaks off.
        #[source]
        source: serde_json::Error,
    },
    /// The note of the limits is another cgpu's.
    #[error("{} is of version {found}, which this cgpu does not know", path.display())]
    LimitsRecordVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The kernel lacks what the broker lives by.
    #[error(
        "this kernel has no seccomp user notification, which a vGPU needs (Linux 5.7 and later, CONFIG_SECCOMP_FILTER)"
    )]
    KernelWithoutNotify {
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// No OCI runtime.
    #[error(
        "neither runc nor crun in {searched}: install one, or name one as `runc` in the configuration"
    )]
    NoRunc {
        /// Where it was looked for.
        searched: String,
    },
    /// An OCI runtime whose answer is not understood.
    #[error("`{} features` does not answer with JSON", path.display())]
    RuncFeatures {
        /// The program.
        path: PathBuf,
        /// Where it breaks off.
        #[source]
        source: serde_json::Error,
    },
    /// An OCI runtime that cannot hand over a listener.
    #[error("runtime {} has no seccomp notify (SCMP_ACT_NOTIFY), which a vGPU needs: runc 1.1 or later with libseccomp 2.5 or later", path.display())]
    RuncWithoutNotify {
        /// The program.
        path: PathBuf,
    },
    /// A file to bind that is a link or a folder.
    #[error("{} is not a plain file or device, and is not bound into a container", path.display())]
    MountSource {
        /// The file.
        path: PathBuf,
    },
    /// The file that `container_tools` names.
    #[error("`container_tools` of cgpu.toml names a file that containers cannot be given")]
    ContainerTools(#[source] Box<Self>),
    /// The container holds a vGPU already.
    #[error("container {key} holds a vGPU already")]
    Exists {
        /// The container.
        key: cards::Called,
    },
    /// A socket whose path the kernel does not take.
    #[error("state_dir = {}: {} is a socket's path and has {} bytes, at most {limit_bytes} are allowed: choose a shorter state_dir", state_dir.display(), path.display(), path.as_os_str().len())]
    SocketPath {
        /// What it is below.
        state_dir: PathBuf,
        /// The path.
        path: PathBuf,
        /// The kernel's limit.
        limit_bytes: usize,
    },
    /// A mark that no live grant explains.
    #[error(
        "the spec carries cgpu.io/applied = {applied}, but that container holds no vGPU with this bundle; cgpu alone writes this annotation"
    )]
    ForgedAnnotation {
        /// The container that the mark names.
        applied: cards::ContainerKey,
    },
    /// The broker's program cannot be started.
    #[error("cannot start the broker {}", path.display())]
    BrokerSpawn {
        /// The program.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The broker did not become ready.
    #[error("the broker did not start: {problem}; the last line of its log: {log}")]
    BrokerStart {
        /// What happened.
        problem: String,
        /// The last line of its log.
        log: String,
    },
    /// The broker cannot be told to end.
    #[error("cannot stop the broker of {}", path.display())]
    BrokerStop {
        /// The container's folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A broker lives although the one that was started is dead.
    #[error("a broker for {} is still running but its pid is unknown: kill it manually", path.display())]
    BrokerLives {
        /// The container's folder.
        path: PathBuf,
    },
    /// Its own processes are dead to signals: the driver takes its time to free what they have, or hangs.
    #[error("processes of the vGPU in {} have not ended: the driver may still have what it had of a card, which stays reserved until they have (the next start, and cgpu doctor --repair, take it back then)", path.display())]
    StillEnding {
        /// The container's folder, or the control group of those processes.
        path: PathBuf,
    },
    /// A broker that was not replaced.
    #[error("the broker of container {key} was not replaced: {problem}")]
    BrokerUpgrade {
        /// The container.
        key: cards::Called,
        /// What the supervisor said.
        problem: String,
    },
    /// A container that holds no vGPU.
    #[error("container {key} holds no vGPU")]
    NoVgpu {
        /// The container.
        key: cards::Called,
    },
    /// A container whose broker has gone.
    #[error("no broker holds container {key}: nothing can be changed for it")]
    NoBroker {
        /// The container.
        key: cards::Called,
    },
    /// A broker that did not do what it was asked.
    #[error("the broker of container {key} has not confirmed the new quota: {problem}")]
    BrokerRefused {
        /// The container.
        key: cards::Called,
        /// What it said, or did not say.
        problem: String,
    },
    /// A broker that did not take other compute terms.
    #[error("the broker of container {key} has not confirmed the new share: {problem}")]
    BrokerKeepsTerms {
        /// The container.
        key: cards::Called,
        /// What it said, or did not say.
        problem: String,
    },
    /// Compute terms for a container that nobody can hold to them.
    #[error(
        "container {key} cannot be held to a share of compute time: its backend is {backend}, and only a broker can"
    )]
    NoShares {
        /// The container.
        key: cards::Called,
        /// Its backend.
        backend: &'static str,
    },
    /// The note of a container's share is not ours.
    #[error("{} is no note of a share", path.display())]
    ShareRecord {
        /// The file.
        path: PathBuf,
        /// Where it breaks off.
        #[source]
        source: serde_json::Error,
    },
    /// A change of nothing.
    #[error("no change requested")]
    NothingRequested,
    /// A card that this host has no more.
    #[error("card {uuid} of container {key} is not on this host")]
    CardGone {
        /// The container.
        key: cards::Called,
        /// The card.
        uuid: cards::GpuUuid,
    },
}

impl From<cards::NameError> for Error {
    fn from(error: cards::NameError) -> Self {
        Self::Cards(error.into())
    }
}

impl Error {
    /// Of a request that nobody but the host's configuration has made.
    pub(crate) fn of_default(self) -> Self {
        // No matter of what is asked for.
        if matches!(self, Self::Exists { .. }) {
            return self;
        }
        request::Error::of_default(self).into()
    }
}
