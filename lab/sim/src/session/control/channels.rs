//! What clients ask of channels and their groups, and what they tell a card's scheduler.

use std::sync::Arc;

use nvabi::bytes::{put_u32, put_u64, u8_at, u32_at};
use nvabi::class;
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_OBJECT, NV_ERR_OBJECT_NOT_FOUND,
};

use super::super::alloc;
use super::super::objects::Resource;
use super::super::scheduler::Call;
use super::{Requested, UNSUPPORTED};
use crate::card::SimCard;
use crate::fifo::{Channel, Group};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);

/// `{bEnable 0:1}`
pub(super) fn schedule(
    channel: &Arc<Channel>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let on = u8_at(requested.params, 0) != Some(0);
    requested.state.scheduler = Some(Call::ScheduleChannel(channel.clone(), on));
    Ok(())
}

/// `{hObject 0, classEngineID 4, classID 8, engineID 12}`. A client may write the answer into SET_OBJECT, so it is the class number.
pub(super) fn class_engine_id(
    _channel: &Arc<Channel>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let handle = u32_at(requested.params, 0).ok_or(INVALID)?;
    let object = requested
        .state
        .object(requested.context, requested.client, handle)?;
    for at in [4, 8, 12] {
        put_u32(requested.params, at, object.class);
    }
    Ok(())
}

pub(super) fn reset(channel: &Arc<Channel>, _requested: &mut Requested<'_>) -> Result<(), Refusal> {
    channel.reset();
    Ok(())
}

/// A guess: what has no doorbell has no token.
pub(super) fn work_submit_token(
    channel: &Arc<Channel>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    if channel.card().profile.architecture.is_before_usermode() {
        return Err(UNSUPPORTED);
    }
    put_u32(requested.params, 0, channel.id());
    Ok(())
}

pub(super) fn schedule_group(
    group: &Arc<Group>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let on = u8_at(requested.params, 0) != Some(0);
    requested.state.scheduler = Some(Call::ScheduleGroup(group.clone(), on));
    Ok(())
}

pub(super) fn set_timeslice(
    group: &Arc<Group>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    requested.state.scheduler = Some(Call::timeslice(group, requested.params)?);
    Ok(())
}

pub(super) fn timeslice(group: &Arc<Group>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u64(requested.params, 0, group.timeslice());
    Ok(())
}

pub(super) fn set_interleave(
    group: &Arc<Group>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    requested.state.scheduler = Some(Call::interleave(group, requested.params)?);
    Ok(())
}

pub(super) fn preempt(group: &Arc<Group>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.state.scheduler = Some(Call::preempt(group, requested.params)?);
    Ok(())
}

pub(super) fn disable_channels(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let call = Call::disable_channels(requested.state, requested.context, card, requested.params)?;
    requested.state.scheduler = Some(call);
    Ok(())
}

pub(super) fn preemption_mode(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let call = Call::preemption_mode(
        requested.state,
        requested.context,
        requested.client,
        requested.params,
    )?;
    requested.state.scheduler = call;
    Ok(())
}

/// What a context takes, if there is one: none is there before an object of the engine is made on a channel of the group. The main buffer or
/// the patch buffer is lacking then, and RM has no figure (`subdeviceCtrlCmdKGrGetCtxBufferSize_IMPL`, kernel_graphics.c;
/// `kgrctxGetCtxBuffers_IMPL`, kernel_graphics_context.c; `CliGetKernelChannel`, kernel_channel.c). {hChannel 0, totalBufferSize 8:8}
pub(super) fn context_bytes(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let release = requested.context.hardware.release;
    let objects = &requested
        .state
        .client(requested.context, requested.client)?
        .objects;
    let handle = u32_at(requested.params, 0).ok_or(INVALID)?;
    let object = objects
        .get(&handle)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))?;
    let Resource::Channel(channel) = &object.resource else {
        return Err(Refusal(NV_ERR_INVALID_CHANNEL));
    };
    let group = channel.group();
    let has_context = objects.values().any(|it| {
        let on = objects.get(&it.parent).map(|on| &on.resource);
        class::row_of(it.class, release).is_some_and(|row| row.kind == class::Kind::Graphics)
            && matches!(on, Some(Resource::Channel(on)) if Arc::ptr_eq(on.group(), group))
    });
    if !has_context || !Arc::ptr_eq(channel.card(), card) {
        return Err(Refusal(NV_ERR_INVALID_OBJECT));
    }
    put_u64(
        requested.params,
        8,
        alloc::context_bytes(requested.context, card),
    );
    Ok(())
}
