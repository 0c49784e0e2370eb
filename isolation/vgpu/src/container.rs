//! The noun of most calls: a container by its name, the configuration that holds it, and its folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cards::{Backend, Called, ContainerKey, FrontendKind, Grant};
use host_config::{Config, chain};

use crate::error::Error;
use crate::own_group::{Governor, OwnGroup};
use crate::process;
use crate::state::ContainerDir;

/// The log of a container's supervisor and brokers.
pub(crate) const LOG: &str = "broker.log";
/// What the crate `logfile` moves that into when it is full.
const OLDER_LOG: &str = "broker.1.log";

/// Where a container's log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logs {
    /// The older lines; there once the file was full.
    pub older: PathBuf,
    /// The file that is written.
    pub current: PathBuf,
}

/// A container by its name, with the configuration that holds it. Whether it has a vGPU, its folder says.
#[derive(Debug, Clone)]
pub struct Container {
    config: Arc<Config>,
    key: ContainerKey,
    dir: ContainerDir,
}

impl Container {
    /// The container of this name. For one that was made already, `config` is what was kept when it was made
    /// ([`Config::kept_in`]): what the host's file says by now is for other containers.
    #[must_use]
    pub fn new(config: impl Into<Arc<Config>>, key: ContainerKey) -> Self {
        let config = config.into();
        let dir = ContainerDir::of(&config.state_dir, &key);
        Self { config, key, dir }
    }

    /// Its name.
    #[must_use]
    pub fn key(&self) -> &ContainerKey {
        &self.key
    }

    /// The configuration that holds it.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// What it was granted; `None`: it has no vGPU.
    ///
    /// # Errors
    /// A grant that cannot be read.
    pub fn granted(&self) -> Result<Option<Grant>, Error> {
        self.dir.exists().then(|| self.grant()).transpose()
    }

    /// Its folder in the state folder; absent once it has ended.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// What its supervisor and brokers log: the file that is written, and before it the older lines.
    #[must_use]
    pub fn logs(&self) -> Logs {
        Logs {
            older: self.dir.file(OLDER_LOG),
            current: self.dir.file(LOG),
        }
    }

    /// Notes the container's first process, for a frontend that looks at its filter only when it runs: until then nobody but the
    /// runtime, which waits for the frontend, may take notice of its end.
    ///
    /// # Errors
    /// It is gone, or cannot be noted.
    pub fn record_first_process(&self, pid: i32) -> Result<(), Error> {
        process::record(&self.dir, pid)
    }

    /// Whether this number is still the noted first process's. Where none is noted, nobody knows of another.
    #[must_use]
    pub fn is_first_process(&self, pid: i32) -> bool {
        !process::is_another(&self.dir, pid)
    }

    /// As an answer to a person names it.
    #[must_use]
    pub fn called(&self) -> Called {
        self.dir.called(&self.key)
    }

    pub(crate) fn dir(&self) -> &ContainerDir {
        &self.dir
    }

    /// The grant of a container that has one.
    pub(crate) fn grant(&self) -> Result<Grant, Error> {
        Ok(Grant::read(self.dir.path())?)
    }

    /// Its vGPU's own processes get the weight and the quota of CPU time that the container has by now.
    pub(crate) fn follow(&self) -> Result<(), Error> {
        let Some(grant) = self.granted()? else {
            return Ok(());
        };
        let governor = Governor::of(self.config(), &grant);
        self.with_own_group(&grant, |group| group.follow_again(self.dir(), governor))
    }

    /// Changes the group of a vGPU's own processes, if it has one. `cgpu run` goes on where that fails.
    pub(crate) fn with_own_group(
        &self,
        grant: &Grant,
        change: impl FnOnce(&OwnGroup) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let group = OwnGroup::of(self.config(), self.key());
        if grant.backend != Backend::Broker || !group.exists() {
            return Ok(());
        }
        match change(&group) {
            Err(error) if grant.frontend.kind == FrontendKind::Run => {
                tracing::warn!(key = %self.key(), error = %chain(&error), "the broker's CPU time is not limited as the command's");
                Ok(())
            }
            other => other,
        }
    }
}
