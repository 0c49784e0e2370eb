//! A broker of the container's own decides every call: exact, and the default.

use cards::Grant;
use host_config::Config;
use host_config::config::Strength;

use super::{Backend, Ending, Held, Kind, Runtime, StartWatch, filter, quota};
use crate::error::WhyNot;
use crate::host::Host;
use crate::own_group::OwnGroup;
use crate::process::Process;
use crate::state::ContainerDir;
use crate::{Error, broker, runc};

/// `cgpu-broker`.
#[derive(Debug)]
pub(super) struct Broker<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: Runtime,
}

impl Backend for Broker<'_> {
    fn kind(&self) -> Kind {
        Kind::Broker
    }

    fn strength(&self) -> Strength {
        Strength::Exact
    }

    fn offered(&self, host: &Host) -> Result<(), WhyNot> {
        let calls = |error| WhyNot::Calls(Box::new(error));
        sys::seccomp::supported().map_err(|source| calls(Error::KernelWithoutNotify { source }))?;
        host.filter.as_ref().map_err(Clone::clone)?;
        match self.runtime {
            Runtime::Oci => runc::require_notify(self.config).map_err(calls),
            Runtime::Own => Ok(()),
        }
    }

    fn prepare(
        &self,
        dir: &ContainerDir,
        grant: &Grant,
    ) -> Result<Option<broker::Starting>, Error> {
        broker::start(self.config, dir, grant).map(Some)
    }

    /// The filter holds from the container's first instruction on, if it is what it should be.
    fn verify_filter(&self, dir: &ContainerDir, grant: &Grant, init: i32) -> Result<(), Error> {
        filter::hold(dir, grant, init)
    }

    fn is_verified_at_start(&self, dir: &ContainerDir) -> bool {
        filter::is_loaded_at_start(dir)
    }

    fn watch_start(
        &self,
        dir: &ContainerDir,
        grant: &Grant,
        init: i32,
    ) -> Result<Option<StartWatch>, Error> {
        filter::watch_start(dir, grant, init)
    }

    fn verify_exec(
        &self,
        dir: &ContainerDir,
        grant: &Grant,
        process: &Process,
    ) -> Result<(), Error> {
        filter::verify_exec(dir, grant, process)
    }

    fn resize(&self, dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error> {
        quota::tell(dir, grant)
    }

    fn teardown(&self, _dir: &ContainerDir) -> Result<(), Error> {
        Ok(())
    }

    fn end(&self, dir: &ContainerDir, ending: &Ending<'_>) -> Result<(), Error> {
        broker::stop(self.config, dir, ending.is_still)?;
        let Some(key) = dir.key() else {
            return Ok(());
        };
        match OwnGroup::of(self.config, &key).remove(ending.patience, ending.is_still) {
            Ok(()) => {}
            Err(error @ Error::StillEnding { .. }) => return Err(error),
            // Nobody is in it: the next reclaim finds it.
            Err(error) => {
                tracing::warn!(%key, error = %host_config::chain(&error), "a control group stays");
            }
        }
        // A vGPU without a group has one as well.
        broker::await_executor(dir, ending.patience, ending.is_still)
    }
}
