//! What keeps a driver's side of a container alive while no broker runs.

use std::os::fd::OwnedFd;
use std::path::Path;

use cards::grant::{DriverSpec, Grant};
use cards::sockets;
use driver::executor;
use driver::sim::SimDriver;
use driver::{Binding, Driver};

use super::Error;
use super::host_environment::record_executor;
use crate::grant::binding_of;
use crate::topology::Topology;

/// Begins the driver's side of a container; it ends when nobody has the descriptor open. `None`: the files themselves, which the
/// fd store holds, keep it.
///
/// Needs the capabilities that an executor becomes nobody with.
pub(super) fn begin(dir: &Path, grant: &Grant, name: &str) -> Result<Option<OwnedFd>, Error> {
    if let DriverSpec::Sim { socket } = &grant.driver {
        let session = SimDriver::connect(socket, name).and_then(|driver| driver.session());
        return session.map_err(Error::from);
    }
    match binding_of(grant) {
        // It remembers the answers of calls whose broker was killed.
        Binding::Executor => {
            let program = executor::beside_this_program()
                .map_err(Error::io("finding the executor for", dir))?;
            let cards = grant.cards.iter().map(|card| card.uuid.as_str().to_owned());
            let near = Topology::of_host().node_of(&cards.collect::<Vec<_>>());
            let started = executor::spawn(
                &program,
                &sockets::of(dir, sockets::EXECUTOR),
                near.as_ref(),
            )?;
            record_executor(dir, started.child.id())
                .map_err(Error::io("naming the executor in", dir))?;
            Ok(Some(started.lifeline))
        }
        Binding::Caller | Binding::None => Ok(None),
    }
}
