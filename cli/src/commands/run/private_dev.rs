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

    /// A node that stays and is not there. Hosts of older drivers have none for tools.
    fn absent(&self, dev: &Path) -> Option<&str> {
        let needed = self.kept.iter().filter(|name| *name != "nvidia-uvm-tools");
        let mut names = needed.map(String::as_str);
        names.find(|name| !dev.join(name).exists())
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
    if let Some(absent) = plan.absent(dev) {
        anyhow::bail!(
            "the host has no /dev/{absent}, which GPU programs need: run `nvidia-modprobe -c 0 -u`, which makes the driver's nodes"
        );
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
    fn a_node_that_the_host_lacks_is_named() {
        let dev = tempfile::tempdir().unwrap();
        let plan = DevPlan {
            kept: ["nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
                .map(str::to_owned)
                .to_vec(),
            added: Vec::new(),
        };
        assert_eq!(plan.absent(dev.path()), Some("nvidia1"));
        for name in ["nvidia1", "nvidiactl"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(plan.absent(dev.path()), Some("nvidia-uvm"));
        std::fs::write(dev.path().join("nvidia-uvm"), "").unwrap();
        assert_eq!(plan.absent(dev.path()), None);
    }

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
