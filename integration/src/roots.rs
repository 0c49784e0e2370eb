//! Roots of distributions, made by debootstrap, and commands in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache;
use crate::command::{Outcome, capture, succeed};
use crate::picture::{self, Picture, differences};
use anyhow::{Context, Result, ensure};

/// How long one step in a root may take.
pub const LIMIT: Duration = Duration::from_secs(600);
const DEBIAN: &str = "http://deb.debian.org/debian";
pub(crate) const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";
/// Ubuntu's keys, which Debian's debootstrap does not have: the package below [`UBUNTU`], and its digest.
const UBUNTU_KEYS: (&str, &str) = (
    "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
    "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8",
);

/// A release of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    /// For people.
    pub name: &'static str,
    /// What its archive calls it.
    pub suite: &'static str,
    distribution: Distribution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Debian,
    Ubuntu,
}

impl System {
    /// Debian 12.
    pub const BOOKWORM: Self = Self::debian("Debian 12", "bookworm");

    /// A release of Debian.
    #[must_use]
    pub const fn debian(name: &'static str, suite: &'static str) -> Self {
        Self {
            name,
            suite,
            distribution: Distribution::Debian,
        }
    }

    /// A release of Ubuntu.
    #[must_use]
    pub const fn ubuntu(name: &'static str, suite: &'static str) -> Self {
        Self {
            name,
            suite,
            distribution: Distribution::Ubuntu,
        }
    }
}

/// What dpkg and apt write for themselves: logs, locks, and the former state of their lists.
const BOOKKEEPING: [&str; 8] = [
    "/var/log/dpkg.log",
    "/var/log/alternatives.log",
    "/var/lib/dpkg/available",
    "/var/lib/dpkg/lock",
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/status-old",
    "/var/lib/dpkg/triggers/Lock",
    "/var/lib/dpkg/diversions-old",
];

/// Makes the root of a system below `at`.
fn make(system: &System, packages: &[&str], at: &Path) -> Result<()> {
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.arg("--variant=minbase");
    if !packages.is_empty() {
        debootstrap.arg(format!("--include={}", packages.join(",")));
    }
    if system.distribution == Distribution::Ubuntu {
        debootstrap.arg("--keyring").arg(ubuntu_keys(at)?);
        // docker and podman are in the latter.
        debootstrap.arg("--components=main,universe");
    }
    debootstrap.arg(system.suite).arg(at.join("root"));
    match system.distribution {
        Distribution::Debian => debootstrap.args([DEBIAN, "sid"]),
        // The script of all later releases.
        Distribution::Ubuntu => debootstrap.args([UBUNTU, "gutsy"]),
    };
    capture(&mut debootstrap, LIMIT)?.success()?;
    Ok(())
}

/// The file with Ubuntu's keys, unpacked below `at`.
pub(crate) fn ubuntu_keys(at: &Path) -> Result<PathBuf> {
    let (path, digest) = UBUNTU_KEYS;
    let found = at.join("keys/usr/share/keyrings/ubuntu-archive-keyring.gpg");
    if found.exists() {
        return Ok(found);
    }
    let package = at.join("keys.deb");
    let mut fetch = Command::new("curl");
    fetch.args([
        "--silent",
        "--show-error",
        "--fail",
        "--location",
        "--output",
    ]);
    fetch.arg(&package).arg(format!("{UBUNTU}/{path}"));
    capture(&mut fetch, LIMIT)?.success()?;
    let sum = succeed(Command::new("sha256sum").arg(&package))?.stdout;
    ensure!(sum.starts_with(digest), "{path} has another digest: {sum}");
    let keys = at.join("keys");
    capture(
        Command::new("dpkg-deb").arg("-x").arg(&package).arg(&keys),
        LIMIT,
    )?
    .success()?;
    Ok(found)
}

/// A copy of a system's root, which goes when this is dropped.
pub struct Root {
    folder: tempfile::TempDir,
}

impl Root {
    /// A system with these packages, made once and copied.
    ///
    /// # Errors
    /// The root cannot be made: no network, or packages that do not exist.
    pub fn of(system: &System, packages: &[&str]) -> Result<Self> {
        let made = Self::make_once(system, packages)?;
        let folder = tempfile::tempdir().context("folder for a root")?;
        let mut copy = Command::new("cp");
        copy.arg("--archive").arg(made.join("root"));
        capture(copy.arg(folder.path().join("root")), LIMIT)?.success()?;
        let root = Self { folder };
        fs::set_permissions(
            root.folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        // Whoever has a terminal to ask must not be asked.
        root.run("rm -rf /var/cache/apt/archives/*.deb; dpkg --configure -a")?
            .success()?;
        Ok(root)
    }

    /// The folder of what is copied.
    ///
    /// # Errors
    /// As [`Root::of`].
    pub fn make_once(system: &System, packages: &[&str]) -> Result<PathBuf> {
        let made = cache::folder().join("roots").join(system.suite);
        let stamp = format!("minbase {}", packages.join(" "));
        cache::once("roots", &made, &stamp, |at| make(system, packages, at))?;
        Ok(made)
    }

    /// Its folder on this machine.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Shows a folder, for reading, in the root's `/run`, which is no part of its picture. It must be there while scripts run.
    pub fn bring(&self, from: &Path, name: &str) -> Result<()> {
        let from = fs::canonicalize(from).with_context(|| from.display().to_string())?;
        std::os::unix::fs::symlink(from, self.folder.path().join(name))?;
        Ok(())
    }

    /// Runs a script in the root, in namespaces of its own: what it leaves running ends with it. The root is the mount namespace's
    /// own, not a `chroot`: whoever enters the namespace of a container in it would find this machine's root.
    pub fn run(&self, script: &str) -> Result<Outcome> {
        const ENTER: &str = r#"
set -e
mount --bind "$1/root" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/lock
for name in packages newer; do
    [ ! -d "$1/$name" ] || { mkdir "run/$name"; mount -o bind,ro "$1/$name" "run/$name"; }
done
mkdir run/machine
pivot_root . run/machine
exec chroot . /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    HOME=/root sh -c 'umount -l /run/machine && rmdir /run/machine && eval "$1"' sh "$2"
"#;
        let script = script
            .replace("/packages/", "/run/packages/")
            .replace("/newer/", "/run/newer/");
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
            ])
            .args(["sh", "-c", ENTER, "sh"])
            .arg(self.folder.path())
            .arg(script);
        capture(&mut command, LIMIT)
    }

    /// Runs a package manager of this machine on the root.
    pub fn outside(&self, program: &str, args: &[&str]) -> Result<Outcome> {
        let mut command = Command::new(program);
        capture(command.arg("--root").arg(self.path()).args(args), LIMIT)
    }

    /// Everything in the root but what a package manager keeps for itself.
    pub fn picture(&self) -> Result<Picture> {
        let root = self.path();
        let mut picture = Picture::new();
        for (path, seen) in picture::picture(&root)? {
            let name = Path::new("/").join(path.strip_prefix(&root)?);
            if !BOOKKEEPING.iter().any(|own| Path::new(own) == name) {
                picture.insert(name, seen);
            }
        }
        Ok(picture)
    }

    /// Fails with the names of what is not as it was. `except`: what may differ.
    pub fn compare(&self, before: &Picture, except: &[&str]) -> Result<()> {
        let after = self.picture()?;
        let mut changed = differences(before, &after);
        changed.retain(|name| !except.iter().any(|other| Path::new(other) == name));
        ensure!(before.len() > 1000, "the root has {} files", before.len());
        ensure!(changed.is_empty(), "changed: {changed:?}");
        Ok(())
    }
}
