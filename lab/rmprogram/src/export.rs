//! Exported memory: a control file that carries it to clients which cannot name its handles.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nvabi::{bytes, control};
use rmclient::{Card, DriverFile, Handle};

use crate::Error;

/// What an exporting file says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportInfo {
    /// The card's device instance.
    pub device_instance: u32,
    /// How many objects it may carry.
    pub most_objects: u16,
}

/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS` (`ctrl0000unix.h`).
mod one {
    pub(super) const TYPE: usize = 0;
    pub(super) const H_DEVICE: usize = 4;
    pub(super) const H_PARENT: usize = 8;
    pub(super) const H_OBJECT: usize = 12;
    pub(super) const FD: usize = 16;
    /// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`
    pub(super) const TYPE_RM: u32 = 1;
}

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS`
mod import_one {
    pub(super) const FD: usize = 0;
    pub(super) const TYPE: usize = 4;
    pub(super) const H_DEVICE: usize = 8;
    pub(super) const H_PARENT: usize = 12;
    pub(super) const H_OBJECT: usize = 16;
}

/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS`
mod many {
    pub(super) const FD: usize = 0;
    pub(super) const H_DEVICE: usize = 4;
    pub(super) const MOST: usize = 8;
    pub(super) const OBJECTS: usize = 76;
    pub(super) const COUNT: usize = 2124;
}

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS`
mod import_many {
    pub(super) const FD: usize = 0;
    pub(super) const H_PARENT: usize = 4;
    pub(super) const OBJECTS: usize = 8;
    pub(super) const COUNT: usize = 648;
    pub(super) const INDEX: usize = 650;
}

/// `NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS`: `{fd 0, deviceInstance 4, maxObjects 8:2 (12 from 550 on)}`.
const INFO_BYTES_535: usize = 76;

/// Exports of a card's memory, and imports below its device.
pub trait CardExports {
    /// Exports card memory to a file of its own: while the file is open, the memory stays even without a handle.
    ///
    /// # Errors
    /// The driver's status.
    fn export(&self, memory: Handle) -> Result<OwnedFd, Error>;

    /// A handle for the object that a file of [`CardExports::export`] carries, whoever exported it.
    ///
    /// # Errors
    /// The driver's status.
    fn import(&self, file: BorrowedFd<'_>) -> Result<Handle, Error>;

    /// Exports several objects of the card to one file.
    ///
    /// # Errors
    /// The driver's status; it takes 512 objects at most.
    fn export_many(&self, objects: &[Handle]) -> Result<OwnedFd, Error>;

    /// Handles for the first `count` objects that a file of [`CardExports::export_many`] carries.
    ///
    /// # Errors
    /// The driver's status; it gives 128 objects at most.
    fn import_many(&self, file: BorrowedFd<'_>, count: u16) -> Result<Vec<Handle>, Error>;

    /// What a file carries.
    ///
    /// # Errors
    /// The driver's status.
    fn export_info(&self, file: BorrowedFd<'_>) -> Result<ExportInfo, Error>;
}

impl CardExports for Card<'_> {
    fn export(&self, memory: Handle) -> Result<OwnedFd, Error> {
        let target = transfer_file(self)?;
        let fd = target.number().to_le_bytes();
        of_root(
            self,
            control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
            |params| {
                bytes::put_u32(params, one::TYPE, one::TYPE_RM);
                bytes::put_u32(params, one::H_DEVICE, self.device().0);
                bytes::put_u32(params, one::H_PARENT, self.device().0);
                bytes::put_u32(params, one::H_OBJECT, memory.0);
                bytes::put(params, one::FD, &fd);
            },
        )?;
        Ok(target.into())
    }

    fn import(&self, file: BorrowedFd<'_>) -> Result<Handle, Error> {
        let needed = self.client().new_handle();
        let params = of_root(
            self,
            control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
            |params| {
                bytes::put(params, import_one::FD, &file.as_raw_fd().to_le_bytes());
                bytes::put_u32(params, import_one::TYPE, one::TYPE_RM);
                bytes::put_u32(params, import_one::H_DEVICE, self.device().0);
                bytes::put_u32(params, import_one::H_PARENT, self.device().0);
                bytes::put_u32(params, import_one::H_OBJECT, needed.0);
            },
        )?;
        let handle = bytes::u32_at(&params, import_one::H_OBJECT);
        Ok(handle.map_or(needed, Handle))
    }

    fn export_many(&self, objects: &[Handle]) -> Result<OwnedFd, Error> {
        let target = transfer_file(self)?;
        let fd = target.number().to_le_bytes();
        let count = u16::try_from(objects.len())
            .unwrap_or(u16::MAX)
            .to_le_bytes();
        of_root(
            self,
            control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
            |params| {
                bytes::put(params, many::FD, &fd);
                bytes::put_u32(params, many::H_DEVICE, self.device().0);
                bytes::put(params, many::MOST, &count);
                for (object, at) in objects.iter().zip((many::OBJECTS..many::COUNT).step_by(4)) {
                    bytes::put_u32(params, at, object.0);
                }
                bytes::put(params, many::COUNT, &count);
            },
        )?;
        Ok(target.into())
    }

    fn import_many(&self, file: BorrowedFd<'_>, count: u16) -> Result<Vec<Handle>, Error> {
        let needed: Vec<Handle> = (0..count).map(|_one| self.client().new_handle()).collect();
        of_root(
            self,
            control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
            |params| {
                bytes::put(params, import_many::FD, &file.as_raw_fd().to_le_bytes());
                bytes::put_u32(params, import_many::H_PARENT, self.device().0);
                for (handle, at) in needed.iter().zip((import_many::OBJECTS..520).step_by(4)) {
                    bytes::put_u32(params, at, handle.0);
                }
                bytes::put(params, import_many::COUNT, &count.to_le_bytes());
                bytes::put(params, import_many::INDEX, &[0, 0]);
            },
        )?;
        Ok(needed)
    }

    fn export_info(&self, file: BorrowedFd<'_>) -> Result<ExportInfo, Error> {
        let params = of_root(
            self,
            control::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO,
            |params| {
                bytes::put(params, 0, &file.as_raw_fd().to_le_bytes());
            },
        )?;
        let most_at = if params.len() == INFO_BYTES_535 {
            8
        } else {
            12
        };
        match (bytes::u32_at(&params, 4), bytes::u16_at(&params, most_at)) {
            (Some(device_instance), Some(most_objects)) => Ok(ExportInfo {
                device_instance,
                most_objects,
            }),
            _ => Err(rmclient::Error::Malformed {
                call: "NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO",
                what: "parameters that are too short",
            }
            .into()),
        }
    }
}

/// A control file of its own, to carry exports.
fn transfer_file(card: &Card<'_>) -> Result<DriverFile, Error> {
    Ok(card.client().open(card.client().nodes().ctl())?)
}

/// A control on the root client; its parameters, filled and as they came back.
fn of_root(card: &Card<'_>, cmd: u32, fill: impl FnOnce(&mut [u8])) -> Result<Vec<u8>, Error> {
    let client = card.client();
    let mut params = client.params(cmd)?;
    fill(&mut params);
    client.control(client.root(), cmd, &mut params, Vec::new())?;
    Ok(params)
}
