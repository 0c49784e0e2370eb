//! Managed memory: `nvidia-uvm` mapped at the offset of the address, reached by the host and the card at one address.

use nvabi::bytes;
use nvabi::uvm as row;
use rmclient::Uuid;
use syscalls::mapping::Mapping;

use crate::Error;
use crate::uvm::{GpuRange, Uvm, put_range};

/// Where pages may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// The host: zeros, which are no card's UUID.
    Host,
    /// A card.
    Card(Uuid),
}

/// Managed memory; it ends when it is dropped.
#[derive(Debug)]
pub struct Managed {
    words: Mapping,
}

/// `UVM_MIGRATE_PARAMS.destinationUuid`
const MIGRATE_UUID: usize = 16;

impl Managed {
    /// The words, as the host sees them.
    #[must_use]
    pub fn words(&self) -> &Mapping {
        &self.words
    }

    /// Where the card sees them too.
    #[must_use]
    pub fn range(&self) -> GpuRange {
        GpuRange {
            base: self.words.address(),
            length_bytes: u64::try_from(self.words.len()).unwrap_or(u64::MAX),
        }
    }
}

impl Uvm<'_> {
    /// Maps managed memory.
    ///
    /// # Errors
    /// [`Error::Mapping`]: the driver, or whoever is before it, has refused the mmap.
    pub fn managed(&self, size_bytes: u64) -> Result<Managed, Error> {
        let failed = |source| Error::Mapping {
            path: self.file().path().to_owned(),
            bytes: size_bytes,
            source,
        };
        let length = usize::try_from(size_bytes)
            .map_err(|_too_large| failed(std::io::ErrorKind::InvalidInput.into()))?;
        let words = Mapping::at_its_offset(self.file(), length).map_err(failed)?;
        Ok(Managed { words })
    }

    /// Moves the pages of managed memory.
    ///
    /// # Errors
    /// The driver's status.
    pub fn migrate(&self, range: GpuRange, to: Processor) -> Result<(), Error> {
        self.call(&row::UVM_MIGRATE, |arg| {
            put_range(arg, range);
            if let Processor::Card(uuid) = to {
                bytes::put(arg, MIGRATE_UUID, &uuid.0);
            }
        })
    }

    /// Asks whether every address of a range is known to the file.
    ///
    /// # Errors
    /// The driver's status.
    pub fn validate(&self, range: GpuRange) -> Result<(), Error> {
        self.call(&row::UVM_VALIDATE_VA_RANGE, |arg| put_range(arg, range))
    }
}
