//! Making one ioctl: descriptors and pointers in the struct become this process's own for as long as it lasts.

use std::os::fd::{AsRawFd, BorrowedFd};

use nvabi::bytes::put_u32;
use nvabi::errno::{EFAULT, EIO};
use sys::ioctl::Block;

use crate::{Executed, Segment};

/// A descriptor number to set in a segment while the call lasts.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    /// The segment.
    pub segment: usize,
    /// Offset of the 4-byte number.
    pub at: usize,
    /// The file, in this process.
    pub fd: BorrowedFd<'a>,
}

/// Makes the ioctl. Pointers of the segments' links hold what they held afterwards; descriptor numbers do not.
///
/// A failed ioctl is an `Ok` with a negative errno, as for every driver.
pub fn issue(
    file: BorrowedFd<'_>,
    cmd: u32,
    segments: &mut [Segment],
    slots: &[Slot<'_>],
) -> Executed {
    for slot in slots {
        if let Some(segment) = segments.get_mut(slot.segment) {
            put_u32(
                &mut segment.bytes,
                slot.at,
                slot.fd.as_raw_fd().cast_unsigned(),
            );
        }
    }
    let Some((first, rest)) = segments.split_first_mut() else {
        return Executed {
            ret: -EFAULT,
            new_file: None,
        };
    };
    let mut blocks: Vec<Block<'_>> = rest
        .iter_mut()
        .filter_map(|segment| {
            let link = segment.link?;
            Some(Block {
                parent: usize::from(link.segment),
                pointer_at: link.pointer_at as usize,
                bytes: &mut segment.bytes,
            })
        })
        .collect();
    let result = sys::ioctl::with_pointers(file, cmd, &mut first.bytes, &mut blocks);
    Executed {
        ret: result.unwrap_or_else(|error| error.raw_os_error().unwrap_or(EIO).saturating_neg()),
        new_file: None,
    }
}
