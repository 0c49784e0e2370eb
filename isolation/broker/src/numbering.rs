//! How the driver numbers the cards of the grant: what no answer has said yet, and an answer is about to be rewritten by.
//!
//! A card's id is its place on the bus ([`crate::pci`]), or comes by with CARD_INFO, which a program asks first. Its device instance comes by with GPU_GET_ID_INFO, which a program
//! asks of a card that it is about to use: later, or never. An answer in instances would then show none of the granted cards.

use driver::{Call, Caller, FileRef, Ticket};
use journal::Journal;
use journal::state;
use ledger::CardSlot;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::{id_info, nvos54};
use nvabi::{control, escape, status};
use verdict::Effect;
use verdict::effect::View;

use crate::container::Container;

/// Asks the driver for the device instances of granted cards that are not known yet, by the tenant's client, where an answer names instances. A
/// card that the driver does not say one for has none: no process has it open (`gpumgrGetGpuIdInfoV2`, gpu_mgr.c).
pub(crate) fn learn_instances(
    container: &Container,
    file: FileRef<'_>,
    caller: Caller,
    effect: &Effect,
    arg: &[u8],
) {
    let by_instance = [View::DeviceMask, View::ExportedDevice];
    let Some(client) = u32_at(arg, nvos54::H_CLIENT) else {
        return;
    };
    if !effect
        .view()
        .is_some_and(|view| by_instance.contains(&view))
    {
        return;
    }
    for (gpu_id, slot) in without_instance(&container.journal) {
        if let Some(instance) = ask(container, file, caller, client, gpu_id) {
            let mut change = container.journal.change();
            change.record_op(state::Op::Instance(instance, slot));
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

/// GPU_GET_ID_INFO_V2 of a card: its device instance.
fn ask(
    container: &Container,
    file: FileRef<'_>,
    caller: Caller,
    client: u32,
    gpu_id: u32,
) -> Option<u32> {
    let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
    let row = control::row(cmd, container.release)?;
    let mut params = vec![0; usize::try_from(row.params_bytes).ok()?];
    put_u32(&mut params, id_info::GPU_ID, gpu_id);
    let escape = escape::NV_ESC_RM_CONTROL;
    let mut arg = vec![0; usize::try_from(escape.size.of(container.release)).ok()?];
    put_u32(&mut arg, nvos54::H_CLIENT, client);
    put_u32(&mut arg, nvos54::H_OBJECT, client);
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, row.params_bytes);
    let params = Some((nvos54::P_PARAMS, params));
    let mut call = Call::own(escape.cmd(container.release), arg, params);
    let done = container
        .driver
        .execute(file, caller, Ticket::UNREMEMBERED, &mut call);
    let (arg, params) = call.into_blocks();
    let is_ok =
        done.is_ok_and(|done| done.ret >= 0) && u32_at(&arg, nvos54::STATUS) == Some(status::NV_OK);
    u32_at(&params, id_info::DEVICE_INSTANCE).filter(|_| is_ok)
}
