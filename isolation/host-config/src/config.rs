//! `/etc/cgpu/cgpu.toml`: what the host's administrator decides. Unknown keys are refused.

mod backend;
mod compute;
mod container_tools;
mod driver;
mod error;
mod isolation;
pub mod kubernetes;
mod metrics;
mod request;
mod types;

use std::path::{Component, Path, PathBuf};

use cards::placement::Policy;
use cards::store::{DiskStore, Store};
use serde::Deserialize;

pub use self::backend::{BackendConfig, BackendKind, Strength};
pub use self::compute::ComputeConfig;
pub use self::container_tools::ContainerTools;
pub use self::driver::{CdiFolders, DriverConfig, DriverKind, LibrarySource};
pub use self::error::Error;
pub use self::isolation::{Allow, IsolationConfig, OtherCards};
pub use self::kubernetes::{Authority, KubernetesConfig};
pub use self::metrics::{Metrics, MetricsConfig, WrongMetrics};
pub use self::request::{DefaultTerms, DisableRule, EnvironmentRule, RequestConfig};
use crate::trusted;

/// Where the configuration is, unless `$CGPU_CONFIG` names another file.
pub const DEFAULT_PATH: &str = "/etc/cgpu/cgpu.toml";

/// The variable that names another file. Only the frontends' own environment counts, which the administrator sets.
pub const PATH_VARIABLE: &str = "CGPU_CONFIG";

/// Of a simulated card; which kind this host has is not known here.
const TENANTS_MAX: u32 = 100;

/// The name, in a container's bundle, of the configuration that it was made by.
pub const KEPT: &str = "cgpu-kept.toml";

/// A configuration is a page of text.
const SIZE_MAX_BYTES: u64 = 1 << 20;

/// The host's configuration; every key has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where cgpu keeps its state; root's alone. It need not survive a reboot.
    pub state_dir: PathBuf,
    /// The OCI runtime; absent: `runc`, else `crun`, from [`RUNC_DIRS`].
    pub runc: Option<PathBuf>,
    /// The broker program; absent: `cgpu-broker` among cgpu's own programs.
    pub broker: BrokerConfig,
    /// A static `cgpu` that GPU containers find at `/usr/bin/cgpu`, read-only.
    pub container_tools: ContainerTools,
    /// Who executes the containers' calls.
    pub driver: DriverConfig,
    /// Who holds containers to their memory.
    pub backend: BackendConfig,
    /// How cards are chosen.
    pub placement: PlacementConfig,
    /// How requests are read.
    pub request: RequestConfig,
    /// How containers are held, and what they may have beside a quota.
    pub isolation: IsolationConfig,
    /// How cards' time is divided.
    pub compute: ComputeConfig,
    /// Whose word counts in a pod.
    pub kubernetes: KubernetesConfig,
    /// What the agent serves, and where.
    pub metrics: MetricsConfig,
    /// What it was read from.
    #[serde(skip)]
    pub source: Source,
}

/// A configuration as it was written, and where. Two that are written in different ways may be the same.
#[derive(Clone, Default)]
pub struct Source {
    text: String,
    path: Option<PathBuf>,
}

impl PartialEq for Source {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Source {}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.text.len())
    }
}

impl Source {
    /// The host's file, there or not; `None`: it was made by a program.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Table `[broker]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerConfig {
    /// The program; absent: `cgpu-broker` among cgpu's own programs.
    pub path: Option<PathBuf>,
    /// How long a broker may take to say that it is ready.
    pub start_timeout_ms: u64,
    /// How long a broker may take to end when it is told to, before it is killed.
    pub stop_timeout_ms: u64,
    /// A call that has been at the driver for longer is reported.
    pub hung_call_ms: u64,
    /// Where control groups are mounted: version 2's tree, or below it those of version 1's controllers.
    pub cgroup_root: PathBuf,
}

/// Table `[placement]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementConfig {
    /// Where the request does not say.
    pub policy: Policy,
}

/// Where `runc` is looked for: folders that only the administrator writes, never `$PATH`.
pub const RUNC_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/cgpu"),
            runc: None,
            broker: BrokerConfig::default(),
            container_tools: ContainerTools::default(),
            driver: DriverConfig::default(),
            backend: BackendConfig::default(),
            placement: PlacementConfig::default(),
            request: RequestConfig::default(),
            isolation: IsolationConfig::default(),
            compute: ComputeConfig::default(),
            kubernetes: KubernetesConfig::default(),
            metrics: MetricsConfig::default(),
            source: Source::default(),
        }
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            path: None,
            start_timeout_ms: 5_000,
            stop_timeout_ms: 2_000,
            hung_call_ms: cards::Watch::default().hung_call_ms,
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
        }
    }
}

/// Whether the file is not there, in a folder that is there or in none. A link has a name whatever it leads to.
fn is_absent(path: &Path) -> bool {
    let is_there = |part: &&Path| match std::fs::symlink_metadata(part) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    let nearest = path.ancestors().find(is_there);
    nearest.is_some_and(|nearest| nearest != path && nearest.is_dir())
}

impl Config {
    /// Reads the file that `$CGPU_CONFIG` names, else [`DEFAULT_PATH`]; without the latter all defaults hold.
    ///
    /// # Errors
    /// A named file that is absent; a file that is unreadable, oversized, wrong, or that others can change: the error names file,
    /// key and value.
    pub fn load() -> Result<Self, Error> {
        match std::env::var_os(PATH_VARIABLE) {
            Some(path) => Self::from_trusted(Path::new(&path)),
            None => Self::load_default(),
        }
    }

    /// Reads [`DEFAULT_PATH`], whatever the environment says; without that file all defaults hold.
    ///
    /// # Errors
    /// As [`Config::load`]. A link that leads nowhere, and what cannot be looked at, is no absent file.
    pub fn load_default() -> Result<Self, Error> {
        Self::from_trusted_or_default(Path::new(DEFAULT_PATH))
    }

    fn from_trusted_or_default(path: &Path) -> Result<Self, Error> {
        if is_absent(path) {
            let mut config = Self::default();
            config.source.path = Some(path.to_owned());
            return Ok(config);
        }
        Self::from_trusted(path)
    }

    /// Reads one file that decides over this host's containers.
    ///
    /// # Errors
    /// As [`Config::load`]; others than root (or this user) can change it, or what is on the way to it.
    pub fn from_trusted(path: &Path) -> Result<Self, Error> {
        trusted::file(trusted::CONFIGURATION, path)?;
        Self::from_file(path)
    }

    /// Keeps the text in the bundle of a container that is made by this configuration: until its end it is held by it, whatever becomes
    /// of the host's file.
    ///
    /// # Errors
    /// The bundle cannot be written.
    pub fn keep_in(&self, bundle: &Path) -> Result<(), Error> {
        let path = bundle.join(KEPT);
        let temporary = bundle.join(format!("{KEPT}.tmp"));
        let written = DiskStore
            .write(&temporary, self.source.text.as_bytes())
            .and_then(|()| DiskStore.rename(&temporary, &path));
        written.map_err(|source| Error::Keep { path, source })
    }

    /// The configuration by which the container of this bundle was made. `None`: there is none, for a container without a vGPU; or others
    /// can change it.
    #[must_use]
    pub fn kept_in(bundle: &Path) -> Option<Self> {
        let path = bundle.join(KEPT);
        // The host's own serves as well, as long as it is right.
        Self::from_trusted(&path)
            .inspect_err(|error| {
                if path.exists() {
                    tracing::warn!(error = %sys::chain(error), "the configuration of the container cannot be used");
                }
            })
            .ok()
    }

    /// The container of this bundle has come to its end.
    pub fn forget(bundle: &Path) {
        if let Err(error) = sys::absent_is_fine(std::fs::remove_file(bundle.join(KEPT))) {
            tracing::warn!(bundle = %bundle.display(), %error, "the configuration of the container stays in its bundle");
        }
    }

    /// Reads one file, whoever wrote it.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let bytes = cards::store::read_capped("configuration", path, SIZE_MAX_BYTES)?;
        let text = String::from_utf8(bytes).map_err(|error| Error::Text {
            path: path.to_owned(),
            source: error.utf8_error(),
        })?;
        Self::from_text(path, &text)
    }

    /// Reads the text of a file; `path` is for the error.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key, a value that is not allowed.
    pub fn from_text(path: &Path, text: &str) -> Result<Self, Error> {
        types::check(path, text)?;
        let mut config: Self = toml::from_str(text).map_err(|source| Error::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        config.source = Source {
            text: text.to_owned(),
            path: Some(path.to_owned()),
        };
        config.check_paths(path)?;
        config.check_ranges(path)?;
        config.check_backend(path)?;
        Ok(config)
    }

    fn check_paths(&self, path: &Path) -> Result<(), Error> {
        let named_tools = match &self.container_tools {
            ContainerTools::File(path) => Some(path),
            ContainerTools::Installed | ContainerTools::Off => None,
        };
        let absolute = [
            ("state_dir", Some(&self.state_dir)),
            ("runc", self.runc.as_ref()),
            ("broker.path", self.broker.path.as_ref()),
            ("broker.cgroup_root", Some(&self.broker.cgroup_root)),
            ("container_tools", named_tools),
            (
                "backend.limits_program",
                self.backend.limits_program.as_ref(),
            ),
            ("backend.nvml_library", self.backend.nvml_library.as_ref()),
            ("backend.cgroup_root", Some(&self.backend.cgroup_root)),
            ("driver.root", Some(&self.driver.root)),
            ("driver.releases", Some(&self.driver.releases)),
        ];
        for (key, value) in absolute {
            if let Some(value) = value.filter(|value| !value.is_absolute()) {
                let allowed = match key {
                    "container_tools" => "an absolute path, or off",
                    _ => "an absolute path",
                };
                return Err(wrong(path, key, &value.display(), allowed));
            }
        }
        let mut data = self.isolation.data_folders.iter();
        if let Some(folder) = data.find(|folder| {
            let is_plain = folder.components().all(|part| part != Component::ParentDir);
            !folder.is_absolute() || !is_plain || *folder == Path::new("/")
        }) {
            let allowed = "absolute paths without `..`, and not /";
            return Err(wrong(
                path,
                "isolation.data_folders",
                &folder.display(),
                allowed,
            ));
        }
        if (self.driver.libraries, &self.driver.cdi) == (LibrarySource::Cdi, &CdiFolders::Off) {
            let allowed = "auto, discover or none, since driver.cdi = off";
            return Err(wrong(path, "driver.libraries", &"cdi", allowed));
        }
        Ok(())
    }

    fn check_ranges(&self, path: &Path) -> Result<(), Error> {
        for (key, value) in [
            ("broker.start_timeout_ms", self.broker.start_timeout_ms),
            ("broker.stop_timeout_ms", self.broker.stop_timeout_ms),
        ] {
            if !(1..=600_000).contains(&value) {
                return Err(wrong(path, key, &value, "1 to 600000"));
            }
        }
        for (key, value) in [
            ("broker.hung_call_ms", self.broker.hung_call_ms),
            ("isolation.reconcile_ms", self.isolation.reconcile_ms),
        ] {
            if !(100..=3_600_000).contains(&value) {
                return Err(wrong(path, key, &value, "100 to 3600000"));
            }
        }
        if !(1..=TENANTS_MAX).contains(&self.compute.max_tenants) {
            return Err(wrong(
                path,
                "compute.max_tenants",
                &self.compute.max_tenants,
                "1 to 25, on simulated cards to 100",
            ));
        }
        if !(20..=99).contains(&self.compute.prio_ratio) {
            return Err(wrong(
                path,
                "compute.prio_ratio",
                &self.compute.prio_ratio,
                "20 to 99, in percent",
            ));
        }
        Ok(())
    }

    fn check_backend(&self, path: &Path) -> Result<(), Error> {
        let reachable = match self.backend.kind {
            BackendKind::Auto | BackendKind::Broker => Strength::Exact,
            BackendKind::DriverLimit => Strength::Hard,
            BackendKind::Share => Strength::None,
        };
        if self.backend.min_strength > reachable {
            return Err(wrong(
                path,
                "backend.min_strength",
                &self.backend.min_strength.name(),
                match reachable {
                    Strength::None => "none, since backend.kind = share holds nothing",
                    Strength::Hard | Strength::Exact => {
                        "none or hard, since backend.kind = driver-limit is not exact"
                    }
                },
            ));
        }
        Ok(())
    }
}

fn wrong(
    path: &Path,
    key: &'static str,
    value: &dyn std::fmt::Display,
    allowed: &'static str,
) -> Error {
    Error::Value {
        path: path.to_owned(),
        key,
        value: value.to_string(),
        allowed,
    }
}

#[cfg(test)]
mod tests;
