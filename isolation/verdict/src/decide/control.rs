//! Control calls.

use nvabi::bytes::u32_at;
use nvabi::control as ctl;
use nvabi::layout::{attached_ids, nvos54, p2p_caps, p2p_matrix};
use nvabi::{Release, status};

use super::{Effect, List, View, schedule, word};
use crate::{Op, Policy, Refusal, exports, share};

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
    match word(arg, nvos54::CMD)? {
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
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS | ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2 => {
            Ok(Effect::NamesCards {
                ids: ids(params, p2p_caps::IDS, p2p_caps::COUNT),
            })
        }
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX => {
            let [a, b] = p2p_matrix::GROUPS.map(|(at, count_at)| ids(params, at, count_at));
            Ok(Effect::NamesCards {
                ids: [a, b].concat(),
            })
        }
        ctl::NV2080_CTRL_CMD_GPU_GET_PIDS => Ok(Effect::View(View::Pids { object })),
        ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO => Ok(Effect::View(View::PidInfo { object })),
        ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 => {
            Ok(Effect::View(View::NoSamples))
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

/// A list of cards' ids; where it is longer than any that the driver takes, as many as could be.
fn ids(params: Option<&[u8]>, at: usize, count_at: usize) -> Vec<u32> {
    let params = params.unwrap_or_default();
    let count = u32_at(params, count_at).unwrap_or(0) as usize;
    let places = (at..).step_by(4).take(count.min(attached_ids::MOST));
    places.filter_map(|at| u32_at(params, at)).collect()
}
