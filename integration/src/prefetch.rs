//! What the tests download, fetched while the workspace is compiled: the network is idle then.
//!
//! Nothing depends on it. A test fetches what it needs itself, and finds it there, or waits until it is whole.

use crate::engines::Engines;
use crate::guest::Guest;
use crate::oci::OciRuntime;
use crate::packages::Suite;
use crate::podman;
use crate::roots::{Root, System};

/// The packages of the root in which this tree's own are installed, beside what debootstrap takes in any case.
pub const IN_ROOT: [&str; 2] = ["containerd", "runc"];

/// Fetches all of it, one after another. What cannot be had is for the tests to report: they try again, and skip aloud.
pub fn all() {
    drop(Engines::fetch(Suite::Host));
    drop(Root::make_once(&System::BOOKWORM, &IN_ROOT));
    for suite in [Suite::Trixie, Suite::Newer] {
        drop(Engines::fetch(suite));
    }
    for suite in [Suite::Host, Suite::Trixie] {
        drop(podman::Release::fetch(suite));
    }
    for runtime in [OciRuntime::NewerRunc, OciRuntime::NewerCrun] {
        drop(runtime.fetch());
    }
    drop(Guest::of(Suite::Host));
}
