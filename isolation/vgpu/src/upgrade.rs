//! Another broker for a running container.

use std::time::Duration;

use control::{Request, Upgraded, client};

use crate::broker::program;
use crate::container::Container;
use crate::error::Error;

/// A new broker starts in milliseconds; its supervisor gives up on one that does not after ten seconds.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(15);

/// Replaces the container's broker by the program that a container that starts now would get, while the container runs.
///
/// # Errors
/// The broker does not answer, or says why it was not replaced; the former program serves on then.
pub fn upgrade(container: &Container) -> Result<Upgraded, Error> {
    let program = program(container.config())?;
    let socket = container.dir().control_socket();
    let request = Request::Upgrade { program };
    client::ask_for(&socket, &request, UPGRADE_PATIENCE).map_err(|error| Error::BrokerUpgrade {
        key: container.called(),
        problem: error.to_string(),
    })
}
