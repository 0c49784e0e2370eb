//! Exported memory: what a control file carries to clients that cannot name the exporter's objects.
//!
//! RM duplicates the objects into a client of the kernel's own, which keeps them until the file is closed. The file is the
//! one that the exporting call names, whoever has it open: another container that was sent the descriptor imports from the
//! same file. It is known by itself (`kcmp`), since every broker numbers files its own way.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use nvabi::status::{NV_ERR_OBJECT_NOT_FOUND, NV_ERR_OUT_OF_RANGE};

use crate::card::SimCard;
use crate::locked;
use crate::memory::Memory;
use crate::refusal::Refusal;

const BEYOND: Refusal = Refusal(NV_ERR_OUT_OF_RANGE);
/// `NV0000_OS_UNIX_EXPORT_OBJECT_FD_BUFFER_SIZE`
pub(crate) const METADATA_BYTES: usize = 64;

/// The carriers of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<Vec<Weak<TransferFile>>>);

/// A control file that carries exports. Each session that has it open holds it; its memory stays until the last lets go.
#[derive(Debug)]
pub(crate) struct TransferFile {
    file: OwnedFd,
    contents: Mutex<Contents>,
}

/// What a file carries.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) card: Arc<SimCard>,
    pub(crate) most: u16,
    pub(crate) metadata: [u8; METADATA_BYTES],
    objects: BTreeMap<u16, Exported>,
}

/// An exported object.
#[derive(Debug, Clone)]
pub(crate) struct Exported {
    pub(crate) class: u32,
    pub(crate) memory: Arc<Memory>,
}

impl Exports {
    /// The carrier that a file is.
    pub(crate) fn of(&self, file: &OwnedFd) -> Option<Arc<TransferFile>> {
        let mut carriers = locked(&self.0);
        carriers.retain(|transfer_file| transfer_file.strong_count() > 0);
        carriers
            .iter()
            .filter_map(Weak::upgrade)
            .find(|transfer_file| {
                sys::kcmp::own_files(transfer_file.file.as_fd(), file.as_fd())
                    .is_ok_and(|order| order == Ordering::Equal)
            })
    }

    /// Makes a file a carrier.
    pub(crate) fn add(&self, file: OwnedFd, contents: Contents) -> Arc<TransferFile> {
        let transfer_file = Arc::new(TransferFile {
            file,
            contents: Mutex::new(contents),
        });
        locked(&self.0).push(Arc::downgrade(&transfer_file));
        transfer_file
    }
}

impl TransferFile {
    pub(crate) fn contents(&self) -> std::sync::MutexGuard<'_, Contents> {
        locked(&self.contents)
    }
}

impl Contents {
    pub(crate) fn new(card: Arc<SimCard>, most: u16, metadata: [u8; METADATA_BYTES]) -> Self {
        Self {
            card,
            most,
            metadata,
            objects: BTreeMap::new(),
        }
    }

    /// Puts objects, or nothing, at an index and those that follow, in the place of what is there; none where one of the places is beyond the end.
    pub(crate) fn put(
        &mut self,
        index: u16,
        objects: Vec<Option<Exported>>,
    ) -> Result<(), Refusal> {
        let count = u16::try_from(objects.len()).map_err(|_many| BEYOND)?;
        let end = index.checked_add(count).filter(|end| *end <= self.most);
        for (place, object) in (index..end.ok_or(BEYOND)?).zip(objects) {
            match object {
                Some(object) => self.objects.insert(place, object),
                None => self.objects.remove(&place),
            };
        }
        Ok(())
    }

    pub(crate) fn get(&self, index: u16) -> Result<Exported, Refusal> {
        self.objects
            .get(&index)
            .cloned()
            .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
    }
}
