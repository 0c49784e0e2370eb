//! How the driver numbers the cards of the grant: what no answer has said yet, and an answer is about to be rewritten by.
//!
//! A card's id is its place on the bus ([`crate::pci`]), or comes by with CARD_INFO, which a program asks first. Its device instance comes by with GPU_GET_ID_INFO, which a program
//! asks of a card that it is about to use: later, or never. An answer in instances would then show none of the granted cards. An instance is
//! a card's only until nobody has it open any more: see `call/device.rs`.

use driver::{Call, Caller, FileRef};
use journal::Journal;
use ledger::CardSlot;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::{id_info, nvos54};
use nvabi::{Release, control, status};
use verdict::Effect;
use verdict::effect::View;

use crate::driver_side::DriverSide;

/// The tenant's client by which the driver is asked.
pub(crate) struct Asker<'a> {
    /// The file that owns the client.
    pub(crate) file: FileRef<'a>,
    /// Who made the call that is about to be answered.
    pub(crate) caller: Caller,
    /// The client.
    pub(crate) client: u32,
}

/// The client of a call whose answer names instances.
pub(crate) fn client_shown_instances(effect: &Effect, arg: &[u8]) -> Option<u32> {
    let by_instance = [View::DeviceMask, View::ExportedDevice];
    let view = effect.view()?;
    by_instance
        .contains(&view)
        .then(|| u32_at(arg, nvos54::H_CLIENT))?
}

/// Asks the driver for the device instances of granted cards that are not known yet. A card that the driver does not say one for has none:
/// no process has it open (`gpumgrGetGpuIdInfoV2`, gpu_mgr.c).
pub(crate) fn learn_instances(driver: &DriverSide, journal: &Journal, asker: &Asker<'_>) {
    for (gpu_id, slot) in without_instance(journal) {
        if let Ok(Some(instance)) = ask(driver, asker, gpu_id) {
            journal.change().learn_instance(instance, slot);
        }
    }
}

/// Cards whose id is known and whose instance is not.
fn without_instance(journal: &Journal) -> Vec<(u32, CardSlot)> {
    let state = journal.change();
    let known = &state.numbering;
    let ids = known.slot_of_gpu_id.iter();
    ids.filter(|(_, slot)| !known.slot_of_instance.values().any(|known| known == *slot))
        .map(|(id, slot)| (*id, *slot))
        .collect()
}

/// GPU_GET_ID_INFO_V2 of a card: its device instance. A card that no process has open has none.
///
/// # Errors
/// The question did not reach the driver.
pub(crate) fn ask(
    driver: &DriverSide,
    asker: &Asker<'_>,
    gpu_id: u32,
) -> Result<Option<u32>, driver::Error> {
    let Some(call) = question(driver.release, asker.client, gpu_id) else {
        return Ok(None);
    };
    let done = driver.execute_own(asker.file, asker.caller, call)?;
    Ok(done.and_then(|(arg, params)| {
        let is_ok = u32_at(&arg, nvos54::STATUS) == Some(status::NV_OK);
        u32_at(&params, id_info::DEVICE_INSTANCE).filter(|_| is_ok)
    }))
}

fn question(release: Release, client: u32, gpu_id: u32) -> Option<Call> {
    let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
    let row = control::row(cmd, release)?;
    let mut params = vec![0; usize::try_from(row.params_bytes).ok()?];
    put_u32(&mut params, id_info::GPU_ID, gpu_id);
    Some(Call::control(release, [client; 2], cmd, params))
}
