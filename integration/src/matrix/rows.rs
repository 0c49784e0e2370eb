//! The engines.

use anyhow::Result;

use crate::containerd::CGPU;
use crate::engines::Engines;
use crate::oci::OciRuntime;
use crate::origin::{ContainerdModule, Origin};
use crate::packages::Suite;
use crate::podman;
use crate::pods;
use crate::programs::Programs;

use super::containerd::Ctr;
use super::cri::Cri;
use super::docker::DockerRow;
use super::engine::Engine;
use super::nerdctl::NerdctlRow;
use super::podman::PodmanRow;

/// What the user types into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// containerd by `ctr`.
    Containerd,
    /// containerd by nerdctl.
    Nerdctl,
    /// containerd's CRI by `crictl`.
    Cri,
    /// CRI-O by `crictl`.
    CriO,
    /// dockerd by `docker`.
    Docker,
    /// podman, which has no daemon.
    Podman,
}

impl Family {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd (ctr)",
            Self::Nerdctl => "nerdctl",
            Self::Cri => "CRI (containerd, crictl)",
            Self::CriO => "CRI-O (crictl)",
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// The program that serves, or is, the engine.
    fn engine(self) -> &'static str {
        match self {
            Self::Containerd | Self::Cri => "containerd",
            Self::CriO => "CRI-O",
            Self::Nerdctl => "nerdctl",
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// Why a row's engine is not to be had here.
#[derive(Debug)]
pub struct Absent {
    /// The engine, as far as it is known.
    pub title: String,
    /// What is in the way.
    pub reason: String,
}

/// How the engine comes to cgpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frontend {
    /// Our shim by its runtime type.
    Shim,
    /// Our shim by a name in the engine's configuration: `runtime_path` of CRI, `runtimeType` of docker.
    ConfiguredShim,
    /// `cgpu-runtime` in the place of runc.
    Wrapper,
    /// `cgpu-hook` as podman's `precreate` hook.
    Hook,
    /// None: the engine's own shim and OCI runtime, to compare with.
    Plain,
}

impl Frontend {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shim => "shim by type",
            Self::ConfiguredShim => "shim by configuration",
            Self::Wrapper => "wrapper",
            Self::Hook => "hook",
            Self::Plain => "without cgpu",
        }
    }
}

/// One engine of one release with one frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// What the user types into.
    pub family: Family,
    /// Where the engine is from.
    pub origin: Origin,
    /// Who creates the containers.
    pub oci: OciRuntime,
    /// How it comes to cgpu.
    pub frontend: Frontend,
}

const fn row(family: Family, suite: Suite, oci: OciRuntime, frontend: Frontend) -> Row {
    from(family, Origin::Packages(suite), oci, frontend)
}

const fn built(
    family: Family,
    module: ContainerdModule,
    oci: OciRuntime,
    frontend: Frontend,
) -> Row {
    from(family, Origin::Modules(module), oci, frontend)
}

const fn from(family: Family, origin: Origin, oci: OciRuntime, frontend: Frontend) -> Row {
    Row {
        family,
        origin,
        oci,
        frontend,
    }
}

/// Every row. On Debian 12 the host release has containerd 1.6, docker 20.10, runc 1.1.5 and crun 1.8.
pub const ROWS: &[Row] = {
    use ContainerdModule::{V2_2, V2_3, V2_4};
    use Family::{Containerd, Cri, CriO, Docker, Nerdctl, Podman};
    use Frontend::{ConfiguredShim, Hook, Shim, Wrapper};
    use OciRuntime::{HostCrun, HostRunc, NewerCrun, NewerRunc};
    use Suite::{Host, Newer, Trixie};
    &[
        row(Containerd, Host, HostRunc, Shim),
        row(Containerd, Trixie, HostRunc, Shim),
        row(Containerd, Newer, HostRunc, Shim),
        row(Containerd, Newer, NewerRunc, Shim),
        row(Containerd, Host, HostCrun, Shim),
        row(Containerd, Newer, NewerCrun, Shim),
        built(Containerd, V2_2, NewerRunc, Shim),
        built(Containerd, V2_3, HostRunc, Shim),
        built(Containerd, V2_3, NewerRunc, Shim),
        built(Containerd, V2_4, NewerRunc, Shim),
        row(Containerd, Host, HostRunc, Wrapper),
        row(Containerd, Trixie, HostRunc, Wrapper),
        row(Containerd, Newer, NewerRunc, Wrapper),
        built(Containerd, V2_4, NewerRunc, Wrapper),
        row(Docker, Host, HostRunc, Wrapper),
        row(Docker, Trixie, HostRunc, Wrapper),
        row(Docker, Newer, NewerRunc, Wrapper),
        row(Docker, Trixie, HostRunc, Shim),
        row(Docker, Newer, HostRunc, Shim),
        row(Docker, Newer, NewerRunc, Shim),
        row(Docker, Newer, NewerRunc, ConfiguredShim),
        row(Nerdctl, Trixie, HostRunc, Shim),
        row(Nerdctl, Newer, NewerRunc, Shim),
        row(Nerdctl, Newer, HostRunc, Wrapper),
        row(Cri, Host, HostRunc, ConfiguredShim),
        row(Cri, Trixie, HostRunc, ConfiguredShim),
        row(Cri, Newer, NewerRunc, ConfiguredShim),
        built(Cri, V2_2, NewerRunc, ConfiguredShim),
        built(Cri, V2_3, NewerRunc, ConfiguredShim),
        built(Cri, V2_4, NewerRunc, ConfiguredShim),
        row(Cri, Host, HostRunc, Shim),
        row(Cri, Trixie, HostRunc, Shim),
        row(Cri, Newer, HostRunc, Shim),
        built(Cri, V2_4, NewerRunc, Shim),
        row(Cri, Host, HostRunc, Wrapper),
        row(Cri, Trixie, HostRunc, Wrapper),
        row(Cri, Newer, HostRunc, Wrapper),
        row(CriO, Host, HostRunc, Wrapper),
        row(CriO, Host, NewerRunc, Wrapper),
        row(Podman, Host, HostRunc, Wrapper),
        row(Podman, Host, HostRunc, Hook),
        row(Podman, Trixie, HostRunc, Wrapper),
        row(Podman, Trixie, NewerRunc, Hook),
        row(Podman, Trixie, NewerCrun, Wrapper),
    ]
};

impl Row {
    /// The same engine without cgpu.
    #[must_use]
    pub fn plain(self) -> Self {
        Self {
            frontend: Frontend::Plain,
            ..self
        }
    }

    /// Whether fifty containers are started on it: one row of each kind, or the whole takes hours.
    pub fn bears_load(&self) -> bool {
        use Frontend::{ConfiguredShim, Shim, Wrapper};
        use OciRuntime::{HostRunc, NewerRunc};
        use Suite::{Host, Newer};
        let kinds = [
            row(Family::Containerd, Host, HostRunc, Shim),
            row(Family::Containerd, Newer, NewerRunc, Shim),
            built(Family::Containerd, ContainerdModule::V2_4, NewerRunc, Shim),
            row(Family::Docker, Host, HostRunc, Wrapper),
            row(Family::Docker, Newer, NewerRunc, Shim),
            row(Family::Nerdctl, Newer, NewerRunc, Shim),
            row(Family::Cri, Newer, NewerRunc, ConfiguredShim),
            row(Family::Podman, Host, HostRunc, Wrapper),
        ];
        kinds.contains(self)
    }

    /// The engine in words, where it cannot be had and so cannot say its version.
    pub fn title(&self) -> String {
        format!("{} {}", self.family.engine(), self.origin.description())
    }

    /// The row for a command line: `docker/newer/shim by type/NewerRunc`.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{:?}",
            self.family.name(),
            self.origin.name(),
            self.frontend.name(),
            self.oci
        )
    }

    /// Starts the row's engine on a node of its own, or says why this machine cannot have it.
    ///
    /// # Errors
    /// It could be fetched but does not start.
    pub fn open(&self, programs: &Programs) -> Result<Result<Box<dyn Engine>, Absent>> {
        let absent = |reason: String| Absent {
            title: self.title(),
            reason,
        };
        if let Some(reason) = crate::skip::lacks_root() {
            return Ok(Err(absent(reason.to_owned())));
        }
        let engines = match Engines::fetch_with(self.origin, self.oci) {
            Ok(engines) => engines,
            Err(error) => return Ok(Err(absent(format!("{error:#}")))),
        };
        let client = match self.family {
            Family::Nerdctl => crate::nerdctl::program().map(drop),
            Family::Cri => crate::crictl::program().map(drop),
            Family::Podman => podman::Release::fetch(self.origin.suite()).map(drop),
            // podman puts its images where they are found.
            Family::CriO => crate::crictl::program()
                .and_then(|_| crate::crio::program())
                .and_then(|_| podman::Release::fetch(self.origin.suite()))
                .map(drop),
            Family::Containerd | Family::Docker => Ok(()),
        };
        if let Err(error) = client {
            return Ok(Err(absent(format!("{error:#}"))));
        }
        let (major, minor) = engines.containerd_version()?;
        let below = format!("containerd {major}.{minor}, {}", self.oci.title()?);
        if (self.family, self.frontend) == (Family::Cri, Frontend::ConfiguredShim)
            && (major, minor) < (1, 7)
        {
            return Ok(Err(Absent {
                title: below,
                reason: format!(
                    "containerd {major}.{minor} does not look at runtime_path and starts its own shim: name the type or the wrapper"
                ),
            }));
        }
        if (self.family, self.frontend) == (Family::CriO, Frontend::Plain) {
            let reason = "its configuration here has our runtime alone".to_owned();
            return Ok(Err(Absent {
                title: below,
                reason,
            }));
        }
        let engine: Box<dyn Engine> = match self.family {
            Family::Containerd => Box::new(Ctr::start(programs, &engines, self.frontend, below)?),
            Family::Docker => {
                let name = match self.frontend {
                    Frontend::Shim => CGPU,
                    Frontend::ConfiguredShim => "cgpu-type",
                    Frontend::Wrapper | Frontend::Hook => "cgpu",
                    Frontend::Plain => "runc",
                };
                let (major, minor) = engines.docker_version()?;
                let title = format!("docker {major}.{minor}, {below}");
                Box::new(DockerRow::start(programs, &engines, name, title)?)
            }
            Family::Nerdctl => {
                Box::new(NerdctlRow::start(programs, &engines, self.frontend, below)?)
            }
            Family::Cri => {
                let handler = match self.frontend {
                    Frontend::Shim => pods::BY_TYPE,
                    Frontend::ConfiguredShim => pods::BY_PATH,
                    Frontend::Wrapper | Frontend::Hook => pods::BY_WRAPPER,
                    Frontend::Plain => "runc",
                };
                Box::new(Cri::start(programs, &engines, handler, below)?)
            }
            Family::CriO => {
                let (major, minor) = crate::crio::release()?;
                let title = format!("CRI-O {major}.{minor}, {}", self.oci.title()?);
                let release = podman::Release::fetch(self.origin.suite())?;
                Box::new(Cri::start_crio(programs, &engines, &release, title)?)
            }
            Family::Podman => {
                let frontend = match self.frontend {
                    Frontend::Hook => podman::Frontend::Precreate,
                    Frontend::Plain => podman::Frontend::Plain,
                    Frontend::Shim | Frontend::ConfiguredShim | Frontend::Wrapper => {
                        podman::Frontend::Wrapper
                    }
                };
                // crun wants no hybrid control groups.
                let groups = match self.oci {
                    OciRuntime::HostRunc | OciRuntime::NewerRunc => podman::Cgroups::Host,
                    OciRuntime::HostCrun | OciRuntime::NewerCrun => podman::Cgroups::Unified,
                };
                let title = self.oci.title()?;
                let release = podman::Release::fetch(self.origin.suite())?;
                Box::new(PodmanRow::start(
                    programs, &engines, &release, frontend, groups, title,
                )?)
            }
        };
        Ok(Ok(engine))
    }
}
