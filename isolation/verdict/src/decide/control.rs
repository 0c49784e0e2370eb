//! Control calls.

use nvabi::control as ctl;
use nvabi::layout::nvos54;
use nvabi::{Release, status};

use super::{Effect, List, View, schedule, word};
use crate::{Op, Policy, Refusal, cards, exports, share};

/// Decides a control whose block has the right size: [`crate::blocks::params`] has refused every other.
pub(super) fn decide(
    op: &Op,
    arg: &[u8],
    params: Option<&[u8]>,
    release: Release,
    policy: &Policy,
) -> Result<Effect, Refusal> {
    let object = (word(arg, nvos54::H_CLIENT)?, word(arg, nvos54::H_OBJECT)?);
    let refused = || op.refuse(status::NV_ERR_NOT_SUPPORTED, release);
    let cmd = word(arg, nvos54::CMD)?;
    if let Some((ids, absent)) = cards::asked_about(cmd, params.unwrap_or_default(), release) {
        return Ok(Effect::NamesCards { ids, absent });
    }
    match cmd {
        ctl::NV2080_CTRL_CMD_FB_GET_INFO => Ok(Effect::View(View::FbInfo {
            object,
            list: List::POINTED_TO,
        })),
        ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2 => Ok(Effect::View(View::FbInfo {
            object,
            list: List::IN_PARAMETERS,
        })),
        ctl::NV2080_CTRL_CMD_GPU_GET_INFO => Ok(Effect::View(View::GpuInfo(List::POINTED_TO))),
        ctl::NV2080_CTRL_CMD_GPU_GET_INFO_V2 => {
            Ok(Effect::View(View::GpuInfo(List::IN_PARAMETERS)))
        }
        ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST => Ok(Effect::View(View::Classes(List::POINTED_TO))),
        ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 => {
            Ok(Effect::View(View::Classes(List::IN_PARAMETERS)))
        }
        ctl::NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO => Ok(Effect::View(View::FabricProbe)),
        ctl::NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO => Ok(Effect::View(View::FbRegions { object })),
        ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS | ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => {
            Ok(Effect::View(View::GpuIds))
        }
        ctl::NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS => Ok(Effect::View(View::ActiveDevices)),
        ctl::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS => Ok(Effect::View(View::DeviceMask)),
        ctl::NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO => Ok(Effect::View(View::BoostGroups)),
        ctl::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS => Ok(Effect::View(View::NvLinks)),
        ctl::NV2080_CTRL_CMD_GPU_GET_PIDS => Ok(Effect::View(View::Pids { object })),
        ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO => Ok(Effect::View(View::PidInfo { object })),
        ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 => {
            Ok(Effect::View(View::Samples { object }))
        }
        cmd @ (ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS
        | ctl::NVA06C_CTRL_CMD_SET_TIMESLICE
        | ctl::NVA06C_CTRL_CMD_GET_TIMESLICE
        | ctl::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
        | ctl::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE
        | ctl::NVA06C_CTRL_CMD_PREEMPT) => {
            schedule::decide(cmd, object, params.unwrap_or_default()).ok_or_else(refused)
        }
        cmd @ (ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO
        | ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD) => {
            exports::decide(cmd, object.0, params.unwrap_or_default())
                .map_err(|fault| fault.refusal(|status| op.refuse(status, release)))
        }
        cmd if ctl::CARD_WIDE.contains(&cmd) => Ok(Effect::Answered {
            object,
            class: cmd >> 16,
        }),
        ctl::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY => {
            share::decide(op, params.unwrap_or_default(), policy, release)
        }
        _ => Ok(Effect::None),
    }
}
