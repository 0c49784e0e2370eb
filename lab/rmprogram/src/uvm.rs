//! `nvidia-uvm`: mapping card memory into a GPU address space, which takes a reference on it.

use nvabi::bytes;
use nvabi::uvm::{self as row, Uvm as Row, map_external};
use rmclient::{Client, DriverFile, Handle, Uuid, checked};

use crate::Error;

/// A part of the GPU's virtual addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GpuRange {
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// An initialised `nvidia-uvm`.
#[derive(Debug)]
pub struct Uvm<'client> {
    client: &'client Client,
    file: DriverFile,
    /// Keeps this process's memory for the address space, without which the driver registers no address space of a card.
    mm: DriverFile,
}

/// The commands of this module carry no size, so the kernel may copy this much: the largest struct rounded up.
const STRUCT_BYTES: usize = 16 * 1024;

/// `UVM_REGISTER_GPU_PARAMS` (`uvm_ioctl.h`).
mod register_gpu {
    pub(super) const UUID: usize = 0;
    pub(super) const RM_CTRL_FD: usize = 24;
    pub(super) const H_CLIENT: usize = 28;
}

/// `base` and `length` begin `UVM_CREATE_EXTERNAL_RANGE_PARAMS`, `UVM_FREE_PARAMS` and `UVM_UNMAP_EXTERNAL_PARAMS`.
mod range {
    pub(super) const BASE: usize = 0;
    pub(super) const LENGTH: usize = 8;
    /// `gpuUuid` of `UVM_UNMAP_EXTERNAL_PARAMS` and of `UVM_MAP_EXTERNAL_SPARSE_PARAMS`
    pub(super) const UNMAP_UUID: usize = 16;
}

impl<'client> Uvm<'client> {
    /// Opens and initialises `nvidia-uvm` for this process.
    ///
    /// # Errors
    /// [`rmclient::Error::Open`] where there is no such node; otherwise the driver's status.
    pub fn open(client: &'client Client) -> Result<Self, Error> {
        let [file, mm] = [
            client.open(client.nodes().uvm())?,
            client.open(client.nodes().uvm())?,
        ];
        let uvm = Self { client, file, mm };
        uvm.call(&row::UVM_INITIALIZE, |_flags_zero| ())?;
        uvm.call_on(&uvm.mm, &row::UVM_MM_INITIALIZE, |arg| {
            bytes::put(arg, row::MM_INITIALIZE_FD, &uvm.file.number().to_le_bytes());
        })?;
        Ok(uvm)
    }
}

impl Uvm<'_> {
    /// Makes a card known to this file.
    ///
    /// # Errors
    /// The driver's status.
    pub fn register(&self, uuid: Uuid) -> Result<(), Error> {
        self.call(&row::UVM_REGISTER_GPU, |arg| {
            bytes::put(arg, register_gpu::UUID, &uuid.0);
            bytes::put(arg, register_gpu::RM_CTRL_FD, &self.ctl_number());
            bytes::put_u32(arg, register_gpu::H_CLIENT, self.client.root().0);
        })
    }

    /// Registers a VA space of the card with this file.
    ///
    /// # Errors
    /// The driver's status.
    pub fn register_va_space(&self, uuid: Uuid, va_space: Handle) -> Result<(), Error> {
        self.call(&row::UVM_REGISTER_GPU_VASPACE, |arg| {
            bytes::put(arg, 0, &uuid.0);
            bytes::put(arg, 16, &self.ctl_number());
            bytes::put_u32(arg, 20, self.client.root().0);
            bytes::put_u32(arg, 24, va_space.0);
        })
    }

    /// Reserves a range for external mappings.
    ///
    /// # Errors
    /// The driver's status.
    pub fn create_range(&self, at: GpuRange) -> Result<(), Error> {
        self.call(&row::UVM_CREATE_EXTERNAL_RANGE, |arg| put_range(arg, at))
    }

    /// Maps card memory at a part of a range. The memory then outlives its handles, until it is unmapped.
    ///
    /// # Errors
    /// The driver's status.
    pub fn map(&self, at: GpuRange, uuid: Uuid, memory: Handle) -> Result<(), Error> {
        let release = self.client.release();
        let place = |offset: nvabi::PerRelease| usize::try_from(offset.of(release)).unwrap_or(0);
        self.call(&row::UVM_MAP_EXTERNAL_ALLOCATION, |arg| {
            put_range(arg, at);
            bytes::put(arg, map_external::PER_GPU, &uuid.0);
            bytes::put_u64(arg, place(map_external::COUNT), 1);
            bytes::put(arg, place(map_external::RM_CTRL_FD), &self.ctl_number());
            bytes::put_u32(arg, place(map_external::H_CLIENT), self.client.root().0);
            bytes::put_u32(arg, place(map_external::H_MEMORY), memory.0);
        })
    }

    /// Has all of a range read as zeros on one card, which takes page tables for it.
    ///
    /// # Errors
    /// The driver's status.
    pub fn map_sparse(&self, at: GpuRange, uuid: Uuid) -> Result<(), Error> {
        self.call(&row::UVM_MAP_EXTERNAL_SPARSE, |arg| {
            put_range(arg, at);
            bytes::put(arg, range::UNMAP_UUID, &uuid.0);
        })
    }

    /// Unmaps a part of a range on one card.
    ///
    /// # Errors
    /// The driver's status.
    pub fn unmap(&self, at: GpuRange, uuid: Uuid) -> Result<(), Error> {
        self.call(&row::UVM_UNMAP_EXTERNAL, |arg| {
            put_range(arg, at);
            bytes::put(arg, range::UNMAP_UUID, &uuid.0);
        })
    }

    /// Frees a range with all its mappings.
    ///
    /// # Errors
    /// The driver's status.
    pub fn free_range(&self, at: GpuRange) -> Result<(), Error> {
        self.call(&row::UVM_FREE, |arg| put_range(arg, at))
    }

    /// Makes a channel of the card known to this file.
    ///
    /// # Errors
    /// The driver's status.
    pub fn register_channel(&self, uuid: Uuid, channel: Handle) -> Result<(), Error> {
        self.call(&row::UVM_REGISTER_CHANNEL, |arg| {
            bytes::put(arg, 0, &uuid.0);
            bytes::put(arg, 16, &self.ctl_number());
            bytes::put_u32(arg, 20, self.client.root().0);
            bytes::put_u32(arg, 24, channel.0);
        })
    }

    /// Forgets a channel of [`Uvm::register_channel`], which must be before it is freed.
    ///
    /// # Errors
    /// The driver's status.
    pub fn unregister_channel(&self, uuid: Uuid, channel: Handle) -> Result<(), Error> {
        // Since 590 the card is no part of it.
        let at = match self.client.release() >= nvabi::Release::R590 {
            true => 0,
            false => 16,
        };
        self.call(&row::UVM_UNREGISTER_CHANNEL, |arg| {
            bytes::put(arg, 0, uuid.0.get(..at).unwrap_or_default());
            bytes::put_u32(arg, at, self.client.root().0);
            bytes::put_u32(arg, at + 4, channel.0);
        })
    }

    /// The open file, as the driver may have replaced it.
    pub(crate) fn file(&self) -> &DriverFile {
        &self.file
    }

    fn ctl_number(&self) -> [u8; 4] {
        self.client.ctl().number().to_le_bytes()
    }

    pub(crate) fn call(&self, row: &Row, fill: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        self.call_on(&self.file, row, fill)
    }

    fn call_on(
        &self,
        file: &DriverFile,
        row: &Row,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let release = self.client.release();
        let mut arg = vec![0u8; STRUCT_BYTES];
        fill(&mut arg);
        file.call(row.name, row.cmd, &mut arg, &mut [])?;
        let status_at = usize::try_from(row.status.of(release)).unwrap_or(0);
        Ok(checked(row.name, &arg, status_at)?)
    }
}

pub(crate) fn put_range(arg: &mut [u8], at: GpuRange) {
    bytes::put_u64(arg, range::BASE, at.base);
    bytes::put_u64(arg, range::LENGTH, at.length_bytes);
}
