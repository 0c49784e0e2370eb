//! The Debian packages where systemd is the first process: what no root without one shows.

use std::path::PathBuf;

use anyhow::Result;
use integration::cache::repository;
use integration::programs::{Programs, target_folder};
use packaging::{Build, CargoPackages, Form};

use super::steps::Step;

/// What the script runs and this machine may not have.
pub(super) const TOOLS: [(&str, &str); 1] = [("needrestart", "needrestart")];

/// Only for a guest: it installs packages where it runs.
pub(super) const UNDER_SYSTEMD: Step = Step::Script(
    "packages under systemd",
    include_str!("packages.sh"),
    &[
        "installed: =active -agent=active -sim=inactive -tree=inactive",
        "at boot: cgpu-agent.service cgpu.service",
        "enabled: =active -agent=active -sim=active -tree=active",
        "group: 0::/system.slice/cgpu.service/main",
        "a broker: 0::/system.slice/cgpu.service/",
        "ready: HTTP/1.0 200",
        "cgpu_card_healthy{",
        "memsize: 1073741824",
        "journal: \"CGPU_EVENT\":\"refused\"",
        "journal: \"CGPU_CONTAINER\":\"cgpu-run/",
        "after SIGKILL: -agent=active -tree=active , 1 containers in the tree",
        "libraries upgraded: neither the simulator nor the delegated group was restarted",
        "upgraded: neither the simulator nor the delegated group was restarted",
        "after upgrade: =active -agent=active -sim=active -tree=active , 1 container",
        "an agent that was stopped: -agent=inactive",
        "without the delegated group's unit: =inactive , 1 container",
        "removal under a container ends with 1",
        "units left: 0, failed: 0",
        "left: 0 folders, 0 processes, 0 mounts",
    ],
);

/// Boot 0 makes the containers, systemd reboots; boot 1 loses its power; boot 2 removes everything.
pub(super) const REBOOTS: Step = Step::Reboots(
    "reboots under containers",
    include_str!("reboots.sh"),
    &[
        "boot 0: at boot: cgpu-agent.service cgpu-sim.service cgpu.service containerd.service docker.service",
        "boot 0: always: 3 GiB ends with 0, 5 GiB with 3",
        "boot 0: always: 5 GiB ends with 0, 7 GiB with 3",
        "boot 1: after systemctl reboot: always plain unless-stopped",
        "boot 1: always: 3 GiB ends with 0, 5 GiB with 3",
        "boot 1: unless-stopped: 1 GiB ends with 0, 3 GiB with 3",
        "boot 1: plain: 0 nodes",
        "boot 1: 2 vGPUs, 2 groups of theirs, 2 in all",
        "boot 1: doctor ends with 0, nothing was left behind",
        "boot 1: failed units: 0",
        "boot 1: always: 5 GiB ends with 0, 7 GiB with 3",
        "boot 2: after a loss of power: always plain unless-stopped",
        "boot 2: always: 3 GiB ends with 0, 5 GiB with 3",
        "boot 2: unless-stopped: 1 GiB ends with 0, 3 GiB with 3",
        "boot 2: plain: 0 nodes",
        "boot 2: 2 vGPUs, 2 groups of theirs, 2 in all",
        "boot 2: doctor ends with 0, nothing was left behind",
        "boot 2: failed units: 0",
        "boot 2: by-hand: 1 GiB ends with 0, 3 GiB with 3",
        "left: 0 folders, 0 processes, 0 mounts",
    ],
);

/// Where a guest finds them: revision 1 and 2, a folder each.
pub(super) fn folder() -> PathBuf {
    target_folder().join("guest-packages")
}

/// Makes them of programs that are built.
///
/// # Errors
/// A program is missing, or a file cannot be written.
pub(super) fn make(programs: &Programs) -> Result<()> {
    for revision in [1, 2] {
        let build = Build {
            revision,
            ..Build::for_tests(
                repository(),
                programs.folder(),
                CargoPackages {
                    host: Programs::host_packages(),
                    containers: Programs::static_packages(),
                },
            )
        };
        packaging::write(&build, &[Form::Deb], &folder().join(revision.to_string()))?;
    }
    Ok(())
}
