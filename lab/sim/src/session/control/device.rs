//! What clients ask of a device.

use std::sync::Arc;

use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_PARAM_STRUCT};

use super::super::objects::Resource;
use super::Requested;
use super::lists::put_words;
use crate::card::SimCard;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV0080_CTRL_FB_CAPS_*` (ctrl0080fb.h): rendering to the host's memory and blocks of 512 bytes; memory that was cleared.
const FB_CAPS: [u8; 3] = [0x03, 0x81, 0x02];
/// `NV0080_CTRL_DMA_CAPS_*` (ctrl0080dma.h): several address spaces.
const DMA_CAPS: u64 = 0x10;

/// `{numClasses 0, classList 8:8}`: without a list the count is all of the answer, and a list must have room for every class
/// (`gpuGetClassList_IMPL`, gpu_resource_desc.c).
pub(super) fn class_list(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let classes = card.profile.architecture.classes();
    if let Some(list) = requested.lists.first_mut().filter(|list| !list.is_empty()) {
        put_words(list, 0, &classes).map_err(|_short| Refusal(NV_ERR_INVALID_PARAM_STRUCT))?;
    }
    put_count(requested.params, &classes)
}

/// `{numClasses 0, classList 4}`
pub(super) fn class_list_v2(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let classes = card.profile.architecture.classes();
    put_words(requested.params, 4, &classes)?;
    put_count(requested.params, &classes)
}

fn put_count(params: &mut [u8], classes: &[u32]) -> Result<(), Refusal> {
    let count = u32::try_from(classes.len()).map_err(|_many| INVALID)?;
    put_u32(params, 0, count);
    Ok(())
}

pub(super) fn one_subdevice(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put_u32(requested.params, 0, 1);
    Ok(())
}

/// `{capsTblSize 0, capsTbl 4:8}`: a caller with a table of another length is refused (`deviceCtrlCmdDmaGetCaps_IMPL`, dma.c).
pub(super) fn dma_caps(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    if u32_at(requested.params, 0) != Some(8) {
        return Err(INVALID);
    }
    put_u64(requested.params, 4, DMA_CAPS);
    Ok(())
}

/// `{capsTbl 0:3}` (`memmgrGetDeviceCaps`, mem_mgr_ctrl.c)
pub(super) fn fb_caps(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put(requested.params, 0, &FB_CAPS);
    Ok(())
}

/// GPU_GET_VIRTUALIZATION_MODE: none. HOST_GET_CAPS_V2 `{capsTbl 0:3}`: none of a chipset that is coherent with its cards
/// (`kbusGetDeviceCaps_IMPL`, kern_bus.c).
pub(super) fn nothing(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    Ok(())
}

/// The hardware's number of each channel of the client's; what is no channel of its is no error. {numChannels 0, pChannelHandleList 8:8,
/// pChannelList 16:8} (`deviceCtrlCmdFifoGetChannelList_IMPL`, kernel_fifo_ctrl.c).
pub(super) fn channel_list(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    /// `NV0080_CTRL_FIFO_GET_CHANNELLIST_INVALID_CHANNEL`
    const NO_CHANNEL: u32 = u32::MAX;
    // Without channels, or with one list that is NULL.
    let [handles, numbers] = &mut *requested.lists else {
        return Err(INVALID);
    };
    let objects = &requested
        .state
        .client(requested.context, requested.client)?
        .objects;
    for at in (0..handles.len()).step_by(4) {
        let object = u32_at(handles, at).and_then(|handle| objects.get(&handle));
        let number = match object.map(|object| &object.resource) {
            Some(Resource::Channel(channel)) => channel.id(),
            _no_channel => NO_CHANNEL,
        };
        put_u32(numbers, at, number);
    }
    Ok(())
}
