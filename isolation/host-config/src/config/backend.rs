//! Table `[backend]`: who holds containers to their memory, and how well.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Table `[backend]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BackendConfig {
    /// Which one.
    pub kind: BackendKind,
    /// A container that nothing at least as strong can hold is refused.
    pub min_strength: Strength,
    /// The program that sets NVIDIA's own limits; absent: `cgpu-limits` among cgpu's own programs.
    pub limits_program: Option<PathBuf>,
    /// NVIDIA's management library; absent: what the linker finds for `libnvidia-ml.so.1`.
    pub nvml_library: Option<PathBuf>,
    /// Where cgroup v2 is mounted.
    pub cgroup_root: PathBuf,
}

/// The backends to choose from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum BackendKind {
    /// The strongest that the host offers.
    #[default]
    Auto,
    /// A broker only.
    Broker,
    /// NVIDIA's own limit only.
    DriverLimit,
    /// Nobody holds any container.
    Share,
}

impl BackendKind {
    /// As the configuration spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How well memory is held, weakest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Strength {
    /// Not at all.
    None,
    /// A container cannot hold more than its quota of what the driver counts. Managed memory is not among that while it
    /// is on the card.
    #[default]
    Hard,
    /// A container cannot hold more than its quota, and every byte is accounted.
    Exact,
}

impl Strength {
    /// The word of configuration, tables and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self {
            kind: BackendKind::Auto,
            min_strength: Strength::Hard,
            limits_program: None,
            nvml_library: None,
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
        }
    }
}
