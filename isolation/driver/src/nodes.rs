//! Which files are the driver's.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{FileStat, SFlag, fstat, major, minor};

use crate::FileKind;

/// `NV_MAJOR_DEVICE_NUMBER`
const NVIDIA_MAJOR: u64 = 195;
/// `NV_CONTROL_DEVICE_MINOR`
const CONTROL_MINOR: u64 = 255;

/// How the driver's files are told from others. Never by name: a tenant chooses names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nodes {
    /// Character devices, by device number.
    Devices {
        /// Major number of `nvidia-uvm`, which the kernel chooses.
        uvm_major: Option<u64>,
    },
    /// Plain files, by (device, inode): what stays the same through a bind mount.
    Files(HashMap<(u64, u64), FileKind>),
}

impl Nodes {
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
            Self::Devices { uvm_major } => kind_of_device(&stat, *uvm_major),
            Self::Files(nodes) => nodes.get(&(stat.st_dev, stat.st_ino)).copied(),
        }
    }
}

fn kind_of_device(stat: &FileStat, uvm_major: Option<u64>) -> Option<FileKind> {
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFCHR {
        return None;
    }
    match (major(stat.st_rdev), minor(stat.st_rdev)) {
        (NVIDIA_MAJOR, CONTROL_MINOR) => Some(FileKind::Ctl),
        (NVIDIA_MAJOR, minor) => u32::try_from(minor)
            .ok()
            .map(|minor| FileKind::Card { minor }),
        (major, 0) if Some(major) == uvm_major => Some(FileKind::Uvm),
        (major, 1) if Some(major) == uvm_major => Some(FileKind::UvmTools),
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
    fn files_are_told_apart_by_what_they_are_and_not_by_name() {
        let dir = std::env::temp_dir().join(format!("cgpu-driver-nodes-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
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
        let nodes = Nodes::below(&dir).unwrap();
        let kind = |name: &str| nodes.kind(fs::File::open(dir.join(name)).unwrap().as_fd());
        assert_eq!(kind("nvidiactl"), Some(FileKind::Ctl));
        assert_eq!(kind("renamed"), Some(FileKind::Card { minor: 7 }));
        assert_eq!(kind("nvidia-uvm"), Some(FileKind::Uvm));
        assert_eq!(kind("nvidia-uvm-tools"), Some(FileKind::UvmTools));
        assert_eq!(kind("other"), None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_device_of_another_major_is_not_the_drivers() {
        let nodes = Nodes::Devices { uvm_major: None };
        let null = fs::File::open("/dev/null").unwrap();
        assert_eq!(nodes.kind(null.as_fd()), None);
        let memory = Nodes::Devices { uvm_major: Some(1) };
        assert_eq!(memory.kind(null.as_fd()), None, "minor 3 of major 1");
    }
}
