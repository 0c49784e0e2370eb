//! What this host offers to GPU containers, what is missing or broken, and how to get it.
//!
//! [`Facts`] are looked up by the command; [`assess`] judges them and touches nothing. What a start needs is judged here, what
//! goes on on the host in `standing`.

mod configured;
mod driver;
mod facts;
mod host_engine;
mod pods;
mod selinux;
mod standing;
mod state_folder;

use cards::{IoUring, Mode, RegisteredMemory};
use serde::Serialize;
use vgpu::backend::{Kind, Offer, Survey};

pub use self::configured::Configured;
pub use self::facts::{
    Cgroup, ClaimsFacts, Facts, FiltersUnread, KubeletServer, Runc, Unhealthy, UsedAgain,
};
pub use self::selinux::{EngineDomain, Selinux};
pub use self::standing::{Container, Engine, Named, Program, Standing};
use crate::JSON_VERSION;
use crate::host_driver::HostDriver;

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
    /// Containers whose leftovers were taken back; absent without `--repair`, and where the configuration cannot be read.
    pub reclaimed: Option<Vec<String>>,
    /// Cards whose report of bad health was taken back: containers are placed on them again; absent as `reclaimed` is, empty without `--card`.
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
    checks.extend(driver::checks(facts));
    checks.extend(isolation(facts));
    checks.extend(pods::check(facts));
    checks.extend(state(facts));
    checks.extend(configured::checks(facts));
    checks.extend(standing::containers(facts));
    checks.extend(state_folder::checks(facts));
    checks.extend(standing::engines(facts));
    checks.extend(selinux::check(facts));
    checks.extend(host_engine::check(facts));
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
const BROKER_S: [&str; 6] = [
    configured::OWN_GROUPS,
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
                "install runc 1.1 or later built with libseccomp 2.5 or later, or crun",
            ),
            Err(why) => Check::missing(
                "runc",
                why,
                "install runc 1.1 or later or crun, or name one of them as `runc` in cgpu.toml",
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
    let mut checks = vec![mode, io_uring, registered_memory(facts)];
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

/// The hole is the kernel's second read, which a simulated driver does not make.
fn registered_memory(facts: &Facts) -> Check {
    const NAME: &str = "registered memory";
    match (facts.isolation.registered_memory, facts.driver) {
        (RegisteredMemory::Refuse, _) => Check::ok(NAME, "refused (cudaHostRegister)"),
        (RegisteredMemory::Allow, HostDriver::Kernel) => Check::hint(
            NAME,
            "allowed (cudaHostRegister): a hostile program may take the host's memory by it, which nothing counts",
            "set `[isolation] registered_memory = \"refuse\"` in cgpu.toml where tenants are not trusted; programs that register memory fail then",
        ),
        (RegisteredMemory::Allow, HostDriver::Sim | HostDriver::None) => {
            Check::ok(NAME, "allowed (cudaHostRegister)")
        }
    }
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
mod tests;
