//! Control calls: whose object, which command, how long; the answers about a card stand in `query`.

use std::sync::Arc;

use nvabi::bytes::{array_at, put, put_u32, put_u64, u8_at, u32_at};
use nvabi::class;
use nvabi::control::{self as ctl};
use nvabi::layout::{nvos54, zcull_bind};
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_OBJECT,
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND,
};

use super::objects::{Object, Resource};
use super::scheduler::{Call, SET_PREEMPTION_MODE, ask_group};
use super::{Context, Refusal, Segments, State, export, query, sharing};
use crate::card::SimCard;
use crate::fifo::Channel;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
pub(super) const UNSUPPORTED: Refusal = Refusal(NV_ERR_NOT_SUPPORTED);

/// The category and the number of a command (`NVXXXX_CTRL_CMD_NULL`, ctrlxxxx.h).
const NO_COMMAND: u32 = 0x3fff;
/// Raised IRQL and lock bypass.
const KERNEL_FLAGS: u32 = 0x3;
const LOCK_BYPASS: u32 = 0x2;

/// The parameters of a control, and the blocks that they point to.
pub(super) struct Params<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) lists: &'a mut [Vec<u8>],
}

pub(super) fn execute(
    state: &mut State,
    context: &Context<'_>,
    segments: &mut Segments,
) -> Result<(), Refusal> {
    let (arg, rest) = segments.split_first_mut().ok_or(INVALID)?;
    let word = |at| u32_at(arg, at).ok_or(INVALID);
    let (client, handle, cmd) = (
        word(nvos54::H_CLIENT)?,
        word(nvos54::H_OBJECT)?,
        word(nvos54::CMD)?,
    );
    let (said, flags) = (word(nvos54::PARAMS_SIZE)?, word(nvos54::FLAGS)?);
    // Nothing, of any class, whoever asks of whatever: what follows is asked in RM's order (`_rmapiRmControl`, rmapi/control.c).
    if cmd & NO_COMMAND == 0 {
        return Ok(());
    }
    match flags & KERNEL_FLAGS {
        0 => {}
        // One that can be made without locks is a kernel's to make so.
        LOCK_BYPASS if cmd == ctl::NV2080_CTRL_CMD_TIMER_GET_TIME => {
            return Err(Refusal(NV_ERR_INVALID_CLIENT));
        }
        _raised_or_locked => return Err(INVALID),
    }
    if flags & nvos54::FORBIDDEN_FLAGS != 0 {
        return Err(UNSUPPORTED);
    }
    if !state.clients.contains_key(&client) {
        return Err(Refusal(NV_ERR_INVALID_CLIENT));
    }
    let known = ctl::known(cmd, context.hardware.release);
    let is_right = known.is_none_or(|row| said == row.params_bytes);
    if !is_right || (said == 0) != rest.first().is_none_or(Vec::is_empty) {
        return Err(INVALID);
    }
    // The client that its parameters name is locked beside the caller's, and looked for before the object is
    // (`serverControlLookupSecondClient`, rmapi/rmapi_specific.c).
    let named = rest
        .first()
        .and_then(|params| u32_at(params, zcull_bind::H_CLIENT));
    if cmd == ctl::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND
        && named.is_some_and(|named| named != 0 && !state.clients.contains_key(&named))
    {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    }
    let object = state.object(context, client, handle)?;
    // Who may make a call is not asked: a broker has asked that of its tenant.
    let row = known.ok_or(UNSUPPORTED)?;
    let size = usize::try_from(row.params_bytes).map_err(|_wide| INVALID)?;
    let (first, lists) = match rest.split_first_mut() {
        Some((first, lists)) => (first.as_mut_slice(), lists),
        None => (&mut [][..], &mut [][..]),
    };
    let mut params = Params {
        bytes: first.get_mut(..size).ok_or(INVALID)?,
        lists,
    };
    if let Some(card) = &object.card {
        card.alive()?;
    }
    match (cmd >> 16, &object.resource) {
        (0x0000, Resource::Client) => of_client(state, context, client, cmd, &mut params),
        (0x0080, Resource::Device(_)) if cmd == ctl::NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST => {
            channel_list(state, context, client, &mut params)
        }
        (0x0080, Resource::Device(_)) => query::device(object, cmd, &mut params),
        (0x2080, Resource::Subdevice) => {
            let call = match (cmd, &object.card) {
                (ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, Some(card)) => {
                    let card = card.clone();
                    Some(Call::disable_channels(state, context, &card, params.bytes)?)
                }
                (SET_PREEMPTION_MODE, _) => {
                    Call::preemption_mode(state, context, client, params.bytes)?
                }
                (ctl::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, Some(card)) => {
                    let card = card.clone();
                    has_context(state, context, client, &card, params.bytes)?;
                    let object = state.object(context, client, handle)?;
                    return query::subdevice(context, object, cmd, &mut params);
                }
                _a_question => return query::subdevice(context, object, cmd, &mut params),
            };
            state.scheduler = call;
            Ok(())
        }
        (0x0041, Resource::Memory(..)) => Err(UNSUPPORTED),
        (0xa06c, Resource::ChannelGroup(group, _space)) => {
            match Call::of_group(group, cmd, params.bytes)? {
                Some(call) => {
                    state.scheduler = Some(call);
                    Ok(())
                }
                None => ask_group(group, cmd, params.bytes),
            }
        }
        (0xa06f | 0x906f | 0xc36f, Resource::Channel(channel)) => {
            let channel = channel.clone();
            of_channel(state, context, client, &channel, cmd, params.bytes)
        }
        (0xcb33, Resource::Plain) if object.class == class::NV_CONFIDENTIAL_COMPUTE => {
            query::confidential(cmd, &mut params)
        }
        // REGISTER_VA_SPACE {hVASpace 0, vaSpaceToken 8:8}: the token is the space's handle, and no third party asks by it
        // (`thirdpartyp2pCtrlCmdRegisterVaSpace_IMPL`, third_party_p2p_ctrl.c).
        (0x503c, Resource::Plain)
            if object.class == class::NV50_THIRD_PARTY_P2P
                && cmd == ctl::NV503C_CTRL_CMD_REGISTER_VA_SPACE =>
        {
            let space = u32_at(params.bytes, 0).ok_or(INVALID)?;
            state.object(context, client, space)?.space()?;
            put_u64(params.bytes, 8, u64::from(space));
            Ok(())
        }
        // MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK {eccMask 0, nvlinkMask 4}: of no virtual function.
        (0x90e6, Resource::Plain) if object.class == class::GF100_SUBDEVICE_MASTER => {
            params.bytes.fill(0);
            Ok(())
        }
        // REQUEST_DATA_POLL {polledDataMask 0:8}: nothing is polled (`gpushareddataCtrlCmdRequestDataPoll_IMPL`, gpu_user_shared_data.c).
        (0x00de, Resource::Memory(..)) if object.class == class::RM_USER_SHARED_DATA => {
            match array_at(params.bytes, 0).map(u64::from_le_bytes) {
                Some(0) => Ok(()),
                Some(_) | None => Err(UNSUPPORTED),
            }
        }
        (0x83de, Resource::Plain) if object.class == 0x83de => {
            of_debugger(state, context, client, cmd, params.bytes)
        }
        _not_a_command_of_the_object => Err(UNSUPPORTED),
    }
}

/// Whether there is a context whose size can be told: none is there before an object of the engine is made on a channel of the group. The main buffer or
/// the patch buffer is lacking then, and RM has no figure (`subdeviceCtrlCmdKGrGetCtxBufferSize_IMPL`, kernel_graphics.c;
/// `kgrctxGetCtxBuffers_IMPL`, kernel_graphics_context.c; `CliGetKernelChannel`, kernel_channel.c). {hChannel 0, totalBufferSize 8:8}
fn has_context(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    card: &Arc<SimCard>,
    params: &[u8],
) -> Result<(), Refusal> {
    let objects = &state.client(context, client)?.objects;
    let handle = u32_at(params, 0).ok_or(INVALID)?;
    let object = objects
        .get(&handle)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))?;
    let Resource::Channel(channel) = &object.resource else {
        return Err(Refusal(NV_ERR_INVALID_CHANNEL));
    };
    let group = channel.group();
    let has_context = objects.values().any(|it| {
        let on = objects.get(&it.parent).map(|on| &on.resource);
        class::row_of(it.class, context.hardware.release)
            .is_some_and(|row| row.kind == class::Kind::Graphics)
            && matches!(on, Some(Resource::Channel(on)) if Arc::ptr_eq(on.group(), group))
    });
    if has_context && Arc::ptr_eq(channel.card(), card) {
        Ok(())
    } else {
        Err(Refusal(NV_ERR_INVALID_OBJECT))
    }
}

/// The hardware's number of each channel of the client's; what is no channel of its is no error. {numChannels 0, pChannelHandleList 8:8,
/// pChannelList 16:8} (`deviceCtrlCmdFifoGetChannelList_IMPL`, kernel_fifo_ctrl.c).
fn channel_list(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    params: &mut Params<'_>,
) -> Result<(), Refusal> {
    /// `NV0080_CTRL_FIFO_GET_CHANNELLIST_INVALID_CHANNEL`
    const NO_CHANNEL: u32 = u32::MAX;
    // Without channels, or with one list that is NULL.
    let [handles, numbers] = &mut *params.lists else {
        return Err(INVALID);
    };
    let objects = &state.client(context, client)?.objects;
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

/// Commands that change nothing that is modelled: accepted as they are.
pub(super) fn accepted(cmd: u32) -> bool {
    matches!(
        cmd,
        0x0901 // SET_SUB_PROCESS_ID
            | ctl::NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID
            | 0x2080_0145 // GPU_ACQUIRE_COMPUTE_MODE_RESERVATION
            | 0x2080_0146 // GPU_RELEASE_COMPUTE_MODE_RESERVATION
            | 0x2080_0301 // EVENT_SET_NOTIFICATION
            | ctl::NV2080_CTRL_CMD_FB_FLUSH_GPU_CACHE
            | ctl::NV2080_CTRL_CMD_PERF_BOOST
            | 0x2080_220c // RC_RELEASE_WATCHDOG_REQUESTS
            | 0x2080_2210 // RC_SOFT_DISABLE_WATCHDOG
            | 0x83de_0307 // DEBUG_SET_MODE_MMU_DEBUG
            | 0x83de_0309 // DEBUG_SET_EXCEPTION_MASK
            | 0x83de_0310 // DEBUG_CLEAR_ALL_SM_ERROR_STATES
    )
}

fn of_client(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    cmd: u32,
    params: &mut Params<'_>,
) -> Result<(), Refusal> {
    if let Some(result) = export::control(state, context, client, cmd, params.bytes) {
        return result;
    }
    match cmd {
        ctl::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY => {
            sharing::inherit(state, client, params.bytes)
        }
        // {hObject 0, mapFlags 4, addrSpaceType 8}; 1 system memory, 2 framebuffer.
        0xd01 => {
            let object = state.object(context, client, u32_at(params.bytes, 0).ok_or(INVALID)?)?;
            // A card's objects have one too, which is not played.
            let Ok(memory) = object.memory() else {
                return Err(Refusal(NV_ERR_INVALID_OBJECT));
            };
            let kind = if memory.charge.is_some() { 2 } else { 1 };
            put_u32(params.bytes, 8, kind);
            Ok(())
        }
        _about_the_machine => query::machine(context, cmd, params),
    }
}

fn of_channel(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    channel: &Arc<Channel>,
    cmd: u32,
    params: &mut [u8],
) -> Result<(), Refusal> {
    channel.alive()?;
    match cmd {
        // NVA06F_CTRL_CMD_GPFIFO_SCHEDULE {bEnable 0}
        0xa06f_0103 => {
            let on = u8_at(params, 0) != Some(0);
            state.scheduler = Some(Call::ScheduleChannel(channel.clone(), on));
        }
        // GET_CLASS_ENGINEID {hObject 0, classEngineID 4, classID 8, engineID 12}. A client may write the answer into
        // SET_OBJECT, so it is the class number.
        0x906f_0101 | 0xc36f_0101 => {
            let class = state
                .object(context, client, u32_at(params, 0).ok_or(INVALID)?)?
                .class;
            put_u32(params, 4, class);
            put_u32(params, 8, class);
            put_u32(params, 12, class);
        }
        // NV906F_CTRL_CMD_RESET_CHANNEL
        0x906f_0102 => channel.reset(),
        // A guess: what has no doorbell has no token.
        ctl::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN
            if channel.card().profile.architecture.is_before_usermode() =>
        {
            return Err(UNSUPPORTED);
        }
        ctl::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN => {
            put_u32(params, 0, channel.id());
        }
        _other => return Err(UNSUPPORTED),
    }
    Ok(())
}

fn of_debugger(
    state: &mut State,
    context: &Context<'_>,
    client: u32,
    cmd: u32,
    params: &mut [u8],
) -> Result<(), Refusal> {
    let faults: Vec<u64> = state
        .client(context, client)?
        .objects
        .values()
        .filter_map(|Object { resource, .. }| match resource {
            Resource::Channel(channel) => channel.fault_address(),
            Resource::Client
            | Resource::Device(_)
            | Resource::Subdevice
            | Resource::Memory(..)
            | Resource::Virtual(_)
            | Resource::VaSpace(_)
            | Resource::ChannelGroup(..)
            | Resource::ContextShare(_)
            | Resource::Plain => None,
        })
        .collect();
    match cmd {
        // DEBUG_READ_ALL_SM_ERROR_STATES {hTargetChannel 0, numSMsToRead 4, states 8:4800, mmuFaultInfo 4808,
        // mmuFault.valid 4812:1}
        0x83de_030c => {
            let head: [u8; 8] = array_at(params, 0).ok_or(INVALID)?;
            params.fill(0);
            put(params, 0, &head);
            put(params, 4812, &[u8::from(!faults.is_empty())]);
            Ok(())
        }
        // DEBUG_READ_MMU_FAULT_INFO {{faultAddress 0:8, faultType 8, accessType 12}[4], count 64}
        0x83de_0328 => {
            params.fill(0);
            let mut count = 0;
            for (address, at) in faults.iter().zip([0, 16, 32, 48]) {
                put_u64(params, at, *address);
                count += 1;
            }
            put_u32(params, 64, count);
            Ok(())
        }
        _known if accepted(cmd) => Ok(()),
        _other => Err(UNSUPPORTED),
    }
}
