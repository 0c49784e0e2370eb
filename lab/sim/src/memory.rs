//! Memory objects, and where their bytes are.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::card::Charge;

/// Name of the files behind memory objects, as `/proc` shows it.
const FILE_NAME: &str = "cgpu-sim-memory";

/// A memory object of RM. Handles, duplicates and UVM maps share it; the card's memory is free again when the last goes.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    pub(crate) backing: Arc<Backing>,
    /// `None` for system memory.
    pub(crate) charge: Option<Charge>,
}

/// Where bytes are. Channels under way hold this without holding the card's memory.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The simulator's own pages, in a memfd that is made when it is first written or mapped.
    Own { bytes: u64, file: OnceLock<File> },
    /// The client's pages. Its `/proc/<pid>/mem` names the address space itself, so that neither the end of the process
    /// nor another one with its number can be mistaken for it.
    Client { memory: File, base: u64, bytes: u64 },
}

/// A place in memory that an address leads to.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) backing: Arc<Backing>,
    pub(crate) offset: u64,
    /// Bytes that follow without a gap.
    pub(crate) bytes: u64,
}

impl Backing {
    pub(crate) fn own(bytes: u64) -> Self {
        Self::Own {
            bytes,
            file: OnceLock::new(),
        }
    }

    /// A file that is there already.
    pub(crate) fn of_file(file: File, bytes: u64) -> Self {
        Self::Own {
            bytes,
            file: OnceLock::from(file),
        }
    }

    /// The pages of a process from `base` on; it must be alive.
    pub(crate) fn client(pid: i32, base: u64, bytes: u64) -> io::Result<Self> {
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        Ok(Self::Client {
            memory,
            base,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Own { bytes, .. } | Self::Client { bytes, .. } => *bytes,
        }
    }

    /// Reads at an offset; memory that was never written reads as zeros.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len())?;
        match self {
            Self::Own { file, .. } => match file.get() {
                Some(file) => file.read_exact_at(into, at),
                None => {
                    into.fill(0);
                    Ok(())
                }
            },
            Self::Client { memory, base, .. } => memory.read_exact_at(into, base.wrapping_add(at)),
        }
    }

    /// Writes at an offset.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(at, bytes.len())?;
        match self {
            Self::Own { .. } => self.own_file()?.write_all_at(bytes, at),
            Self::Client { memory, base, .. } => memory.write_all_at(bytes, base.wrapping_add(at)),
        }
    }

    /// The file that a client may map; `Unsupported` for its own pages.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.own_file()?.try_clone()?.into())
    }

    fn check(&self, at: u64, length: usize) -> io::Result<()> {
        let end = u64::try_from(length)
            .ok()
            .and_then(|length| at.checked_add(length));
        if end.is_some_and(|end| end <= self.bytes()) {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    fn own_file(&self) -> io::Result<&File> {
        let Self::Own { bytes, file } = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if file.get().is_none() {
            // Where two threads make one at once, the second one's is dropped before anything was written to it.
            if let Err(second) = file.set(sealed_memfd(FILE_NAME, *bytes)?) {
                drop(second);
            }
        }
        file.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A client that maps the file must not be able to cut it short under the simulator.
pub(crate) fn sealed_memfd(name: &str, bytes: u64) -> io::Result<File> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(bytes)?;
    fcntl(
        &file,
        FcntlArg::F_ADD_SEALS(
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL,
        ),
    )?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritten_memory_is_zero_and_the_end_is_kept() {
        let backing = Backing::own(0x1_0000);
        let mut bytes = [1; 8];
        backing.read(0xfff8, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        assert!(backing.read(0xfff9, &mut bytes).is_err());
        assert!(backing.write(u64::MAX, &bytes).is_err());
    }

    #[test]
    fn a_shared_file_sees_writes_and_cannot_be_resized() {
        let backing = Backing::own(0x1_0000);
        let shared = File::from(backing.share().unwrap());
        backing.write(16, b"abc").unwrap();
        let mut bytes = [0; 3];
        shared.read_exact_at(&mut bytes, 16).unwrap();
        assert_eq!(&bytes, b"abc");
        assert!(shared.set_len(0).is_err());
        assert!(shared.set_len(0x2_0000).is_err());
    }

    #[test]
    fn client_pages_are_the_clients() {
        let buffer = [7_u8; 64];
        let backing = Backing::client(
            std::process::id().cast_signed(),
            buffer.as_ptr().addr() as u64,
            64,
        )
        .unwrap();
        let mut bytes = [0; 64];
        backing.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
    }
}
