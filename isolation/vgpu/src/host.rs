//! What this host offers: the driver behind the containers' cards, its inventory, and the files that containers see.

use std::path::{Path, PathBuf};

use cards::book::Defaults;
use cards::{CardKind, DriverSpec, Grant, Inventory, SimulatedInventory};
use nvabi::{DriverVersion, Release, UnsupportedRelease};
use verdict::filter::{Coverage, FilterSpec};

use crate::config::DriverKind;
use crate::lifecycle::Mount;
use crate::{Config, Error};

/// Where the kernel's driver says its version.
const KERNEL_VERSION: &str = "/proc/driver/nvidia/version";

/// Where `cgpu` is found inside a container.
const TOOL_TARGET: &str = "/usr/bin/cgpu";

/// The driver and its cards.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) driver: DriverSpec,
    pub(crate) inventory: Inventory,
    /// How the broker's calls are told; absent where the driver's layouts are not known.
    pub(crate) filter: Result<FilterSpec, UnsupportedRelease>,
    pub(crate) uvm_major: Option<u32>,
}

impl Host {
    /// Finds the configured driver.
    pub(crate) fn find(config: &Config) -> Result<Self, Error> {
        match config.driver.kind {
            DriverKind::Kernel => Self::kernel(config),
            DriverKind::Sim => Self::simulated(config),
            DriverKind::Auto if Path::new(KERNEL_VERSION).exists() => Self::kernel(config),
            DriverKind::Auto if SimulatedInventory::path(&config.state_dir).exists() => {
                Self::simulated(config)
            }
            DriverKind::Auto => Err(Error::NoDriver {
                kernel: KERNEL_VERSION,
                simulated: SimulatedInventory::path(&config.state_dir),
            }),
        }
    }

    fn kernel(config: &Config) -> Result<Self, Error> {
        let path = Path::new(KERNEL_VERSION);
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let version = kernel_version(&text).ok_or(Error::KernelVersion {
            path: KERNEL_VERSION,
        })?;
        let inventory = Inventory::kernel(&config.state_dir, version)?;
        let devices = Path::new("/proc/devices");
        let text = std::fs::read_to_string(devices).map_err(Error::io("read", devices))?;
        Ok(Self {
            driver: DriverSpec::Kernel,
            filter: filter(&inventory.driver_version, Coverage::Production)?,
            inventory,
            uvm_major: character_major(&text, "nvidia-uvm"),
        })
    }

    fn simulated(config: &Config) -> Result<Self, Error> {
        let inventory = Inventory::simulated(&config.state_dir)?;
        Ok(Self {
            driver: DriverSpec::Sim {
                socket: SimulatedInventory::socket_path(&config.state_dir),
            },
            filter: filter(&inventory.driver_version, Coverage::Simulated)?,
            inventory,
            uvm_major: None,
        })
    }

    /// The rules of cards that have none of their own.
    pub(crate) fn defaults(&self, config: &Config) -> Defaults {
        Defaults {
            rules: config.compute.rules(self.inventory.cards.len()),
            kind: match self.driver {
                DriverSpec::Kernel => CardKind::Real,
                DriverSpec::Sim { .. } => CardKind::Simulated,
            },
        }
    }

    /// The files that a container with these cards finds bound in.
    pub(crate) fn mounts(
        &self,
        config: &Config,
        cards: &[cards::CardGrant],
    ) -> Result<Vec<Mount>, Error> {
        let mut mounts = Vec::new();
        if let DriverSpec::Sim { .. } = self.driver {
            let cards = cards.iter().map(|card| format!("nvidia{}", card.minor));
            let shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
            for name in cards.chain(shared) {
                let source = config.state_dir.join("sim/dev").join(&name);
                mounts.push(Mount::new(
                    source,
                    Path::new("/dev").join(name),
                    &["bind", "rw", "nosuid", "noexec"],
                )?);
            }
        }
        if let Some(tools) = &config.container_tools {
            mounts.push(Mount::new(
                tools.clone(),
                PathBuf::from(TOOL_TARGET),
                &["bind", "ro", "nosuid", "nodev"],
            )?);
        }
        Ok(mounts)
    }
}

/// The calls of a container's broker.
pub(crate) fn filter_of(grant: &Grant) -> Result<FilterSpec, Error> {
    let coverage = match grant.driver {
        DriverSpec::Kernel => Coverage::Production,
        DriverSpec::Sim { .. } => Coverage::Simulated,
    };
    filter(&grant.driver_version, coverage)?.map_err(|source| Error::DriverRelease { source })
}

fn filter(
    version: &str,
    coverage: Coverage,
) -> Result<Result<FilterSpec, UnsupportedRelease>, Error> {
    let parsed: DriverVersion = version.parse().map_err(|source| Error::DriverVersion {
        version: version.to_owned(),
        source,
    })?;
    Ok(Release::of(parsed).map(|release| FilterSpec { release, coverage }))
}

/// The first word of the first line that reads as a version: the words before it differ between the open and the closed module.
fn kernel_version(text: &str) -> Option<&str> {
    let line = text
        .lines()
        .find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace()
        .find(|word| word.contains('.') && word.parse::<DriverVersion>().is_ok())
}

fn character_major(devices: &str, name: &str) -> Option<u32> {
    let characters = devices.split("Block devices:").next()?;
    characters
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .find(|(_, other)| other.trim() == name)?
        .0
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modules_say_their_version() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.195.03  Sat Sep 20 00:00:00 UTC 2025\nGCC version:  gcc version 12.2.0\n",
                "570.195.03",
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
                "580.65.06",
            ),
        ] {
            assert_eq!(kernel_version(text), Some(version));
        }
        assert_eq!(kernel_version("GCC version:  gcc version 12.2.0\n"), None);
    }

    #[test]
    fn the_major_of_a_character_device_is_not_a_block_device_s() {
        let devices =
            "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n";
        assert_eq!(character_major(devices, "nvidia-uvm"), Some(511));
        assert_eq!(character_major(devices, "loop"), None);
    }
}
