//! A `/dev` of the command's own: the host's entries bound in, of the cards' nodes only those of its slice.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

/// Which nodes of cards there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevPlan {
    /// Entries of the host's `/dev` that belong to a card's driver and stay.
    pub(super) kept: Vec<String>,
    /// Files from elsewhere, by their name in `/dev`.
    pub(super) added: Vec<(PathBuf, String)>,
}

impl DevPlan {
    /// Whether an entry of the host's `/dev` is bound in. Other ways to a card's memory (DRM, modeset, MIG) are not.
    fn keeps(&self, name: &str) -> bool {
        let is_card = name.starts_with("nvidia") || name == "dri";
        !is_card || self.kept.iter().any(|kept| kept == name)
    }
}

const NO_TYPE: Option<&str> = None;

/// Moves this process into a mount namespace with a `/dev` of the plan.
pub(super) fn enter(plan: &DevPlan) -> anyhow::Result<()> {
    let dev = Path::new("/dev");
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    mount(
        NO_TYPE,
        "/",
        NO_TYPE,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        NO_TYPE,
    )
    .context("keep mounts private")?;
    // Through this descriptor the host's /dev stays reachable once it is covered.
    let host = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_DIRECTORY.bits())
        .open(dev)
        .context("open /dev")?;
    mount(
        Some("tmpfs"),
        dev,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=0755,size=1m"),
    )
    .context("mount a /dev")?;
    let host_path = PathBuf::from(format!("/proc/self/fd/{}", host.as_raw_fd()));
    for entry in fs::read_dir(&host_path).context("list the host's /dev")? {
        let entry = entry.context("list the host's /dev")?;
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| plan.keeps(name)) {
            let source = host_path.join(&name);
            bind(&source, &dev.join(&name))
                .with_context(|| format!("bring /dev/{} in", name.display()))?;
        }
    }
    for (source, name) in &plan.added {
        bind(source, &dev.join(name))
            .with_context(|| format!("bring {} in as /dev/{name}", source.display()))?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> anyhow::Result<()> {
    let metadata = fs::symlink_metadata(source).context("look at it")?;
    if metadata.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(source)?, target).context("copy the link")?;
        return Ok(());
    }
    if metadata.is_dir() {
        fs::create_dir(target).context("make its folder")?;
    } else {
        File::create(target).context("make its file")?;
    }
    mount(
        Some(source),
        target,
        NO_TYPE,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        NO_TYPE,
    )
    .context("bind it")
}

#[cfg(test)]
mod tests {
    use super::DevPlan;

    #[test]
    fn only_the_slice_s_own_cards_are_brought_in() {
        let plan = DevPlan {
            kept: vec!["nvidia1".to_owned(), "nvidiactl".to_owned()],
            added: Vec::new(),
        };
        for name in ["null", "pts", "shm", "nvidia1", "nvidiactl"] {
            assert!(plan.keeps(name), "{name}");
        }
        for name in [
            "nvidia0",
            "nvidia10",
            "nvidia-modeset",
            "nvidia-caps",
            "dri",
        ] {
            assert!(!plan.keeps(name), "{name}");
        }
    }
}
