//! The noun of most calls: a container by its name, the configuration that holds it, and its folder.

use std::sync::Arc;

use cards::{ContainerKey, Grant};

use crate::backend::{self, Backend, Kind};
use crate::events::Log;
use crate::state::ContainerDir;
use crate::{Config, Error};

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

    pub(crate) fn dir(&self) -> &ContainerDir {
        &self.dir
    }

    /// The grant of a container that has one.
    pub(crate) fn grant(&self) -> Result<Grant, Error> {
        Ok(Grant::read(self.dir.path())?)
    }

    pub(crate) fn backend(&self, kind: Kind) -> Box<dyn Backend + '_> {
        backend::of(&self.config, kind)
    }

    /// The log of a container that has its folder.
    pub(crate) fn log(&self) -> Log {
        Log::of(self)
    }
}
