//! A whole Debian 13 for a guest, with SELinux that enforces the distribution's own policy: engines and what they start are in the domains
//! that the policy gives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::cache;
use crate::command::{capture, progress};
use crate::packages::ensure_installed;
use crate::roots::{LIMIT, Root, System};

const DEBIAN_13: System = System::debian("Debian 13", "trixie");

/// Engines as the distribution has them, and the policy.
const PACKAGES: [&str; 12] = [
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
];

const CONFIGURATION: &str = "SELINUX=enforcing\nSELINUXTYPE=default\n";
/// The folder that the guest shares with this machine has a file system that the policy does not know.
const RESULTS: &str = "(genfscon 9p / (system_u object_r tmp_t ((s0) (s0))))\n";
/// There the compiled policy is also as it was without our module: a guest would compile for an hour.
const POLICY_WITHOUT_OURS: &str = "/root/policy-without-cgpu";
/// The newest that the guest's kernel reads as it is.
const FORMAT: u32 = 33;
/// What is written to it before its labels are.
const SIZE: &str = "3G";

/// A file system with these packages of ours installed, all labelled as the policy says; goes when it is dropped.
pub struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Makes one with the Debian packages in this folder. The bytes of each of `files` are at its path there.
    ///
    /// # Errors
    /// A reason to skip aloud: no network. One of the packages cannot be installed.
    pub fn with(packages: &Path, files: &[(&Path, &str)]) -> Result<Self> {
        ensure_installed(&[("debootstrap", "debootstrap"), ("mkfs.ext4", "e2fsprogs")])?;
        progress("a Debian 13 with SELinux");
        let root = Root::of(&DEBIAN_13, &PACKAGES)?;
        root.bring(packages, "packages")?;
        let install = root.run("CGPU_ANY_HOST=1 dpkg -i /packages/*.deb")?;
        install.success()?;
        fs::write(root.path().join("etc/selinux/config"), CONFIGURATION)?;
        for (from, to) in files {
            let to = root.path().join(to.trim_start_matches('/'));
            fs::copy(from, to)?;
        }
        fs::write(root.path().join("root/guest.cil"), RESULTS)?;
        root.run(&format!(
            "cd /root\n\
             echo policy-version = {FORMAT} >> /etc/selinux/semanage.conf\n\
             rm /etc/selinux/default/policy/policy.*\n\
             semodule -n -s default -i guest.cil\n\
             cp /etc/selinux/default/policy/policy.* {POLICY_WITHOUT_OURS}\n\
             semodule -n -s default -i /usr/share/cgpu/selinux/cgpu.cil"
        ))?
        .success()?;
        // Labels are attributes that this machine's kernel keeps without knowing them.
        root.run(
            "mount --bind / /mnt\n\
             setfiles -r /mnt /etc/selinux/default/contexts/files/file_contexts /mnt\n\
             umount /mnt",
        )?
        .success()?;
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
