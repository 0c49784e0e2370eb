//! Card memory: allocating, mapping into this process, and the address spaces of a card.

use nvabi::layout::{memory_params, nvos33, nvos34};
use nvabi::{bytes, class, escape};
use rmclient::{Card, DriverFile, Form, Handle, checked};
use syscalls::mapping::Mapping;

use crate::Error;
use crate::duplicate::ClientDuplicates;

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

/// `NV_VASPACE_ALLOCATION_PARAMETERS.flags`
const VA_SPACE_FLAGS_AT: usize = 4;
/// `..._FLAGS_ENABLE_PAGE_FAULTING` (bit 6) and `..._FLAGS_IS_EXTERNALLY_OWNED` (bit 3): nvidia-uvm owns its page tables.
const VA_SPACE_FLAGS: u32 = (1 << 6) | (1 << 3);
/// `NV_VASPACE_ALLOCATION_PARAMETERS.vaSize`
const VA_SPACE_SIZE_AT: usize = 8;
/// 49 bits of address, less what the driver keeps at their end.
const VA_SPACE_SIZE: u64 = 0x1_ffff_fb00_0000;
/// `NV_VASPACE_ALLOCATION_PARAMETERS.vaBase`
const VA_SPACE_BASE_AT: usize = 40;
/// The first address after the page that catches null pointers.
const VA_SPACE_BASE: u64 = 0x1000;

/// A card's memory: allocated, mapped into this process, given up; and address spaces to map it in on the card.
pub trait CardMemory {
    /// Allocates `size_bytes` of the card's memory (class `NV01_MEMORY_LOCAL_USER`).
    ///
    /// # Errors
    /// [`Error::is_no_memory`] when the card or the slice is full; otherwise the driver's status.
    fn allocate(&self, form: Form, size_bytes: u64) -> Result<Allocation, Error>;

    /// Frees a handle of card memory. The memory goes when its last handle and its last mapping go.
    ///
    /// # Errors
    /// The driver's status.
    fn free(&self, memory: Handle) -> Result<(), Error>;

    /// Another handle for card memory of this client.
    ///
    /// # Errors
    /// The driver's status.
    fn duplicate(&self, memory: Handle) -> Result<Handle, Error>;

    /// Maps the first `size_bytes` of card memory into this process.
    ///
    /// # Errors
    /// The driver's status, or the mmap's error.
    fn map(&self, memory: Handle, size_bytes: u64) -> Result<CpuMapping, Error>;

    /// Ends a mapping of [`CardMemory::map`].
    ///
    /// # Errors
    /// The driver's status.
    fn unmap(&self, mapping: CpuMapping) -> Result<(), Error>;

    /// Allocates a GPU address space on the card (class `FERMI_VASPACE_A`).
    ///
    /// # Errors
    /// The driver's status.
    fn va_space(&self) -> Result<Handle, Error>;
}

impl CardMemory for Card<'_> {
    fn allocate(&self, form: Form, size_bytes: u64) -> Result<Allocation, Error> {
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

    fn free(&self, memory: Handle) -> Result<(), Error> {
        Ok(self.client().free(self.device(), memory)?)
    }

    fn duplicate(&self, memory: Handle) -> Result<Handle, Error> {
        self.client()
            .duplicate(self.device(), self.client().root(), memory)
    }

    fn map(&self, memory: Handle, size_bytes: u64) -> Result<CpuMapping, Error> {
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

    fn unmap(&self, mapping: CpuMapping) -> Result<(), Error> {
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
        Ok(checked(escape.name, &arg, nvos34::STATUS)?)
    }

    fn va_space(&self) -> Result<Handle, Error> {
        let client = self.client();
        let class = class::FERMI_VASPACE_A;
        let length =
            class::row_of(class, client.release()).map_or(0, |row| row.params.of(client.release()));
        let mut params = vec![0u8; usize::try_from(length).unwrap_or(0)];
        bytes::put_u32(&mut params, VA_SPACE_FLAGS_AT, VA_SPACE_FLAGS);
        bytes::put_u64(&mut params, VA_SPACE_SIZE_AT, VA_SPACE_SIZE);
        bytes::put_u64(&mut params, VA_SPACE_BASE_AT, VA_SPACE_BASE);
        Ok(client.allocate(Form::Short, self.device(), class, &mut params)?)
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
