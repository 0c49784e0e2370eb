//! Card memory: allocating, mapping into this process, exporting.

use nvabi::layout::{memory_params, nvos33, nvos34};
use nvabi::{bytes, class, escape};
use sys::mapping::Mapping;

use crate::client::checked;
use crate::file::DriverFile;
use crate::{Card, Error, Form, Handle};

/// A piece of card memory. It lives until it is freed, or its client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Its handle, below the card's device.
    pub handle: Handle,
    /// What the driver gave: at least what was asked.
    pub bytes: u64,
}

/// `NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS` (bits 28:27 = 3): a large block need not be one piece of the card.
pub(crate) const ATTR_ALLOW_NONCONTIGUOUS: u32 = 3 << 27;

/// `NV_MEMORY_ALLOCATION_PARAMS.owner`: free text of the client.
const OWNER_AT: usize = 0;

impl Card<'_> {
    /// Allocates `size_bytes` of the card's memory (class `NV01_MEMORY_LOCAL_USER`).
    ///
    /// # Errors
    /// [`Error::is_no_memory`] when the card or the slice is full; otherwise the driver's status.
    pub fn allocate(&self, form: Form, size_bytes: u64) -> Result<Allocation, Error> {
        let client = self.client();
        let class = class::NV01_MEMORY_LOCAL_USER;
        let length =
            class::row_of(class, client.release()).map_or(0, |row| row.params.of(client.release()));
        let mut params = vec![0u8; usize::try_from(length).unwrap_or(0)];
        bytes::put_u32(&mut params, OWNER_AT, client.root().0);
        bytes::put_u32(&mut params, memory_params::ATTR, ATTR_ALLOW_NONCONTIGUOUS);
        bytes::put_u64(&mut params, memory_params::SIZE, size_bytes);
        let handle = client.allocate(form, self.device(), class, &mut params)?;
        let bytes = bytes::u64_at(&params, memory_params::SIZE).unwrap_or(size_bytes);
        Ok(Allocation { handle, bytes })
    }

    /// Frees a handle of card memory. The memory goes when its last handle and its last mapping go.
    ///
    /// # Errors
    /// The driver's status.
    pub fn free(&self, memory: Handle) -> Result<(), Error> {
        self.client().free(self.device(), memory)
    }

    /// Another handle for card memory of this client.
    ///
    /// # Errors
    /// The driver's status.
    pub fn duplicate(&self, memory: Handle) -> Result<Handle, Error> {
        self.client()
            .duplicate(self.device(), self.client().root(), memory)
    }

    /// Maps the first `size_bytes` of card memory into this process.
    ///
    /// # Errors
    /// The driver's status, or the mmap's error.
    pub fn map(&self, memory: Handle, size_bytes: u64) -> Result<CpuMapping, Error> {
        let client = self.client();
        let release = client.release();
        let escape = escape::NV_ESC_RM_MAP_MEMORY;
        let file = self.open_again()?;
        let mut arg = [0u8; 56];
        bytes::put_u32(&mut arg, nvos33::H_CLIENT, client.root().0);
        bytes::put_u32(&mut arg, nvos33::H_DEVICE, self.device().0);
        bytes::put_u32(&mut arg, nvos33::H_MEMORY, memory.0);
        bytes::put_u64(&mut arg, nvos33::LENGTH, size_bytes);
        bytes::put(&mut arg, nvos33::FD, &file.number().to_le_bytes());
        client
            .ctl()
            .call(escape.name, escape.cmd(release), &mut arg, &mut [])?;
        checked(escape.name, &arg, nvos33::STATUS)?;
        let failed = |source| Error::Mapping {
            path: file.path().to_owned(),
            bytes: size_bytes,
            source,
        };
        let length = usize::try_from(size_bytes)
            .map_err(|_too_large| failed(std::io::ErrorKind::InvalidInput.into()))?;
        let words = Mapping::shared(&file, length).map_err(failed)?;
        let address = bytes::u64_at(&arg, nvos33::P_LINEAR).unwrap_or(0);
        Ok(CpuMapping {
            words,
            memory,
            address,
            file,
        })
    }

    /// Ends a mapping of [`Card::map`].
    ///
    /// # Errors
    /// The driver's status.
    pub fn unmap(&self, mapping: CpuMapping) -> Result<(), Error> {
        let client = self.client();
        let escape = escape::NV_ESC_RM_UNMAP_MEMORY;
        let CpuMapping {
            words,
            memory,
            address,
            file,
        } = mapping;
        drop(words);
        let mut arg = [0u8; 32];
        bytes::put_u32(&mut arg, nvos34::H_CLIENT, client.root().0);
        bytes::put_u32(&mut arg, nvos34::H_DEVICE, self.device().0);
        bytes::put_u32(&mut arg, nvos34::H_MEMORY, memory.0);
        bytes::put_u64(&mut arg, nvos34::P_LINEAR, address);
        client
            .ctl()
            .call(escape.name, escape.cmd(client.release()), &mut arg, &mut [])?;
        drop(file);
        checked(escape.name, &arg, nvos34::STATUS)
    }
}

/// Card memory mapped into this process.
#[derive(Debug)]
pub struct CpuMapping {
    words: Mapping,
    memory: Handle,
    address: u64,
    file: DriverFile,
}

impl CpuMapping {
    /// The mapped words.
    #[must_use]
    pub fn words(&self) -> &Mapping {
        &self.words
    }
}
