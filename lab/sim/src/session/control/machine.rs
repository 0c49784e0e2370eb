//! What clients ask about the machine: the driver, and which cards there are. The answers are the truth; the broker shows a slice of it.

use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::layout::{boost_groups, p2p_caps, p2p_matrix};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_OBJECT_NOT_FOUND};

use super::card::put_uuid;
use super::{Context, Requested};
use crate::card::SimCard;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
const NOT_FOUND: Refusal = Refusal(NV_ERR_OBJECT_NOT_FOUND);
/// `NV0000_CTRL_GPU_INVALID_ID`
const NO_ID: u32 = u32::MAX;
/// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`
const ALL_IDS: u32 = 0xffff;
/// A card of the host that is not simulated, and that nobody can use.
const EXCLUDED_ID: u32 = 0xfe00;
/// Entries of a list of GPU ids.
const IDS: usize = 32;
/// `NV0000_CTRL_GET_SYSTEM_FABRIC_STATUS_SKIP` (ctrl0000system.h).
const FABRIC_STATUS_SKIP: u32 = 1;

impl<'a> Requested<'a> {
    /// The card of the id at an offset of the parameters.
    fn card_of_id(&self, at: usize) -> Result<&'a SimCard, Refusal> {
        u32_at(self.params, at)
            .and_then(|id| self.context.hardware.card_by_gpu_id(id))
            .map(|card| &**card)
            .ok_or(INVALID)
    }

    /// Whether the parameters begin with the id of every place in RM's list of 32 cards that no card has taken: some questions are answered of such a
    /// place.
    fn names_unused_place(&self) -> bool {
        u32_at(self.params, 0) == Some(NO_ID)
    }
}

pub(super) fn build_version_v2(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    // Three strings of 256 bytes until 550, four from 570 on; the version is the first, the title the last.
    requested.params.fill(0);
    put(
        requested.params,
        0,
        requested.context.hardware.version.as_bytes(),
    );
    let title = requested.params.len().saturating_sub(8 + 256);
    put(requested.params, title, b"cgpu-sim: no NVIDIA hardware");
    Ok(())
}

/// `{sizeOfStrings 0, three pointers 8, 16, 24, changelistNumber 32, 36}`
pub(super) fn build_version(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    for list in requested.lists.iter_mut() {
        list.fill(0);
    }
    if let Some(list) = requested.lists.first_mut() {
        // A buffer that is too short gets nothing, as RM does.
        put(list, 0, requested.context.hardware.version.as_bytes());
    }
    put_u64(requested.params, 32, 0);
    Ok(())
}

/// `{type 0, …, numLogicalCpus 24, numPhysicalCpus 28, name 32:52, …}`: a processor of no known kind
/// (`cliresCtrlCmdSystemGetCpuInfo_IMPL`, client_resource.c).
pub(super) fn cpu_info(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    requested.params.fill(0);
    put_u32(requested.params, 24, count);
    put_u32(requested.params, 28, count);
    Ok(())
}

/// No fabric that somebody else manages (`cliresCtrlCmdSystemGetFabricStatus_IMPL`, client_resource.c).
pub(super) fn fabric_status(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u32(requested.params, 0, FABRIC_STATUS_SKIP);
    Ok(())
}

/// SYSTEM_GET_FEATURES, GPU_GET_MEMOP_ENABLE: nothing of it.
pub(super) fn no_features(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u32(requested.params, 0, 0);
    Ok(())
}

/// `{gpuId 0, pid 4, state 8}`: off.
pub(super) fn accounting_state(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.card_of_id(0)?;
    put_u32(requested.params, 8, 0);
    Ok(())
}

/// There is no sync board (`NV0000_CTRL_GSYNC_INVALID_ID`, ctrl0000gsync.h).
pub(super) fn no_sync_boards(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0xff);
    Ok(())
}

pub(super) fn attached_ids(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_ids(requested.context, requested.params, 0);
    Ok(())
}

pub(super) fn probed_ids(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    put_ids(requested.context, requested.params, 0);
    // A list of its own, of the cards that the host has the driver leave alone (`gpumgrGetProbedGpuIds`, gpu_mgr.c).
    for at in 0..IDS {
        let id = if at == 0 { EXCLUDED_ID } else { NO_ID };
        put_u32(requested.params, 128 + 4 * at, id);
    }
    Ok(())
}

/// (`_cliresValidateGpuIdAgainstProbed` and `cliresCtrlCmdGpuDetachIds_IMPL`, client_resource.c)
pub(super) fn attach_or_detach(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    for at in 0..IDS {
        match u32_at(requested.params, 4 * at) {
            Some(NO_ID) | None => break,
            Some(ALL_IDS) if at == 0 => break,
            Some(id) if requested.context.hardware.card_by_gpu_id(id).is_some() => {}
            Some(_unknown) => return Err(INVALID),
        }
    }
    Ok(())
}

pub(super) fn async_attach(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.card_of_id(0).map(drop)
}

/// `{gpuId 0, drainState 4, flags 8}`: no card is about to go.
pub(super) fn drain_state(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    if !requested.names_unused_place() {
        requested.card_of_id(0).map_err(|_unknown| NOT_FOUND)?;
    }
    put_u64(requested.params, 4, 0);
    Ok(())
}

/// `{groupCount 0, {gpuCount, gpuIds[32], boostGroupId, bBridgeless}[16] 4}` (`gpuboostmgrQueryGroups_IMPL`, gpu_boost_mgr.c)
pub(super) fn boost_groups(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let hardware = requested.context.hardware;
    let groups = requested
        .params
        .get_mut(boost_groups::GROUPS..)
        .ok_or(INVALID)?
        .chunks_exact_mut(boost_groups::GROUP_BYTES);
    for (number, (row, group)) in (0..).zip(groups.zip(&hardware.boost_groups)) {
        let cards = hardware.cards.iter();
        let ids = cards.filter(|card| group.contains(&card.index));
        let mut count = 0;
        for (at, card) in (boost_groups::IDS..).step_by(4).zip(ids) {
            put_u32(row, at, card.gpu_id());
            count += 1;
        }
        put_u32(row, boost_groups::CARDS, count);
        put_u32(row, boost_groups::IDS + 4 * boost_groups::MOST, number);
    }
    let count = u32::try_from(hardware.boost_groups.len()).unwrap_or(0);
    put_u32(requested.params, boost_groups::COUNT, count);
    Ok(())
}

/// GPU_GET_DEVICE_IDS: a bit for each device instance.
pub(super) fn device_mask(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let cards = requested.context.hardware.cards.iter();
    let mask = cards.fold(0_u32, |mask, card| {
        mask | 1_u32.checked_shl(card.index).unwrap_or(0)
    });
    put_u32(requested.params, 0, mask);
    Ok(())
}

/// `{gpuId 0, flags 4, deviceInstance 8, subDeviceInstance 12, name 16:8, sliStatus 24, boardId 28, gpuInstance 32, numaId 36}`
pub(super) fn id_info(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_id_info(requested, 24)
}

/// `{gpuId 0, flags 4, deviceInstance 8, subDeviceInstance 12, sliStatus 16, boardId 20, gpuInstance 24, numaId 28}`
pub(super) fn id_info_v2(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_id_info(requested, 16)
}

fn put_id_info(requested: &mut Requested<'_>, sli_status_at: usize) -> Result<(), Refusal> {
    let card = requested.card_of_id(0)?;
    put_u32(requested.params, 4, 0);
    put_u32(requested.params, 8, card.index);
    put_u32(requested.params, 12, 0);
    let rest = [0, card.gpu_id(), card.index, NO_ID];
    for (at, word) in (sli_status_at..).step_by(4).zip(rest) {
        put_u32(requested.params, at, word);
    }
    Ok(())
}

/// GPU_GET_PCI_INFO `{gpuId 0, domain 4, bus 8:2, slot 10:2}` (`gpumgrGetProbedGpuDomainBusDevice`, gpu_mgr.c)
pub(super) fn pci_info(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    if requested.names_unused_place() {
        put_u64(requested.params, 4, 0);
        return Ok(());
    }
    let card = requested.card_of_id(0).map_err(|_unknown| NOT_FOUND)?;
    put_u32(requested.params, 4, 0);
    put_u32(requested.params, 8, u32::from(card.pci_bus()));
    Ok(())
}

/// `{gpuId 0, flags 4, uuid 8:256, length 264}` (`cliresCtrlCmdGpuGetUuidFromGpuId_IMPL`, client_resource.c)
pub(super) fn uuid_of_id(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let card = requested.card_of_id(0).map_err(|_unknown| NOT_FOUND)?;
    let format = u32_at(requested.params, 4).ok_or(INVALID)?;
    let length = put_uuid(requested.params, 8, card, format)?;
    put_u32(requested.params, 264, length);
    Ok(())
}

/// No two of these cards reach each other (`CliGetSystemP2pCaps`, client_resource.c). The tables are in blocks of their own.
pub(super) fn p2p_caps(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    no_peers(requested, p2p_caps::TABLES)
}

/// The same, with tables in the parameters.
pub(super) fn p2p_caps_v2(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    no_peers(requested, requested.params.len())
}

fn no_peers(requested: &mut Requested<'_>, end: usize) -> Result<(), Refusal> {
    /// `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_INVALID_PEER`
    const INVALID_PEERS: u8 = 0xff;
    has_some(requested.params, p2p_caps::COUNT)?;
    have_cards(
        requested.context,
        requested.params,
        p2p_caps::IDS,
        p2p_caps::COUNT,
    )?;
    let params = requested
        .params
        .get_mut(p2p_caps::CAPS..end)
        .ok_or(INVALID)?;
    let (caps, tables) = params
        .split_at_mut_checked(p2p_caps::TABLES - p2p_caps::CAPS)
        .ok_or(INVALID)?;
    caps.fill(0);
    tables.fill(INVALID_PEERS);
    for table in requested.lists.iter_mut() {
        table.fill(INVALID_PEERS);
    }
    Ok(())
}

pub(super) fn p2p_matrix(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    // The second may have none: the first is compared with itself then.
    if let Some((_ids, count)) = p2p_matrix::GROUPS.first() {
        has_some(requested.params, *count)?;
    }
    for (ids, count) in p2p_matrix::GROUPS {
        have_cards(requested.context, requested.params, ids, count)?;
    }
    let tables = requested.params.get_mut(p2p_matrix::TABLES..);
    tables.ok_or(INVALID)?.fill(0);
    Ok(())
}

/// `{numDevices 0, {gpuId, gpuInstanceId, computeInstanceId}[] 4}`
pub(super) fn active_devices(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let mut count = 0;
    for (card, at) in requested
        .context
        .hardware
        .cards
        .iter()
        .zip((4..).step_by(12))
    {
        if put_u32(requested.params, at, card.gpu_id())
            && put_u64(requested.params, at + 4, u64::MAX)
        {
            count += 1;
        }
    }
    put_u32(requested.params, 0, count);
    Ok(())
}

/// A list of no cards is not compared (`cliresCtrlCmdSystemGetP2pCaps_IMPL`, client_resource.c).
fn has_some(block: &[u8], count: usize) -> Result<(), Refusal> {
    match u32_at(block, count) {
        Some(0) | None => Err(INVALID),
        Some(_cards) => Ok(()),
    }
}

/// Whether there are all cards of a list of ids.
fn have_cards(
    context: &Context<'_>,
    block: &[u8],
    ids: usize,
    count: usize,
) -> Result<(), Refusal> {
    let count = u32_at(block, count).ok_or(INVALID)? as usize;
    let is_known = |id| context.hardware.card_by_gpu_id(id).is_some();
    let mut ids = (ids..).step_by(4).take(count);
    if count <= IDS && ids.all(|at| u32_at(block, at).is_some_and(is_known)) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

fn put_ids(context: &Context<'_>, block: &mut [u8], from: usize) {
    for at in 0..IDS {
        let id = context
            .hardware
            .cards
            .get(at)
            .map_or(NO_ID, |card| card.gpu_id());
        put_u32(block, from + 4 * at, id);
    }
}
