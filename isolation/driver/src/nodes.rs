//! Which files are the driver's.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::stat::{FileStat, SFlag, fstat, major, minor};
use nix::sys::statfs::{EXT4_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use nvabi::proc_files::{DEVICES_PATH, UVM_NAME, character_major};
use sys::sync;

use crate::FileKind;

/// `NV_MAJOR_DEVICE_NUMBER`
const NVIDIA_MAJOR: u64 = 195;
/// `NV_CONTROL_DEVICE_MINOR`
const CONTROL_MINOR: u64 = 255;

/// How the driver's files are told from others. Never by name: a tenant chooses names.
#[derive(Debug, Clone)]
pub enum Nodes {
    /// Character devices, by device number.
    Devices(UvmMajor),
    /// Plain files, by (device, inode): what stays the same through a bind mount.
    Files(HashMap<(u64, u64), FileKind>),
}

/// Least time between two looks for the major of `nvidia-uvm`. A tenant can have a foreign device looked at with every call, which makes
/// ten reads a second of some 30 µs each at most.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The major number of `nvidia-uvm`, which the kernel chooses when the module is loaded. It is looked up again for a device that nobody
/// knows, since the module can be loaded, or loaded anew under another number, while a broker serves.
#[derive(Debug, Clone)]
pub struct UvmMajor {
    devices: PathBuf,
    known: Arc<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// 0, which is no driver's: the module is not loaded.
    major: AtomicU64,
    looked: Mutex<Option<Instant>>,
}

impl UvmMajor {
    /// As a text in the form of `/proc/devices` has it now, and later.
    #[must_use]
    pub fn listed_in(devices: &Path) -> Self {
        let major = Self {
            devices: devices.to_owned(),
            known: Arc::default(),
        };
        major.look(Instant::now());
        major
    }

    fn is(&self, major: u64, now: Instant) -> bool {
        let known = || major != 0 && self.known.major.load(Ordering::Relaxed) == major;
        known() || {
            self.look(now);
            known()
        }
    }

    /// Reads it, unless that was done just now.
    fn look(&self, now: Instant) {
        let mut looked = sync::lock(&self.known.looked);
        if looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_AGAIN) {
            return;
        }
        *looked = Some(now);
        let major = fs::read_to_string(&self.devices)
            .ok()
            .and_then(|text| character_major(&text, UVM_NAME));
        self.known
            .major
            .store(major.unwrap_or(0).into(), Ordering::Relaxed);
    }
}

impl Nodes {
    /// The device nodes of the kernel's driver.
    #[must_use]
    pub fn of_kernel() -> Self {
        Self::Devices(UvmMajor::listed_in(Path::new(DEVICES_PATH)))
    }

    /// The plain files of a simulator's `dev` folder.
    ///
    /// # Errors
    /// The system's, where the folder cannot be read.
    pub fn below(dev: &Path) -> io::Result<Self> {
        let mut nodes = HashMap::new();
        for entry in fs::read_dir(dev)? {
            let entry = entry?;
            if let Some(kind) = entry.file_name().to_str().and_then(kind_of_name) {
                let metadata = entry.metadata()?;
                nodes.insert((metadata.dev(), metadata.ino()), kind);
            }
        }
        Ok(Self::Files(nodes))
    }

    /// What a file is; `None` for one that is not the driver's.
    #[must_use]
    pub fn kind(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        let stat = fstat(fd).ok()?;
        match self {
            Self::Devices(uvm) => kind_of_device(&stat, uvm, Instant::now()),
            Self::Files(nodes) => nodes.get(&(stat.st_dev, stat.st_ino)).copied(),
        }
    }
}

/// `RAMFS_MAGIC`: a devtmpfs of a kernel without tmpfs.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Whether a mapping of a file has the file's device number and inode in `/proc/PID/maps`: those are the kernel's own, and `fstat` may be told
/// others by the file system, as by btrfs and overlayfs. A device node is where its engine has put it, on a tmpfs or a devtmpfs, or on a file
/// system that is known to tell its own. The plain files of a simulator are no tenant's to choose.
#[must_use]
pub fn has_traceable_mappings(fd: BorrowedFd<'_>) -> bool {
    let is_device = fstat(fd).map(|stat| {
        let format = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        format == SFlag::S_IFCHR
    });
    let known = [TMPFS_MAGIC, RAMFS_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC];
    match is_device {
        Ok(false) => true,
        Ok(true) => fstatfs(fd).is_ok_and(|fs| known.contains(&fs.filesystem_type())),
        Err(_unknown) => false,
    }
}

fn kind_of_device(stat: &FileStat, uvm: &UvmMajor, now: Instant) -> Option<FileKind> {
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFCHR {
        return None;
    }
    match (major(stat.st_rdev), minor(stat.st_rdev)) {
        (NVIDIA_MAJOR, CONTROL_MINOR) => Some(FileKind::Ctl),
        (NVIDIA_MAJOR, minor) => u32::try_from(minor)
            .ok()
            .map(|minor| FileKind::Card { minor }),
        (major, 0) if uvm.is(major, now) => Some(FileKind::Uvm),
        (major, 1) if uvm.is(major, now) => Some(FileKind::UvmTools),
        _ => None,
    }
}

fn kind_of_name(name: &str) -> Option<FileKind> {
    match name {
        "nvidiactl" => Some(FileKind::Ctl),
        "nvidia-uvm" => Some(FileKind::Uvm),
        "nvidia-uvm-tools" => Some(FileKind::UvmTools),
        card => card
            .strip_prefix("nvidia")?
            .parse()
            .ok()
            .map(|minor| FileKind::Card { minor }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn files_differ_by_what_they_are_and_not_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for name in [
            "nvidiactl",
            "nvidia7",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "other",
        ] {
            fs::write(dir.join(name), "").unwrap();
        }
        fs::hard_link(dir.join("nvidia7"), dir.join("renamed")).unwrap();
        let nodes = Nodes::below(dir).unwrap();
        let kind = |name: &str| nodes.kind(fs::File::open(dir.join(name)).unwrap().as_fd());
        assert_eq!(kind("nvidiactl"), Some(FileKind::Ctl));
        assert_eq!(kind("renamed"), Some(FileKind::Card { minor: 7 }));
        assert_eq!(kind("nvidia-uvm"), Some(FileKind::Uvm));
        assert_eq!(kind("nvidia-uvm-tools"), Some(FileKind::UvmTools));
        assert_eq!(kind("other"), None);
    }

    /// A character device by its numbers.
    fn device(major: u64, minor: u64) -> FileStat {
        let mut stat = fstat(fs::File::open("/dev/null").unwrap()).unwrap();
        stat.st_rdev = nix::sys::stat::makedev(major, minor);
        stat
    }

    /// In a thread with mounts of its own, which go with it.
    #[test]
    fn the_mappings_of_a_node_are_not_found_where_fstat_has_another_device_number() {
        use nix::mount::{MsFlags, mount};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let prepare = || -> nix::Result<()> {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
            let nothing = None::<&str>;
            mount(
                nothing,
                "/",
                nothing,
                MsFlags::MS_PRIVATE | MsFlags::MS_REC,
                nothing,
            )?;
            mount(
                nothing,
                folder.path(),
                Some("tmpfs"),
                MsFlags::empty(),
                nothing,
            )?;
            for name in ["lower", "other", "merged"] {
                fs::create_dir(at(name)).unwrap();
            }
            fs::write(at("lower/plain"), "").unwrap();
            let mode = nix::sys::stat::Mode::S_IRUSR;
            let null = nix::sys::stat::makedev(1, 3);
            nix::sys::stat::mknod(&at("lower/null"), SFlag::S_IFCHR, mode, null)?;
            let of = |name| at(name).display().to_string();
            let layers = format!("lowerdir={}:{}", of("lower"), of("other"));
            let merged = at("merged");
            mount(
                Some("overlay"),
                &merged,
                Some("overlay"),
                MsFlags::empty(),
                Some(layers.as_str()),
            )
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(error) = prepare() {
                    println!("SKIP: no overlay in a namespace of mounts: {error}");
                    return;
                }
                let is_found =
                    |name| has_traceable_mappings(fs::File::open(at(name)).unwrap().as_fd());
                assert!(is_found("lower/null"));
                assert!(!is_found("merged/null"));
                assert!(is_found("merged/plain"), "a simulator's");
            });
        });
        assert!(has_traceable_mappings(
            fs::File::open("/dev/null").unwrap().as_fd()
        ));
    }

    #[test]
    fn a_device_of_another_major_is_not_the_drivers() {
        let null = fs::File::open("/dev/null").unwrap();
        assert_eq!(Nodes::of_kernel().kind(null.as_fd()), None);
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        fs::write(&devices, "Character devices:\n  1 nvidia-uvm\n").unwrap();
        let uvm = UvmMajor::listed_in(&devices);
        let kind = |major, minor| kind_of_device(&device(major, minor), &uvm, Instant::now());
        assert_eq!(kind(1, 3), None, "minor 3 of major 1");
        assert_eq!(kind(1, 0), Some(FileKind::Uvm));
        assert_eq!(kind(1, 1), Some(FileKind::UvmTools));
        assert_eq!(kind(2, 0), None);
        assert_eq!(kind(195, 255), Some(FileKind::Ctl));
        assert_eq!(kind(195, 7), Some(FileKind::Card { minor: 7 }));
    }

    #[test]
    fn a_module_that_is_loaded_later_or_anew_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        fs::write(&devices, "Character devices:\n  1 mem\n195 nvidia\n").unwrap();
        let uvm = UvmMajor::listed_in(&devices);
        let began = Instant::now();
        let kind = |major, after| kind_of_device(&device(major, 0), &uvm, began + after);
        assert_eq!(kind(507, LOOK_AGAIN), None);
        for (major, after) in [(507, 2), (511, 3)] {
            let text = format!("Character devices:\n  1 mem\n{major} nvidia-uvm\n");
            fs::write(&devices, text).unwrap();
            assert_eq!(kind(major, LOOK_AGAIN * after), Some(FileKind::Uvm));
        }
        assert_eq!(kind(507, LOOK_AGAIN * 4), None, "the former number");
    }

    #[test]
    fn foreign_devices_have_the_majors_read_at_most_once_in_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("devices");
        fs::write(&devices, "Character devices:\n").unwrap();
        let uvm = UvmMajor::listed_in(&devices);
        let began = Instant::now();
        let kind = |after| kind_of_device(&device(507, 0), &uvm, began + after);
        // This look is the one that is due: what is listed right after it is seen by the next.
        assert_eq!(kind(LOOK_AGAIN), None);
        fs::write(&devices, "Character devices:\n507 nvidia-uvm\n").unwrap();
        assert_eq!(kind(LOOK_AGAIN * 2 - Duration::from_millis(1)), None);
        assert_eq!(kind(LOOK_AGAIN * 2), Some(FileKind::Uvm));
    }
}
