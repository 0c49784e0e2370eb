//! The kernel's driver: calls are executed on duplicates of the tenant's own files.
//!
//! RM checks that a call comes on the file that made its client, not that it comes from the process (rmapi/client.c,
//! `clientOSInfo`), so a duplicate passes. RM takes privilege from the executing thread: this process must not hold
//! CAP_SYS_ADMIN, which `cgpu-broker` drops before it serves.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use nvabi::Release;
use nvabi::bytes::put_u32;
use nvabi::proc_files::{VERSION_PATH, driver_version};

use crate::issue::{Slot, issue};
use crate::nodes::Nodes;
use crate::{
    Binding, Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket, descriptors, pointers,
};

/// Why the kernel's driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The module is not loaded.
    #[error("no NVIDIA kernel driver: cannot read {VERSION_PATH}")]
    Absent(#[source] std::io::Error),
    /// The version file has another form.
    #[error("{VERSION_PATH} names no driver version")]
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
    /// Of the loaded kernel driver. `layouts`: the release that it is known to have, if that is not its version's own.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn of_kernel(implicit: ImplicitBytes, layouts: Option<Release>) -> Result<Self, OpenError> {
        let text = fs::read_to_string(VERSION_PATH).map_err(OpenError::Absent)?;
        let version = driver_version(&text)
            .ok_or(OpenError::NoVersion)?
            .to_owned();
        let parsed: nvabi::DriverVersion =
            version.parse().map_err(|_malformed| OpenError::NoVersion)?;
        Ok(Self {
            version,
            release: layouts.map_or_else(|| Release::of(parsed), Ok)?,
            nodes: Nodes::of_kernel(),
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
    /// Finds the loaded driver; `layouts` as in [`Facts::of_kernel`]. `implicit` is the declared context tax, which the open driver does not tell.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(implicit: ImplicitBytes, layouts: Option<Release>) -> Result<Self, OpenError> {
        Ok(Self::with(Facts::of_kernel(implicit, layouts)?))
    }

    /// The driver of which this is known.
    #[must_use]
    pub fn with(facts: Facts) -> Self {
        Self { facts }
    }
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
