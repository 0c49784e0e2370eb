//! What keeps a driver's side of a container alive while no broker runs.

use std::path::Path;

use cards::grant::{DriverSpec, Grant};
use driver::Binding;
use driver::executor::{self, SOCKET_NAME, Started};
use driver::sim::SimDriver;

use super::Error;
use crate::start::binding_of;

/// Held by the supervisor for the container's life.
pub(super) enum DriverSession {
    /// A simulator frees a session with its last connection: this one is never the last.
    Sim { _connection: Box<SimDriver> },
    /// The process in which strict mode's calls are made; it remembers the answers of calls whose broker was killed.
    Executor { _started: Started },
    /// The files themselves, which the vault holds, are the session.
    Files,
}

impl DriverSession {
    /// Needs the capabilities that an executor becomes nobody with.
    pub(super) fn open(dir: &Path, grant: &Grant, name: &str) -> Result<Self, Error> {
        if let DriverSpec::Sim { socket } = &grant.driver {
            let connection =
                SimDriver::connect(socket, name).map_err(|error| Error::Broker(error.into()))?;
            return Ok(Self::Sim {
                _connection: Box::new(connection),
            });
        }
        match binding_of(grant) {
            Binding::Executor => {
                let program = executor::beside_this_program()
                    .map_err(Error::io("finding the executor for", dir))?;
                let started = executor::spawn(&program, &dir.join(SOCKET_NAME))?;
                Ok(Self::Executor { _started: started })
            }
            Binding::Caller | Binding::None => Ok(Self::Files),
        }
    }
}
