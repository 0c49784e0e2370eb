//! A virtual machine with another kernel, in which control groups have version 2 alone.
//!
//! It has this machine's own files: they are its root, read-only, below a layer in its memory. So whatever was built and fetched here
//! runs there under the same paths, and nothing that it writes stays, but for one folder, [`RESULTS`]. qemu translates its
//! instructions: no KVM is needed, and it is ten to thirty times slower than this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache::{self, repository};
use crate::command::{capture, find, progress, succeed};
use crate::packages::{Suite, closure, ensure_installed, unpacked};
use crate::programs::target_folder;

mod modules;

use modules::Modules;

/// The folder that guest and host share, in the guest.
pub const RESULTS: &str = "/run/results";

/// What is asked for by the variable `CGPU_PATIENCE`: times as long as elsewhere. See [`crate::command::patient`].
pub const PATIENCE: u32 = 20;

/// What the guest's first process is, once it has its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// The script's shell.
    Shell,
    /// The same, and control groups of version 1: for comparisons on one kernel.
    ShellOfVersion1,
    /// systemd, with the script as the one service, and cgpu's own as a second.
    Systemd,
}

impl Init {
    /// What tables call such a host.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shell => "version 2",
            Self::ShellOfVersion1 => "version 1",
            Self::Systemd => "version 2 and systemd",
        }
    }

    /// Of its control groups.
    fn version(self) -> &'static str {
        match self {
            Self::Shell | Self::Systemd => "2",
            Self::ShellOfVersion1 => "1",
        }
    }

    /// The program and its arguments.
    fn command(self) -> &'static str {
        match self {
            Self::Shell | Self::ShellOfVersion1 => "/bin/sh /run/results/run.sh",
            Self::Systemd => "/lib/systemd/systemd --unit=guest.service",
        }
    }
}

/// The script as a service: no other of this machine's is started.
const SERVICE: &str = "[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh /run/results/run.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
Delegate=yes
";

/// It is booted once more where its kernel has locked up.
const BOOTS_MOST: u32 = 2;
/// What the kernel says that ends itself because a processor has been in it for a minute. Two processors that are translated side by side were
/// seen to wait for each other for ever, both in the kernel and in the middle of runc: nothing that a program of ours could mend.
const LOCKED_UP: &str = "Kernel panic - not syncing: softlockup";
/// Half of that minute.
const LOCKED_UP_OPTIONS: &str = "softlockup_panic=1 watchdog_thresh=30";
/// The translator's counter is the host's clock. A guest that other work on the host holds up can take it for unstable, and read a timer that its
/// processors wait for each other at: beside 160 processes a test of 30 s had not ended after 7 minutes, all of it in that wait (the reason by inference).
const CLOCK_OPTIONS: &str = "tsc=reliable";

/// So many lines of its console are in an error.
const SHOWN_LINES: usize = 40;

/// The machine that qemu plays.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// qemu's program and its package.
    qemu: (&'static str, &'static str),
    options: &'static [&'static str],
    /// The package that needs the newest kernel.
    kernel: &'static str,
    console: &'static str,
}

/// As this machine is.
const X86_64: Machine = Machine {
    qemu: ("qemu-system-x86_64", "qemu-system-x86"),
    // Debian's kernels want cmpxchg16b of no processor that translates slowly, and more than the default's features.
    options: &["-M", "q35", "-cpu", "Nehalem,-cx16"],
    kernel: "linux-image-amd64",
    console: "ttyS0",
};

/// The same with Ubuntu's kernel.
const UBUNTU: Machine = Machine {
    kernel: "linux-image-virtual",
    ..X86_64
};

const ARM64: Machine = Machine {
    qemu: ("qemu-system-aarch64", "qemu-system-arm"),
    options: &["-M", "virt", "-cpu", "cortex-a72"],
    kernel: "linux-image-arm64",
    console: "ttyAMA0",
};

/// What the root of a guest of another architecture consists of.
const ROOT: [&str; 9] = [
    "bash",
    "busybox-static",
    "containerd",
    "coreutils",
    "iproute2",
    "procps",
    "runc",
    "sed",
    "util-linux",
];

/// What the root's file system, containers and cgpu-tree need. A kernel may have some of them in itself.
const MODULES: [&str; 6] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "fuse",
];

/// What a disk needs besides.
const MODULES_OF_A_DISK: [&str; 3] = ["virtio_blk", "crc32c_generic", "ext4"];

/// Of the disk, in bytes. Its file takes only what is written to it.
const DISK: u64 = 8 << 30;
/// Reboots that a script has asked for.
const REBOOTS_MOST: u32 = 4;

/// The first program of the guest: it makes the root and gives it to `run.sh` of the shared folder.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "guest: $module is not loaded"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=mmap,msize=512000 host /lower
storage=$(cat /storage)
case $storage in
memory) mount -t tmpfs -o size=3G layer /layer ;;
*) mount -t ext4 /dev/vda /layer ;;
esac
root=/layer
if [ $storage != system ]; then
    root=/layer/root
    mkdir -p /layer/upper /layer/work /layer/below $root
    mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay $root
    mount --bind $root /layer/below
fi
if [ $storage = disk ]; then
    # Engines put layers of their own here, which a layer itself cannot carry.
    for folder in var/lib/docker var/lib/containerd; do
        mkdir -p /layer/engines/$folder $root/$folder
        mount --bind /layer/engines/$folder $root/$folder
    done
fi
mount -t proc proc $root/proc
mount -t sysfs sys $root/sys
# As systemd does. With it engines find AppArmor, which Debian's and Ubuntu's kernels have on.
mount -t securityfs security $root/sys/kernel/security
mount -t devtmpfs dev $root/dev
mkdir -p $root/dev/pts $root/dev/shm $root/dev/mqueue
mount -t devpts -o ptmxmode=666 devpts $root/dev/pts
mount -t tmpfs shm $root/dev/shm
mount -t mqueue mqueue $root/dev/mqueue
mount -t tmpfs run $root/run
mount -t tmpfs tmp $root/tmp
# What is built may be below a folder that is empty now, or not be in the root at all.
for folder in $(cat /kept); do
    case $folder in
    /tmp/* | /run/*)
        mkdir -p "$root$folder"
        mount --bind "/layer/below$folder" "$root$folder"
        ;;
    esac
done
number=0
for folder in $(cat /shared); do
    mkdir -p "$root$folder"
    mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=mmap,msize=512000 shared$number "$root$folder"
    number=$((number + 1))
done
mkdir $root/run/results
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 results $root/run/results
groups=$root/sys/fs/cgroup
if [ "$(cat /version)" = 1 ]; then
    # Each controller in a tree of its own, but for these two, which engines look for together.
    mount -t tmpfs -o mode=755 groups $groups
    for controllers in blkio cpu,cpuacct cpuset devices freezer memory pids; do
        mkdir $groups/$controllers
        mount -t cgroup -o $controllers cgroup $groups/$controllers
    done
    ln -s cpu,cpuacct $groups/cpu
    ln -s cpu,cpuacct $groups/cpuacct
else
    mount -t cgroup2 -o nsdelegate cgroup2 $groups
    for controller in $(cat $groups/cgroup.controllers); do
        echo +$controller > $groups/cgroup.subtree_control
    done
fi
ip link set lo up
hostname guest
cp /guest.service $root/etc/systemd/system/guest.service
exec switch_root $root $(cat /command)
"#;

/// A kernel, and qemu to run it.
#[derive(Debug, Clone)]
pub struct Guest {
    machine: Machine,
    /// What its root is made of.
    root: PathBuf,
    /// The folder of the kernel's package.
    kernel: PathBuf,
    /// `6.1.0-53-amd64`
    release: String,
    storage: Storage,
}

/// Where its root is, and what it writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// Over this machine's files in memory: it goes with the guest.
    Memory,
    /// Over this machine's files on a disk, but for `/run` and `/tmp`: it is there after a boot. A script that makes the file `again` in
    /// [`RESULTS`] and ends the guest is run anew in one.
    Disk,
    /// A file with an ext4 file system: a whole system, which finds none of this machine's files. It stays as it is.
    System {
        /// Where it is.
        disk: PathBuf,
        /// Further options of its kernel's.
        options: &'static str,
    },
}

impl Storage {
    /// For the first program.
    fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::System { .. } => "system",
        }
    }
}

impl Guest {
    /// Fetches the kernel of a release of Debian, and what it takes to run it.
    ///
    /// # Errors
    /// A reason to skip aloud: no root, no packages.
    pub fn of(suite: Suite) -> Result<Self> {
        let (machine, root) = match suite {
            Suite::Arm64 => (ARM64, foreign_root(suite)?),
            Suite::Noble => (UBUNTU, PathBuf::from("/")),
            Suite::Host | Suite::Trixie | Suite::Newer => (X86_64, PathBuf::from("/")),
        };
        ensure_installed(&[
            machine.qemu,
            ("cpio", "cpio"),
            ("busybox", "busybox-static"),
            // Engines load their profiles with it.
            ("apparmor_parser", "apparmor"),
        ])?;
        let packages = closure(suite, &[machine.kernel])?;
        let image = packages
            .iter()
            .find(|name| name.starts_with("linux-image-") && *name != machine.kernel);
        let image = image.with_context(|| format!("{} needs no kernel", machine.kernel))?;
        // Ubuntu's modules are a package of their own.
        let is_modules = |name: &&String| name.starts_with("linux-modules-");
        let modules = packages.iter().filter(is_modules).map(String::as_str);
        let parts: Vec<&str> = modules.chain([image.as_str()]).collect();
        let kernel = unpacked(suite, &format!("kernel/{}", suite.name()), &parts)?;
        let release = image.trim_start_matches("linux-image-").to_owned();
        Ok(Self {
            machine,
            root,
            kernel,
            release,
            storage: Storage::Memory,
        })
    }

    /// The same with another root.
    #[must_use]
    pub fn with(self, storage: Storage) -> Self {
        Self { storage, ..self }
    }

    /// Where its root is.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Its kernel's version.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Runs a shell script as the guest's root; what it writes to [`RESULTS`] is in `results`. `PATH` is the usual one.
    ///
    /// # Errors
    /// The guest has not come to the script's end in time; the console's last lines are in the error.
    pub fn run(&self, init: Init, script: &str, results: &Path, limit: Duration) -> Result<()> {
        let folder = tempfile::tempdir().context("folder for the guest's first files")?;
        let first = folder.path().join("first");
        self.first_files(init, &first)?;
        let drive = match &self.storage {
            Storage::Memory => None,
            Storage::Disk => Some(new_disk(&folder.path().join("disk"))?),
            Storage::System { disk, .. } => Some(format!("file={},snapshot=on", disk.display())),
        };
        let text = format!(
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CGPU_PATIENCE={PATIENCE}\n\
             (\n{script}\n)\ntouch {RESULTS}/ended\nsync\necho o > /proc/sysrq-trigger\nsleep 60\n"
        );
        fs::write(results.join("run.sh"), text)?;
        let (mut boots, mut reboots) = (0, 0);
        loop {
            boots += 1;
            let outcome = capture(&mut self.command(&first, results, drive.as_deref()), limit);
            if results.join("ended").exists() {
                return Ok(());
            }
            let again = results.join("again");
            if reboots < REBOOTS_MOST && again.exists() {
                fs::remove_file(again)?;
                reboots += 1;
                progress("the guest boots again");
                continue;
            }
            let outcome = outcome.context("the guest has not come to its script's end")?;
            // A disk has half of what the script does.
            let is_mended = self.storage != Storage::Disk && boots < BOOTS_MOST;
            if is_mended && outcome.stdout.contains(LOCKED_UP) {
                progress("the guest's kernel has locked up: it is booted again");
                continue;
            }
            let lines: Vec<&str> = outcome.stdout.lines().collect();
            let last = lines.len().saturating_sub(SHOWN_LINES);
            bail!(
                "the guest has ended before its script\n{}\n{}",
                lines[last..].join("\n"),
                outcome.stderr
            )
        }
    }

    fn command(&self, first: &Path, results: &Path, drive: Option<&str>) -> Command {
        let (program, _package) = self.machine.qemu;
        let mut qemu = Command::new(program);
        qemu.args(self.machine.options);
        qemu.args(["-accel", "tcg,thread=multi"]);
        qemu.args(["-smp", "2", "-m", "6144", "-no-reboot", "-nodefaults"]);
        qemu.args(["-display", "none", "-serial", "stdio"]);
        qemu.arg("-kernel")
            .arg(self.kernel.join(format!("boot/vmlinuz-{}", self.release)));
        qemu.arg("-initrd").arg(first);
        let console = self.machine.console;
        qemu.arg("-append");
        let options = match self.storage {
            Storage::Memory | Storage::Disk => "",
            Storage::System { options, .. } => options,
        };
        qemu.arg(format!(
            "console={console} quiet panic=-1 mitigations=off {CLOCK_OPTIONS} {LOCKED_UP_OPTIONS}{options}"
        ));
        if let Some(drive) = drive {
            qemu.arg("-drive")
                .arg(format!("{drive},format=raw,if=virtio"));
        }
        let results = format!(
            "local,id=results,path={},security_model=none,multidevs=remap",
            results.display()
        );
        let root = format!(
            "local,id=host,path={},security_model=none,readonly=on,multidevs=remap",
            self.root.display()
        );
        let mut shared = vec![("host".to_owned(), root), ("results".to_owned(), results)];
        for (number, folder) in self.shared().iter().enumerate() {
            let name = format!("shared{number}");
            let device = format!(
                "local,id={name},path={},security_model=none,readonly=on,multidevs=remap",
                folder.display()
            );
            shared.push((name, device));
        }
        for (name, device) in shared {
            qemu.arg("-fsdev").arg(device);
            qemu.arg("-device")
                .arg(format!("virtio-9p-pci,fsdev={name},mount_tag={name}"));
        }
        qemu
    }

    /// Whether its root is this machine's own.
    fn has_our_root(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Folders of its root that must be there, wherever they are.
    fn kept(&self) -> Vec<PathBuf> {
        match self.has_our_root() && !matches!(self.storage, Storage::System { .. }) {
            true => vec![repository(), target_folder(), cache::folder()],
            false => Vec::new(),
        }
    }

    /// Folders of this machine that another root does not have.
    fn shared(&self) -> Vec<PathBuf> {
        let (repository, target) = (repository(), target_folder());
        if self.has_our_root() {
            return Vec::new();
        }
        match target.starts_with(&repository) {
            true => vec![repository],
            false => vec![repository, target],
        }
    }

    /// The archive that the kernel unpacks first.
    fn first_files(&self, first_process: Init, archive: &Path) -> Result<()> {
        let folder = tempfile::tempdir().context("folder for the guest's first files")?;
        let root = folder.path();
        for name in ["bin", "proc", "sys", "dev", "lower", "layer", "modules"] {
            fs::create_dir(root.join(name))?;
        }
        let busybox = match self.has_our_root() {
            true => find("busybox").context("no busybox")?,
            false => self.root.join("bin/busybox"),
        };
        fs::copy(busybox, root.join("bin/busybox"))?;
        let init = root.join("init");
        fs::write(&init, INIT)?;
        fs::write(root.join("command"), first_process.command())?;
        fs::write(root.join("version"), first_process.version())?;
        fs::write(root.join("storage"), self.storage.name())?;
        fs::write(root.join("guest.service"), SERVICE)?;
        for (file, folders) in [("kept", self.kept()), ("shared", self.shared())] {
            let folders: Vec<String> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            fs::write(root.join(file), folders.join("\n"))?;
        }
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        let mut modules = Modules::below(&self.kernel)?;
        let has_disk = self.storage != Storage::Memory;
        let of_a_disk = MODULES_OF_A_DISK.iter().filter(|_| has_disk);
        for name in MODULES.iter().chain(of_a_disk) {
            modules.unpack(name, &root.join("modules"))?;
        }
        fs::write(root.join("modules/order"), modules.order.join("\n"))?;
        let mut pack = Command::new("sh");
        pack.args(["-c", "find . | cpio --quiet -o -H newc > \"$0\""]);
        pack.arg(archive).current_dir(root);
        succeed(&mut pack)?;
        Ok(())
    }
}

/// An empty file system in a file, as qemu's drive.
fn new_disk(file: &Path) -> Result<String> {
    ensure_installed(&[("mkfs.ext4", "e2fsprogs")])?;
    fs::File::create(file)?.set_len(DISK)?;
    succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(file))?;
    Ok(format!("file={}", file.display()))
}

/// The root of a guest whose programs this machine cannot run.
fn foreign_root(suite: Suite) -> Result<PathBuf> {
    let packages = closure(suite, &ROOT)?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    let root = unpacked(suite, &format!("root/{}", suite.name()), &packages)?;
    // What the packages' scripts would make, and what the guest is mounted on.
    for folder in [
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "etc/systemd/system",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    for (link, to) in [("bin/sh", "bash"), ("var/run", "/run")] {
        let link = root.join(link);
        if link.symlink_metadata().is_err() {
            fs::create_dir_all(link.parent().unwrap_or(&root))?;
            std::os::unix::fs::symlink(to, link)?;
        }
    }
    Ok(root)
}
