//! The kernel's driver: calls are executed on duplicates of the tenant's own files.
//!
//! RM checks that a call comes on the file that made its client, not that it comes from the process (rmapi/client.c,
//! `clientOSInfo`), so a duplicate passes. RM takes privilege from the executing thread: this process must not hold
//! CAP_SYS_ADMIN, which `cgpu-broker` drops before it serves.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use nvabi::Release;
use nvabi::bytes::put_u32;

use crate::issue::{Slot, issue};
use crate::nodes::Nodes;
use crate::{
    Binding, Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket, descriptors, pointers,
};

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
    /// Its layouts are not known.
    #[error(transparent)]
    Unsupported(#[from] nvabi::UnsupportedRelease),
}

/// What is known of a driver without asking it: enough to decode calls for it and to tell its files from others.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its version, e.g. `570.195.03`.
    pub version: String,
    /// The layouts of that version.
    pub release: Release,
    /// Its files.
    pub nodes: Nodes,
    /// The declared context tax, which the open driver does not tell.
    pub implicit: ImplicitBytes,
}

impl Facts {
    /// Of the loaded kernel driver.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn of_kernel(implicit: ImplicitBytes) -> Result<Self, OpenError> {
        let text = fs::read_to_string(VERSION_FILE).map_err(OpenError::Absent)?;
        let version = version_in(&text).ok_or(OpenError::NoVersion)?.to_owned();
        let parsed: nvabi::DriverVersion =
            version.parse().map_err(|_malformed| OpenError::NoVersion)?;
        let uvm_major = fs::read_to_string(DEVICES_FILE)
            .ok()
            .and_then(|text| uvm_major_in(&text));
        Ok(Self {
            version,
            release: Release::of(parsed)?,
            nodes: Nodes::Devices { uvm_major },
            implicit,
        })
    }
}

/// The kernel's driver, called by this process (mode A).
#[derive(Debug)]
pub struct KernelDriver {
    facts: Facts,
}

impl KernelDriver {
    /// Finds the loaded driver. `implicit` is the declared context tax, which the open driver does not tell.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(implicit: ImplicitBytes) -> Result<Self, OpenError> {
        Ok(Self::with(Facts::of_kernel(implicit)?))
    }

    /// The driver of which this is known.
    #[must_use]
    pub fn with(facts: Facts) -> Self {
        Self { facts }
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
        &self.facts.version
    }

    fn cards(&self) -> &[CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        self.facts.implicit
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        self.facts.nodes.kind(fd)
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        _caller: Caller,
        _ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        descriptors::check(file.kind, call, self.facts.release)?;
        let taken = pointers::take(file.kind, call, self.facts.release)?;
        // The driver resolves descriptors in this process: it gets our duplicates, the tenant keeps its numbers.
        let slots: Vec<Slot<'_>> = call
            .fds
            .iter()
            .map(|slot| Slot {
                segment: usize::from(slot.segment),
                at: slot.at as usize,
                fd: slot.fd.as_fd(),
            })
            .collect();
        let executed = issue(file.fd, call.cmd, &mut call.segments, &slots);
        put_numbers_back(call);
        taken.put_back(file.kind, call, self.facts.release);
        Ok(executed)
    }

    fn binding(&self) -> Binding {
        Binding::Caller
    }

    fn closed(&self, _file: FileId) -> Result<(), Error> {
        Ok(())
    }
}

/// The tenant's descriptor numbers, in place of those that the driver was given.
pub(crate) fn put_numbers_back(call: &mut Call) {
    for slot in &call.fds {
        if let Some(segment) = call.segments.get_mut(usize::from(slot.segment)) {
            put_u32(
                &mut segment.bytes,
                slot.at as usize,
                slot.number.cast_unsigned(),
            );
        }
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
