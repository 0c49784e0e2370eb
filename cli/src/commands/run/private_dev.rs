//! A `/dev` of the command's own: the host's entries bound in, of the cards' nodes only those of its slice.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::chown;
use serde::{Deserialize, Serialize};
use spec::nodes::Node;

/// Which nodes of cards there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevPlan {
    /// The kernel's driver's.
    pub(super) made: Vec<Node>,
    /// Files from elsewhere, by their name in `/dev`.
    pub(super) added: Vec<(PathBuf, String)>,
}

impl DevPlan {
    /// Whether an entry of the host's `/dev` is bound in. Ways to a card's memory (its nodes, DRM, modeset, MIG) are not.
    fn keeps(name: &str) -> bool {
        !name.starts_with("nvidia") && name != "dri"
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
        if name.to_str().is_none_or(DevPlan::keeps) {
            let source = host_path.join(&name);
            bind(&source, &dev.join(&name))
                .with_context(|| format!("bring /dev/{} in", name.display()))?;
        }
    }
    for node in &plan.made {
        make(node, &dev.join(&node.name), &host_path)
            .with_context(|| format!("make /dev/{}", node.name))?;
    }
    for (source, name) in &plan.added {
        bind(source, &dev.join(name))
            .with_context(|| format!("bring {} in as /dev/{name}", source.display()))?;
    }
    Ok(())
}

/// Makes a node. Where this process may not, as in a container, the host's own is bound in.
fn make(node: &Node, target: &Path, host: &Path) -> anyhow::Result<()> {
    let numbers = makedev(node.major.into(), node.minor.into());
    match mknod(target, SFlag::S_IFCHR, Mode::empty(), numbers) {
        Err(Errno::EPERM) => return bind(&host.join(&node.name), target),
        made => made?,
    }
    chown(target, Some(node.uid.into()), Some(node.gid.into()))?;
    fs::set_permissions(target, fs::Permissions::from_mode(node.mode))?;
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
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;

    #[test]
    fn no_node_of_a_card_is_the_host_s() {
        for name in ["null", "pts", "shm"] {
            assert!(DevPlan::keeps(name), "{name}");
        }
        for name in [
            "nvidia0",
            "nvidia10",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-modeset",
            "nvidia-caps",
            "dri",
        ] {
            assert!(!DevPlan::keeps(name), "{name}");
        }
    }

    #[test]
    fn a_node_is_made_with_the_driver_s_numbers_and_the_operator_s_owner() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node {
            name: "nvidia1".to_owned(),
            major: 195,
            minor: 1,
            mode: 0o660,
            uid: 7,
            gid: 44,
        };
        let target = dir.path().join("nvidia1");
        if let Err(error) = make(&node, &target, dir.path()) {
            println!("SKIP: no node can be made: {error:#}");
            return;
        }
        let made = fs::symlink_metadata(&target).unwrap();
        assert!(made.file_type().is_char_device());
        assert_eq!(made.rdev(), makedev(195, 1));
        assert_eq!((made.uid(), made.gid()), (7, 44));
        assert_eq!(made.mode() & 0o7777, 0o660);
    }
}
