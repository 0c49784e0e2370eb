//! The host that a container runs on: this process goes to its root.

use std::path::Path;

use anyhow::{Context, bail};

/// Makes the host's root, mounted at `root`, this process's own. Links below it lead where they lead on the host, an engine finds the
/// libraries that it is linked with, and nothing that is opened by a path from now on is the container's.
///
/// # Errors
/// It is no root of a running host, or `CAP_SYS_CHROOT` is missing.
pub(super) fn enter(root: &Path) -> anyhow::Result<()> {
    let shown = root.display();
    let root = std::fs::canonicalize(root).with_context(|| format!("--host {shown}"))?;
    // Without the host's own procfs nobody could say what runs there.
    if std::fs::read_link(root.join("proc/self")).is_err() {
        bail!(
            "--host {shown}: it is not the root of a running host, with all that is mounted below it: {}/proc has no processes",
            root.display()
        );
    }
    if root != Path::new("/") {
        nix::unistd::chroot(&root)
            .with_context(|| format!("--host {shown}: chroot, which needs CAP_SYS_CHROOT"))?;
    }
    std::env::set_current_dir("/").context("the host's root")
}
