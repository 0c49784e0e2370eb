//! Managed memory: what a tenant maps of `nvidia-uvm` itself, at the offset of its own address.
//!
//! All containers share the plain file that stands for the node, so UVM_INITIALIZE puts a file of the tenant's own in the
//! place of its descriptor. An `mmap` of that gives zeroed pages without any call; the table of the process's maps is what
//! says where there are some. Pages stay where they are: nothing migrates, and the card's account does not know them. What
//! is unmapped without UVM_FREE and mapped again at the same address still has its contents.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use arch::Arch;
use driver::wire::UVM_FILE_NAME;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::memory::{Backing, Place, sealed_memfd};

/// Every address of a program's is an offset of the file.
const ADDRESS_SPACE_BYTES: u64 = 1 << Arch::NATIVE.user_address_bits();

/// The file behind one initialised `nvidia-uvm`.
#[derive(Debug)]
pub(crate) struct Managed {
    file: File,
    backing: Arc<Backing>,
    inode: u64,
    /// The process whose address space it is bound to.
    pid: i32,
}

impl Managed {
    pub(crate) fn new(pid: i32) -> io::Result<Self> {
        let file = sealed_memfd(UVM_FILE_NAME, ADDRESS_SPACE_BYTES)?;
        Ok(Self {
            inode: file.metadata()?.ino(),
            backing: Arc::new(Backing::of_file(file.try_clone()?, ADDRESS_SPACE_BYTES)),
            file,
            pid,
        })
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// For the tenant.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Whether the process has mapped all of a span.
    pub(crate) fn covers(&self, base: u64, last: u64) -> bool {
        let mut next = base;
        for (from, end) in self.maps() {
            if from > next {
                return false;
            }
            if end > last {
                return true;
            }
            next = next.max(end);
        }
        false
    }

    /// Where a card's access to an address leads; `None` where the process has not mapped it.
    pub(crate) fn place(&self, address: u64) -> Option<Place> {
        let (_from, end) = self
            .maps()
            .into_iter()
            .find(|(from, end)| (*from..*end).contains(&address))?;
        Some(Place {
            backing: self.backing.clone(),
            offset: address,
            bytes: end - address,
        })
    }

    /// Gives the pages of a span back; they read as zeros again.
    pub(crate) fn discard(&self, base: u64, bytes: u64) -> io::Result<()> {
        let whole = |number| i64::try_from(number).map_err(io::Error::other);
        fallocate(
            &self.file,
            FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
            whole(base)?,
            whole(bytes)?,
        )?;
        Ok(())
    }

    /// The process's maps of the file, in order: first address and end. A map at another offset than its address is none,
    /// as the driver refuses it.
    fn maps(&self) -> Vec<(u64, u64)> {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)) else {
            return Vec::new();
        };
        let inode = self.inode.to_string();
        text.lines()
            .filter_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (from, end) = fields.next()?.split_once('-')?;
                let (_access, offset, _device) = (fields.next()?, fields.next()?, fields.next()?);
                let number = |text| u64::from_str_radix(text, 16).ok();
                let (from, end) = (number(from)?, number(end)?);
                (fields.next()? == inode && number(offset)? == from).then_some((from, end))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_mapped_covers_nothing_and_pages_can_be_given_back() {
        let managed = Managed::new(std::process::id().cast_signed()).unwrap();
        assert!(!managed.covers(0x1000, 0x1fff));
        assert!(managed.place(0x1000).is_none());
        let at = 0x7000_0000_0000;
        managed.backing.write(at, b"abc").unwrap();
        managed.discard(at, 0x1000).unwrap();
        let mut bytes = [1; 3];
        managed.backing.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 3]);
    }
}
