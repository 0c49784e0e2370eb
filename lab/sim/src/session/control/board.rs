//! What clients ask about a card's board, its engines, and how they are laid out.

use std::sync::Arc;

use nvabi::bytes::{put, put_u32, put_u64, u16_at, u32_at};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_OK};

use super::card::{GPCS, SMS_PER_TPC, tpcs_per_gpc};
use super::lists::fill_list;
use super::{Requested, UNSUPPORTED};
use crate::architecture::Engine;
use crate::card::SimCard;
use crate::hardware::Hardware;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV2080_CTRL_PERF_PSTATES_P0` (ctrl2080perf.h).
const PSTATE_P0: u32 = 1;
/// `NV2080_CTRL_CE_CAPS_CE_*` (ctrl2080ce.h): it reads and writes the host's memory, with blocks of more than 64 KiB, in a pipeline or not.
const COPY_CAPS: [u8; 2] = [0xac, 0x03];
/// `NV2080_CTRL_CE_CAPS_CE_GRCE`: it is on the runlist of graphics.
const CAPS_GRAPHICS: u8 = 1;

/// `{name 0:64}`
pub(super) fn short_name(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    requested.params.fill(0);
    put(
        requested.params,
        0,
        card.profile.architecture.chip().as_bytes(),
    );
    Ok(())
}

/// `{type 0}`: silicon, whatever it is made of here (`subdeviceCtrlCmdGpuGetSimulationInfo_IMPL`, subdevice_ctrl_gpu_kernel.c).
pub(super) fn simulation_info(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put_u32(requested.params, 0, 0);
    Ok(())
}

/// `{gspFeatures 0, bValid 4:1, bDefaultGspRmGpu 5:1, firmwareVersion 6:64}`
pub(super) fn firmware(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    put(requested.params, 4, &[1, 1]);
    put(
        requested.params,
        6,
        requested.context.hardware.version.as_bytes(),
    );
    Ok(())
}

pub(super) fn performance_state(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put_u32(requested.params, 0, PSTATE_P0);
    Ok(())
}

/// BUS_GET_INFO, BIOS_GET_INFO `{list count 0, list 8:8}`; without a list there is nothing to say (`subdeviceCtrlCmdBusGetInfo_IMPL`, kern_bus_ctrl.c).
pub(super) fn unmodelled_info(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let count = u32_at(requested.params, 0).ok_or(INVALID)?;
    match requested.lists.first_mut() {
        Some(list) => fill_list(Some(list), count, |_not_modelled| 0),
        None => Ok(()),
    }
}

fn caps_of(instance: u32) -> [u8; 2] {
    let [first, second] = COPY_CAPS;
    match Engine::Copy(instance).is_beside_graphics() {
        true => [first | CAPS_GRAPHICS, second],
        false => COPY_CAPS,
    }
}

/// `{ceEngineType 0, capsTbl 4:2}` (`subdeviceCtrlCmdCeGetCapsV2_VF`, kernel_ce_ctrl.c)
pub(super) fn copy_caps(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let engine = u32_at(requested.params, 0).and_then(Engine::of_type);
    let is_there = |instance| instance < card.profile.architecture.copies();
    let Some(Engine::Copy(instance)) = engine else {
        return Err(UNSUPPORTED);
    };
    if !is_there(instance) {
        return Err(UNSUPPORTED);
    }
    put(requested.params, 4, &caps_of(instance));
    Ok(())
}

/// `{capsTbl 0:2 for each, present behind them}`
pub(super) fn all_copy_caps(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    const BYTES_535: usize = 68;
    let present = match requested.params.len() {
        BYTES_535 => 64,
        _since_545 => 128,
    };
    requested.params.fill(0);
    let copies = card.profile.architecture.copies();
    for instance in 0..copies {
        let caps = caps_of(instance);
        put(requested.params, instance as usize * caps.len(), &caps);
    }
    put_u32(requested.params, present, (1 << copies) - 1);
    Ok(())
}

/// `{…, capsTbl 0:23, grRouteInfo 24:16, bCapsPopulated 40:1}` (`subdeviceCtrlCmdKGrGetCapsV2_IMPL`, kernel_graphics.c)
pub(super) fn graphics_caps(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put(requested.params, 40, &[1]);
    Ok(())
}

pub(super) fn sm_order(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_sm_order(card, requested.params)
}

pub(super) fn floorsweeping(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put_floorsweeping(card, requested.params)
}

pub(super) fn link_caps(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_link_caps(requested.context.hardware, card, requested.params);
    Ok(())
}

/// `{{gpcId 0, localTpcId 2, localSmId 4, globalTpcId 6, virtualGpcId 8, migratableTpcId 10, …}[512], numSm, numTpc, grRouteInfo}`
/// (`subdeviceCtrlCmdKGrGetGlobalSmOrder_IMPL`, kernel_graphics.c)
fn put_sm_order(card: &SimCard, block: &mut [u8]) -> Result<(), Refusal> {
    const SMS: usize = 512;
    const TAIL_BYTES: usize = 24;
    let order_bytes = block.len().checked_sub(TAIL_BYTES).ok_or(INVALID)?;
    let tpcs = tpcs_per_gpc(card);
    let count = GPCS * tpcs * SMS_PER_TPC;
    let (order, tail) = block.split_at_mut(order_bytes);
    order.fill(0);
    let rows = order.chunks_exact_mut((order_bytes / SMS).max(1));
    for (number, row) in (0..count).zip(rows) {
        let global_tpc = number / SMS_PER_TPC;
        let (gpc, tpc) = (global_tpc / tpcs, global_tpc % tpcs);
        let ids = [gpc, tpc, number % SMS_PER_TPC, global_tpc, gpc, tpc];
        for (id, at) in ids.into_iter().zip((0..).step_by(2)) {
            put_short(row, at, id);
        }
    }
    put_short(tail, 0, count);
    put_short(tail, 2, GPCS * tpcs);
    Ok(())
}

fn put_short(block: &mut [u8], at: usize, value: u32) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    put(block, at, &value.to_le_bytes());
}

/// `{numQueries 0:2, {queryType 0:2, status 4, in and out 8:12}[96] 8}`: how many GPCs, what each is called, and its TPCs. The answers
/// to single questions are a firmware's; that it refuses others as an argument is a guess.
fn put_floorsweeping(card: &SimCard, block: &mut [u8]) -> Result<(), Refusal> {
    const QUERY_BYTES: usize = 20;
    const MOST: u16 = 96;
    let count = u16_at(block, 0)
        .filter(|count| *count <= MOST)
        .ok_or(INVALID)?;
    let queries = block.get_mut(8..).ok_or(INVALID)?;
    for query in queries
        .chunks_exact_mut(QUERY_BYTES)
        .take(usize::from(count))
    {
        let gpc = u32_at(query, 8).filter(|gpc| *gpc < GPCS);
        let answered = match (u16_at(query, 0), gpc) {
            // GPC_COUNT
            (Some(1), _) => put_u32(query, 8, GPCS),
            // CHIPLET_GPC_MAP
            (Some(2), Some(gpc)) => put_u32(query, 12, gpc),
            // TPC_MASK
            (Some(3), Some(_)) => put_u32(query, 12, (1 << tpcs_per_gpc(card)) - 1),
            _no_such_question => false,
        };
        let status = if answered {
            NV_OK
        } else {
            NV_ERR_INVALID_ARGUMENT
        };
        put_u32(query, 4, status);
    }
    Ok(())
}

/// `{capsTbl 0, versions 4:4, discoveredLinkMask 8, enabledLinkMask 12, discoveredLinks 16:8, enabledLinks 24:8}`, from 570 on with the last
/// two: no capability without a link (`nvlinkCtrlCmdBusGetNvlinkCaps`, common_nvlinkapi.c).
fn put_link_caps(hardware: &Hardware, card: &SimCard, block: &mut [u8]) {
    /// `_SUPPORTED`, `_P2P_SUPPORTED`, `_SYSMEM_ACCESS` and `_P2P_ATOMICS` (ctrl2080nvlink.h).
    const CAPS: u32 = 0x0f;
    let ends = |link: &&crate::profile::NvLink| {
        link.from == card.index || link.to.is_some_and(|to| to == card.index)
    };
    let links = hardware.links.iter().filter(ends).count();
    let mask = (0..links).fold(0_u64, |mask, number| mask | 1 << number.min(63));
    block.fill(0);
    if links == 0 {
        return;
    }
    put_u32(block, 0, CAPS);
    let low = u32::try_from(mask & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    for at in [8, 12] {
        put_u32(block, at, low);
    }
    for at in [16, 24] {
        put_u64(block, at, mask);
    }
}
