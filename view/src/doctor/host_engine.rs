//! DCGM's host engine, which obeys whoever reaches its port.

use super::facts::Facts;
use super::{Check, HostDriver};

/// `None`: nobody listens there, or there is no card of NVIDIA's that it could act on.
pub(super) fn check(facts: &Facts) -> Option<Check> {
    (facts.host_engine && facts.driver == HostDriver::Kernel).then(|| {
        Check::hint(
            "DCGM",
            "something listens on TCP port 5555, as nv-hostengine does: a container with the host's network changes clocks and limits of all cards there, and has their memory used",
            "let nv-hostengine listen on a socket in a folder that is root's alone: `--domain-socket /run/dcgm/socket`",
        )
    })
}
