//! Sharing without isolation: the container gets the cards' nodes and nobody holds it.

use cards::{DriverSpec, Grant};
use host_config::config::Strength;

use super::{Backend, Ending, Held, Kind, init};
use crate::Error;
use crate::broker::Starting;
use crate::error::WhyNot;
use crate::host::Host;
use crate::state::ContainerDir;

/// Nobody.
#[derive(Debug)]
pub(super) struct Share;

impl Backend for Share {
    fn kind(&self) -> Kind {
        Kind::Share
    }

    fn strength(&self) -> Strength {
        Strength::None
    }

    fn offered(&self, host: &Host) -> Result<(), WhyNot> {
        match host.driver {
            DriverSpec::Kernel => Ok(()),
            DriverSpec::Sim { .. } => Err(WhyNot::Simulated),
        }
    }

    fn prepare(&self, _dir: &ContainerDir, _grant: &Grant) -> Result<Option<Starting>, Error> {
        Ok(None)
    }

    /// Nothing is set; but without a broker only init says that the container lives.
    fn verify_filter(&self, dir: &ContainerDir, _grant: &Grant, init: i32) -> Result<(), Error> {
        init::record(dir, init)
    }

    fn resize(&self, dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error> {
        Err(Error::NotHeld {
            key: dir.called(&grant.key),
        })
    }

    fn teardown(&self, _dir: &ContainerDir) -> Result<(), Error> {
        Ok(())
    }

    fn end(&self, _dir: &ContainerDir, _ending: &Ending<'_>) -> Result<(), Error> {
        Ok(())
    }
}
