//! What `cgpu doctor` has looked up.

use std::path::PathBuf;

use driver_libraries::Survey as Libraries;
use driver_libraries::uvm_module::Standing as UvmModule;
use host_config::config::{Authority, IsolationConfig};
use nvabi::DriverVersion;
use vgpu::backend::Survey;

use super::configured::Configured;
use super::selinux::Selinux;
use super::standing::{Container, Engine, Program};
use crate::host_driver::HostDriver;

/// What was found. An `Err` holds the reason as text, for people.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The configuration's file, or why it cannot be used.
    pub configuration: Result<String, String>,
    /// What the configuration names.
    pub configured: Configured,
    /// `uname -r`
    pub kernel_release: String,
    /// Whether this program runs as root.
    pub is_root: bool,
    /// Seccomp user notification.
    pub seccomp_notify: Result<(), String>,
    /// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
    pub wait_killable: bool,
    /// `pidfd_getfd`
    pub pidfd_getfd: Result<(), String>,
    /// Whether the filters of another process can be read: frontends do, before a container's program starts.
    pub filters: Result<(), FiltersUnread>,
    /// `vm.mmap_min_addr`, or why it cannot be read.
    pub mmap_min_addr: Result<u64, String>,
    /// Control groups.
    pub cgroup: Cgroup,
    /// `None`: this kernel is without it.
    pub selinux: Option<Selinux>,
    /// Whether somebody listens on the port of DCGM's host engine.
    pub host_engine: bool,
    /// The OCI runtime.
    pub runc: Result<Runc, String>,
    /// The broker program.
    pub broker: Result<PathBuf, String>,
    /// The programs beside this one.
    pub programs: Vec<Program>,
    /// The engines of this host.
    pub engines: Vec<Engine>,
    /// Which driver would be behind the containers' cards.
    pub driver: HostDriver,
    /// Its version.
    pub driver_version: Result<DriverVersion, String>,
    /// What the operator's file says of a version that cgpu does not know: the file, and what it makes of the driver. `None`: no file.
    pub driver_file: Option<(PathBuf, Result<String, String>)>,
    /// For the kernel's driver: the version of the module that is installed, which the next boot loads, and whether that is known.
    pub installed_driver: Option<(DriverVersion, Result<(), String>)>,
    /// How many cards it has; for the kernel's driver asked through NVML.
    pub cards: Result<usize, String>,
    /// For the simulated driver: whether `cgpu-sim` answers.
    pub simulator: Result<(), String>,
    /// Cards on which nothing is placed, and why.
    pub unhealthy: Result<Vec<Unhealthy>, String>,
    /// Cards that containers cannot share, by how they are set, and what to do: UUID and reason.
    pub unshareable: Vec<(String, String)>,
    /// For the kernel's driver: its user libraries, as containers would get them.
    pub libraries: Option<Result<Libraries, String>>,
    /// For the kernel's driver: the module nvidia-uvm.
    pub uvm: Option<Result<UvmModule, String>>,
    /// For the kernel's driver: nodes in the host's `/dev` that are not as the driver has them.
    pub node_differences: Vec<String>,
    /// For the kernel's driver: the text of `nvidia_uvm`'s parameter `uvm_disable_hmm`; absent where the module has none.
    pub uvm_disable_hmm: Option<String>,
    /// The folder of this host's kubelet.
    pub kubelet: Option<PathBuf>,
    /// Who can ask for a pod's vGPU.
    pub authority: Authority,
    /// What there is of claims.
    pub claims: ClaimsFacts,
    /// How containers are held.
    pub isolation: IsolationConfig,
    /// Who could hold a container, and who would.
    pub backends: Result<Survey, String>,
    /// The state folder.
    pub state_dir: PathBuf,
    /// Whether it can be used.
    pub state_dir_usable: Result<(), String>,
    /// The containers that hold a vGPU, or why they cannot be listed.
    pub containers: Result<Vec<Container>, String>,
    /// Containers whose supervisor runs while their folder is gone.
    pub forsaken: Vec<String>,
    /// The folders of containers that were started by the same configuration's file, in another state folder.
    pub elsewhere: Vec<PathBuf>,
}

/// Why the filters of a process cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FiltersUnread {
    /// The process cannot be traced.
    NoTrace(String),
    /// The kernel does not give out the filters of a traced process.
    NoFilters(String),
    /// There was no process to try it with.
    NotTried(String),
}

/// How the host's control groups are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroup {
    /// Version 2 only.
    V2,
    /// Version 1.
    V1,
    /// Not at all.
    None,
}

/// An OCI runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runc {
    /// Where.
    pub path: PathBuf,
    /// Its first line of `--version`.
    pub version: String,
    /// Whether it can hand over a seccomp listener.
    pub notify: bool,
}

/// Claims of a cluster's, as this node has them.
#[derive(Debug, Clone)]
pub struct ClaimsFacts {
    /// How many are prepared, or why that cannot be read.
    pub prepared: Result<usize, String>,
    /// Who has its socket in the kubelet's folder; `None`: nobody of cgpu's.
    pub served_by: Option<KubeletServer>,
}

/// How an agent serves its kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletServer {
    /// As a DRA driver.
    Driver,
    /// As a device plugin.
    DevicePlugin,
}

/// A card on which nothing is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// Which.
    pub uuid: String,
    /// Why.
    pub reason: String,
    /// How it comes to be used again.
    pub used_again: UsedAgain,
}

/// How an unhealthy card comes to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedAgain {
    /// Somebody clears what is reported of it.
    WhenCleared,
    /// NVML answers for it, when it is asked.
    WhenFound,
}
