//! What this host offers to GPU containers, what is missing or broken, and how to get it.
//!
//! [`Facts`] are looked up by the command; [`assess`] judges them and touches nothing. What a start needs is judged here, what
//! goes on on the host in `standing`.

mod standing;

use std::path::PathBuf;

use cards::{IoUring, Mode};
use nvabi::{DriverVersion, Release};
use serde::Serialize;
use vgpu::backend::{Kind, Offer, Survey};
use vgpu::config::IsolationConfig;
use vgpu::driver_libraries::Survey as Libraries;
use vgpu::uvm_module::Standing as UvmModule;

pub use self::standing::{Container, Engine, Named, Program, Standing};
use super::JSON_VERSION;
use super::host_driver::HostDriver;

/// What was found. An `Err` holds the reason as text, for people.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The configuration's file, or why it cannot be used.
    pub configuration: Result<String, String>,
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
    /// Cards on which nothing is placed, and why: UUID and reason.
    pub unhealthy: Result<Vec<(String, String)>, String>,
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

/// What `cgpu doctor` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Doctor {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// Whether a GPU container could start now.
    pub can_start: bool,
    /// Whether nothing is missing or broken; what only works worse than it could does not count.
    pub is_well: bool,
    /// What would hold a container to its slice; absent where none could start.
    pub choice: Option<Choice>,
    /// Who could hold a container to its memory, strongest first.
    pub backends: Vec<DoctorBackend>,
    /// One by one.
    pub checks: Vec<Check>,
    /// Containers whose leftovers were taken back; absent without `--repair`.
    pub reclaimed: Option<Vec<String>>,
    /// Cards whose report of bad health was taken back: containers are placed on them again; absent without `--repair`.
    pub cleared_cards: Option<Vec<String>>,
}

/// The backend that a container would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Its name.
    pub backend: &'static str,
    /// Who executes admitted calls.
    pub driver: HostDriver,
    /// How memory is held.
    pub memory: &'static str,
    /// How compute time is divided.
    pub compute: &'static str,
    /// Why this one.
    pub reason: String,
}

/// One way of holding a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorBackend {
    /// Its name.
    pub name: &'static str,
    /// How well it holds memory: `exact`, `hard` or `none`.
    pub strength: &'static str,
    /// Why a container could not have it here; absent: it could.
    pub why_not: Option<String>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it stands.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// How a check stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but worse than it could.
    Hint,
    /// Something that was there is broken. Other containers may run, and start.
    Broken,
    /// No GPU container can start.
    Missing,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            level: Level::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn hint(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Hint,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    fn broken(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Broken,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    fn missing(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Missing,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }
}

/// Judges the facts.
#[must_use]
pub fn assess(facts: &Facts) -> Doctor {
    if !facts.is_root {
        return unprivileged(facts);
    }
    let mut checks = kernel(facts);
    checks.extend(programs(facts));
    checks.extend(standing::programs(facts));
    checks.extend(driver(facts));
    checks.extend(isolation(facts));
    checks.extend(state(facts));
    checks.extend(standing::containers(facts));
    checks.extend(standing::engines(facts));
    // Which backends there are depends on the configuration: without one there is nothing to say of them.
    let mut backends = Vec::new();
    if facts.configuration.is_ok() {
        if let Ok(survey) = &facts.backends {
            backends.extend(survey.offers.iter().map(DoctorBackend::from));
        }
        checks.push(backend(facts));
    }
    if matches!(&facts.backends, Ok(Survey { chosen: Ok((kind, _)), .. }) if *kind != Kind::Broker)
    {
        // What the broker alone needs does not stop another.
        for check in &mut checks {
            if BROKER_S.contains(&check.name) && check.level == Level::Missing {
                check.level = Level::Hint;
            }
        }
    }
    let can_start = checks.iter().all(|check| check.level != Level::Missing);
    Doctor {
        version: JSON_VERSION,
        can_start,
        is_well: can_start && checks.iter().all(|check| check.level != Level::Broken),
        choice: can_start.then(|| choice(facts)),
        backends,
        checks,
        reclaimed: None,
        cleared_cards: None,
    }
}

/// What can be seen without root. What cannot is not guessed at: a file that another user cannot read is not missing.
fn unprivileged(facts: &Facts) -> Doctor {
    let mut checks = vec![Check::missing(
        "privileges",
        "not root: driver, cards, state folder, containers, filters and engines were not checked",
        "run it as root: `sudo cgpu doctor`",
    )];
    checks.extend(
        kernel(facts)
            .into_iter()
            .filter(|check| !NEED_ROOT.contains(&check.name)),
    );
    Doctor {
        version: JSON_VERSION,
        can_start: false,
        is_well: false,
        choice: None,
        backends: Vec::new(),
        checks,
        reclaimed: None,
        cleared_cards: None,
    }
}

/// Checks of the kernel that say something only to root.
const NEED_ROOT: [&str; 2] = ["pidfd_getfd", "read seccomp filters"];

/// Checks of what only a broker needs; that of the driver is about its layouts where the driver itself is there.
const BROKER_S: [&str; 5] = [
    "seccomp user notification",
    "pidfd_getfd",
    "read seccomp filters",
    "broker",
    "driver",
];

impl From<&Offer> for DoctorBackend {
    fn from(offer: &Offer) -> Self {
        Self {
            name: offer.backend.name(),
            strength: offer.strength.name(),
            why_not: offer.why_not.clone(),
        }
    }
}

fn backend(facts: &Facts) -> Check {
    let remedy =
        "see the table of backends below; `[backend]` in cgpu.toml selects which are allowed";
    match &facts.backends {
        Ok(Survey {
            chosen: Ok((kind, reason)),
            ..
        }) => Check::ok("backend", format!("{kind} ({reason})")),
        Ok(Survey {
            chosen: Err(why), ..
        }) => Check::missing("backend", why, remedy),
        Err(why) => Check::missing("backend", why, "correct what is missing above first"),
    }
}

/// Managed memory has its address as offset. The filter brings mappings at every offset to the broker, whatever the host says
/// here; who looks for the number finds that.
fn lowest_address(least: &Result<u64, String>) -> Check {
    let name = "lowest address";
    let covered = "the filter covers every offset";
    match least {
        Ok(least) => Check::ok(name, format!("vm.mmap_min_addr = {least}; {covered}")),
        Err(why) => Check::ok(
            name,
            format!("vm.mmap_min_addr is unknown ({why}); {covered}"),
        ),
    }
}

fn kernel(facts: &Facts) -> Vec<Check> {
    vec![
        Check::ok("kernel", format!("Linux {}", facts.kernel_release)),
        match &facts.seccomp_notify {
            Ok(()) => Check::ok("seccomp user notification", "supported"),
            Err(why) => Check::missing(
                "seccomp user notification",
                format!("not supported: {why}"),
                "run Linux 5.9 or later with CONFIG_SECCOMP_FILTER",
            ),
        },
        if facts.wait_killable {
            Check::ok("WAIT_KILLABLE_RECV", "supported")
        } else {
            Check::hint(
                "WAIT_KILLABLE_RECV",
                "not supported: a call that a signal ends is made again and answered from the first result",
                "run Linux 5.19 or later; `cgpu run` then uses it (runc cannot)",
            )
        },
        match &facts.pidfd_getfd {
            Ok(()) => Check::ok("pidfd_getfd", "supported"),
            Err(why) => Check::missing(
                "pidfd_getfd",
                format!("not usable: {why}"),
                "run Linux 5.6 or later, as root, without a seccomp profile that forbids it",
            ),
        },
        filters(&facts.filters),
        lowest_address(&facts.mmap_min_addr),
        match facts.cgroup {
            Cgroup::V2 => Check::ok("cgroups", "version 2"),
            Cgroup::V1 => Check::ok("cgroups", "version 1, alone or beside version 2"),
            Cgroup::None => Check::hint(
                "cgroups",
                "not mounted at /sys/fs/cgroup",
                "mount them; runc needs them, `cgpu run` does not",
            ),
        },
    ]
}

fn filters(read: &Result<(), FiltersUnread>) -> Check {
    const NAME: &str = "read seccomp filters";
    match read {
        Ok(()) => Check::ok(NAME, "possible (ptrace)"),
        Err(FiltersUnread::NoTrace(why)) => Check::missing(
            NAME,
            format!("processes cannot be traced: {why}"),
            "run this with CAP_SYS_PTRACE, set kernel.yama.ptrace_scope below 3 (which takes a restart of the host), and forbid ptrace by no seccomp profile",
        ),
        Err(FiltersUnread::NoFilters(why)) => Check::missing(
            NAME,
            format!("the kernel does not give out the filters of a process: {why}"),
            "use a kernel with CONFIG_CHECKPOINT_RESTORE, and run this under no seccomp profile",
        ),
        Err(FiltersUnread::NotTried(why)) => Check::hint(
            NAME,
            format!("not tried: {why}"),
            "a container whose seccomp filter cannot be read does not start, and the error says why",
        ),
    }
}

fn programs(facts: &Facts) -> Vec<Check> {
    vec![
        match &facts.runc {
            Ok(runc) if runc.notify => Check::ok(
                "runc",
                format!(
                    "{}, {}, with seccomp notify",
                    runc.path.display(),
                    runc.version
                ),
            ),
            Ok(runc) => Check::missing(
                "runc",
                format!(
                    "{}, {}, without seccomp notify",
                    runc.path.display(),
                    runc.version
                ),
                "install runc 1.1 or later built with libseccomp 2.5 or later",
            ),
            Err(why) => Check::missing(
                "runc",
                why,
                "install runc 1.1 or later, or name it as `runc` in cgpu.toml",
            ),
        },
        match &facts.broker {
            Ok(path) => Check::ok("broker", path.display().to_string()),
            Err(why) => Check::missing(
                "broker",
                why,
                "install cgpu-broker beside cgpu (root's, mode 0755), or name it as `broker.path` in cgpu.toml",
            ),
        },
    ]
}

fn driver(facts: &Facts) -> Vec<Check> {
    let named = match facts.driver {
        HostDriver::None => {
            return vec![Check::missing(
                "driver",
                "neither NVIDIA's driver nor cgpu-sim runs here",
                "load the NVIDIA driver, or simulate GPUs with `cgpu-sim --profile two-ada`",
            )];
        }
        HostDriver::Kernel => "the kernel's NVIDIA driver",
        HostDriver::Sim => "simulated cards (cgpu-sim)",
    };
    let mut checks = vec![match &facts.driver_version {
        Ok(version) => match (Release::of(*version), &facts.driver_file) {
            (Ok(_known), _) => Check::ok("driver", format!("{named} {version}")),
            (Err(_), Some((path, Ok(summary)))) => Check::ok(
                "driver",
                format!("{named} {version}, by {} {summary}", path.display()),
            ),
            (Err(unsupported), file) => Check::missing(
                "driver",
                match file {
                    Some((path, Err(why))) => {
                        format!("{named}: {unsupported}; and by {}: {why}", path.display())
                    }
                    Some((_, Ok(_))) | None => format!("{named}: {unsupported}"),
                },
                "install a driver of one of these branches, or add this version as docs/internals/adding-a-driver-version.md says",
            ),
        },
        Err(why) => Check::missing(
            "driver",
            format!("{named}: {why}"),
            "check that the driver is loaded (nvidia.ko), or that cgpu-sim has started",
        ),
    }];
    if let Some((version, Err(why))) = &facts.installed_driver {
        checks.push(Check::hint(
            "installed driver",
            format!("{version}, which the next boot loads: {why}"),
            "before a reboot, install a driver of one of these branches, or add this version as docs/internals/adding-a-driver-version.md says",
        ));
    }
    match (facts.driver, &facts.simulator) {
        (HostDriver::Sim, Ok(())) => checks.push(Check::ok("simulator", "answers")),
        (HostDriver::Sim, Err(why)) => checks.push(Check::missing(
            "simulator",
            format!("does not answer: {why}"),
            "start cgpu-sim again, with the same profile; running containers find their cards again by themselves",
        )),
        _ => {}
    }
    let inventory = match facts.driver {
        HostDriver::Kernel => "NVML",
        HostDriver::Sim | HostDriver::None => "cards",
    };
    checks.push(match &facts.cards {
        Ok(0) => Check::missing(inventory, "no card", "add a card to this host or profile"),
        Ok(count) => standing::cards(inventory, *count, &facts.unhealthy),
        Err(why) => Check::missing(
            inventory,
            why,
            "install the driver's user libraries (libnvidia-ml.so.1) of the same version",
        ),
    });
    checks.extend(standing::unshareable(&facts.cards, &facts.unshareable));
    checks.extend(facts.uvm.as_ref().map(uvm));
    if !facts.node_differences.is_empty() {
        checks.push(Check::hint(
            "device nodes",
            facts.node_differences.join("; "),
            "containers get nodes of their own; for the host's programs remove the node, and make it anew with `nvidia-modprobe -c 0 -u`",
        ));
    }
    checks.extend(facts.libraries.as_ref().map(libraries));
    checks
}

fn uvm(module: &Result<UvmModule, String>) -> Check {
    const NAME: &str = "nvidia-uvm";
    match module {
        Ok(UvmModule::Loaded { major }) => Check::ok(NAME, format!("loaded, major {major}")),
        Ok(UvmModule::Loadable { modprobe }) => Check::hint(
            NAME,
            format!(
                "not loaded; the next container with a GPU loads it ({})",
                modprobe.display()
            ),
            "load it when the host boots: write `nvidia-uvm` to /etc/modules-load.d/nvidia-uvm.conf",
        ),
        Ok(UvmModule::Missing(why)) => Check::missing(
            NAME,
            format!("not loaded, and cgpu cannot load it: {why}"),
            "run `modprobe nvidia-uvm`; CUDA does not start without it",
        ),
        Err(why) => Check::missing(NAME, why, "run this where /proc is mounted"),
    }
}

fn libraries(found: &Result<Libraries, String>) -> Check {
    const NAME: &str = "user libraries";
    match found {
        Ok(found) if found.libraries.is_empty() => Check::ok(NAME, &found.source),
        Ok(found) => {
            let left_out = match found.left_out.as_slice() {
                [] => String::new(),
                names => format!("; containers do not get {}", names.join(", ")),
            };
            let count = found.libraries.len();
            Check::ok(NAME, format!("{}: {count}{left_out}", found.source))
        }
        Err(why) => Check::missing(
            NAME,
            why,
            "correct it, or choose where they come from with `[driver] libraries` in cgpu.toml",
        ),
    }
}

fn isolation(facts: &Facts) -> Vec<Check> {
    let mode = match facts.isolation.mode {
        Mode::Strict => Check::ok("mode", "strict"),
        Mode::Compat => Check::hint(
            "mode",
            "compat: a hostile tenant can race the calls that its own process executes",
            "set `[isolation] mode = \"strict\"` in cgpu.toml",
        ),
    };
    let io_uring = match facts.isolation.io_uring {
        IoUring::Allow => Check::ok(
            "io_uring",
            "allowed: NVIDIA's driver does not support it, so it gives no access to card memory",
        ),
        IoUring::Deny => Check::ok("io_uring", "denied in containers with a quota"),
    };
    let mut checks = vec![mode, io_uring];
    let allowed = facts.isolation.allow.names();
    if !allowed.is_empty() {
        checks.push(Check::hint(
            "allowed beside a quota",
            format!(
                "{}: a container that uses one of these is not isolated",
                allowed.join(", ")
            ),
            "take them out of `[isolation] allow` in cgpu.toml",
        ));
    }
    // Present with a real driver alone; a kernel or module without HMM has no such parameter.
    if let Some(disabled) = &facts.uvm_disable_hmm {
        checks.push(match disabled.trim() {
            "Y" | "1" => Check::ok("HMM", "disabled (nvidia_uvm uvm_disable_hmm = Y)"),
            other => Check::hint(
                "HMM",
                format!(
                    "nvidia_uvm uvm_disable_hmm = {other}: pages of ordinary memory can migrate to a card, and no quota counts them"
                ),
                "load nvidia_uvm with uvm_disable_hmm=1",
            ),
        });
    }
    checks
}

fn state(facts: &Facts) -> Vec<Check> {
    let dir = facts.state_dir.display();
    vec![
        match &facts.configuration {
            Ok(source) => Check::ok("configuration", source),
            Err(why) => Check::missing("configuration", why, "correct the file"),
        },
        match &facts.state_dir_usable {
            Ok(()) => Check::ok("state folder", dir.to_string()),
            Err(why) => Check::missing(
                "state folder",
                format!("{dir}: {why}"),
                "make room there and let root write, or name another folder as `state_dir` in cgpu.toml",
            ),
        },
    ]
}

fn choice(facts: &Facts) -> Choice {
    let chosen = facts
        .backends
        .as_ref()
        .ok()
        .and_then(|survey| survey.chosen.as_ref().ok());
    let kind = chosen.map_or(Kind::Broker, |(kind, _)| *kind);
    let reason = match (kind, facts.driver) {
        (Kind::Broker, HostDriver::Kernel) => {
            "the kernel and runc can hand over system calls, and the loaded driver's layouts are known"
        }
        (Kind::Broker, HostDriver::Sim | HostDriver::None) => {
            "the kernel and runc can hand over system calls, and the cards are simulated"
        }
        (Kind::DriverLimit | Kind::Share, _) => chosen.map_or("", |(_, reason)| reason.as_str()),
    };
    Choice {
        backend: kind.name(),
        driver: facts.driver,
        memory: match kind {
            Kind::Broker => "hard: every allocation is decided by the container's broker",
            Kind::DriverLimit => {
                "hard: NVIDIA's driver limits the container's control group; managed memory on the card is not counted"
            }
            Kind::Share => "none: a container can use all of its card",
        },
        compute: match kind {
            Kind::Broker => {
                "policies 0 to 5 and priority: each container's broker controls the card's scheduler as far as the driver permits (`cgpu ps --wide`, LEVEL)"
            }
            Kind::DriverLimit | Kind::Share => "none: only the backend broker enforces shares",
        },
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use cards::Weakness;
    use vgpu::backend::Strength;
    use vgpu::config::Allow;

    use super::*;
    use crate::model::ps::State;

    fn healthy() -> Facts {
        Facts {
            configuration: Ok("/etc/cgpu/cgpu.toml".to_owned()),
            kernel_release: "6.1.0".to_owned(),
            is_root: true,
            seccomp_notify: Ok(()),
            wait_killable: true,
            pidfd_getfd: Ok(()),
            filters: Ok(()),
            mmap_min_addr: Ok(65536),
            cgroup: Cgroup::V2,
            runc: Ok(Runc {
                path: PathBuf::from("/usr/bin/runc"),
                version: "runc version 1.1.5".to_owned(),
                notify: true,
            }),
            broker: Ok(PathBuf::from("/usr/bin/cgpu-broker")),
            programs: Vec::new(),
            engines: Vec::new(),
            driver: HostDriver::Sim,
            driver_version: Ok("570.195.03".parse().unwrap()),
            driver_file: None,
            installed_driver: None,
            cards: Ok(2),
            simulator: Ok(()),
            unhealthy: Ok(Vec::new()),
            unshareable: Vec::new(),
            libraries: None,
            uvm: None,
            node_differences: Vec::new(),
            uvm_disable_hmm: None,
            isolation: IsolationConfig::default(),
            backends: Ok(survey(Kind::Broker)),
            state_dir: PathBuf::from("/run/cgpu"),
            state_dir_usable: Ok(()),
            containers: Ok(Vec::new()),
            forsaken: Vec::new(),
        }
    }

    #[test]
    fn the_document_is_as_scripts_know_it() {
        let mut document = assess(&healthy());
        document.reclaimed = Some(vec!["default/c1".to_owned()]);
        crate::model::snapshot::check(&document, "doctor");
    }

    fn survey(chosen: Kind) -> Survey {
        let offer = |backend: Kind, strength, why_not: Option<&str>| Offer {
            backend,
            strength,
            why_not: why_not.filter(|_| backend != chosen).map(str::to_owned),
        };
        Survey {
            offers: vec![
                offer(
                    Kind::Broker,
                    Strength::Exact,
                    Some("driver 615.71.09 is not supported"),
                ),
                offer(
                    Kind::DriverLimit,
                    Strength::Hard,
                    Some("the cards are simulated"),
                ),
                offer(Kind::Share, Strength::None, Some("the cards are simulated")),
            ],
            chosen: Ok((chosen, "auto".to_owned())),
        }
    }

    #[test]
    fn a_driver_that_only_its_own_limit_can_hold_is_enough() {
        let mut facts = healthy();
        facts.driver = HostDriver::Kernel;
        facts.driver_version = Ok("615.71.09".parse().unwrap());
        facts.broker = Err("why".into());
        facts.backends = Ok(survey(Kind::DriverLimit));
        let document = assess(&facts);
        let choice = document.choice.unwrap();
        assert_eq!((document.can_start, choice.backend), (true, "driver-limit"));
        assert!(choice.memory.contains("NVIDIA's driver"));
        assert_eq!(
            document.backends[0].why_not.as_deref(),
            Some("driver 615.71.09 is not supported")
        );
        assert_eq!(document.backends[1].why_not, None);

        let mut nothing = survey(Kind::Broker);
        nothing.chosen = Err("driver-limit is not offered (…)".to_owned());
        facts.backends = Ok(nothing);
        let document = assess(&facts);
        assert!(!document.can_start);
        let missing = document
            .checks
            .iter()
            .filter(|check| check.level == Level::Missing);
        assert_eq!(
            missing.map(|check| check.name).collect::<Vec<_>>(),
            ["broker", "driver", "backend"]
        );
    }

    type Damage = fn(&mut Facts);

    #[test]
    fn each_missing_thing_stops_a_start_and_reports_how_to_get_it() {
        let damages: [(&str, Damage); 16] = [
            ("card modes", |f| {
                f.unshareable = ["GPU-0", "GPU-1"]
                    .map(|uuid| (uuid.to_owned(), "why".to_owned()))
                    .to_vec()
            }),
            ("nvidia-uvm", |f| {
                f.uvm = Some(Ok(UvmModule::Missing("why".to_owned())))
            }),
            ("read seccomp filters", |f| {
                f.filters = Err(FiltersUnread::NoTrace("why".into()))
            }),
            ("read seccomp filters", |f| {
                f.filters = Err(FiltersUnread::NoFilters("why".into()))
            }),
            ("user libraries", |f| f.libraries = Some(Err("why".into()))),
            ("seccomp user notification", |f| {
                f.seccomp_notify = Err("why".into())
            }),
            ("pidfd_getfd", |f| f.pidfd_getfd = Err("why".into())),
            ("runc", |f| f.runc = Err("why".into())),
            ("runc", |f| f.runc.as_mut().unwrap().notify = false),
            ("broker", |f| f.broker = Err("why".into())),
            ("driver", |f| f.driver = HostDriver::None),
            ("driver", |f| {
                f.driver_version = Ok("470.1.1".parse().unwrap())
            }),
            ("simulator", |f| f.simulator = Err("why".into())),
            ("cards", |f| f.cards = Ok(0)),
            ("state folder", |f| f.state_dir_usable = Err("why".into())),
            ("configuration", |f| f.configuration = Err("why".into())),
        ];
        for (name, damage) in damages {
            let mut facts = healthy();
            damage(&mut facts);
            let document = assess(&facts);
            assert!(!document.can_start, "{name}");
            assert_eq!(document.choice, None, "{name}");
            let missing: Vec<&Check> = document
                .checks
                .iter()
                .filter(|check| check.level == Level::Missing)
                .collect();
            assert_eq!(missing.len(), 1, "{name}: {missing:?}");
            assert_eq!(missing[0].name, name);
            assert!(missing[0].remedy.is_some(), "{name}");
        }
    }

    #[test]
    fn an_unknown_driver_version_is_reported_with_the_known_ones_and_how_one_is_added() {
        let mut facts = healthy();
        facts.driver_version = Ok("610.43.02".parse().unwrap());
        let checks = assess(&facts).checks;
        let check = checks.iter().find(|check| check.name == "driver").unwrap();
        assert_eq!(check.level, Level::Missing);
        for part in ["610.43.02", "535 from 535.86.05", "595.44.02"] {
            assert!(check.found.contains(part), "{part}: {}", check.found);
        }
        let remedy = check.remedy.as_ref().unwrap();
        assert!(
            remedy.contains("docs/internals/adding-a-driver-version.md"),
            "{remedy}"
        );
    }

    #[test]
    fn a_file_of_the_operators_makes_a_version_known_or_reports_why_not() {
        let mut facts = healthy();
        facts.driver_version = Ok("610.43.02".parse().unwrap());
        let path = PathBuf::from("/etc/cgpu/drivers.d/610.43.02.json");
        let found = |facts: &Facts| {
            let mut checks = assess(facts).checks;
            checks.retain(|check| check.name == "driver");
            checks.remove(0)
        };
        facts.driver_file = Some((path.clone(), Ok("as R595".to_owned())));
        let check = found(&facts);
        assert_eq!(check.level, Level::Ok);
        assert!(
            check.found.ends_with("610.43.02.json as R595"),
            "{}",
            check.found
        );
        facts.driver_file = Some((path, Err("no release has its layouts".to_owned())));
        let check = found(&facts);
        assert_eq!(check.level, Level::Missing);
        assert!(
            check.found.contains("no release has its layouts"),
            "{}",
            check.found
        );
    }

    #[test]
    fn an_installed_driver_that_the_next_boot_cannot_use_is_reported() {
        let mut facts = healthy();
        let version = "610.43.02".parse().unwrap();
        facts.installed_driver = Some((version, Ok(())));
        let reported = |facts: &Facts| {
            let document = assess(facts);
            assert!(document.can_start);
            let mut checks = document.checks.into_iter();
            checks.find(|check| check.name == "installed driver")
        };
        assert!(reported(&facts).is_none());
        facts.installed_driver = Some((version, Err("it is not known".to_owned())));
        let check = reported(&facts).unwrap();
        assert_eq!(check.level, Level::Hint);
        assert!(check.found.contains("610.43.02") && check.found.contains("not known"));
    }

    #[test]
    fn what_only_makes_it_worse_does_not_stop_a_start() {
        let mut facts = healthy();
        facts.wait_killable = false;
        facts.cgroup = Cgroup::None;
        facts.containers = Ok(vec![Container {
            name: "default/c1".to_owned(),
            state: State::Stale,
        }]);
        facts.filters = Err(FiltersUnread::NotTried("why".into()));
        facts.node_differences = vec!["/dev/nvidia-uvm is 510:0".to_owned()];
        facts.unshareable = vec![("GPU-1".to_owned(), "is in MIG mode".to_owned())];
        facts.uvm = Some(Ok(UvmModule::Loadable {
            modprobe: "/sbin/modprobe".into(),
        }));
        let document = assess(&facts);
        assert!(document.can_start);
        let hints = document
            .checks
            .iter()
            .filter(|check| check.level == Level::Hint);
        assert_eq!(hints.count(), 7);
    }

    #[test]
    fn user_libraries_are_named_by_source_and_what_is_left_out() {
        let mut facts = healthy();
        let found = |facts: &Facts| {
            let check = assess(facts)
                .checks
                .into_iter()
                .find(|check| check.name == "user libraries");
            check.map(|check| (check.level, check.found))
        };
        assert_eq!(found(&facts), None);
        let mut libraries = Libraries {
            source: "CDI spec /etc/cdi/nvidia.yaml".to_owned(),
            libraries: vec![
                "libcuda.so.570.195.03".to_owned(),
                "libnvidia-ml.so.570.195.03".to_owned(),
            ],
            left_out: vec![
                "/dev/dri/card0".to_owned(),
                "/dev/nvidia-modeset".to_owned(),
            ],
        };
        facts.libraries = Some(Ok(libraries.clone()));
        let text = "CDI spec /etc/cdi/nvidia.yaml: 2; containers do not get /dev/dri/card0, /dev/nvidia-modeset";
        assert_eq!(found(&facts), Some((Level::Ok, text.to_owned())));
        libraries.libraries.clear();
        libraries.source = "none (driver.libraries = none)".to_owned();
        facts.libraries = Some(Ok(libraries.clone()));
        assert_eq!(found(&facts), Some((Level::Ok, libraries.source)));
    }

    #[test]
    fn what_loosens_isolation_is_recorded() {
        let found = |facts: &Facts, name: &str| {
            assess(facts)
                .checks
                .into_iter()
                .find(|check| check.name == name)
        };
        let mut facts = healthy();
        assert_eq!(found(&facts, "mode").unwrap().level, Level::Ok);
        assert_eq!(found(&facts, "HMM"), None);
        assert_eq!(found(&facts, "allowed beside a quota"), None);
        facts.isolation.mode = Mode::Compat;
        facts.isolation.allow = Allow::of(&[Weakness::Dri]);
        facts.isolation.io_uring = IoUring::Deny;
        for (text, level) in [("Y\n", Level::Ok), ("N\n", Level::Hint)] {
            facts.uvm_disable_hmm = Some(text.to_owned());
            assert_eq!(found(&facts, "HMM").unwrap().level, level, "{text:?}");
        }
        assert_eq!(found(&facts, "mode").unwrap().level, Level::Hint);
        let allowed = found(&facts, "allowed beside a quota").unwrap();
        assert!(allowed.found.starts_with("dri:"), "{allowed:?}");
        assert!(
            found(&facts, "io_uring")
                .unwrap()
                .found
                .starts_with("denied")
        );
        assert!(assess(&facts).can_start);
    }
}
