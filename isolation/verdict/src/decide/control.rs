//! Control calls.

use nvabi::bytes::u32_at;
use nvabi::control::{self as ctl, Decision};
use nvabi::layout::{bind, nvos54, partners, zcull_bind};
use nvabi::{Release, status};

use super::{Effect, Engines, List, Schedule, View, is_refused_engine, schedule, word};
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
    let refused = |status| op.refuse(status, release);
    let unsupported = || refused(status::NV_ERR_NOT_SUPPORTED);
    let cmd = word(arg, nvos54::CMD)?;
    let control = ctl::known(cmd, release)
        .filter(|control| control.needs.met_by(policy.capabilities))
        .ok_or_else(unsupported)?;
    let params = params.unwrap_or_default();
    let (policy, capabilities) = (*policy, policy.capabilities);
    let view = |view| Ok(Effect::View(view));
    let fb_info = |list| view(View::FbInfo { object, list });
    let classes = |list| view(View::Classes { list, policy });
    let engines = |list| view(View::Engines { list, capabilities });
    let scheduled =
        |schedule: Option<Schedule>| schedule.map(Effect::Schedule).ok_or_else(unsupported);
    let exported =
        |effect: Result<Effect, exports::Fault>| effect.map_err(|fault| fault.refusal(refused));
    if let Some((ids, absent)) = cards::cards_in_question(cmd, params, release) {
        return Ok(Effect::NamesCards { ids, absent });
    }
    match control.decision {
        Decision::Passed
        | Decision::NamesCards
        // Bounded before it is made ([`crate::schedule::bounds`]).
        | Decision::PreemptionMode
        // Learnt from once it is answered.
        | Decision::IdInfo
        | Decision::ContextBytes => Ok(Effect::None),
        Decision::Uncarried => Err(unsupported()),
        Decision::NotATenants(status) => Err(refused(status)),
        Decision::CardWide => Ok(Effect::Answered {
            object,
            class: cmd >> 16,
        }),
        Decision::FbInfo => fb_info(List::POINTED_TO),
        Decision::FbInfoV2 => fb_info(List::IN_PARAMETERS),
        Decision::GpuInfo => view(View::GpuInfo(List::POINTED_TO)),
        Decision::GpuInfoV2 => view(View::GpuInfo(List::IN_PARAMETERS)),
        Decision::ClassList => classes(List::POINTED_TO),
        Decision::ClassListV2 => classes(List::IN_PARAMETERS),
        Decision::Engines => engines(Engines::PointedTo),
        Decision::EnginesV2 => engines(Engines::InParameters {
            count_at: 0,
            at: 4,
        }),
        Decision::Partners => engines(Engines::InParameters {
            count_at: partners::COUNT,
            at: partners::LIST,
        }),
        Decision::BindEngine => match u32_at(params, bind::ENGINE_TYPE) {
            Some(engine) if !is_refused_engine(engine, capabilities) => Ok(Effect::None),
            Some(_) | None => Err(refused(status::NV_ERR_INVALID_ARGUMENT)),
        },
        Decision::FbRegions => view(View::FbRegions { object }),
        Decision::NoSessions => view(View::NothingThere(0)),
        // Empty places hold `NV0000_CTRL_GSYNC_INVALID_ID`.
        Decision::NoSyncBoards => view(View::NothingThere(u8::MAX)),
        Decision::ZcullBind => Ok(Effect::ChannelClients {
            clients: vec![word(params, zcull_bind::H_CLIENT)?],
        }),
        Decision::FabricProbe => view(View::FabricProbe),
        Decision::GpuIds => view(View::GpuIds),
        Decision::ActiveDevices => view(View::ActiveDevices),
        Decision::DeviceMask => view(View::DeviceMask),
        Decision::BoostGroups => view(View::BoostGroups),
        Decision::NvLinks => view(View::NvLinks),
        Decision::Pids => view(View::Pids { object }),
        Decision::PidInfo => view(View::PidInfo { object }),
        Decision::UtilSamples => view(View::Samples { object }),
        Decision::DisableChannels => scheduled(schedule::channels(params)),
        Decision::SetTimeslice => scheduled(schedule::set_timeslice(object, params)),
        Decision::GetTimeslice => scheduled(Some(schedule::get_timeslice(object))),
        Decision::Preempt => scheduled(Some(Schedule::Preempt)),
        Decision::Runlist => scheduled(schedule::runlist(object, params)),
        Decision::ExportObject => exported(exports::export_one(object.0, params)),
        Decision::ExportObjects => exported(exports::export_many(object.0, params)),
        Decision::ImportObject => exported(exports::import_one(object.0, params)),
        Decision::ImportObjects => exported(exports::import_many(object.0, params)),
        Decision::ExportInfo => exported(exports::info(params)),
        Decision::SharePolicy => share::decide(op, params, &policy, release),
    }
}
