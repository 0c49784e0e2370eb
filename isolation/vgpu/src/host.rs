//! What this host offers: the driver behind the containers' cards, its inventory, and the files that containers see.

use arch::Arch;
use std::path::{Path, PathBuf};

use cards::reservations::Defaults;
use cards::{CardKind, DriverSpec, Grant, Inventory, SimulatedInventory};
use driver_libraries::drivers::{self, Decoding, UnknownDriver};
use driver_libraries::uvm_module::UvmModule;
use host_config::config::{ContainerTools, DriverKind};
use host_config::{Config, user_namespace};
use nvabi::proc_files::{DeviceFiles, PARAMS_PATH, VERSION_PATH, driver_version};
use nvabi::{DriverVersion, Release};
use releases::Known;
use rustix::fs::StatVfsMountFlags;
use serde_json::Value;
use spec::edit::Mount;
use sys::failed;
use verdict::filter::{Coverage, FilterSpec};

use crate::{Error, mount, state};

/// Refuses whoever is not the host's root: grants, brokers and the simulator's nodes are root's, and a broker of somebody else could
/// be killed or replaced by that one's containers. A rootless engine is root in a user namespace of its own, or nobody.
///
/// # Errors
/// [`Error::Rootless`].
pub(crate) fn require_root() -> Result<(), Error> {
    let user = nix::unistd::geteuid();
    if !user.is_root() {
        let who = format!("as user {user}");
        return Err(Error::Rootless { who });
    }
    let is_mapped = user_namespace::is_in_one();
    if is_mapped.map_err(failed("read", "/proc/self/uid_map"))? {
        let who = "in a user namespace".to_owned();
        return Err(Error::Rootless { who });
    }
    Ok(())
}

/// Whether a file can be bound where an image has none: the OCI runtime makes an empty one there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    Writable,
    /// On a file system that nobody can write; or there is no image.
    Fixed,
}

impl Image {
    /// That of a spec; a relative path in it starts at `bundle`. Whatever cannot be looked at counts as fixed: it is the OCI
    /// runtime's to refuse.
    pub(crate) fn of(spec: Option<&Value>, bundle: &Path) -> Self {
        let path = spec.and_then(|spec| spec.pointer("/root/path")?.as_str());
        let flags = path
            .and_then(|path| rustix::fs::statvfs(bundle.join(path)).ok())
            .map(|about| about.f_flag);
        match flags {
            Some(flags) if !flags.contains(StatVfsMountFlags::RDONLY) => Self::Writable,
            Some(_) | None => Self::Fixed,
        }
    }
}

/// The driver and its cards.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) driver: DriverSpec,
    pub(crate) inventory: Inventory,
    /// How the broker's calls are told; absent where the driver's layouts are not known.
    pub(crate) filter: Result<FilterSpec, UnknownDriver>,
    /// Its layouts, where a file of the operator's says what they are.
    pub(crate) layouts: Option<Known>,
    /// The kernel module behind managed memory; only the kernel's driver has one.
    pub(crate) uvm: Option<UvmModule>,
    /// How its operator has set the cards' device nodes.
    pub(crate) device_files: DeviceFiles,
}

impl Host {
    /// Finds the configured driver.
    pub(crate) fn find(config: &Config) -> Result<Self, Error> {
        match config.driver.kind {
            DriverKind::Kernel => Self::kernel(config),
            DriverKind::Sim => Self::simulated(config),
            DriverKind::Auto if Path::new(VERSION_PATH).exists() => Self::kernel(config),
            DriverKind::Auto if SimulatedInventory::path(&config.state_dir).exists() => {
                Self::simulated(config)
            }
            DriverKind::Auto => Err(Error::NoDriver {
                kernel: VERSION_PATH,
                simulated: SimulatedInventory::path(&config.state_dir),
            }),
        }
    }

    /// The same for whoever uses the state folder next: it is made where NVML's answer is to be saved in it.
    pub(crate) fn find_and_save(config: &Config) -> Result<Self, Error> {
        if config.driver.kind != DriverKind::Sim && Path::new(VERSION_PATH).exists() {
            state::prepare(&config.state_dir)?;
        }
        Self::find(config)
    }

    fn kernel(config: &Config) -> Result<Self, Error> {
        let path = Path::new(VERSION_PATH);
        let text = std::fs::read_to_string(path).map_err(failed("read", path))?;
        let version = driver_version(&text).ok_or(Error::KernelVersion { path: VERSION_PATH })?;
        let inventory = Inventory::kernel(&config.state_dir, version)?;
        let (filter, layouts) = filter(config, &inventory.driver_version, Coverage::Production)?;
        Ok(Self {
            driver: DriverSpec::Kernel,
            filter,
            layouts,
            inventory,
            uvm: Some(UvmModule::of(config)),
            // Absent in a driver without it: nodes are as they are without any parameter.
            device_files: DeviceFiles::of_params(
                &std::fs::read_to_string(PARAMS_PATH).unwrap_or_default(),
            ),
        })
    }

    fn simulated(config: &Config) -> Result<Self, Error> {
        let inventory = Inventory::simulated(&config.state_dir)?;
        let (filter, layouts) = filter(config, &inventory.driver_version, Coverage::Simulated)?;
        Ok(Self {
            driver: DriverSpec::Sim {
                socket: SimulatedInventory::socket_path(&config.state_dir),
            },
            filter,
            layouts,
            inventory,
            uvm: None,
            device_files: DeviceFiles::default(),
        })
    }

    /// The major of `nvidia-uvm`, which is loaded where it was not; `None` for simulated cards.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(crate) fn uvm_major(&self) -> Result<Option<u32>, Error> {
        Ok(self.uvm.as_ref().map(UvmModule::loaded).transpose()?)
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
        image: Image,
    ) -> Result<Vec<Mount>, Error> {
        let mut mounts = Vec::new();
        if let DriverSpec::Sim { .. } = self.driver {
            let cards = cards.iter().map(|card| format!("nvidia{}", card.minor));
            let shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
            for name in cards.chain(shared) {
                let source = config.state_dir.join("sim/dev").join(&name);
                mounts.push(mount::checked(
                    source,
                    Path::new("/dev").join(name),
                    &["bind", "rw", "nosuid", "noexec"],
                )?);
            }
        }
        let is_named = matches!(config.container_tools, ContainerTools::File(_));
        if let Some(tools) = config.container_tools.file()
            && (is_named || image == Image::Writable)
        {
            mounts.push(mount::tools(tools)?);
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
    let release = match &grant.layouts {
        Some(known) => known.release().map_err(|source| drivers::Error::File {
            path: PathBuf::from(cards::grant::FILE_NAME),
            source,
        })?,
        None => Release::of(version_of(&grant.driver_version)?).map_err(|version| {
            Error::DriverRelease {
                source: version.into(),
            }
        })?,
    };
    Ok(FilterSpec {
        release,
        coverage,
        arch: Arch::NATIVE,
    })
}

/// What a broker must be told of, and what a file says of the driver.
type Filter = (Result<FilterSpec, UnknownDriver>, Option<Known>);

fn filter(config: &Config, version: &str, coverage: Coverage) -> Result<Filter, Error> {
    Ok(match drivers::decoding(config, version_of(version)?) {
        Ok(Decoding { release, by_file }) => (
            Ok(FilterSpec {
                release,
                coverage,
                arch: Arch::NATIVE,
            }),
            by_file,
        ),
        Err(unknown) => (Err(unknown), None),
    })
}

fn version_of(version: &str) -> Result<DriverVersion, Error> {
    version.parse().map_err(|source| Error::DriverVersion {
        version: version.to_owned(),
        source,
    })
}
