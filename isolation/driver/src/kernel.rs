//! The kernel's driver: calls are executed on duplicates of the tenant's own files.
//!
//! RM checks that a call comes on the file that made its client, not that it comes from the process (rmapi/client.c,
//! `clientOSInfo`), so a duplicate passes. RM takes privilege from the executing thread: this process must not hold
//! CAP_SYS_ADMIN, which `cgpu-broker` drops before it serves.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::stat::{SFlag, fstat, major, minor};
use nvabi::bytes::put_u32;

use crate::{
    Binding, Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket,
};

/// `NV_MAJOR_DEVICE_NUMBER`
const NVIDIA_MAJOR: u64 = 195;
/// `NV_CONTROL_DEVICE_MINOR`
const CONTROL_MINOR: u64 = 255;

const VERSION_FILE: &str = "/proc/driver/nvidia/version";
const DEVICES_FILE: &str = "/proc/devices";

/// Why the kernel's driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The module is not loaded.
    #[error("no NVIDIA kernel driver: cannot read {VERSION_FILE}")]
    Absent(#[source] std::io::Error),
    /// The version file has another form.
    #[error("{VERSION_FILE} names no driver version")]
    NoVersion,
}

/// The kernel's driver.
#[derive(Debug)]
pub struct KernelDriver {
    version: String,
    uvm_major: Option<u64>,
    implicit: ImplicitBytes,
}

impl KernelDriver {
    /// Finds the loaded driver. `implicit` is the declared context tax, which the open driver does not tell.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(implicit: ImplicitBytes) -> Result<Self, OpenError> {
        let text = fs::read_to_string(VERSION_FILE).map_err(OpenError::Absent)?;
        let version = version_in(&text).ok_or(OpenError::NoVersion)?.to_owned();
        let uvm_major = fs::read_to_string(DEVICES_FILE)
            .ok()
            .and_then(|text| uvm_major_in(&text));
        Ok(Self {
            version,
            uvm_major,
            implicit,
        })
    }
}

/// The first word of the form `N.N` or `N.N.N` in `/proc/driver/nvidia/version`.
#[must_use]
pub fn version_in(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find(|word| word.parse::<nvabi::DriverVersion>().is_ok())
}

fn uvm_major_in(devices: &str) -> Option<u64> {
    devices.lines().find_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        (name.trim() == "nvidia-uvm")
            .then(|| major.parse().ok())
            .flatten()
    })
}

impl Driver for KernelDriver {
    fn version(&self) -> &str {
        &self.version
    }

    fn cards(&self) -> &[CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        self.implicit
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        let stat = fstat(fd).ok()?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFCHR {
            return None;
        }
        match (major(stat.st_rdev), minor(stat.st_rdev)) {
            (NVIDIA_MAJOR, CONTROL_MINOR) => Some(FileKind::Ctl),
            (NVIDIA_MAJOR, minor) => u32::try_from(minor)
                .ok()
                .map(|minor| FileKind::Card { minor }),
            (major, 0) if Some(major) == self.uvm_major => Some(FileKind::Uvm),
            (major, 1) if Some(major) == self.uvm_major => Some(FileKind::UvmTools),
            _ => None,
        }
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        _caller: Caller,
        _ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let (first, rest) = call
            .segments
            .split_first_mut()
            .ok_or(Error::Unsupported("a call without a struct"))?;
        // The driver resolves descriptors in this process: it gets our duplicates, the tenant keeps its numbers.
        for slot in &call.fds {
            put_u32(
                &mut first.bytes,
                slot.at as usize,
                slot.fd.as_fd().as_raw_fd().cast_unsigned(),
            );
        }
        let mut blocks: Vec<sys::ioctl::Block<'_>> = rest
            .iter_mut()
            .filter_map(|segment| {
                let link = segment.link?;
                Some(sys::ioctl::Block {
                    parent: usize::from(link.segment),
                    pointer_at: link.pointer_at as usize,
                    bytes: &mut segment.bytes,
                })
            })
            .collect();
        let result = sys::ioctl::with_pointers(file.fd, call.cmd, &mut first.bytes, &mut blocks);
        for slot in &call.fds {
            put_u32(
                &mut first.bytes,
                slot.at as usize,
                slot.number.cast_unsigned(),
            );
        }
        let ret = result.unwrap_or_else(|error| -error.raw_os_error().unwrap_or(5));
        Ok(Executed {
            ret,
            new_file: None,
        })
    }

    fn binding(&self) -> Binding {
        Binding::Caller
    }

    fn closed(&self, _file: FileId) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_both_flavours_of_the_file() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build  (builder)\nGCC version: 12.2.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jul 1\n";
        assert_eq!(version_in(open), Some("570.195.03"));
        assert_eq!(version_in(closed), Some("535.261.03"));
        assert_eq!(version_in("no version here"), None);
    }

    #[test]
    fn the_major_of_uvm_is_read_from_proc_devices() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n507 nvidia-uvm\n\nBlock devices:\n";
        assert_eq!(uvm_major_in(text), Some(507));
        assert_eq!(uvm_major_in("Character devices:\n 1 mem\n"), None);
    }
}
