//! Raw ioctls whose struct points to further blocks.
//!
//! UNSAFETY: an ioctl's effect on memory depends on its number, which only the caller knows.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A block that a pointer in another block names.
#[derive(Debug)]
pub struct Block<'a> {
    /// Index of the block that holds the pointer: 0 is the ioctl's struct, 1 the first of these blocks, and so on.
    pub parent: usize,
    /// Offset of the 8-byte pointer in it.
    pub pointer_at: usize,
    /// The bytes.
    pub bytes: &'a mut [u8],
}

/// Longest struct of a command without a size field (UVM's raw numbers; the largest today has 9264 bytes).
const UNSIZED_BYTES: usize = 16 * 1024;

/// The bytes that the kernel may copy for a command, as its size field says.
fn declared_bytes(cmd: u32) -> usize {
    match (cmd >> 16) & 0x3fff {
        0 => UNSIZED_BYTES,
        bytes => bytes as usize,
    }
}

/// An ioctl whose struct holds no pointer. A struct shorter than the command declares is padded for the call.
///
/// # Errors
/// The system's.
pub fn raw(fd: BorrowedFd<'_>, cmd: u32, arg: &mut [u8]) -> io::Result<i32> {
    with_pointers(fd, cmd, arg, &mut [])
}

/// An ioctl whose struct points to blocks. The pointers are set before the call and their former values put back after it,
/// so that the struct can be compared with what it was.
///
/// The lengths that the struct declares for its blocks must be theirs: the drivers' commands that cgpu issues come from
/// `nvabi`'s rows, which say where a length stands.
///
/// # Errors
/// The system's; `InvalidInput` when a pointer is outside its parent block.
pub fn with_pointers(
    fd: BorrowedFd<'_>,
    cmd: u32,
    arg: &mut [u8],
    blocks: &mut [Block<'_>],
) -> io::Result<i32> {
    let mut former = Vec::with_capacity(blocks.len());
    for index in 0..blocks.len() {
        let Some(block) = blocks.get_mut(index) else {
            break;
        };
        let (parent, at) = (block.parent, block.pointer_at);
        // A zero-length block gets no pointer to a dangling address. The address leaves through the kernel, so its
        // provenance is exposed: the compiler must not assume that the block is untouched.
        let address = match block.bytes {
            [] => 0,
            ref mut bytes => bytes.as_mut_ptr().expose_provenance() as u64,
        };
        match exchange_pointer(arg, blocks, parent, at, address.to_ne_bytes()) {
            Some(was) => former.push((parent, at, was)),
            None => {
                put_back(arg, blocks, former);
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
    }
    let length = arg.len();
    let mut padded = Vec::new();
    let pointer = if length < declared_bytes(cmd) {
        padded.extend_from_slice(arg);
        padded.resize(declared_bytes(cmd), 0);
        padded.as_mut_ptr()
    } else {
        arg.as_mut_ptr()
    };
    // SAFETY: `pointer` names at least as many live bytes as the command declares, the pointers in them name live blocks of
    // the lengths that the struct declares (the contract above), and no other reference to them is used meanwhile.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(cmd), pointer) };
    let result = if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    };
    if !padded.is_empty() {
        padded.truncate(length);
        arg.copy_from_slice(&padded);
    }
    put_back(arg, blocks, former);
    result
}

/// Writes a pointer into the struct (parent 0) or a block, and returns what was there; `None` out of bounds.
fn exchange_pointer(
    arg: &mut [u8],
    blocks: &mut [Block<'_>],
    parent: usize,
    at: usize,
    pointer: [u8; 8],
) -> Option<[u8; 8]> {
    let holder: &mut [u8] = match parent.checked_sub(1) {
        None => arg,
        Some(other) => blocks.get_mut(other)?.bytes,
    };
    let field: &mut [u8; 8] = holder.get_mut(at..at.checked_add(8)?)?.try_into().ok()?;
    Some(std::mem::replace(field, pointer))
}

fn put_back(arg: &mut [u8], blocks: &mut [Block<'_>], former: Vec<(usize, usize, [u8; 8])>) {
    for (parent, at, pointer) in former {
        let ours = exchange_pointer(arg, blocks, parent, at, pointer);
        debug_assert!(ours.is_some(), "the same field was written before the call");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_plain_ioctl_fills_its_struct() {
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"four").unwrap();
        let mut count = [0u8; 4];
        raw(
            reader.as_fd(),
            u32::try_from(libc::FIONREAD).unwrap(),
            &mut count,
        )
        .unwrap();
        assert_eq!(i32::from_ne_bytes(count), 4);
    }

    #[test]
    fn pointers_are_put_back_even_on_failure() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut arg = [7u8; 16];
        let mut block = [0u8; 4];
        let mut blocks = [Block {
            parent: 0,
            pointer_at: 8,
            bytes: &mut block,
        }];
        with_pointers(file.as_fd(), 0xc020_462a, &mut arg, &mut blocks).unwrap_err();
        assert_eq!(arg, [7u8; 16]);
    }

    #[test]
    fn a_pointer_outside_its_parent_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut block = [0u8; 4];
        let mut blocks = [Block {
            parent: 0,
            pointer_at: 12,
            bytes: &mut block,
        }];
        let error =
            with_pointers(file.as_fd(), 0xc020_462a, &mut [0; 16], &mut blocks).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
