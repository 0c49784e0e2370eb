//! One call on its way to a driver.

use std::os::fd::OwnedFd;

use nvabi::bytes::put_u32;
use nvabi::layout::nvos54;
use nvabi::{Release, escape};
use serde::{Deserialize, Serialize};

use crate::{FileId, NewFile};

/// What a file of the tenant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// `/dev/nvidiactl`
    Ctl,
    /// `/dev/nvidia<minor>`
    Card {
        /// N
        minor: u32,
    },
    /// `/dev/nvidia-uvm`
    Uvm,
    /// `/dev/nvidia-uvm-tools`
    UvmTools,
}

/// Where a segment's address stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The segment that holds the pointer.
    pub segment: u8,
    /// Offset of the 8-byte pointer in it.
    pub pointer_at: u32,
}

/// One block of the tenant's memory, copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its address in the tenant; not for dereferencing.
    pub address: u64,
    /// The pointer that names it; `None` for segment 0, which the ioctl's argument names.
    pub link: Option<Link>,
    /// The bytes.
    #[serde(with = "crate::bytes")]
    pub bytes: Vec<u8>,
}

/// A descriptor number inside the ioctl's struct, resolved; or a file that goes beside the call.
#[derive(Debug)]
pub struct FdSlot {
    /// The segment that holds it; [`FdSlot::BESIDE`]: none.
    pub segment: u8,
    /// Offset of the 4-byte number.
    pub at: u32,
    /// The tenant's number.
    pub number: i32,
    /// Identity and kind, where it is a file of the driver.
    pub file: Option<(FileId, FileKind)>,
    /// A duplicate in this process.
    pub fd: OwnedFd,
}

impl FdSlot {
    /// The segment of a file that no struct names: whoever makes the call must have it open, since the driver looks for it
    /// among all files of the calling process (`nv_is_gpu_accessible`, nv.c). No call has as many blocks.
    pub const BESIDE: u8 = u8::MAX;
}

/// A decoded call: copies only.
#[derive(Debug)]
pub struct Call {
    /// The ioctl command, low 32 bits.
    pub cmd: u32,
    /// The blocks: 0 the struct, 1 the parameters, then what the parameters point to.
    pub segments: Vec<Segment>,
    /// Descriptors that the struct names, and files beside the call.
    pub fds: Vec<FdSlot>,
}

impl Call {
    /// A call of cgpu's own, behind which is no tenant's memory: the struct, and the block of its pointer at this offset.
    #[must_use]
    pub fn own(cmd: u32, arg: Vec<u8>, block: Option<(usize, Vec<u8>)>) -> Self {
        let first = Segment {
            address: 0,
            link: None,
            bytes: arg,
        };
        let second = block.map(|(pointer_at, bytes)| Segment {
            address: 0,
            link: Some(Link {
                segment: 0,
                // No struct is as long: whoever makes the call refuses it.
                pointer_at: u32::try_from(pointer_at).unwrap_or(u32::MAX),
            }),
            bytes,
        });
        Self {
            cmd,
            segments: std::iter::once(first).chain(second).collect(),
            fds: Vec::new(),
        }
    }

    /// A control of cgpu's own: of an object of a client.
    #[must_use]
    pub fn control(
        release: Release,
        [client, object]: [u32; 2],
        cmd: u32,
        params: Vec<u8>,
    ) -> Self {
        let escape = escape::NV_ESC_RM_CONTROL;
        let mut arg = vec![0; escape.size.of(release) as usize];
        put_u32(&mut arg, nvos54::H_CLIENT, client);
        put_u32(&mut arg, nvos54::H_OBJECT, object);
        put_u32(&mut arg, nvos54::CMD, cmd);
        let length = u32::try_from(params.len()).unwrap_or(u32::MAX);
        put_u32(&mut arg, nvos54::PARAMS_SIZE, length);
        let params = Some((nvos54::P_PARAMS, params));
        Self::own(escape.cmd(release), arg, params)
    }

    /// The struct and the block of [`Self::own`]; what is not there is empty.
    #[must_use]
    pub fn into_blocks(self) -> (Vec<u8>, Vec<u8>) {
        let mut blocks = self.segments.into_iter().map(|segment| segment.bytes);
        (
            blocks.next().unwrap_or_default(),
            blocks.next().unwrap_or_default(),
        )
    }
}

/// What came of a call.
#[derive(Debug, Default)]
pub struct Executed {
    /// What the ioctl returns: 0 or more, or a negative errno.
    pub ret: i32,
    /// A file to put in place of one of the tenant's descriptors.
    pub new_file: Option<NewFile>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    #[test]
    fn a_block_is_written_as_its_fields_one_after_the_other() {
        let link = Link {
            segment: 1,
            pointer_at: 300,
        };
        for (address, link, bytes) in [
            (0, None, vec![]),
            (7, Some(link), vec![1, 2, 255]),
            (u64::MAX, Some(link), vec![9; 200]),
        ] {
            let fields = (address, link, Bytes(bytes.as_slice()));
            let written = postcard::to_allocvec(&fields).unwrap();
            let segment = Segment {
                address,
                link,
                bytes: bytes.clone(),
            };
            assert_eq!(postcard::to_allocvec(&segment).unwrap(), written);
            assert_eq!(postcard::from_bytes::<Segment>(&written).unwrap(), segment);
        }
    }
}
