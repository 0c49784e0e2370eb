//! Why a backend cannot be had on this host.

use cards::Backend;
use driver_libraries::drivers::UnknownDriver;
use host_config::chain;
use host_config::config::Strength;

use super::Error;

/// Why a backend is not offered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhyNot {
    /// Only a broker is before the simulator.
    #[error("the cards are simulated, which works with a broker only")]
    Simulated,
    /// The driver's calls cannot be decoded.
    #[error(transparent)]
    Release(#[from] UnknownDriver),
    /// The kernel or the runtime cannot hand calls over.
    #[error("{}", chain(.0))]
    Calls(Box<Error>),
    /// No cgroup v2.
    #[error("it needs cgroup v2 at {}", root.display())]
    CgroupV1 {
        /// `backend.cgroup_root`
        root: std::path::PathBuf,
    },
    /// The driver, or NVML.
    #[error("{}", chain(.0))]
    Limits(#[from] limits::Error),
    /// `min_strength` is higher.
    #[error("its memory limit has strength {}, and backend.min_strength is {}", .strength.name(), .min.name())]
    TooWeak {
        /// The backend's.
        strength: Strength,
        /// The host's.
        min: Strength,
    },
}

impl WhyNot {
    /// As the error of a host that has no other choice.
    pub(crate) fn into_error(self, backend: Backend) -> Error {
        match self {
            Self::Release(source) => Error::DriverRelease { source },
            Self::Calls(error) => *error,
            why @ (Self::Simulated
            | Self::CgroupV1 { .. }
            | Self::Limits(_)
            | Self::TooWeak { .. }) => Error::NotOffered {
                backend: backend.name(),
                why: Box::new(why),
            },
        }
    }
}
