//! A whole distribution on a disk, for a guest: engines as it ships them, and its security module with the distribution's own policy, so
//! that engines and what they start are in the domains that it gives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::cache;
use crate::command::{capture, progress};
use crate::packages::ensure_installed;
use crate::roots::{LIMIT, Root, System};

/// A distribution, and how a guest has it.
#[derive(Debug, Clone, Copy)]
pub struct Distribution {
    system: System,
    packages: &'static [&'static str],
    /// Options of its kernel's.
    pub kernel_options: &'static str,
    /// Run in its root once our packages are in it.
    prepare: &'static str,
}

/// Debian 13 with SELinux, which enforces the policy that it ships, with our module and as it was without.
pub const DEBIAN_WITH_SELINUX: Distribution = Distribution {
    system: System::debian("Debian 13", "trixie"),
    packages: &[
        "busybox-static",
        "containerd",
        "docker-cli",
        "docker.io",
        "kmod",
        "podman",
        "policycoreutils",
        "procps",
        "runc",
        "selinux-policy-default",
        "selinux-utils",
        "systemd-sysv",
    ],
    kernel_options: " security=selinux",
    prepare: SELINUX,
};

/// Ubuntu 24.04 with AppArmor and the profiles that it ships. debootstrap cannot configure its podman.
pub const UBUNTU: Distribution = Distribution {
    system: System::ubuntu("Ubuntu 24.04", "noble"),
    packages: &[
        "apparmor",
        "busybox-static",
        "containerd",
        "docker.io",
        "kmod",
        "procps",
        "runc",
        "systemd-sysv",
    ],
    kernel_options: "",
    prepare: UPDATES,
};

/// debootstrap takes what was released at first. Its docker and containerd let their containers be killed by an unconfined `runc` alone,
/// and the profile that this release has for runc is another one: no container could be stopped.
const UPDATES: &str = "set -e
echo deb http://archive.ubuntu.com/ubuntu noble-updates main universe > /etc/apt/sources.list.d/updates.list
apt-get -q update
apt-get -q -y --only-upgrade install apparmor containerd docker.io runc
apt-get clean";

/// A guest would compile the policy for an hour, so that it is here as it was without our module too. Its format is the newest that the
/// guest's kernel reads as it is. The folder that the guest shares with this machine has a file system that the policy does not know. Labels
/// are attributes that this machine's kernel keeps without knowing them.
const SELINUX: &str = r#"set -e
printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' > /etc/selinux/config
echo policy-version = 33 >> /etc/selinux/semanage.conf
rm /etc/selinux/default/policy/policy.*
echo '(genfscon 9p / (system_u object_r tmp_t ((s0) (s0))))' > /root/results.cil
semodule -n -s default -i /root/results.cil
cp /etc/selinux/default/policy/policy.* /root/policy-without-cgpu
semodule -n -s default -i /usr/share/cgpu/selinux/cgpu.cil
mount --bind / /mnt
setfiles -r /mnt /etc/selinux/default/contexts/files/file_contexts /mnt
umount /mnt"#;

/// What is written to it before a guest starts, and some room.
const SIZE: &str = "4G";

/// A file system with a distribution, and with packages of ours installed; goes when it is dropped.
pub struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Makes one with the Debian packages in this folder. Each of `files` is copied to its path there.
    ///
    /// # Errors
    /// A reason to skip aloud: no network. One of the packages cannot be installed.
    pub fn with(
        distribution: &Distribution,
        packages: &Path,
        files: &[(&Path, &str)],
    ) -> Result<Self> {
        ensure_installed(&[("debootstrap", "debootstrap"), ("mkfs.ext4", "e2fsprogs")])?;
        progress(&format!("a disk with {}", distribution.system.name));
        let root = Root::of(&distribution.system, distribution.packages)?;
        root.bring(packages, "packages")?;
        root.run("CGPU_ANY_HOST=1 dpkg -i /packages/*.deb")?
            .success()?;
        for (from, to) in files {
            fs::copy(from, root.path().join(to.trim_start_matches('/')))?;
        }
        root.run(distribution.prepare)?.success()?;
        let folder = tempfile::tempdir_in(cache::folder())?;
        let disk = Self { folder };
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-d"]).arg(root.path());
        make.arg(disk.file()).arg(SIZE);
        capture(&mut make, LIMIT)?.success()?;
        Ok(disk)
    }

    /// Where it is.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}
