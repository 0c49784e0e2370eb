//! The card that a device is made of, by the driver's number of the moment.
//!
//! A real driver gives a card the first free device instance when it is opened, and takes it back when nobody has it open any more
//! (`gpumgrAllocDeviceInstance`, gpu_mgr.c): what was learnt may be another card's number by now. So the driver is asked before a device is
//! made, while a file of the caller's keeps the card open, and its number with it. Where one card is granted there is nothing to mistake it
//! for: the driver makes a device for a process only that has the card's node open.

use driver::{Call, Caller, FdSlot};
use ledger::CardSlot;
use nvabi::bytes::u32_at;
use nvabi::{escape, status};
use verdict::{Effect, Refusal};

use super::NotifiedCall;
use super::admit::Request;
use super::lookup::card_file;
use crate::account::{Slot, Why};
use crate::driver_side::DriverSide;
use crate::files::{InUse, OpenFile};
use crate::numbering::{self, Asker};

/// What a call that makes a device is about.
pub(super) enum DeviceCard {
    /// What the account knows: no device is made, or its number does not move. With the caller's file of the card, if it has one.
    AsLearnt(Option<InUse>),
    /// The card that has the number for as long as the file is held.
    Found(u32, CardSlot, InUse),
    /// No granted card has it that the caller has open.
    NotFound {
        /// The driver's own.
        status: u32,
        /// For the log.
        why: Why,
    },
}

impl DeviceCard {
    /// The file that keeps the card open.
    pub(super) fn into_file(self) -> Option<InUse> {
        match self {
            Self::AsLearnt(file) => file,
            Self::Found(.., file) => Some(file),
            Self::NotFound { .. } => None,
        }
    }
}

impl<'c> NotifiedCall<'c> {
    /// The card that a call makes a device of. The caller's file of it is put beside the call.
    ///
    /// # Errors
    /// The driver is out of reach, or the caller's files cannot be looked at.
    pub(super) fn device_card(
        &self,
        request: &Request<'_>,
        fds: &mut Vec<FdSlot>,
    ) -> Result<DeviceCard, Refusal> {
        let Effect::Object {
            client,
            device_instance: Some(instance),
            ..
        } = request.effect
        else {
            return Ok(DeviceCard::AsLearnt(None));
        };
        let (container, caller) = (self.container, request.caller);
        let numbering = container.journal.change().numbering.clone();
        let learnt = numbering.slot_of_instance.get(&instance).copied();
        if !self.may_numbers_move() {
            let card = learnt.and_then(|slot| self.card(slot));
            let file = card.map(|card| card_file(&container.files, caller, card, fds));
            return file
                .transpose()
                .map(|file| DeviceCard::AsLearnt(file.flatten()));
        }
        let asker = Asker {
            file: request.file.for_driver(),
            caller,
            client,
        };
        let has_number = |gpu_id| match numbering::ask(&container.driver, &asker, gpu_id) {
            Ok(number) => Ok(number == Some(instance)),
            Err(error) => Err(Refusal::Errno(error.errno())),
        };
        let mut ids: Vec<(u32, CardSlot)> = numbering.slot_of_gpu_id.into_iter().collect();
        // Most often it is as it was.
        ids.sort_by_key(|(_, slot)| Some(*slot) != learnt);
        for (gpu_id, slot) in ids {
            let Some(card) = self.card(slot) else {
                continue;
            };
            if !has_number(gpu_id)? {
                continue;
            }
            let Some(file) = card_file(&container.files, caller, card, fds)? else {
                return Ok(not_open(instance));
            };
            if !is_open(&container.driver, caller, &file)? {
                return Ok(not_open(instance));
            }
            // Before the file was held, the card may have been closed by all others.
            if has_number(gpu_id)? {
                return Ok(DeviceCard::Found(instance, slot, file));
            }
            fds.retain(|fd| fd.segment != FdSlot::BESIDE);
        }
        Ok(DeviceCard::NotFound {
            status: status::NV_ERR_INVALID_CLASS,
            why: Why::ForeignDevice(instance),
        })
    }

    fn card(&self, slot: CardSlot) -> Option<&'c Slot> {
        self.container.account.slots().get(usize::from(slot.0))
    }

    /// Whether a number may be another granted card's than it was.
    fn may_numbers_move(&self) -> bool {
        let is_numbered_beforehand = !self.container.driver.cards().is_empty();
        !is_numbered_beforehand && self.container.account.slots().len() > 1
    }
}

/// As the driver replies to who has not the card's node open (`deviceConstruct_IMPL`, device.c).
fn not_open(instance: u32) -> DeviceCard {
    DeviceCard::NotFound {
        status: status::NV_ERR_INSUFFICIENT_PERMISSIONS,
        why: Why::NodeNotOpen(instance),
    }
}

/// Whether a file keeps its card open. From 550 on one that was opened with O_NONBLOCK may not do so yet, or never
/// (`nvidia_open_deferred`, nv.c): its end is waited for.
fn is_open(driver: &DriverSide, caller: Caller, file: &OpenFile) -> Result<bool, Refusal> {
    /// What `open` would have returned.
    const RESULT: usize = 0;
    let row = escape::NV_ESC_WAIT_OPEN_COMPLETE;
    let bytes = usize::try_from(row.size.of(driver.release)).unwrap_or_default();
    if bytes == 0 {
        return Ok(true);
    }
    let call = Call::own(row.cmd(driver.release), vec![0; bytes], None);
    match driver.execute_own(file.for_driver(), caller, call) {
        Ok(answer) => Ok(answer.is_some_and(|(arg, _)| u32_at(&arg, RESULT) == Some(0))),
        Err(error) => Err(Refusal::Errno(error.errno())),
    }
}
