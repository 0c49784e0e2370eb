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
/// The system's; `InvalidInput` when a pointer lies outside its parent block.
pub fn with_pointers(
    fd: BorrowedFd<'_>,
    cmd: u32,
    arg: &mut [u8],
    blocks: &mut [Block<'_>],
) -> io::Result<i32> {
    let mut saved = Vec::with_capacity(blocks.len());
    for index in 0..blocks.len() {
        let Some(block) = blocks.get_mut(index) else {
            break;
        };
        let (parent, at) = (block.parent, block.pointer_at);
        // A zero-length block gets no pointer to a dangling address.
        let address = if block.bytes.is_empty() {
            0
        } else {
            block.bytes.as_mut_ptr().addr() as u64
        };
        let holder: &mut [u8] = match parent.checked_sub(1) {
            None => arg,
            Some(other) => blocks
                .get_mut(other)
                .map(|block| &mut *block.bytes)
                .ok_or(io::ErrorKind::InvalidInput)?,
        };
        let field = at
            .checked_add(8)
            .and_then(|end| holder.get_mut(at..end))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut former = [0u8; 8];
        former.copy_from_slice(field);
        field.copy_from_slice(&address.to_ne_bytes());
        saved.push((parent, at, former));
    }
    // The addresses leave through the kernel: keep the compiler from assuming that the blocks are untouched.
    for block in blocks.iter_mut() {
        std::hint::black_box(block.bytes.as_mut_ptr().expose_provenance());
    }
    // SAFETY: `arg` lives across the call and is as long as the command's struct, the pointers in it name live blocks of
    // the lengths that the struct declares (both by the contract above), and no other reference to them is used meanwhile.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(cmd), arg.as_mut_ptr()) };
    let result = if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    };
    for (parent, at, former) in saved {
        let holder: Option<&mut [u8]> = match parent.checked_sub(1) {
            None => Some(&mut *arg),
            Some(other) => blocks.get_mut(other).map(|block| &mut *block.bytes),
        };
        if let Some(field) = holder.and_then(|holder| holder.get_mut(at..at + 8)) {
            field.copy_from_slice(&former);
        }
    }
    result
}

/// An ioctl with all 64 bits of the command register given and zeroed memory as its struct: for tests of a filter.
///
/// # Errors
/// The system's.
pub fn with_registers(fd: BorrowedFd<'_>, cmd: u64) -> io::Result<i64> {
    let mut scratch = vec![0u8; UNSIZED_BYTES];
    // SAFETY: no command copies more than its 14-bit size field or `UNSIZED_BYTES`; the block lives across the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), cmd, scratch.as_mut_ptr()) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
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
