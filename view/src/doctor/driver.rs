//! Checks of the driver, its cards, modules, nodes and libraries.

use std::path::Path;

use driver_libraries::Survey as Libraries;
use driver_libraries::uvm_module::Standing as UvmModule;
use host_config::Config;
use nvabi::Release;

use super::{Check, Facts, standing};
use crate::host_driver::HostDriver;

/// What names the state folder to the simulator, which does not read `cgpu.toml`; nothing for the folder that it takes by itself.
fn own_state_dir(state_dir: &Path) -> String {
    if state_dir == Config::default().state_dir {
        return String::new();
    }
    format!(" --state-dir {}", state_dir.display())
}

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let named = match facts.driver {
        HostDriver::None => {
            return vec![Check::missing(
                "driver",
                "neither NVIDIA's driver nor cgpu-sim runs here",
                format!(
                    "load the NVIDIA driver, or simulate GPUs with `cgpu-sim --profile two-ada{}`",
                    own_state_dir(&facts.state_dir)
                ),
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
                "install a driver of one of these branches, or add this version as docs/guide/support.md says",
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
            "before a reboot, install a driver of one of these branches, or add this version as docs/guide/support.md says",
        ));
    }
    match (facts.driver, &facts.simulator) {
        (HostDriver::Sim, Ok(())) => checks.push(Check::ok("simulator", "answers")),
        (HostDriver::Sim, Err(why)) => checks.push(Check::missing(
            "simulator",
            format!("does not answer: {why}"),
            "start cgpu-sim again, with the same profile; running containers find their cards again once their programs open them anew",
        )),
        _ => {}
    }
    let (inventory, remedy) = match facts.driver {
        HostDriver::Kernel => (
            "NVML",
            "install the driver's user libraries (libnvidia-ml.so.1) of the same version",
        ),
        HostDriver::Sim | HostDriver::None => ("cards", "start cgpu-sim again"),
    };
    checks.push(match &facts.cards {
        Ok(0) => Check::missing(inventory, "no card", "add a card to this host or profile"),
        Ok(count) => standing::cards(inventory, *count, &facts.unhealthy),
        Err(why) => Check::missing(inventory, why, remedy),
    });
    checks.extend(standing::unshareable(facts));
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
