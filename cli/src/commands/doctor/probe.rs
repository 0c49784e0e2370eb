//! Looks at the host. Nothing is changed but the saved inventory of real cards.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cards::Called;
use cards::claims::Claims;
use driver_libraries::uvm_module::Standing;
use host_config::config::{DEFAULT_PATH, PATH_VARIABLE, kubernetes};
use host_config::{Config, chain};
use nix::unistd::geteuid;
use serde_json::Value;
use sys::pidfd::PidFd;
use sys::traced::Traced;

use super::{host_engine, selinux, standing};
use view::doctor::{
    Cgroup, ClaimsFacts, Configured, Container, Facts, FiltersUnread, KubeletServer, Runc,
    Unhealthy, UsedAgain,
};
use view::host_driver::{ANSWER, HostDriver, kernel_version};
use view::ps;

/// Whether heterogeneous memory management is off; `Y` or `N`.
const UVM_DISABLE_HMM: &str = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm";

/// A process is stopped in microseconds unless the host is very busy.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn look(loaded: &Result<Config, host_config::config::Error>) -> Facts {
    let defaults = Config::default();
    let config = loaded.as_ref().unwrap_or(&defaults);
    let driver = HostDriver::of(config);
    let inventory = driver
        .inventory(config)
        .map_err(|error| format!("{error:#}"));
    let driver_version = match driver {
        HostDriver::Kernel => kernel_version().map_err(|error| format!("{error:#}")),
        HostDriver::Sim | HostDriver::None => version_of(&inventory),
    };
    let driver_file = driver_version
        .as_ref()
        .ok()
        .and_then(|version| driver_libraries::drivers::by_file(config, *version));
    let libraries = match (driver, &inventory) {
        (HostDriver::Kernel, Ok(Some(inventory))) => {
            let version = &inventory.driver_version;
            let found = driver_libraries::survey(config, version, &inventory.cards);
            Some(found.map_err(|error| chain(&error)))
        }
        _ => None,
    };
    let is_kernel = driver == HostDriver::Kernel;
    let uvm = is_kernel
        .then(|| driver_libraries::uvm_module::standing(config).map_err(|error| chain(&error)));
    Facts {
        configuration: match loaded {
            Ok(_) => Ok(configuration_source()),
            Err(error) => Err(chain(error)),
        },
        configured: configured(config, driver),
        kernel_release: nix::sys::utsname::uname()
            .map(|name| name.release().to_string_lossy().into_owned())
            .unwrap_or_else(|errno| format!("of unknown release ({errno})")),
        is_root: geteuid().is_root(),
        seccomp_notify: sys::seccomp::supported().map_err(|error| error.to_string()),
        wait_killable: knows_wait_killable(),
        pidfd_getfd: pidfd_getfd().map_err(|error| error.to_string()),
        filters: filters(),
        mmap_min_addr: mmap_min_addr(),
        cgroup: cgroup(),
        selinux: selinux::of_this_host(),
        host_engine: host_engine::listens(),
        runc: runc(config),
        broker: vgpu::broker::program(config).map_err(|error| chain(&error)),
        programs: standing::programs(),
        engines: super::super::install::survey(Path::new("/"), Path::new("/proc")),
        driver,
        driver_version,
        driver_file: driver_file.map(|(path, known)| {
            let known = known.map(|known| known.summary());
            (path, known.map_err(|error| chain(&error)))
        }),
        installed_driver: is_kernel.then(|| installed_driver(config)).flatten(),
        unhealthy: unhealthy(config, &inventory),
        unshareable: unshareable(&inventory),
        node_differences: match (&uvm, &inventory) {
            (Some(uvm), Ok(Some(inventory))) => node_differences(uvm, inventory),
            _ => Vec::new(),
        },
        cards: inventory.map(|inventory| inventory.map_or(0, |inventory| inventory.cards.len())),
        simulator: HostDriver::simulator_answers(config, ANSWER),
        libraries,
        uvm,
        uvm_disable_hmm: is_kernel
            .then(|| std::fs::read_to_string(UVM_DISABLE_HMM).ok())
            .flatten(),
        kubelet: kubernetes::kubelet(),
        authority: config.kubernetes.authority,
        claims: claims(config),
        isolation: config.isolation.clone(),
        backends: vgpu::backend::survey(config).map_err(|error| chain(&error)),
        state_dir: config.state_dir.clone(),
        state_dir_usable: standing::state_dir(&config.state_dir),
        containers: containers(config),
        forsaken: standing::forsaken(&config.state_dir, Path::new("/proc")),
        elsewhere: standing::elsewhere(config, Path::new("/proc")),
    }
}

fn configured(config: &Config, driver: HostDriver) -> Configured {
    let kind = match driver {
        HostDriver::Kernel => cards::CardKind::Real,
        HostDriver::Sim | HostDriver::None => cards::CardKind::Simulated,
    };
    let default_request = match vgpu::configured::default_request(config) {
        Ok(fits) => fits,
        // Rows of their own say what is wrong with driver and cards.
        Err(error) if error.fault() == vgpu::Fault::Host => None,
        Err(error) => Some(Err(chain(&error))),
    };
    Configured {
        tools: vgpu::configured::container_tools(config).map_err(|error| chain(&error)),
        own_groups: vgpu::configured::own_groups(config).map_err(|error| chain(&error)),
        rules: vgpu::configured::rules(config, kind).map_err(|error| chain(&error)),
        default_request,
    }
}

fn node_differences(uvm: &Result<Standing, String>, inventory: &cards::Inventory) -> Vec<String> {
    let major = match uvm {
        Ok(Standing::Loaded { major }) => Some(*major),
        _ => None,
    };
    driver_libraries::host_nodes::differences(&inventory.cards, major)
}

/// The agent's sockets in the kubelet's folder, as `cluster::kubelet` and `cluster::device_plugin` name them: folder and how the name begins.
const SOCKETS: [(KubeletServer, &str, &str); 2] = [
    (KubeletServer::Driver, "plugins_registry", "gpu.cgpu.io"),
    (KubeletServer::DevicePlugin, "device-plugins", "cgpu.sock"),
];

fn claims(config: &Config) -> ClaimsFacts {
    let pods = kubernetes::kubelet();
    let is_there = |folder: &str, prefix: &str| {
        let folder = pods.as_ref().map(|pods| pods.with_file_name(folder));
        let sockets = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let mut sockets = sockets.into_iter().flatten().flatten();
        sockets.any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
    };
    let mut sockets = SOCKETS.into_iter();
    let served_by = sockets
        .find(|(_, folder, prefix)| is_there(folder, prefix))
        .map(|(server, _, _)| server);
    let prepared = Claims::of(&config.state_dir).all();
    ClaimsFacts {
        prepared: prepared
            .map(|records| records.len())
            .map_err(|error| chain(&error)),
        served_by,
    }
}

fn mmap_min_addr() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/sys/vm/mmap_min_addr");
    let text = text.map_err(|error| error.to_string())?;
    text.trim().parse().map_err(|_not| "no number".to_owned())
}

fn version_of(
    inventory: &Result<Option<cards::Inventory>, String>,
) -> Result<nvabi::DriverVersion, String> {
    match inventory {
        Ok(Some(inventory)) => inventory
            .driver_version
            .parse()
            .map_err(|error| format!("{:?}: {error}", inventory.driver_version)),
        Ok(None) => Err("there is no driver".to_owned()),
        Err(why) => Err(why.clone()),
    }
}

fn configuration_source() -> String {
    match std::env::var_os(PATH_VARIABLE) {
        Some(path) => PathBuf::from(path).display().to_string(),
        None if Path::new(DEFAULT_PATH).exists() => DEFAULT_PATH.to_owned(),
        None => format!("built-in defaults ({DEFAULT_PATH} does not exist)"),
    }
}

/// What `modinfo` says of the module that is installed; `None`: it is not there, or says nothing.
fn installed_driver(config: &Config) -> Option<(nvabi::DriverVersion, Result<(), String>)> {
    let output = Command::new("modinfo")
        .args(["-F", "version", "-b"])
        .arg(&config.driver.root)
        .arg("nvidia")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let version = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .ok()?;
    let known = driver_libraries::drivers::check(config, version);
    Some((version, known.map_err(|error| chain(&error))))
}

/// A kernel that knows the flag goes on to read the (absent) program; another refuses the flag.
fn knows_wait_killable() -> bool {
    const NEW_LISTENER: u64 = 1 << 3;
    const WAIT_KILLABLE_RECV: u64 = 1 << 5;
    match sys::seccomp::install_nothing(NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(nix::errno::Errno::EINVAL as i32),
    }
}

fn pidfd_getfd() -> io::Result<()> {
    let own = std::process::id().cast_signed();
    // Any open file will do: a copy of standard output, and of standard error where that is closed.
    let process = PidFd::open(own)?;
    process
        .duplicate(1)
        .or_else(|_closed| process.duplicate(2))?;
    Ok(())
}

/// Tries on a process of its own what a frontend does with a container's first one.
fn filters() -> Result<(), FiltersUnread> {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| FiltersUnread::NotTried(format!("cat: {error}")))?;
    let read = || {
        let traced = Traced::seize(child.id().cast_signed())
            .and_then(|traced| traced.stop(STOP_PATIENCE).map(|()| traced))
            .map_err(|error| FiltersUnread::NoTrace(error.to_string()))?;
        let filters = traced.filters();
        filters
            .map(drop)
            .map_err(|error| FiltersUnread::NoFilters(error.to_string()))
    };
    let read = read();
    // It ends with its input.
    drop(child.stdin.take());
    match child.wait() {
        Ok(_ended) => read,
        Err(error) => Err(FiltersUnread::NotTried(format!("cat: {error}"))),
    }
}

fn cgroup() -> Cgroup {
    match nix::sys::statfs::statfs("/sys/fs/cgroup") {
        Ok(mounted) if mounted.filesystem_type() == nix::sys::statfs::CGROUP2_SUPER_MAGIC => {
            Cgroup::V2
        }
        Ok(mounted) if mounted.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC => Cgroup::V1,
        _ => Cgroup::None,
    }
}

fn runc(config: &Config) -> Result<Runc, String> {
    let path = vgpu::runc::path(config).map_err(|error| chain(&error))?;
    let reports = |argument: &str| {
        let output = Command::new(&path)
            .arg(argument)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} {argument}: {error}", path.display()))?;
        Ok::<_, String>(output.stdout)
    };
    let version = reports("--version")?;
    let version = String::from_utf8_lossy(&version);
    // `features` came with 1.1, as did the listener: a runtime without it has neither.
    let features: Option<Value> = serde_json::from_slice(&reports("features")?).ok();
    let notify = features
        .as_ref()
        .and_then(|features| features.pointer("/linux/seccomp/actions"))
        .and_then(Value::as_array)
        .is_some_and(|actions| actions.iter().any(|action| action == "SCMP_ACT_NOTIFY"));
    Ok(Runc {
        path,
        version: version
            .lines()
            .next()
            .unwrap_or("of unknown version")
            .to_owned(),
        notify,
    })
}

/// The cards that nothing is placed on.
fn unhealthy(
    config: &Config,
    inventory: &Result<Option<cards::Inventory>, String>,
) -> Result<Vec<Unhealthy>, String> {
    let Ok(Some(inventory)) = inventory else {
        return Ok(Vec::new());
    };
    let mut unhealthy = Vec::new();
    for card in &inventory.cards {
        let health = cards::health::of(&config.state_dir, &card.uuid);
        let reported = health.map_err(|error| chain(&error))?;
        let reported = reported.map(|health| (health.reason, UsedAgain::WhenCleared));
        let lost = || Some((card.lost()?.0, UsedAgain::WhenFound));
        if let Some((reason, used_again)) = reported.or_else(lost) {
            unhealthy.push(Unhealthy {
                uuid: card.uuid.to_string(),
                reason,
                used_again,
            });
        }
    }
    Ok(unhealthy)
}

/// The cards that are set so that nobody can share them.
fn unshareable(inventory: &Result<Option<cards::Inventory>, String>) -> Vec<(String, String)> {
    let found = inventory.as_ref().ok().and_then(Option::as_ref);
    let cards = found.map_or(&[][..], |inventory| &inventory.cards);
    cards
        .iter()
        .filter_map(|card| Some((card.uuid.to_string(), card.unshareable()?.to_string())))
        .collect()
}

fn containers(config: &Config) -> Result<Vec<Container>, String> {
    let each = ps::each(config, ANSWER).map_err(|error| chain(&error))?;
    let container = |(key, read): ps::Each| match read {
        Ok(vgpu) => Container {
            name: vgpu.called().to_string(),
            state: Ok(vgpu.state),
        },
        Err(error) => Container {
            name: Called::from(&key).to_string(),
            state: Err(chain(&error)),
        },
    };
    Ok(each.into_iter().map(container).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_can_be_looked_at_where_a_process_can_be_traced() {
        let read = filters();
        if geteuid().is_root() {
            assert_eq!(read, Ok(()));
        } else {
            assert!(
                matches!(read, Err(FiltersUnread::NoFilters(_))),
                "only root may: {read:?}"
            );
        }
    }
}
