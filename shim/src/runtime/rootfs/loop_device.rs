//! A file as a block device, for snapshotters that keep a file system in a file (drivers/block/loop.c,
//! include/uapi/linux/loop.h).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

use crate::error::{Error, Result, file};

const CONTROL: &str = "/dev/loop-control";
const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_CONFIGURE: u32 = 0x4c0a;

/// `struct loop_config`: fd, block size, `struct loop_info64`, 8 reserved words.
const CONFIG_BYTES: usize = 4 + 4 + 232 + 64;
/// `lo_flags` of the `loop_info64` in it, after five words of 8 bytes and three of 4.
const FLAGS_AT: usize = 8 + 5 * 8 + 3 * 4;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Another process may take the free device first; as often as containerd tries.
const ATTEMPTS: usize = 100;

/// How the file is attached. It is let go with the last mount of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needed(u32);

impl Needed {
    /// As read-only as the mount; `direct-io` is not the file system's and leaves its options.
    pub(super) fn take(data: &mut Vec<String>, flags: MsFlags) -> Self {
        let mut needed = LO_FLAGS_AUTOCLEAR;
        if flags.contains(MsFlags::MS_RDONLY) {
            needed |= LO_FLAGS_READ_ONLY;
        }
        let before = data.len();
        data.retain(|option| option != "direct-io");
        if data.len() < before {
            needed |= LO_FLAGS_DIRECT_IO;
        }
        Self(needed)
    }

    pub(super) fn is_read_only(self) -> bool {
        self.0 & LO_FLAGS_READ_ONLY != 0
    }

    #[cfg(test)]
    pub(super) fn is_direct(self) -> bool {
        self.0 & LO_FLAGS_DIRECT_IO != 0
    }
}

/// An attached device; it is let go when this is dropped and nothing of it is mounted.
#[derive(Debug)]
pub(super) struct Device {
    path: PathBuf,
    _opened: File,
}

impl Device {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Attaches a file to the next free device.
pub(super) fn attach(source: &Path, needed: &Needed) -> Result<Device> {
    let open = |path: &Path| {
        let mut options = OpenOptions::new();
        options.read(true).write(!needed.is_read_only()).open(path)
    };
    let backing = open(source).map_err(file("open", source))?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open(CONTROL)
        .map_err(file("open", CONTROL))?;
    for _ in 0..ATTEMPTS {
        let free = sys::ioctl::raw(control.as_fd(), LOOP_CTL_GET_FREE, &mut [])
            .map_err(file("find a free device by", CONTROL))?;
        let path = PathBuf::from(format!("/dev/loop{free}"));
        let opened = open(&path).map_err(file("open", &path))?;
        match configure(&opened, &backing, *needed) {
            Ok(()) => {
                return Ok(Device {
                    path,
                    _opened: opened,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(file("attach a file to", path)(error)),
        }
    }
    Err(Error::Busy(CONTROL))
}

fn configure(device: &File, backing: &File, needed: Needed) -> io::Result<()> {
    let mut config = [0; CONFIG_BYTES];
    let mut put = |at: usize, value: [u8; 4]| {
        if let Some(field) = config.get_mut(at..at + 4) {
            field.copy_from_slice(&value);
        }
    };
    #[expect(clippy::host_endian_bytes, reason = "a struct of this kernel")]
    {
        put(0, backing.as_raw_fd().to_ne_bytes());
        put(FLAGS_AT, needed.0.to_ne_bytes());
    }
    sys::ioctl::raw(device.as_fd(), LOOP_CONFIGURE, &mut config).map(drop)
}
