//! A node's host on which nothing of cgpu is: what a chart that installs it finds.
//!
//! ```text
//!   a mount namespace of this thread
//!     /usr/bin         the host's, with the engine's programs
//!     /etc, /opt       the host's, without cgpu's; changes are gone at the end
//!     /run             empty
//!     /etc/containerd  the folder of the node's containerd
//!     /etc/cgpu        which cards there are
//!     /run/cgpu        the node's state folder
//! ```

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::engines::Engines;
use crate::own_host::{bind, enter_without_cgpu};
use crate::packages::Suite;
use crate::rig::PodRig;

/// Simulated cards, and all else as an installation has it.
const CONFIGURATION: &str = "[driver]\nkind = \"sim\"\n";

/// Takes this thread to the host.
pub(super) fn enter(suite: Suite) -> Result<()> {
    let engines = Engines::fetch(suite)?;
    // The kubelet's node has a `/var/lib` of its own.
    enter_without_cgpu(&engines, &["/usr/sbin", "/etc", "/opt"])
}

/// Gives the node's folders the places that an ordinary host has them at.
pub(super) fn settle(rig: &PodRig) -> Result<()> {
    for (from, to) in [
        (rig.engine.folder(), Path::new("/etc/containerd")),
        (&rig.node.state_dir(), Path::new("/run/cgpu")),
    ] {
        fs::create_dir_all(to)?;
        bind(from, to)?;
    }
    fs::create_dir_all("/etc/cgpu")?;
    fs::write("/etc/cgpu/cgpu.toml", CONFIGURATION)?;
    // Shims get this file's name from containerd.
    rig.node.edit_config(|_| CONFIGURATION.to_owned())
}
