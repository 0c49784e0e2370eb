//! Where an engine comes from: distribution packages, or Go's module proxy for releases that no distribution has.

use std::path::PathBuf;

use anyhow::Result;

use crate::go::{Effort, GoProgram};
use crate::packages::Suite;

/// Where containerd, and what belongs to it, comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A release's packages.
    Packages(Suite),
    /// containerd's Go modules. Everything else is the host release's.
    Modules(ContainerdModule),
}

impl From<Suite> for Origin {
    fn from(suite: Suite) -> Self {
        Self::Packages(suite)
    }
}

impl Origin {
    /// The name of its folders in the cache.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packages(suite) => suite.name(),
            Self::Modules(module) => module.build().name,
        }
    }

    /// Where it comes from, in words.
    pub fn description(self) -> &'static str {
        match self {
            Self::Packages(Suite::Host) => "of this machine's release",
            Self::Packages(Suite::Trixie) => "of Debian 13",
            Self::Packages(Suite::Newer) => "of Debian 14",
            Self::Packages(Suite::Arm64) => "of Debian 12, for arm64",
            Self::Packages(Suite::Noble) => "of Ubuntu 24.04",
            Self::Modules(_) => "of Go's module proxy",
        }
    }

    /// The release that packages are taken from.
    pub fn suite(self) -> Suite {
        match self {
            Self::Packages(suite) => suite,
            Self::Modules(_) => Suite::Host,
        }
    }
}

/// A release of containerd that is built from its modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerdModule {
    /// The last that starts a shim with flags and environment alone.
    V2_2,
    /// The first that tells a shim its parameters on standard input, and reads both its streams as the answer.
    V2_3,
    /// The newest.
    V2_4,
}

impl ContainerdModule {
    /// Builds containerd, `ctr` and containerd's own shim once: the folder with them. An error is a reason to skip aloud.
    ///
    /// # Errors
    /// As [`GoProgram::fetch_all`].
    pub fn fetch(self) -> Result<PathBuf> {
        self.build().fetch_all()
    }

    fn build(self) -> GoProgram {
        let (name, module, sums) = match self {
            Self::V2_2 => (
                "containerd-2.2",
                include_str!("../containerd/2.2/go.mod"),
                include_str!("../containerd/2.2/go.sum"),
            ),
            Self::V2_3 => (
                "containerd-2.3",
                include_str!("../containerd/2.3/go.mod"),
                include_str!("../containerd/2.3/go.sum"),
            ),
            Self::V2_4 => (
                "containerd-2.4",
                include_str!("../containerd/2.4/go.mod"),
                include_str!("../containerd/2.4/go.sum"),
            ),
        };
        GoProgram {
            name,
            packages: &[
                "github.com/containerd/containerd/v2/cmd/containerd",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/ctr",
            ],
            tags: "no_btrfs,no_devmapper,no_zfs",
            module,
            sums,
            source: "",
            effort: Effort::USUAL,
        }
    }
}
