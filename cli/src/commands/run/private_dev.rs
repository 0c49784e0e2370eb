//! A `/dev` of the command's own: the host's entries bound in, of the cards' nodes only those of its slice.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
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
    // What the host mounts and unmounts outside of `/dev` is so here: a volume stays in use as long as a namespace has it. What is mounted here is not
    // the host's.
    mount(
        NO_TYPE,
        "/",
        NO_TYPE,
        MsFlags::MS_REC | MsFlags::MS_SLAVE,
        NO_TYPE,
    )
    .context("keep mounts from the host")?;
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
            bind_entry(&source, &dev.join(&name))
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

/// One that has gone since it was listed is left out.
fn bind_entry(source: &Path, target: &Path) -> anyhow::Result<()> {
    let bound = bind(source, target);
    let seen = fs::symlink_metadata(source);
    if bound.is_err() && seen.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        // What it was to be bound on, if that was made.
        drop(fs::remove_file(target));
        return Ok(());
    }
    bound
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
    use std::sync::mpsc;

    use nix::mount::umount;
    use nix::unistd::{Pid, gettid};

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
    fn an_entry_that_has_gone_is_left_out_and_one_that_cannot_be_bound_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        bind_entry(&source, &target).unwrap();
        assert!(!target.exists());
        fs::write(&source, "").unwrap();
        fs::create_dir(&target).unwrap();
        bind_entry(&source, &target).unwrap_err();
    }

    /// The host is a thread with a mount namespace of its own here: the machine's stays as it is.
    #[test]
    fn what_the_host_mounts_and_unmounts_is_so_in_the_command_s_namespace_and_not_the_reverse() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_owned();
        let host = std::thread::spawn(move || {
            let propagate = |flags| mount(NO_TYPE, "/", NO_TYPE, MsFlags::MS_REC | flags, NO_TYPE);
            let separated = unshare(CloneFlags::CLONE_NEWNS)
                .and_then(|()| propagate(MsFlags::MS_PRIVATE))
                .and_then(|()| propagate(MsFlags::MS_SHARED));
            if let Err(errno) = separated {
                println!("SKIP: no mount namespace can be made: {errno}");
                return;
            }
            let [before, after] = ["before", "after"].map(|name| folder.join(name));
            let mount_at = |folder: &Path| {
                fs::create_dir(folder).unwrap();
                mount(
                    Some("tmpfs"),
                    folder,
                    Some("tmpfs"),
                    MsFlags::empty(),
                    NO_TYPE,
                )
                .unwrap();
            };
            mount_at(&before);
            let own_dev = mounts_of(gettid()).matches(" /dev ").count();
            let (entered, command) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let plan = DevPlan {
                    made: Vec::new(),
                    added: Vec::new(),
                };
                entered.send(enter(&plan).map(|()| gettid())).unwrap();
                ended.recv().unwrap_err();
            });
            let command = command.recv().unwrap().unwrap();
            let has = |folder: &Path| mounts_of(command).contains(folder.to_str().unwrap());
            assert!(has(&before));
            umount(&before).unwrap();
            assert!(
                !has(&before),
                "it would be in use as long as the command runs"
            );
            mount_at(&after);
            assert!(has(&after));
            umount(&after).unwrap();
            assert_eq!(mounts_of(gettid()).matches(" /dev ").count(), own_dev);
            drop(end);
            thread.join().unwrap();
        });
        host.join().unwrap();
    }

    fn mounts_of(thread: Pid) -> String {
        fs::read_to_string(format!("/proc/self/task/{thread}/mountinfo")).unwrap()
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
